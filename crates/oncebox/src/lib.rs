#![doc = include_str!("../../../README.md")]
//!
//! # The crate's parts
//!
//! - An [`Inbox`] holds the handlers; [`handler`] names an async function as one; [`run`] works in the background.
//! - [`Json`], [`Message`], [`Batch`], [`State`], [`Attempt`] and the store's transaction are handler arguments.
//! - [`Failure`] is what a handler returns; [`Error`] is the library's own.
//! - [`Source`] and [`Sink`] connect brokers; [`Relay`] has the settings of an outbox relay.
//! - `SqliteStore` (feature `sqlite`, on by default), `PgStore` (feature `postgres`) and `MariaStore` (feature
//!   `mariadb`) are the stores.
//! - A broker has two ends, and its module their settings: `RabbitmqSource` and `RabbitmqSink` (feature `rabbitmq`),
//!   `KafkaSource` and `KafkaSink` (`kafka`), `NatsSource` and `NatsSink` (`nats`), `RedisSource` and `RedisSink`
//!   (`redis`), `MqttSource` and `MqttSink` (`mqtt`), `Amqp1Source` and `Amqp1Sink` (`amqp1`).
//! - `http::Idempotency` (feature `http`) is a layer for axum that makes a POST with an `Idempotency-Key` count once.
//! - [`admin`] has what an operator reads and changes. [`Store`] has the calls that every runner needs: list, replay,
//!   discard, pause; [`admin::AdminStore`] adds searching, replays at a rate, audit, tokens and what is wrong.

#[doc(inline)]
pub use oncebox_core::{
    Attempt, Backoff, Batch, Call, Counter, Counters, Error, ErrorKind, Extract, Failure, Gate, Handler,
    Headers, Inbox, Incoming, Json, Limits, Message, NamedHandler, Once, Processed, Received, Relay,
    ResponseStore, Run, SendFailure, Settle, Sink, Source, SourceStatus, State, Store, TraceContext, Tx,
    UNREADABLE, admin, clock, handler, mapping, responses, run, store,
};

#[doc(no_inline)]
#[cfg(any(feature = "postgres", feature = "mariadb"))]
pub use oncebox_nodelay::no_delay;

#[cfg(feature = "amqp1")]
#[doc(inline)]
pub use oncebox_amqp1::{self as amqp1, Amqp1Sink, Amqp1Source};
#[cfg(feature = "http")]
#[doc(inline)]
pub use oncebox_http as http;
#[cfg(feature = "kafka")]
#[doc(inline)]
pub use oncebox_kafka::{self as kafka, KafkaSink, KafkaSource};
#[cfg(feature = "mariadb")]
#[doc(inline)]
pub use oncebox_mariadb::{self as mariadb, MariaStore, MariaTx};
#[cfg(feature = "mqtt")]
#[doc(inline)]
pub use oncebox_mqtt::{self as mqtt, MqttSink, MqttSource};
#[cfg(feature = "nats")]
#[doc(inline)]
pub use oncebox_nats::{self as nats, NatsSink, NatsSource};
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use oncebox_postgres::{self as postgres, PgStore, PgTx};
#[cfg(feature = "rabbitmq")]
#[doc(inline)]
pub use oncebox_rabbitmq::{self as rabbitmq, RabbitmqSink, RabbitmqSource};
#[cfg(feature = "redis")]
#[doc(inline)]
pub use oncebox_redis::{self as redis, RedisSink, RedisSource};
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use oncebox_sqlite::{self as sqlite, SqliteStore, SqliteTx};

// The guides' code is compiled as doc tests.
#[cfg(all(doctest, feature = "sqlite", feature = "postgres", feature = "mariadb"))]
mod guides {
    #[doc = include_str!("../../../guides/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../../../guides/handlers.md")]
    mod handlers {}
    #[doc = include_str!("../../../guides/inline.md")]
    mod inline {}
    #[doc = include_str!("../../../guides/own-transaction.md")]
    mod own_transaction {}
    #[cfg(feature = "http")]
    #[doc = include_str!("../../../guides/http-idempotency.md")]
    mod http_idempotency {}
    #[doc = include_str!("../../../guides/languages.md")]
    mod languages {}
    #[doc = include_str!("../../../guides/outbox.md")]
    mod outbox {}
    #[doc = include_str!("../../../guides/brokers.md")]
    mod brokers {}
    #[cfg(feature = "amqp1")]
    #[doc = include_str!("../../../guides/brokers/amqp1.md")]
    mod amqp1 {}
    #[cfg(feature = "mqtt")]
    #[doc = include_str!("../../../guides/brokers/mqtt.md")]
    mod mqtt {}
    #[cfg(feature = "rabbitmq")]
    #[doc = include_str!("../../../guides/brokers/rabbitmq.md")]
    mod rabbitmq {}
    #[cfg(feature = "nats")]
    #[doc = include_str!("../../../guides/brokers/nats.md")]
    mod nats {}
    #[cfg(feature = "redis")]
    #[doc = include_str!("../../../guides/brokers/redis.md")]
    mod redis {}
    #[cfg(feature = "kafka")]
    #[doc = include_str!("../../../guides/brokers/kafka.md")]
    mod brokers_kafka {}
    #[doc = include_str!("../../../guides/stores.md")]
    mod stores {}
    #[doc = include_str!("../../../guides/retention.md")]
    mod retention {}
    #[doc = include_str!("../../../guides/dead-letters.md")]
    mod dead_letters {}
    #[doc = include_str!("../../../guides/telemetry.md")]
    mod telemetry {}
    #[doc = include_str!("../../../guides/testing.md")]
    mod testing {}
    #[doc = include_str!("../../../guides/crash-safety.md")]
    mod crash_safety {}
    #[doc = include_str!("../../../guides/performance.md")]
    mod performance {}
}
