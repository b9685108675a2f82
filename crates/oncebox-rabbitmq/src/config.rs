//! What a source and a sink can be told, in Rust or from a configuration file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use oncebox_core::Error;
pub use oncebox_core::access::TlsConfig;
use oncebox_core::access::without_login;
use oncebox_core::mapping::{ID_HEADER, KEY_HEADER, Mapping};
use serde::{Deserialize, Deserializer};

use crate::link::Settings;

/// The settings of a [`RabbitmqSource`](crate::RabbitmqSource).
///
/// ```
/// # fn main() -> Result<(), oncebox_core::Error> {
/// use oncebox_rabbitmq::{QueueKind, RabbitmqSourceConfig};
///
/// let config = RabbitmqSourceConfig::new("amqps://mq.example.org", "orders")
///     .vhost("shop")
///     .credentials("shop", "secret")
///     .declare(QueueKind::Quorum);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RabbitmqSourceConfig {
    /// The server: `amqp://` or `amqps://`, with user, password and virtual host if you like them there.
    pub url: String,
    /// The queue to take messages from.
    pub queue: String,
    /// How many messages may be here without being acknowledged; 2,000 unless set. Bounds the memory they take.
    pub prefetch: u16,
    /// Creates the queue when there is none: durable, of this kind. A queue that exists is left as it is.
    pub declare: Option<QueueKind>,
    /// Says that the queue has a dead-letter exchange, so what can never be stored may be rejected.
    ///
    /// Without it, rejecting would throw the message away; it is held unacknowledged instead.
    pub dead_letter_exchange: bool,
    /// How long a message that could not be taken in waits before the queue gets it back; 1 s unless set.
    #[serde(with = "oncebox_core::durations")]
    pub return_after: Duration,
    /// Where id, kind and key are read from: [`RabbitmqSourceConfig::default_mapping`] unless set.
    #[serde(skip, default = "RabbitmqSourceConfig::default_mapping")]
    pub mapping: Mapping,
    /// The user, instead of the one in `url`.
    pub username: Option<String>,
    /// The password, instead of the one in `url`.
    pub password: Option<String>,
    /// The virtual host, instead of the one in `url`; `/` unless set.
    pub vhost: Option<String>,
    /// How to log in.
    pub auth: Auth,
    /// Certificates for `amqps://`.
    pub tls: TlsConfig,
    /// A connection on which nothing comes for twice this time is dead; 15 s unless set.
    #[serde(with = "oncebox_core::durations")]
    pub heartbeat: Duration,
    /// How long connecting may take; 10 s unless set.
    #[serde(with = "oncebox_core::durations")]
    pub connect_timeout: Duration,
}

/// The settings of a [`RabbitmqSink`](crate::RabbitmqSink).
///
/// ```
/// use oncebox_rabbitmq::{RabbitmqSinkConfig, RoutingKey};
///
/// let config = RabbitmqSinkConfig::new("amqp://localhost").exchange("events").routing_key(RoutingKey::Key);
/// ```
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RabbitmqSinkConfig {
    /// The server: `amqp://` or `amqps://`, with user, password and virtual host if you like them there.
    pub url: String,
    /// The exchange to send to. Unless set it is the default one, in which the routing key names a queue.
    pub exchange: String,
    /// What the exchange routes by; the kind unless set.
    pub routing_key: RoutingKey,
    /// Whether a message that no queue takes counts as not sent; true unless set.
    ///
    /// With false such a message is gone: only for exchanges that nobody needs to listen to.
    pub mandatory: bool,
    /// The user, instead of the one in `url`.
    pub username: Option<String>,
    /// The password, instead of the one in `url`.
    pub password: Option<String>,
    /// The virtual host, instead of the one in `url`; `/` unless set.
    pub vhost: Option<String>,
    /// How to log in.
    pub auth: Auth,
    /// Certificates for `amqps://`.
    pub tls: TlsConfig,
    /// A connection on which nothing comes for twice this time is dead; 15 s unless set.
    #[serde(with = "oncebox_core::durations")]
    pub heartbeat: Duration,
    /// How long connecting may take; 10 s unless set.
    #[serde(with = "oncebox_core::durations")]
    pub connect_timeout: Duration,
}

/// The kind of queue that [`RabbitmqSourceConfig::declare`] creates. Both are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// Copied to several servers of a cluster; survives the loss of one.
    Quorum,
    /// On one server.
    Classic,
}

/// What an exchange routes by.
///
/// In a configuration file: `kind`, `key`, or a text that is always the routing key (`text:kind` for the text `kind`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RoutingKey {
    /// The message's kind.
    #[default]
    Kind,
    /// The message's key. A message without one is never sent.
    Key,
    /// Always this text.
    Text(String),
}

