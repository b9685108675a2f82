//! Kafka as the broker suite sees it: once on the mock cluster, once on Tansu.

use std::net::SocketAddr;

use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use oncebox_testkit::broker_suite::{Restart, SOURCE};
use oncebox_testkit::{BrokerFacts, BrokerSubject};
use xtask::server::StopMode;

use super::client::{self, Plain};
use super::left::LeftWhenDropped;
use super::mock::Mock;
use super::tansu::{self, Tansu, fresh};

const PARTITIONS: i32 = 3;
/// No topic has this name.
const NOWHERE: &str = "nowhere";

const FACTS: BrokerFacts = BrokerFacts {
    ordered: true,
    longest_id: 10_000,
    binary_ids: true,
    binary_headers: true,
    repeated_headers: true,
    largest_payload: 900_000,
    id_place: "header:message-id",
    cloud_events_prefix: "ce_",
    tells_lag: true,
    finds_places: true,
    survives_crash: true,
    // Clients learn the brokers' own addresses from the first one they reach, so a proxy is passed by. What the suite
    // does with one is done in `tests/outages.rs`, with a server that advertises the proxy's address, or with the mock.
    proxied: false,
    prefetch: 2000,
};

/// A topic to read, a topic to write, and a group.
struct Place {
    servers: String,
    queue: String,
    destination: String,
    group: String,
    plain: Plain,
}

impl Place {
    fn new(servers: &str) -> Self {
        Self {
            servers: servers.to_owned(),
            queue: fresh("queue"),
            destination: fresh("destination"),
            group: fresh("group"),
            plain: Plain::new(servers),
        }
    }

    fn source(&self, session: &str, mapping: Option<Mapping>) -> KafkaSource {
        let mut config = KafkaSourceConfig::new(&self.servers, &self.queue)
            .group(&self.group)
            .property("session.timeout.ms", session)
            .property("heartbeat.interval.ms", "200")
            .property("fetch.wait.max.ms", "100")
            .property("socket.timeout.ms", "2000")
            .property("reconnect.backoff.max.ms", "500");
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        KafkaSource::new(SOURCE, config).unwrap()
    }

    fn sink(&self, topic: &str) -> KafkaSink {
        let config = KafkaSinkConfig::new(&self.servers, topic)
            .property("message.timeout.ms", "4000")
            .property("socket.timeout.ms", "2000")
            .property("reconnect.backoff.max.ms", "500")
            .property("topic.metadata.propagation.max.ms", "1000")
            .property("linger.ms", "0");
        KafkaSink::new(config).unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.servers.parse().unwrap()
    }
}

/// What is the same on both servers.
macro_rules! common {
    ($source:ty) => {
        type Source = $source;
        type Sink = KafkaSink;

        const FACTS: BrokerFacts = FACTS;

        fn address(&self) -> SocketAddr {
            self.place.address()
        }

        fn source(&self, _: SocketAddr, mapping: Option<Mapping>) -> $source {
            self.place.source(Self::SESSION, mapping).into()
        }

        fn sink(&self, _: SocketAddr) -> KafkaSink {
            self.place.sink(&self.place.destination)
        }

        fn sink_to_queue(&self, _: SocketAddr) -> KafkaSink {
            self.place.sink(&self.place.queue)
        }

        fn sink_to_nowhere(&self, _: SocketAddr) -> Option<KafkaSink> {
            Some(self.place.sink(NOWHERE))
        }

        fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
            client::delivery(message, id)
        }

        async fn put(&self, deliveries: &[Delivered]) {
            self.place.plain.put(&self.place.queue, None, deliveries).await;
        }

        fn route(&self) -> String {
            self.place.queue.clone()
        }

        async fn taken(&self) -> Vec<Message> {
            self.place.plain.taken(&self.place.destination)
        }

        async fn pending(&self) -> Option<u64> {
            // While the server is away nobody knows, and everything may still be there.
            let pending = self.place.plain.pending(&self.place.group, &self.place.queue, PARTITIONS);
            Some(pending.unwrap_or(u64::MAX))
        }

        /// Kafka does not know what was delivered, only what was committed.
        async fn unacknowledged(&self) -> Option<u64> {
            None
        }
    };
}

/// On the mock cluster.
pub(crate) struct MockSubject {
    mock: Mock,
    place: Place,
}

impl MockSubject {
    /// Milliseconds. It waits one second less than this for the members of a group to come back.
    const SESSION: &str = "3000";
}

impl BrokerSubject for MockSubject {
    common!(KafkaSource);

    // Who joins waits two seconds after another one has left. A shorter session ends while the first member of a group
    // waits for others, which takes three, as on Kafka itself, and cannot be set from Rust.
    const STOPS: usize = 12;

    async fn create() -> Option<Self> {
        let mock = Mock::start();
        let place = Place::new(&mock.servers);
        mock.create_topic(&place.queue, PARTITIONS);
        mock.create_topic(&place.destination, 1);
        mock.deny_topic(NOWHERE);
        Some(Self { mock, place })
    }

    async fn create_alone() -> Option<Self> {
        Self::create().await
    }

    /// It cannot really die; what clients see is that every connection breaks and none is made for a while.
    async fn restart(&mut self, _: Restart) {
        self.mock.down();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        self.mock.up();
    }
}

/// On Tansu.
pub(crate) struct TansuSubject {
    tansu: Tansu,
    place: Place,
}

impl TansuSubject {
    const SESSION: &str = "6000";

    fn on(tansu: Tansu) -> Self {
        let server = tansu.server();
        let place = Place::new(&server.url());
        server.create_topic(&place.queue, PARTITIONS as u32).unwrap();
        server.create_topic(&place.destination, 1).unwrap();
        Self { tansu, place }
    }
}

impl BrokerSubject for TansuSubject {
    common!(LeftWhenDropped);

    async fn create() -> Option<Self> {
        tokio::task::block_in_place(|| Some(Self::on(Tansu::Shared(tansu::tansu()?))))
    }

    async fn create_alone() -> Option<Self> {
        tokio::task::block_in_place(|| Some(Self::on(Tansu::Own(tansu::start()?))))
    }

    async fn restart(&mut self, how: Restart) {
        let Tansu::Own(server) = &mut self.tansu else { panic!("only a server of its own is restarted") };
        let mode = match how {
            Restart::Graceful => StopMode::Fast,
            Restart::Crash => StopMode::Immediate,
        };
        tokio::task::block_in_place(|| server.restart(mode)).unwrap();
    }
}
