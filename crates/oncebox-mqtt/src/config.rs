//! What a user sets; read from TOML or built in Rust.

use std::fmt;
use std::time::Duration;

pub use oncebox_core::access::TlsConfig;
use oncebox_core::access::without_login;
use oncebox_core::mapping::{ID_HEADER, KEY_HEADER, KIND_HEADER, Mapping};
use oncebox_core::{Error, durations};
use rumqttc::QoS;
use rumqttc::mqttbytes::valid_filter;
use serde::{Deserialize, Deserializer};

use crate::server::{Access, Server};

/// Where an [`MqttSource`](crate::MqttSource) reads from.
///
/// ```
/// use oncebox_mqtt::{MqttSource, MqttSourceConfig};
/// use std::time::Duration;
///
/// let config = MqttSourceConfig::new("mqtts://mqtt.example.com", "billing-1")
///     .topic("$share/billing/orders/#")
///     .credentials("billing", "secret")
///     .session_expiry(Duration::from_secs(3 * 86_400));
/// let source = MqttSource::new("orders", config)?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttSourceConfig {
    /// `mqtt://HOST:PORT`, or `mqtts://HOST:PORT` with TLS; the ports are 1883 and 8883 unless set.
    pub url: String,
    /// Who we are for the server, which keeps the session under this name. Each process needs its own, always the same.
    pub client_id: String,
    /// The topic filters to subscribe to; one of `$share/GROUP/FILTER` shares its messages among the group.
    #[serde(deserialize_with = "one_or_more")]
    pub topic: Vec<String>,
    /// 1 or 2; 1 unless set, because duplicates are dropped by us anyway.
    pub qos: u8,
    /// How long the server keeps the session, and what comes for it, while we are away; 7 days unless set.
    #[serde(with = "durations")]
    pub session_expiry: Duration,
    /// The most messages the server may send ahead of our acknowledgements; 1,000 unless set.
    pub prefetch: u16,
    /// After this long with no traffic we ask the server for a sign of life, and give the connection up when none
    /// comes within the same time; 30 s unless set.
    #[serde(with = "durations")]
    pub keep_alive: Duration,
    /// How long connecting and subscribing may take; 10 s unless set.
    #[serde(with = "durations")]
    pub connect_timeout: Duration,
    /// How long a message that could not be taken in waits before it is handed over again; 1 s unless set.
    #[serde(with = "durations")]
    pub return_after: Duration,
    /// The user, when it is not in the url.
    pub username: Option<String>,
    /// The password, when it is not in the url.
    pub password: Option<String>,
    /// Certificates for `mqtts://`.
    pub tls: TlsConfig,
    /// Under this name the topic becomes a header of the message; not at all unless set.
    pub topic_header: Option<String>,
    /// Where id, kind and key are read from.
    #[serde(skip)]
    pub mapping: Mapping,
}

impl Default for MqttSourceConfig {
    fn default() -> Self {
        Self {
            url: "mqtt://localhost".to_owned(),
            client_id: String::new(),
            topic: Vec::new(),
            qos: 1,
            session_expiry: Duration::from_secs(7 * 86_400),
            prefetch: 1000,
            keep_alive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            return_after: Duration::from_secs(1),
            username: None,
            password: None,
            tls: TlsConfig::default(),
            topic_header: None,
            mapping: default_mapping(),
        }
    }
}

impl MqttSourceConfig {
    /// A source at this url, under this client id; name a [`topic`](Self::topic) next.
    pub fn new(url: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self { url: url.into(), client_id: client_id.into(), ..Self::default() }
    }

    /// Subscribes to this filter too.
    pub fn topic(mut self, filter: impl Into<String>) -> Self {
        self.topic.push(filter.into());
        self
    }

    /// 1 or 2.
    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    /// How long the server keeps what comes while we are away.
    pub fn session_expiry(mut self, length: Duration) -> Self {
        self.session_expiry = length;
        self
    }

    /// The most messages the server may send ahead of our acknowledgements.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// After this long with no traffic the server is asked for a sign of life.
    pub fn keep_alive(mut self, length: Duration) -> Self {
        self.keep_alive = length;
        self
    }

    /// How long a message that could not be taken in waits before it is handed over again.
    pub fn return_after(mut self, length: Duration) -> Self {
        self.return_after = length;
        self
    }

