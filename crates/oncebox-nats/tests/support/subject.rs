//! Two streams of a NATS server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::RetentionPolicy;
use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, KEY_HEADER, KIND_HEADER, Mapping};
use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig};
use oncebox_testkit::broker_suite::{Restart, SOURCE};
use oncebox_testkit::{BrokerFacts, BrokerSubject, until};
use xtask::nats::PrivateNats;
use xtask::server::StopMode;

use super::{Plain, fresh_number, own_server, shared_server};

/// The server finds `Nats-Msg-Id` only when written so, and then drops a second copy itself. A source finds it in any
/// case; so the suite writes it in another, and copies reach the source.
const ID_HEADER: &str = "nats-msg-id";

/// Reads from a stream that keeps acknowledged messages.
pub type Limits = NatsSubject<false>;
/// Reads from a stream that removes acknowledged messages.
pub type WorkQueue = NatsSubject<true>;

/// A stream with a consumer to read and a stream to write.
#[derive(Debug)]
pub struct NatsSubject<const WORK_QUEUE: bool> {
    // Ends when the last one who uses it is gone.
    _shared: Option<Arc<PrivateNats>>,
    own: Option<PrivateNats>,
    port: u16,
    pub plain: Plain,
    number: u64,
}

impl<const WORK_QUEUE: bool> NatsSubject<WORK_QUEUE> {
    async fn on(shared: Option<Arc<PrivateNats>>, own: Option<PrivateNats>) -> Self {
        let port =
            own.as_ref().map(PrivateNats::port).or(shared.as_ref().map(|server| server.port())).unwrap();
        let plain = Plain::connect(&format!("nats://127.0.0.1:{port}")).await;
        let subject = Self { _shared: shared, own, port, plain, number: fresh_number() };
        let (queue, destination) = (subject.queue(), subject.destination());
        let retention = if WORK_QUEUE { RetentionPolicy::WorkQueue } else { RetentionPolicy::Limits };
        subject.plain.create_stream(&queue, &format!("{queue}.>"), retention).await;
        subject.plain.create_stream(&destination, &format!("{destination}.>"), RetentionPolicy::Limits).await;
        let consumer = pull::Config {
            durable_name: Some("oncebox".to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(2),
            max_ack_pending: 4000,
            ..pull::Config::default()
        };
        subject.plain.create_consumer(&queue, consumer).await;
        subject
    }

    fn queue(&self) -> String {
        format!("queue-{}", self.number)
    }

    fn destination(&self) -> String {
        format!("destination-{}", self.number)
    }

    fn sink_under(&self, at: SocketAddr, prefix: &str) -> NatsSink {
        NatsSink::new(NatsSinkConfig::new(format!("nats://{at}")).prefix(prefix)).unwrap()
    }
}

impl<const WORK_QUEUE: bool> BrokerSubject for NatsSubject<WORK_QUEUE> {
    type Source = NatsSource;
    type Sink = NatsSink;

    const FACTS: BrokerFacts = BrokerFacts {
        ordered: true,
        longest_id: 1000,
        binary_ids: false,
        binary_headers: true,
        repeated_headers: true,
        largest_payload: 1024 * 1024,
        id_place: "header:Nats-Msg-Id",
        cloud_events_prefix: "ce-",
        tells_lag: true,
        finds_places: true,
        survives_crash: true,
        proxied: true,
        prefetch: 2000,
    };

    async fn create() -> Option<Self> {
        Some(Self::on(Some(shared_server().await?), None).await)
    }

    async fn create_alone() -> Option<Self> {
        Some(Self::on(None, Some(own_server(PrivateNats::start).await?)).await)
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> NatsSource {
        let mut config = NatsSourceConfig::new(format!("nats://{at}"), self.queue(), "oncebox")
            .return_delay(Duration::from_millis(100))
            .prefetch(2000);
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        NatsSource::new(SOURCE, config).unwrap()
    }

    fn sink(&self, at: SocketAddr) -> NatsSink {
        self.sink_under(at, &self.destination())
    }

    fn sink_to_queue(&self, at: SocketAddr) -> NatsSink {
        self.sink_under(at, &self.queue())
    }

    fn sink_to_nowhere(&self, at: SocketAddr) -> Option<NatsSink> {
        Some(self.sink_under(at, "nowhere"))
    }

    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
        let mut headers = message.headers.clone();
        if let Some(id) = id {
            headers.push(ID_HEADER, id.to_vec());
        }
        headers.push(KIND_HEADER, message.kind.clone());
        if let Some(key) = &message.key {
            headers.push(KEY_HEADER, key.clone());
        }
        Delivered { headers, payload: message.payload.clone(), ..Delivered::default() }
    }

    async fn put(&self, deliveries: &[Delivered]) {
        for delivered in deliveries {
            let mut headers = HeaderMap::new();
            for (name, value) in delivered.headers.iter() {
                let value: HeaderValue = std::str::from_utf8(value).unwrap().parse().unwrap();
                headers.append(name.parse::<HeaderName>().unwrap(), value);
            }
            let route = if delivered.route.is_empty() { "put" } else { &delivered.route };
            let subject = format!("{}.{route}", self.queue());
            until("it is published", || async {
                self.plain.publish(subject.clone(), headers.clone(), delivered.payload.clone()).await.is_ok()
            })
            .await;
        }
    }

    fn route(&self) -> String {
        format!("{}.put", self.queue())
    }

    async fn taken(&self) -> Vec<Message> {
        let Ok(messages) = self.plain.messages(&self.destination()).await else { return Vec::new() };
        let read = |taken: async_nats::jetstream::Message| {
            let taken = taken.message;
            let all = taken.headers.unwrap();
            let part = |name: &str| all.get(name).map(|value| value.as_str().to_owned());
            let kind = part(KIND_HEADER).unwrap_or_else(|| taken.subject.to_string());
            let mut message = Message::with_id(part("Nats-Msg-Id").unwrap(), kind, taken.payload);
            message.key = part(KEY_HEADER);
            for (name, values) in all.iter() {
                for value in values {
                    message.headers.push(name.to_string(), value.as_str().to_owned());
                }
            }
            message
        };
        messages.into_iter().map(read).collect()
    }

    async fn pending(&self) -> Option<u64> {
        let info = self.plain.consumer(&self.queue(), "oncebox").await.unwrap();
        Some(info.num_pending + info.num_ack_pending as u64)
    }

    async fn unacknowledged(&self) -> Option<u64> {
        let info = self.plain.consumer(&self.queue(), "oncebox").await.unwrap();
        Some(info.num_ack_pending as u64)
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