/// How to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// With user and password.
    #[default]
    Plain,
    /// With the client's certificate (`EXTERNAL`); the server needs the plugin `rabbitmq_auth_mechanism_ssl`.
    External,
}

impl RabbitmqSourceConfig {
    /// Messages of this queue.
    pub fn new(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self { url: url.into(), queue: queue.into(), ..Self::default() }
    }

    /// What [`RabbitmqSink`](crate::RabbitmqSink) writes: the id in the property `message-id`, the kind in the
    /// property `type`, else the routing key, and the key in the header `message-key`.
    pub fn default_mapping() -> Mapping {
        let id = ["property:message-id".to_owned(), format!("header:{ID_HEADER}")];
        Mapping::new(&[&id[0], &id[1]], &["property:type", "routing-key"])
            .and_then(|mapping| mapping.key(&[format!("header:{KEY_HEADER}")]))
            .expect("these are places to read from")
    }

    /// Reads id, kind and key from elsewhere.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// How many messages may be here without being acknowledged.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// Creates the queue when there is none.
    pub fn declare(mut self, kind: QueueKind) -> Self {
        self.declare = Some(kind);
        self
    }

    /// Says that the queue has a dead-letter exchange.
    pub fn dead_letter_exchange(mut self) -> Self {
        self.dead_letter_exchange = true;
        self
    }

    /// How long a message that could not be taken in waits before the queue gets it back.
    pub fn return_after(mut self, delay: Duration) -> Self {
        self.return_after = delay;
        self
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<Settings, Error> {
        short("queue", &self.queue)?;
        if self.queue.is_empty() {
            return Err(Error::invalid("`queue` is empty; name the queue to take messages from"));
        }
        if self.prefetch == 0 {
            return Err(Error::invalid("`prefetch` is 0, which means no limit; give it 1 to 65535"));
        }
        self.settings()
    }
}

impl RabbitmqSinkConfig {
    /// Sends to the default exchange of this server, in which the routing key names a queue.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Sends to this exchange.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// What the exchange routes by.
    pub fn routing_key(mut self, routing_key: RoutingKey) -> Self {
        self.routing_key = routing_key;
        self
    }