    /// The user and the password.
    pub fn credentials(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
        (self.username, self.password) = (Some(username.into()), Some(password.into()));
        self
    }

    /// Certificates for `mqtts://`.
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = tls;
        self
    }

    /// Keeps the topic as a header of this name.
    pub fn topic_header(mut self, name: impl Into<String>) -> Self {
        self.topic_header = Some(name.into());
        self
    }

    /// Where id, kind and key are read from.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Refuses what cannot work, with the remedy.
    pub(crate) fn check(&self) -> Result<Server, Error> {
        if self.client_id.is_empty() {
            return Err(Error::invalid(
                "`client_id` is empty: the server keeps our session under it, so without one nothing would be kept \
                 for us while we are away; give each process a name of its own that stays the same",
            ));
        }
        if self.topic.is_empty() {
            return Err(Error::invalid(
                "`topic` is empty: name a filter to subscribe to, such as `orders/#`",
            ));
        }
        if let Some(filter) = self.topic.iter().find(|filter| !is_filter(filter)) {
            return Err(Error::invalid(format!(
                "`topic`: `{filter}` is no topic filter; `+` stands for one whole level and `#` for all that follow, \
                 and a shared one is `$share/GROUP/FILTER`"
            )));
        }
        self.quality()?;
        if self.prefetch == 0 {
            return Err(Error::invalid("`prefetch` is 0: nothing would ever come; set 1 to 65535"));
        }
        if self.session_expiry < Duration::from_secs(1) {
            return Err(Error::invalid(
                "`session_expiry` is shorter than a second: what is published while we are away would be lost; set \
                 it longer than the longest time the process may be down",
            ));
        }
        self.access().read()
    }

    pub(crate) fn quality(&self) -> Result<QoS, Error> {
        quality(self.qos)
    }

    /// As the protocol wants it; what does not fit means for ever.
    pub(crate) fn session_expiry_seconds(&self) -> u32 {
        u32::try_from(self.session_expiry.as_secs()).unwrap_or(u32::MAX)
    }

    fn access(&self) -> Access<'_> {
        Access {
            url: &self.url,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            tls: &self.tls,
            keep_alive: self.keep_alive,
            connect_timeout: self.connect_timeout,
        }
    }
}

/// Where an [`MqttSink`](crate::MqttSink) publishes to.
///
/// ```
/// use oncebox_mqtt::{MqttSink, MqttSinkConfig};
///
/// let config = MqttSinkConfig::new("mqtt://localhost").topic("shop/{kind}").require_subscribers(false);
/// let sink = MqttSink::new(config)?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttSinkConfig {
    /// `mqtt://HOST:PORT`, or `mqtts://HOST:PORT` with TLS; the ports are 1883 and 8883 unless set.
    pub url: String,
    /// Who we are for the server, where it wants to know; it makes up a name unless set.
    pub client_id: String,
    /// The topic to publish to; `{kind}` and `{key}` stand for those of the message. `{kind}` unless set.
    pub topic: String,
    /// 1 or 2; 1 unless set. Subscribers get a message with this quality at most.
    pub qos: u8,
    /// Whether the server keeps the last message of each topic for those who subscribe later.
    pub retain: bool,
    /// Whether a message that nobody has subscribed to counts as not sent; true unless set.
    ///
    /// The server confirms such a message and forgets it. Not every server tells; Mosquitto does. With QoS 2 we are
    /// not told, so there it must be false, or `retain` must be true.
    pub require_subscribers: bool,
    /// How long the server keeps a message for those who are away; for as long as it keeps their sessions unless set.
    #[serde(deserialize_with = "maybe")]
    pub message_expiry: Option<Duration>,
    /// After this long with no traffic we ask the server for a sign of life; 30 s unless set.
    #[serde(with = "durations")]
    pub keep_alive: Duration,
    /// How long connecting may take; 10 s unless set.
    #[serde(with = "durations")]
    pub connect_timeout: Duration,
    /// The user, when it is not in the url.
    pub username: Option<String>,
    /// The password, when it is not in the url.
    pub password: Option<String>,
    /// Certificates for `mqtts://`.
    pub tls: TlsConfig,
}

