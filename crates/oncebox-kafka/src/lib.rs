//! Kafka topics as sources and sinks of Oncebox.
//!
//! ```no_run
//! use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
//!
//! # fn example() -> Result<(), oncebox_core::Error> {
//! let orders = KafkaSource::new("orders", KafkaSourceConfig::new("localhost:9092", "orders").group("shop"))?;
//! let events = KafkaSink::new(KafkaSinkConfig::new("localhost:9092", "events"))?;
//! // oncebox::run(inbox).consume(orders).relay(events).await
//! # Ok(())
//! # }
//! ```
//!
//! A record's key is the message's key: its text, or `base64:` and its bytes when they are no UTF-8 text. Its id is the
//! header `message-id`, its kind the header `message-kind` or else the topic; [`KafkaSourceConfig::mapping`] reads them
//! from elsewhere. A record without a payload is a message with an empty one and the header [`TOMBSTONE_HEADER`]. A
//! header without a value is one with an empty value.

mod config;
mod look;
mod member;
mod partitions;
mod record;
mod sink;
mod source;
mod trouble;

pub use config::{KafkaSinkConfig, KafkaSourceConfig, Start};
pub use partitions::Receipt;
pub use record::TOMBSTONE_HEADER;
pub use sink::KafkaSink;
pub use source::KafkaSource;

use rdkafka::config::RDKafkaLogLevel as Level;

/// Passes a log line of librdkafka on. It reports what it recovers from by itself as errors, so those are warnings.
fn log(level: Level, facility: &str, text: &str) {
    match level {
        Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => {
            tracing::warn!(target: "librdkafka", facility, "{text}");
        }
        Level::Notice | Level::Info | Level::Debug => {
            tracing::debug!(target: "librdkafka", facility, "{text}")
        }
    }
}
