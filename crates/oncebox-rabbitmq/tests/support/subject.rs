//! RabbitMQ as the broker suite sees it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lapin::types::AMQPValue;
use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, ID_HEADER, KEY_HEADER, Mapping};
use oncebox_rabbitmq::{RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig, RoutingKey};
use oncebox_testkit::broker_suite::{BrokerFacts, BrokerSubject, Restart, SOURCE};
use tokio::sync::Mutex;
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::server::StopMode;

use super::plain::{Plain, properties};
use super::{fresh_name, own_server, shared_server};

const HEARTBEAT: Duration = Duration::from_secs(2);

/// With classic queues.
pub type Classic = RabbitmqSubject<false>;
/// With quorum queues.
pub type Quorum = RabbitmqSubject<true>;

/// A queue and a destination, which is a queue too, of their own.
pub struct RabbitmqSubject<const QUORUM: bool> {
    server: Server,
    port: u16,
    queue: String,
    destination: String,
    taken: Mutex<Vec<Message>>,
}

enum Server {
    Shared(Arc<PrivateRabbitmq>),
    Own(Box<Option<PrivateRabbitmq>>),
}

impl<const QUORUM: bool> RabbitmqSubject<QUORUM> {
    async fn on(server: Server, port: u16) -> Self {
        let (queue, destination) = (fresh_name("queue"), fresh_name("destination"));
        let subject = Self { server, port, queue, destination, taken: Mutex::default() };
        let plain = subject.plain().await.unwrap();
        let kind = if QUORUM { "quorum" } else { "classic" };
        for queue in [&subject.queue, &subject.destination] {
            plain.create_queue(queue, &[("x-queue-type", AMQPValue::LongString(kind.into()))]).await;
        }
        subject
    }

    async fn plain(&self) -> lapin::Result<Plain> {
        Plain::connect(&url(self.address())).await
    }

    fn sink_to(&self, at: SocketAddr, queue: &str) -> RabbitmqSink {
        let config = RabbitmqSinkConfig::new(url(at))
            .routing_key(RoutingKey::Text(queue.to_owned()))
            .heartbeat(HEARTBEAT);
        RabbitmqSink::new(config).unwrap()
    }

    async fn put_again(&self, deliveries: &[Delivered], first: &mut usize) -> lapin::Result<()> {
        let plain = self.plain().await?;
        while let Some(delivered) = deliveries.get(*first) {
            plain.publish("", &self.queue, properties(delivered), &delivered.payload).await?;
            *first += 1;
        }
        Ok(())
    }

    /// Moves what has come to the destination out of it.
    async fn collect(&self, taken: &mut Vec<Message>) -> lapin::Result<()> {
        let plain = self.plain().await?;
        while let Some(delivery) = plain.take(&self.destination).await? {
            taken.push(read(delivery));
        }
        Ok(())
    }

    /// How many messages our queue holds, and how many of them are delivered.
    async fn counts(&self) -> Option<(u64, u64)> {
        let Server::Shared(server) = &self.server else { return None };
        let (server, queue) = (server.clone(), self.queue.clone());
        let ask = if QUORUM { quorum_counts } else { classic_counts };
        Some(tokio::task::spawn_blocking(move || ask(&server, &queue)).await.unwrap())
    }
}

fn classic_counts(server: &PrivateRabbitmq, queue: &str) -> (u64, u64) {
    let columns = ["name", "messages", "messages_unacknowledged"];
    let listing = server.control(&[&["list_queues", "--silent"], &columns[..]].concat()).unwrap();
    let line = listing.lines().find_map(|line| line.strip_prefix(&format!("{queue}\t"))).unwrap();
    two_numbers(line.split('\t'))
}

/// The listing says of a quorum queue what was true seconds ago, so its leader is asked.
fn quorum_counts(server: &PrivateRabbitmq, queue: &str) -> (u64, u64) {
    let expression = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
         {{ok, O, _}} = ra:consistent_query(amqqueue:get_pid(Q), fun rabbit_fifo:overview/1), \
         {{maps:get(num_messages, O), maps:get(num_checked_out, O)}}."
    );
    let answer = server.control(&["eval", &expression]).unwrap();
    two_numbers(answer.trim().trim_matches(['{', '}']).split(','))
}

