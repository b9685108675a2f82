//! Oncebox on RabbitMQ: a source that acknowledges what is stored, and a sink that waits for confirms.
//!
//! ```no_run
//! use oncebox_core::Error;
//! use oncebox_rabbitmq::{RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig};
//!
//! # fn main() -> Result<(), Error> {
//! let orders = RabbitmqSource::new("orders", RabbitmqSourceConfig::new("amqp://localhost", "orders"))?;
//! let events = RabbitmqSink::new(RabbitmqSinkConfig::new("amqp://localhost").exchange("events"))?;
//! // oncebox::run(inbox).consume(orders).relay(events).await
//! # Ok(())
//! # }
//! ```
//!
//! Both connect when they are first used and again after every failure. Nothing is acknowledged before it is stored,
//! nothing counts as sent before RabbitMQ has confirmed it, and what no queue took is not sent either.
//!
//! # How a message travels
//!
//! | message | on RabbitMQ |
//! |---|---|
//! | id | property `message-id`; header `message-id` when it has more than 255 bytes |
//! | kind | property `type`, and the routing key unless the sink is told otherwise |
//! | key | header `message-key` |
//! | headers `content-type`, `content-encoding`, `correlation-id`, `reply-to`, `app-id`, `cluster-id`, `priority`, `timestamp` | the properties of these names, where the value fits |
//! | other headers | headers with the same bytes, as long strings; a name that appears more than once is a list |
//! | payload | the body |
//!
//! The source reads the very same message back; only headers of different names come sorted by name. From other
//! senders it takes text and bytes as they are, and makes readable text of the rest: numbers, `true`, seconds since
//! 1970 for timestamps, and JSON for tables and mixed lists. It also hands on the properties `user-id` and
//! `expiration` as headers; the sink leaves these two headers, because RabbitMQ refuses a foreign `user-id`, and what
//! expires is lost. The header `x-delivery-count` is bookkeeping of the queue and stays behind.

mod config;
mod envelope;
mod link;
mod mend;
mod settle;
mod sink;
mod source;

pub use config::{Auth, QueueKind, RabbitmqSinkConfig, RabbitmqSourceConfig, RoutingKey, TlsConfig};
pub use sink::RabbitmqSink;
pub use source::{RabbitmqReceipt, RabbitmqSource};