    /// Takes messages for sent that no queue took: they are gone.
    pub fn not_mandatory(mut self) -> Self {
        self.mandatory = false;
        self
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<Settings, Error> {
        short("exchange", &self.exchange)?;
        if let RoutingKey::Text(text) = &self.routing_key {
            short("routing_key", text)?;
        }
        self.settings()
    }
}

/// What both kinds of settings have.
macro_rules! connection_settings {
    ($config:ty) => {
        impl $config {
            /// The virtual host.
            pub fn vhost(mut self, vhost: impl Into<String>) -> Self {
                self.vhost = Some(vhost.into());
                self
            }

            /// User and password.
            pub fn credentials(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
                self.username = Some(username.into());
                self.password = Some(password.into());
                self
            }

            /// Logs in with the client's certificate.
            pub fn external(mut self) -> Self {
                self.auth = Auth::External;
                self
            }

            /// Certificates for `amqps://`.
            pub fn tls(mut self, tls: TlsConfig) -> Self {
                self.tls = tls;
                self
            }

            /// A connection on which nothing comes for twice this time is dead.
            pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
                self.heartbeat = heartbeat;
                self
            }

            /// How long connecting may take.
            pub fn connect_timeout(mut self, timeout: Duration) -> Self {
                self.connect_timeout = timeout;
                self
            }

            fn settings(&self) -> Result<Settings, Error> {
                Settings::new(
                    &self.url,
                    [&self.username, &self.password, &self.vhost],
                    self.auth,
                    &self.tls,
                    self.heartbeat,
                    self.connect_timeout,
                )
            }
        }
    };
}

connection_settings!(RabbitmqSourceConfig);
connection_settings!(RabbitmqSinkConfig);

const LOCAL: &str = "amqp://localhost";
const HEARTBEAT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for RabbitmqSourceConfig {
    fn default() -> Self {
        Self {
            url: LOCAL.to_owned(),
            queue: String::new(),
            prefetch: 2000,
            declare: None,
            dead_letter_exchange: false,
            return_after: Duration::from_secs(1),
            mapping: Self::default_mapping(),
            username: None,
            password: None,
            vhost: None,
            auth: Auth::default(),
            tls: TlsConfig::default(),
            heartbeat: HEARTBEAT,
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

impl Default for RabbitmqSinkConfig {
    fn default() -> Self {
        Self {
            url: LOCAL.to_owned(),
            exchange: String::new(),
            routing_key: RoutingKey::default(),
            mandatory: true,
            username: None,
            password: None,
            vhost: None,
            auth: Auth::default(),
            tls: TlsConfig::default(),
            heartbeat: HEARTBEAT,
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

impl FromStr for RoutingKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "kind" => Self::Kind,
            "key" => Self::Key,
            text => Self::Text(text.strip_prefix("text:").unwrap_or(text).to_owned()),
        })
    }
}

impl<'de> Deserialize<'de> for RoutingKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

// By hand, because secrets must not be seen.
impl fmt::Debug for RabbitmqSourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RabbitmqSourceConfig")
            .field("url", &without_login(&self.url))
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("declare", &self.declare)
            .field("dead_letter_exchange", &self.dead_letter_exchange)
            .field("return_after", &self.return_after)
            .field("mapping", &self.mapping)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("vhost", &self.vhost)
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

impl fmt::Debug for RabbitmqSinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RabbitmqSinkConfig")
            .field("url", &without_login(&self.url))
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("mandatory", &self.mandatory)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("vhost", &self.vhost)
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

fn short(field: &str, text: &str) -> Result<(), Error> {
    if text.len() > 255 {
        let length = text.len();
        return Err(Error::invalid(format!("`{field}` has {length} bytes; RabbitMQ allows 255")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let source = RabbitmqSourceConfig::new("amqp://me:hunter2@h/v", "q").credentials("me", "hunter2");
        let sink = RabbitmqSinkConfig::new("amqp://me:hu@nter2@h").credentials("me", "hunter2");
        let shown = format!("{source:?}{sink:?}");
        assert!(!shown.contains("nter2"), "{shown}");
        assert!(shown.contains("amqp://***@h/v"), "{shown}");
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_field() {
        let source = |change: fn(&mut RabbitmqSourceConfig)| {
            let mut config = RabbitmqSourceConfig::new("amqp://me:hunter2@localhost", "q");
            change(&mut config);
            config.check().expect_err("it cannot work").to_string()
        };
        for (error, word) in [
            (source(|config| config.queue.clear()), "`queue`"),
            (source(|config| config.queue = "q".repeat(256)), "`queue`"),
            (source(|config| config.prefetch = 0), "`prefetch`"),
            (source(|config| config.url = "http://me:hunter2@h".to_owned()), "`url`"),
            (source(|config| config.url = "me:hunter2@h".to_owned()), "`url`"),
            (source(|config| config.heartbeat = Duration::ZERO), "`heartbeat`"),
            (source(|config| config.heartbeat = Duration::from_secs(70_000)), "`heartbeat`"),
            (source(|config| config.connect_timeout = Duration::ZERO), "`connect_timeout`"),
            (source(|config| config.auth = Auth::External), "`tls.certificate`"),
            (source(|config| config.tls.ca = Some("ca.pem".into())), "amqps://"),
            (source(|config| config.tls.key = Some("key.pem".into())), "`tls.certificate`"),
            (source(|config| config.vhost = Some("v".repeat(256))), "`vhost`"),
        ] {
            assert!(error.contains(word), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let sink = RabbitmqSinkConfig::new(LOCAL).routing_key(RoutingKey::Text("r".repeat(256)));
        assert!(sink.check().expect_err("too long").to_string().contains("`routing_key`"));
    }

    #[test]
    fn a_file_needs_only_what_differs_from_the_defaults_and_unknown_keys_are_refused() {
        let source: RabbitmqSourceConfig =
            serde_json::from_str(r#"{"queue":"orders","declare":"quorum","heartbeat":"5s"}"#).unwrap();
        let expected = RabbitmqSourceConfig::new(LOCAL, "orders")
            .declare(QueueKind::Quorum)
            .heartbeat(Duration::from_secs(5));
        assert_eq!(source, expected);
        for (text, routing_key) in [
            ("kind", RoutingKey::Kind),
            ("key", RoutingKey::Key),
            ("text:key", RoutingKey::Text("key".to_owned())),
            ("orders", RoutingKey::Text("orders".to_owned())),
        ] {
            let sink: RabbitmqSinkConfig =
                serde_json::from_value(serde_json::json!({ "routing_key": text })).unwrap();
            assert_eq!(sink, RabbitmqSinkConfig::default().routing_key(routing_key));
        }
        assert!(serde_json::from_str::<RabbitmqSourceConfig>(r#"{"que":"orders"}"#).is_err());
        assert!(serde_json::from_str::<RabbitmqSinkConfig>(r#"{"tls":{"cert":"x"}}"#).is_err());
    }
}
