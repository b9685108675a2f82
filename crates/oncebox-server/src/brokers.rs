//! Brokers as sources and sinks; each comes with a feature of this crate.
//!
//! A broker's own crate says which keys its sections have; `config.default.toml` has them all with their defaults, and a
//! test compares the two.

#[allow(unused_imports, reason = "a build without brokers asks none")]
use oncebox::Source as _;
use oncebox::mapping::Mapping;
use oncebox::{Error, Relay, Run, Sink};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::SinkConfig;
use crate::stores::ServiceStore;

/// What is wrong with a broker's section.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The key, with those of the tables it is in before it; none where nobody can tell.
    pub(crate) path: Vec<String>,
    /// What is wrong.
    pub(crate) text: String,
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self { path: Vec::new(), text: error.to_string() }
    }
}

macro_rules! brokers {
    ($($feature:literal $variant:ident: $module:ident, $source:ident $source_config:ident, $sink:ident $sink_config:ident;)*) => {
        /// A source on a broker.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum BrokerSource {
            $(
                #[doc = concat!("`type = \"", $feature, "\"`")]
                #[cfg(feature = $feature)]
                $variant(Box<oncebox::$module::$source_config>),
            )*
        }

        /// A sink on a broker.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum BrokerSink {
            $(
                #[doc = concat!("`type = \"", $feature, "\"`")]
                #[cfg(feature = $feature)]
                $variant(Box<oncebox::$module::$sink_config>),
            )*
        }

        impl BrokerSource {
            /// Reads a section; `None` when this build has no such type.
            #[allow(unused_variables, reason = "a build without brokers reads none")]
            pub(crate) fn read(
                word: &str,
                keys: Map<String, Value>,
                mapping: Result<Mapping, Wrong>,
            ) -> Option<Result<Self, Wrong>> {
                match word {
                    $(
                        #[cfg(feature = $feature)]
                        $feature => Some((|| {
                            let mut config: oncebox::$module::$source_config = deserialize(keys)?;
                            config.mapping = mapping?;
                            Ok(Self::$variant(Box::new(config)))
                        })()),
                    )*
                    _ => None,
                }
            }

            /// Finds settings that cannot work, before the first connection does.
            #[allow(unused_variables, reason = "a build without brokers tries none")]
            pub(crate) fn try_out(&self, name: &str) -> Result<(), Wrong> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            oncebox::$module::$source::new(name, (**config).clone())?;
                            Ok(())
                        }
                    )*
                }
            }

            /// The word for its type.
            pub(crate) fn word(&self) -> &'static str {
                match *self {
                    $(#[cfg(feature = $feature)] Self::$variant(_) => $feature,)*
                }
            }

            /// Adds it to a runner.
            #[allow(unused_variables, reason = "a build without brokers adds none")]
            pub(crate) fn consume<St: ServiceStore>(
                &self,
                name: &str,
                inline: bool,
                runner: Run<St, ()>,
            ) -> Result<Run<St, ()>, Error> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            let source = oncebox::$module::$source::new(name, (**config).clone())?;
                            Ok(if inline { runner.consume_inline(source) } else { runner.consume(source) })
                        }
                    )*
                }
            }

            /// Connects and looks for what it would read; takes nothing.
            #[allow(unused_variables, reason = "a build without brokers asks none")]
            pub(crate) async fn check(&self, name: &str) -> Result<Option<String>, Error> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            oncebox::$module::$source::new(name, (**config).clone())?.check().await
                        }
                    )*
                }
            }
        }

        impl BrokerSink {
            /// Reads a section; `None` when this build has no such type.
            #[allow(unused_variables, reason = "a build without brokers reads none")]
            pub(crate) fn read(word: &str, keys: Map<String, Value>) -> Option<Result<Self, Wrong>> {
                match word {
                    $(
                        #[cfg(feature = $feature)]
                        $feature => Some((|| {
                            let config: oncebox::$module::$sink_config = deserialize(keys)?;
                            Ok(Self::$variant(Box::new(config)))
                        })()),
                    )*
                    _ => None,
                }
            }

            /// Finds settings that cannot work, before the first connection does.
            pub(crate) fn try_out(&self) -> Result<(), Wrong> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            oncebox::$module::$sink::new((**config).clone())?;
                            Ok(())
                        }
                    )*
                }
            }

            /// Connects and looks for the place it would send to; sends nothing.
            pub(crate) async fn check(&self) -> Result<Option<String>, Error> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            oncebox::$module::$sink::new((**config).clone())?.check().await
                        }
                    )*
                }
            }

            /// The word for its type.
            pub(crate) fn word(&self) -> &'static str {
                match *self {
                    $(#[cfg(feature = $feature)] Self::$variant(_) => $feature,)*
                }
            }

            /// Adds it to a runner.
            #[allow(unused_variables, reason = "a build without brokers adds none")]
            pub(crate) fn relay<St: ServiceStore>(
                &self,
                settings: &SinkConfig,
                runner: Run<St, ()>,
            ) -> Result<Run<St, ()>, Error> {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$variant(ref config) => {
                            let sink = oncebox::$module::$sink::new((**config).clone())?;
                            Ok(runner.relay(relay_of(settings, sink)))
                        }
                    )*
                }
            }
        }
    };
}

brokers! {
    "rabbitmq" Rabbitmq: rabbitmq, RabbitmqSource RabbitmqSourceConfig, RabbitmqSink RabbitmqSinkConfig;
    "kafka" Kafka: kafka, KafkaSource KafkaSourceConfig, KafkaSink KafkaSinkConfig;
    "nats" Nats: nats, NatsSource NatsSourceConfig, NatsSink NatsSinkConfig;
    "redis" Redis: redis, RedisSource RedisSourceConfig, RedisSink RedisSinkConfig;
    "mqtt" Mqtt: mqtt, MqttSource MqttSourceConfig, MqttSink MqttSinkConfig;
    "amqp1" Amqp1: amqp1, Amqp1Source Amqp1SourceConfig, Amqp1Sink Amqp1SinkConfig;
}

/// The relay of a configured sink.
pub(crate) fn relay_of<K: Sink>(settings: &SinkConfig, sink: K) -> Relay<K> {
    Relay::new(sink)
        .named(&settings.name)
        .timeout(settings.timeout)
        .max_attempts(settings.max_attempts)
        .backoff(settings.backoff)
        .batch(settings.batch)
}

#[allow(dead_code, reason = "a build without brokers reads none")]
fn deserialize<T: DeserializeOwned>(keys: Map<String, Value>) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(Value::Object(keys)).map_err(|error| {
        let path = error.path().iter().filter_map(|part| match part {
            serde_path_to_error::Segment::Map { key } => Some(key.clone()),
            _ => None,
        });
        let path = path.collect();
        let text = error.into_inner().to_string();
        // What was found may be a secret in the wrong place, so only what was expected is told.
        let text = match text.split_once("expected ") {
            Some((_, expected)) => format!("it must be {expected}"),
            None => text,
        };
        Wrong { path, text }
    })
}