impl Default for MqttSinkConfig {
    fn default() -> Self {
        Self {
            url: "mqtt://localhost".to_owned(),
            client_id: String::new(),
            topic: "{kind}".to_owned(),
            qos: 1,
            retain: false,
            require_subscribers: true,
            message_expiry: None,
            keep_alive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            username: None,
            password: None,
            tls: TlsConfig::default(),
        }
    }
}

impl MqttSinkConfig {
    /// A sink at this url.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// The topic to publish to, with `{kind}` and `{key}` for those of the message.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Who we are for the server.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = id.into();
        self
    }

    /// 1 or 2.
    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    /// Whether the server keeps the last message of each topic.
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Whether a message that nobody has subscribed to counts as not sent.
    pub fn require_subscribers(mut self, require: bool) -> Self {
        self.require_subscribers = require;
        self
    }

    /// How long the server keeps a message for those who are away.
    pub fn message_expiry(mut self, length: Duration) -> Self {
        self.message_expiry = Some(length);
        self
    }

    /// After this long with no traffic the server is asked for a sign of life.
    pub fn keep_alive(mut self, length: Duration) -> Self {
        self.keep_alive = length;
        self
    }

    /// The user and the password.
    pub fn credentials(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
        (self.username, self.password) = (Some(username.into()), Some(password.into()));
        self
    }

    /// Certificates for `mqtts://`.
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = tls;
        self
    }

    /// Refuses what cannot work, with the remedy.
    pub(crate) fn check(&self) -> Result<Server, Error> {
        if self.topic.is_empty() {
            return Err(Error::invalid(
                "`topic` is empty: write `{kind}`, a fixed topic, or both: `shop/{kind}`",
            ));
        }
        if self.topic.contains(['+', '#']) {
            return Err(Error::invalid(format!(
                "`topic`: `{}` contains `+` or `#`, which only a subscription may; name the one topic to publish to",
                self.topic
            )));
        }
        if self.quality()? == QoS::ExactlyOnce && self.require_subscribers && !self.retain {
            return Err(Error::invalid(
                "`qos` is 2: then the server does not tell whether anybody has subscribed; set `require_subscribers` \
                 to false if messages to nobody may be forgotten, else set 1",
            ));
        }
        let access = Access {
            url: &self.url,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            tls: &self.tls,
            keep_alive: self.keep_alive,
            connect_timeout: self.connect_timeout,
        };
        access.read()
    }

    pub(crate) fn quality(&self) -> Result<QoS, Error> {
        quality(self.qos)
    }
}

// By hand, because nothing secret may be printed.
impl fmt::Debug for MqttSourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MqttSourceConfig")
            .field("url", &without_login(&self.url))
            .field("client_id", &self.client_id)
            .field("topic", &self.topic)
            .field("qos", &self.qos)
            .field("session_expiry", &self.session_expiry)
            .field("prefetch", &self.prefetch)
            .field("username", &self.username)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MqttSinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MqttSinkConfig")
            .field("url", &without_login(&self.url))
            .field("client_id", &self.client_id)
            .field("topic", &self.topic)
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .field("require_subscribers", &self.require_subscribers)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

fn default_mapping() -> Mapping {
    let header = |name| format!("header:{name}");
    let (id, kind, key) = (header(ID_HEADER), header(KIND_HEADER), header(KEY_HEADER));
    Mapping::new(&[&id], &[&kind, "topic"])
        .and_then(|mapping| mapping.key(&[&key]))
        .expect("these places can be read")
}

fn quality(qos: u8) -> Result<QoS, Error> {
    match qos {
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        0 => Err(Error::invalid("`qos` is 0: the server may lose such messages; set 1 or 2")),
        other => Err(Error::invalid(format!("`qos` is {other}; set 1 or 2"))),
    }
}

fn is_filter(filter: &str) -> bool {
    let filter = match filter.strip_prefix("$share/").map(|shared| shared.split_once('/')) {
        Some(Some((group, _))) if group.is_empty() || group.contains(['+', '#']) => return false,
        Some(Some((_, filter))) => filter,
        Some(None) => return false,
        None => filter,
    };
    !filter.is_empty() && !filter.contains('\0') && valid_filter(filter)
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected one topic filter or a list of them")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    Ok(match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(filter) => vec![filter],
        OneOrMore::More(filters) => filters,
    })
}

fn maybe<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    durations::deserialize(deserializer).map(Some)
}
