//! `oncebox bench --source`: from a broker into the store and from the outbox to the broker, beside the broker's own
//! client.

#[cfg(feature = "amqp1")]
mod amqp1;
#[cfg(any(
    feature = "amqp1",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod broker;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(
    feature = "amqp1",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod measure;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg_attr(
    not(any(
        feature = "amqp1",
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis"
    )),
    allow(dead_code, reason = "without a broker there is nothing to report")
)]
mod report;
#[cfg(any(
    feature = "amqp1",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod watched;

use crate::bench::measure::Plan;
use crate::target::Place;

pub(crate) use report::BrokerReport;

/// Measures the broker of this URL with the store at this place.
pub(crate) async fn all(url: &str, place: &Place, plan: &Plan) -> Result<BrokerReport, String> {
    let broker = Known::of(url)?;
    match broker {
        #[cfg(feature = "amqp1")]
        Known::Amqp1 => measure::with_store::<amqp1::Amqp1>(url, place, plan).await,
        #[cfg(feature = "kafka")]
        Known::Kafka => measure::with_store::<kafka::Kafka>(url, place, plan).await,
        #[cfg(feature = "mqtt")]
        Known::Mqtt => measure::with_store::<mqtt::Mqtt>(url, place, plan).await,
        #[cfg(feature = "nats")]
        Known::Nats => measure::with_store::<nats::Nats>(url, place, plan).await,
        #[cfg(feature = "rabbitmq")]
        Known::Rabbitmq => measure::with_store::<rabbitmq::Rabbitmq>(url, place, plan).await,
        #[cfg(feature = "redis")]
        Known::Redis => measure::with_store::<redis::Redis>(url, place, plan).await,
        #[allow(unreachable_patterns, reason = "which ones are left depends on the features")]
        _ => {
            let (name, feature) = broker.name();
            // Without any broker nobody else looks at them.
            let _ = (place, plan);
            Err(format!("this `oncebox` was built without {name}; build it with `--features {feature}`"))
        }
    }
}

/// A broker that some build can measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Amqp1,
    Kafka,
    Mqtt,
    Nats,
    Rabbitmq,
    Redis,
}

impl Known {
    fn of(url: &str) -> Result<Self, String> {
        // The URL may hold a password, so only its beginning is shown.
        let scheme = url.split(':').next().unwrap_or_default();
        match scheme {
            "amqp" | "amqps" => Ok(Self::Rabbitmq),
            "nats" | "tls" => Ok(Self::Nats),
            "kafka" => Ok(Self::Kafka),
            "redis" | "rediss" => Ok(Self::Redis),
            "mqtt" | "mqtts" => Ok(Self::Mqtt),
            "amqp1" => Ok(Self::Amqp1),
            _ => Err(format!(
                "source URL begins with `{scheme}:`; use `amqp://…` (RabbitMQ), `amqp1://…` (RabbitMQ with AMQP 1.0), \
                 `nats://…`, `redis://…`, `mqtt://…` or `kafka://host:port`"
            )),
        }
    }

    /// As people write it, and the feature it is built with.
    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Amqp1 => ("AMQP 1.0", "amqp1"),
            Self::Kafka => ("Kafka", "kafka"),
            Self::Mqtt => ("MQTT", "mqtt"),
            Self::Nats => ("NATS", "nats"),
            Self::Rabbitmq => ("RabbitMQ", "rabbitmq"),
            Self::Redis => ("Redis", "redis"),
        }
    }
}
