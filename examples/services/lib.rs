//! Two services with a broker between them.
//!
//! ```text
//!  shop (Postgres)                       broker                     billing (SQLite)
//!  insert into placed ─┐                                        ┌─► insert into charge
//!  publish ────────────┴─ one commit ─► relay ─► … ─► source ─► inbox ─┴─ one commit
//! ```
//!
//! The shop writes an order and the message about it in one transaction. Its relay sends the message until the broker
//! has confirmed it, so it may be there twice. Billing stores what comes, drops copies by their id, and charges each
//! order in the transaction that also marks it as done. Kill either of them at any moment, as often as you like: each
//! order that the shop has committed is charged once. `tests.rs` does just that.
//!
//! To try it by hand, with servers of your own:
//!
//! ```sh
//! cargo run -p oncebox-services --bin billing -- rabbitmq amqp://localhost billing.db
//! cargo run -p oncebox-services --bin shop -- rabbitmq amqp://localhost postgres://localhost/shop 1000
//! ```
//!
//! Instead of `rabbitmq amqp://localhost` write `nats nats://localhost`, or `kafka localhost:9092` with `--features kafka`
//! (Kafka's client is in C and takes long to build). Start billing first: it makes the queue or the stream. Kafka's topic
//! `orders` you make yourself, with as many partitions as you like.
//!
//! Which broker it is hides behind [`Broker`]: a broker is the two functions that make its sink and its source. To add
//! one, implement it, and name it in [`with_broker!`].

use oncebox::{Error, Sink, Source};
use serde::{Deserialize, Serialize};

/// The name of the queue, topic or stream between the services, and of billing's source.
pub const ORDERS: &str = "orders";
/// The name under which billing reads, for brokers that want one.
#[cfg(any(feature = "kafka", feature = "nats"))]
const BILLING: &str = "billing";
/// The kind of the messages.
pub const ORDER_PLACED: &str = "order.placed";

/// What the services talk about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Counted from 1.
    pub number: i64,
    /// What it costs.
    pub cents: i64,
}

/// The two ends of a broker, for the messages of [`ORDERS`].
pub trait Broker {
    /// Where the shop sends to.
    type Sink: Sink;
    /// Where billing takes from.
    type Source: Source;

    /// The shop's end.
    fn sink(address: &str) -> Result<Self::Sink, Error>;

    /// Billing's end; creates the queue or the stream when it is not there.
    fn source(address: &str) -> Result<Self::Source, Error>;
}

/// A quorum queue, through the default exchange.
#[cfg(feature = "rabbitmq")]
#[derive(Debug)]
pub struct Rabbitmq;

#[cfg(feature = "rabbitmq")]
impl Broker for Rabbitmq {
    type Sink = oncebox::RabbitmqSink;
    type Source = oncebox::RabbitmqSource;

    fn sink(address: &str) -> Result<Self::Sink, Error> {
        use oncebox::rabbitmq::{RabbitmqSinkConfig, RoutingKey};
        // Until billing has created the queue, no message counts as sent.
        let routing_key = RoutingKey::Text(ORDERS.to_owned());
        oncebox::RabbitmqSink::new(RabbitmqSinkConfig::new(address).routing_key(routing_key))
    }

    fn source(address: &str) -> Result<Self::Source, Error> {
        use oncebox::rabbitmq::{QueueKind, RabbitmqSourceConfig};
        let config = RabbitmqSourceConfig::new(address, ORDERS).declare(QueueKind::Quorum);
        oncebox::RabbitmqSource::new(ORDERS, config)
    }
}

/// A stream with one subject, and a durable consumer for billing.
#[cfg(feature = "nats")]
#[derive(Debug)]
pub struct Nats;

#[cfg(feature = "nats")]
impl Broker for Nats {
    type Sink = oncebox::NatsSink;
    type Source = oncebox::NatsSource;

    fn sink(address: &str) -> Result<Self::Sink, Error> {
        // Until billing has created the stream, no message counts as sent.
        oncebox::NatsSink::new(oncebox::nats::NatsSinkConfig::new(address).subject(ORDERS).stream(ORDERS))
    }

    fn source(address: &str) -> Result<Self::Source, Error> {
        // What a killed billing held comes again after this; 30 s unless set.
        let config = oncebox::nats::NatsSourceConfig::new(address, ORDERS, BILLING)
            .create([ORDERS])
            .ack_wait(std::time::Duration::from_secs(3));
        oncebox::NatsSource::new(ORDERS, config)
    }
}

/// A topic, and a consumer group for billing. The topic must be there.
#[cfg(feature = "kafka")]
#[derive(Debug)]
pub struct Kafka;

#[cfg(feature = "kafka")]
impl Broker for Kafka {
    type Sink = oncebox::KafkaSink;
    type Source = oncebox::KafkaSource;

    fn sink(address: &str) -> Result<Self::Sink, Error> {
        oncebox::KafkaSink::new(oncebox::kafka::KafkaSinkConfig::new(address, ORDERS))
    }

    fn source(address: &str) -> Result<Self::Source, Error> {
        // Billing has one process, which comes back under its own name. A member that is killed and has none keeps its
        // partitions until the group has missed it for the session's time; six seconds is the shortest Kafka takes.
        let config = oncebox::kafka::KafkaSourceConfig::new(address, ORDERS)
            .group(BILLING)
            .property("group.instance.id", "billing-1")
            .property("session.timeout.ms", "6000")
            .property("heartbeat.interval.ms", "1000");
        oncebox::KafkaSource::new(ORDERS, config)
    }
}

/// Calls a function that is generic over [`Broker`] with the broker of this name.
///
/// Evaluates to an error when no broker of this name was compiled in.
#[macro_export]
macro_rules! with_broker {
    ($name:expr, $function:ident($($argument:expr),*)) => {
        match $name {
            #[cfg(feature = "rabbitmq")]
            "rabbitmq" => $function::<$crate::Rabbitmq>($($argument),*).await,
            #[cfg(feature = "nats")]
            "nats" => $function::<$crate::Nats>($($argument),*).await,
            #[cfg(feature = "kafka")]
            "kafka" => $function::<$crate::Kafka>($($argument),*).await,
            other => Err(format!("no broker `{other}`; compile with its feature").into()),
        }
    };
}
