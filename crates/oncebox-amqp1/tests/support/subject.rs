//! Two queues of their own on RabbitMQ, reached by AMQP 1.0.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig};
use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_testkit::broker_suite::{BrokerFacts, BrokerSubject, Restart, SOURCE};
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::server::StopMode;

use super::plain::{Observer, create_queue, delivery, message_for, message_of, payload, send};

const PREFETCH: u32 = 200;
const MARKER: &str = "marker of the tests";

pub(crate) struct Amqp1Subject {
    name: String,
    port: u16,
    observer: Observer,
    own: Mutex<Option<PrivateRabbitmq>>,
}

/// The server that the tests of this process share; `None`, with the reason printed, when there is none.
pub(crate) fn server() -> Option<&'static PrivateRabbitmq> {
    static SERVER: OnceLock<Option<PrivateRabbitmq>> = OnceLock::new();
    SERVER.get_or_init(start).as_ref()
}

fn start() -> Option<PrivateRabbitmq> {
    // The server gives up a connection on which nothing comes for twice this many seconds.
    xtask::server::if_installed(
        PrivateRabbitmq::start_with("heartbeat = 3\n"),
        xtask::steps::BROKERS_VARIABLE,
    )
}

/// A name that no other test has.
pub(crate) fn fresh_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst))
}

impl Amqp1Subject {
    async fn on(port: u16, own: Option<PrivateRabbitmq>) -> Self {
        let name = fresh_name();
        for queue in ["queue", "sent"] {
            create_queue(port, &format!("{name}.{queue}")).await;
        }
        let observer = Observer::start(port, format!("/amq/queue/{name}.sent"));
        Self { name, port, observer, own: Mutex::new(own) }
    }

    fn queue(&self, which: &str) -> String {
        format!("/amq/queue/{}.{which}", self.name)
    }

    fn sink_on(&self, at: SocketAddr, address: String) -> Amqp1Sink {
        let config = Amqp1SinkConfig::new(format!("amqp://guest:guest@{at}"), address);
        Amqp1Sink::new(config.idle_timeout(Duration::from_secs(4))).unwrap()
    }

    async fn send(&self, which: &str, deliveries: &[Delivered]) {
        let messages: Vec<_> = deliveries.iter().map(message_for).collect();
        let mut tries = 0;
        while let Err(error) = send(self.port, &self.queue(which), &messages).await {
            tries += 1;
            assert!(tries < 600, "the server stays away: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl BrokerSubject for Amqp1Subject {
    type Source = Amqp1Source;
    type Sink = Amqp1Sink;

    const FACTS: BrokerFacts = BrokerFacts {
        ordered: true,
        longest_id: 65_535,
        binary_ids: true,
        binary_headers: true,
        // Application properties are a map.
        repeated_headers: false,
        largest_payload: 1_000_000,
        id_place: "property:message-id",
        cloud_events_prefix: "cloudEvents:",
        tells_lag: false,
        finds_places: false,
        survives_crash: true,
        proxied: true,
        prefetch: PREFETCH as u64,
    };

    async fn create() -> Option<Self> {
        let port = tokio::task::spawn_blocking(|| server().map(PrivateRabbitmq::port)).await.unwrap()?;
        Some(Self::on(port, None).await)
    }

    async fn create_alone() -> Option<Self> {
        let server = tokio::task::spawn_blocking(start).await.unwrap()?;
        Some(Self::on(server.port(), Some(server)).await)
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> Amqp1Source {
        let mut config = Amqp1SourceConfig::new(format!("amqp://guest:guest@{at}"), self.queue("queue"))
            .prefetch(PREFETCH)
            .idle_timeout(Duration::from_secs(4));
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        Amqp1Source::new(SOURCE, config).unwrap()
    }

    fn sink(&self, at: SocketAddr) -> Amqp1Sink {
        self.sink_on(at, self.queue("sent"))
    }

    fn sink_to_queue(&self, at: SocketAddr) -> Amqp1Sink {
        self.sink_on(at, self.queue("queue"))
    }

    /// RabbitMQ 3 accepts what no queue takes, so nobody can tell; RabbitMQ 4 releases it.
    fn sink_to_nowhere(&self, _at: SocketAddr) -> Option<Amqp1Sink> {
        None
    }

    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
        delivery(message, id)
    }

    async fn put(&self, deliveries: &[Delivered]) {
        self.send("queue", deliveries).await;
    }

    fn route(&self) -> String {
        self.queue("queue")
    }

    async fn taken(&self) -> Vec<Message> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // When it has come round, so has everything before it.
        let marker = format!("{MARKER} {}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let packet = Delivered { payload: marker.clone().into(), ..Delivered::default() };
        self.send("sent", &[packet]).await;
        let is_marker = |got: &_| payload(got) == marker.as_bytes();
        oncebox_testkit::until("the marker has come round", || async {
            self.observer.got().iter().any(is_marker)
        })
        .await;
        let mut got = self.observer.got();
        let end = got.iter().position(is_marker).unwrap();
        got.truncate(end);
        got.retain(|got| !payload(got).starts_with(MARKER.as_bytes()));
        got.iter().map(message_of).collect()
    }

    async fn pending(&self) -> Option<u64> {
        None
    }

    async fn unacknowledged(&self) -> Option<u64> {
        None
    }

    async fn restart(&mut self, how: Restart) {
        let mode = match how {
            Restart::Graceful => StopMode::Fast,
            Restart::Crash => StopMode::Immediate,
        };
        let mut server = self.own.lock().unwrap().take().unwrap();
        let server = tokio::task::spawn_blocking(move || {
            server.restart(mode).unwrap();
            server
        });
        *self.own.lock().unwrap() = Some(server.await.unwrap());
    }
}