fn two_numbers<'a>(words: impl Iterator<Item = &'a str>) -> (u64, u64) {
    let numbers: Vec<u64> = words.map(|word| word.trim().parse().unwrap()).collect();
    (numbers[0], numbers[1])
}

fn url(at: SocketAddr) -> String {
    format!("amqp://guest:guest@{at}")
}

/// Reads a message without the code under test.
fn read(delivery: lapin::message::Delivery) -> Message {
    let properties = delivery.properties;
    let mut message = Message::new(properties.kind().as_ref().unwrap().as_str(), delivery.data);
    message.id = properties.message_id().as_ref().unwrap().as_str().to_owned();
    for (name, value) in properties.headers().iter().flatten() {
        // Quorum queues add it to everything they deliver.
        if name.as_str() == "x-delivery-count" {
            continue;
        }
        let value = value.as_long_string().unwrap().as_bytes().to_vec();
        match name.as_str() {
            KEY_HEADER => message.key = Some(String::from_utf8(value).unwrap()),
            name => message.headers.push(name, value),
        }
    }
    message
}

impl<const QUORUM: bool> BrokerSubject for RabbitmqSubject<QUORUM> {
    type Source = RabbitmqSource;
    type Sink = RabbitmqSink;

    const FACTS: BrokerFacts = BrokerFacts {
        ordered: true,
        longest_id: 65_535,
        binary_ids: false,
        binary_headers: true,
        repeated_headers: true,
        largest_payload: 1024 * 1024,
        id_place: "property:message-id",
        cloud_events_prefix: "cloudEvents:",
        tells_lag: true,
        finds_places: true,
        survives_crash: true,
        proxied: true,
        prefetch: 2000,
    };

    async fn create() -> Option<Self> {
        let server = shared_server().await?;
        let port = server.port();
        Some(Self::on(Server::Shared(server), port).await)
    }

    async fn create_alone() -> Option<Self> {
        let server = own_server("").await?;
        let port = server.port();
        Some(Self::on(Server::Own(Box::new(Some(server))), port).await)
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> RabbitmqSource {
        let mut config = RabbitmqSourceConfig::new(url(at), &self.queue)
            .heartbeat(HEARTBEAT)
            .return_after(Duration::from_millis(100));
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        RabbitmqSource::new(SOURCE, config).unwrap()
    }

    fn sink(&self, at: SocketAddr) -> RabbitmqSink {
        self.sink_to(at, &self.destination)
    }

    fn sink_to_queue(&self, at: SocketAddr) -> RabbitmqSink {
        self.sink_to(at, &self.queue)
    }

    fn sink_to_nowhere(&self, at: SocketAddr) -> Option<RabbitmqSink> {
        Some(self.sink_to(at, "nowhere"))
    }

    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
        let mut delivered = Delivered {
            properties: vec![("type", message.kind.clone().into())],
            headers: message.headers.clone(),
            payload: message.payload.clone(),
            ..Delivered::default()
        };
        match id {
            Some(id) if id.len() > 255 => delivered.headers.push(ID_HEADER, id.to_vec()),
            Some(id) => delivered.properties.push(("message-id", id.to_vec().into())),
            None => {}
        }
        if let Some(key) = &message.key {
            delivered.headers.push(KEY_HEADER, key.clone());
        }
        delivered
    }

    async fn put(&self, deliveries: &[Delivered]) {
        let mut first = 0;
        while self.put_again(deliveries, &mut first).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn route(&self) -> String {
        self.queue.clone()
    }

    async fn taken(&self) -> Vec<Message> {
        let mut taken = self.taken.lock().await;
        while self.collect(&mut taken).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        taken.clone()
    }

    async fn pending(&self) -> Option<u64> {
        Some(self.counts().await?.0)
    }

    async fn unacknowledged(&self) -> Option<u64> {
        Some(self.counts().await?.1)
    }

    async fn restart(&mut self, how: Restart) {
        let Server::Own(server) = &mut self.server else { panic!("others use this server") };
        let mut own = server.take().unwrap();
        let restarted = tokio::task::spawn_blocking(move || {
            let mode = match how {
                Restart::Graceful => StopMode::Fast,
                Restart::Crash => StopMode::Immediate,
            };
            own.restart(mode).unwrap();
            own
        });
        **server = Some(restarted.await.unwrap());
    }
}
