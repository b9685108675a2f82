//! Two streams of a Redis server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_redis::{RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig};
use oncebox_testkit::broker_suite::{Restart, SOURCE};
use oncebox_testkit::{BrokerFacts, BrokerSubject, until};
use xtask::redis::PrivateRedis;
use xtask::server::StopMode;

use super::{Plain, fresh_name, own_server, shared_server};

const GROUP: &str = "oncebox";

/// A stream with a group to read and a stream to write.
#[derive(Debug)]
pub struct RedisSubject {
    // Ends when the last one who uses it is gone.
    _shared: Option<Arc<PrivateRedis>>,
    own: Option<PrivateRedis>,
    port: u16,
    plain: Plain,
    queue: String,
    destination: String,
}

impl RedisSubject {
    async fn on(shared: Option<Arc<PrivateRedis>>, own: Option<PrivateRedis>) -> Self {
        let port =
            own.as_ref().map(PrivateRedis::port).or(shared.as_ref().map(|server| server.port())).unwrap();
        let plain = Plain::new(&format!("redis://127.0.0.1:{port}"));
        let (queue, destination) = (fresh_name("queue"), fresh_name("destination"));
        plain.say(&["XGROUP", "CREATE", &queue, GROUP, "0", "MKSTREAM"]).await;
        Self { _shared: shared, own, port, plain, queue, destination }
    }

    fn sink_for(at: SocketAddr, stream: &str) -> RedisSink {
        RedisSink::new(RedisSinkConfig::new(format!("redis://{at}"), stream)).unwrap()
    }
}

impl BrokerSubject for RedisSubject {
    type Source = RedisSource;
    type Sink = RedisSink;

    const FACTS: BrokerFacts = BrokerFacts {
        ordered: true,
        longest_id: 100_000,
        binary_ids: true,
        binary_headers: true,
        repeated_headers: true,
        largest_payload: 16 * 1024 * 1024,
        id_place: "property:id",
        cloud_events_prefix: "ce-",
        tells_lag: true,
        finds_places: true,
        survives_crash: true,
        proxied: true,
        prefetch: 1000,
    };

    async fn create() -> Option<Self> {
        Some(Self::on(Some(shared_server().await?), None).await)
    }

    async fn create_alone() -> Option<Self> {
        Some(Self::on(None, Some(own_server(PrivateRedis::start).await?)).await)
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> RedisSource {
        let mut config = RedisSourceConfig::new(format!("redis://{at}"), &self.queue, GROUP)
            .claim_after(Duration::from_secs(2));
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        RedisSource::new(SOURCE, config).unwrap()
    }

    fn sink(&self, at: SocketAddr) -> RedisSink {
        Self::sink_for(at, &self.destination)
    }

    fn sink_to_queue(&self, at: SocketAddr) -> RedisSink {
        Self::sink_for(at, &self.queue)
    }

    fn sink_to_nowhere(&self, at: SocketAddr) -> Option<RedisSink> {
        let config = RedisSinkConfig::new(format!("redis://{at}"), fresh_name("nowhere"));
        Some(RedisSink::new(config.only_existing()).unwrap())
    }

    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
        let mut properties = vec![("kind", message.kind.clone().into())];
        if let Some(id) = id {
            properties.push(("id", id.to_vec().into()));
        }
        if let Some(key) = &message.key {
            properties.push(("key", key.clone().into()));
        }
        let (headers, payload) = (message.headers.clone(), message.payload.clone());
        Delivered { properties, headers, payload, ..Delivered::default() }
    }

    async fn put(&self, deliveries: &[Delivered]) {
        for delivered in deliveries {
            let headers: Vec<(Vec<u8>, &[u8])> = delivered
                .headers
                .iter()
                .map(|(name, value)| (format!("header:{name}").into_bytes(), &value[..]))
                .collect();
            let mut fields: Vec<(&[u8], &[u8])> = vec![(b"payload", &delivered.payload)];
            fields.extend(delivered.properties.iter().map(|(name, value)| (name.as_bytes(), &value[..])));
            fields.extend(headers.iter().map(|(name, value)| (&name[..], *value)));
            until("it is added", || async { self.plain.add(&self.queue, &fields).await.is_ok() }).await;
        }
    }

    fn route(&self) -> String {
        self.queue.clone()
    }

    async fn taken(&self) -> Vec<Message> {
        let entries = self.plain.entries(&self.destination).await.unwrap_or_default();
        let read = |fields: super::plain::Fields| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let field =
                |name: &str| fields.iter().find(|(own, _)| own == name.as_bytes()).map(|(_, value)| value);
            let part = |name: &str| field(name).map(|value| text(value));
            let payload = field("payload").unwrap().clone();
            let mut message = Message::with_id(part("id").unwrap(), part("kind").unwrap(), payload);
            message.key = part("key");
            for (name, value) in &fields {
                if let Some(name) = name.strip_prefix(b"header:") {
                    message.headers.push(text(name), value.clone());
                }
            }
            message
        };
        entries.into_iter().map(read).collect()
    }

    async fn pending(&self) -> Option<u64> {
        let lag = self.plain.of_group(&self.queue, GROUP, "lag").await;
        Some(lag + self.unacknowledged().await?)
    }

    async fn unacknowledged(&self) -> Option<u64> {
        Some(self.plain.of_group(&self.queue, GROUP, "pending").await)
    }

    async fn restart(&mut self, how: Restart) {
        let mode = match how {
            Restart::Graceful => StopMode::Fast,
            Restart::Crash => StopMode::Immediate,
        };
        let mut server = self.own.take().unwrap();
        let restart = move || {
            server.restart(mode).unwrap();
            server
        };
        self.own = Some(tokio::task::spawn_blocking(restart).await.unwrap());
    }
}
