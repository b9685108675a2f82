//! `oncebox bench --source`: from a broker into the store and from the outbox to the broker, beside the broker's own
//! client.

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod broker;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod measure;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg_attr(
    not(any(feature = "kafka", feature = "nats", feature = "rabbitmq")),
    allow(dead_code, reason = "without a broker there is nothing to report")
)]
mod report;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod watched;

use crate::bench::measure::Plan;
use crate::target::Place;

pub(crate) use report::BrokerReport;

/// Measures the broker of this URL with the store at this place.
pub(crate) async fn all(url: &str, place: &Place, plan: &Plan) -> Result<BrokerReport, String> {
    let broker = Known::of(url)?;
    match broker {
        #[cfg(feature = "kafka")]
        Known::Kafka => measure::with_store::<kafka::Kafka>(url, place, plan).await,
        #[cfg(feature = "nats")]
        Known::Nats => measure::with_store::<nats::Nats>(url, place, plan).await,
        #[cfg(feature = "rabbitmq")]
        Known::Rabbitmq => measure::with_store::<rabbitmq::Rabbitmq>(url, place, plan).await,
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
    Kafka,
    Nats,
    Rabbitmq,
}

impl Known {
    fn of(url: &str) -> Result<Self, String> {
        // The URL may hold a password, so only its beginning is shown.
        let scheme = url.split(':').next().unwrap_or_default();
        match scheme {
            "amqp" | "amqps" => Ok(Self::Rabbitmq),
            "nats" | "tls" => Ok(Self::Nats),
            "kafka" => Ok(Self::Kafka),
            _ => Err(format!(
                "source URL begins with `{scheme}:`; use `amqp://…` (RabbitMQ), `nats://…` or `kafka://host:port`"
            )),
        }
    }

    /// As people write it, and the feature it is built with.
    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Kafka => ("Kafka", "kafka"),
            Self::Nats => ("NATS", "nats"),
            Self::Rabbitmq => ("RabbitMQ", "rabbitmq"),
        }
    }
}
