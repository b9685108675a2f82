//! What a user sets; read from TOML or built in Rust.

use std::fmt;
use std::time::Duration;

pub use oncebox_core::access::TlsConfig;
use oncebox_core::access::without_login;
use oncebox_core::mapping::{KIND_HEADER, Mapping};
use oncebox_core::{Error, durations};
use serde::Deserialize;

use crate::server::{Access, Server};

/// Where an [`Amqp1Source`](crate::Amqp1Source) reads from.
///
/// ```
/// use oncebox_amqp1::{Amqp1Source, Amqp1SourceConfig};
///
/// // Azure Service Bus: the name and the key of a shared access policy are user and password.
/// let config = Amqp1SourceConfig::new("amqps://shop.servicebus.windows.net", "orders")
///     .credentials("listen-policy", "its-key")
///     .prefetch(200);
/// let source = Amqp1Source::new("orders", config)?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Amqp1SourceConfig {
    /// `amqp://HOST:PORT`, or `amqps://HOST:PORT` with TLS; the ports are 5672 and 5671 unless set.
    pub url: String,
    /// What to read from, as the server calls it: `orders`, `/queues/orders`, `orders/Subscriptions/billing`.
    pub address: String,
    /// How many messages may be here unsettled; 500 unless set.
    pub prefetch: u32,
    /// How long a message that could not be taken in waits before the server gets it back; 1 s unless set.
    #[serde(with = "durations")]
    pub return_after: Duration,
    /// The user, when it is not in the url; nobody in particular (anonymous) unless set.
    pub username: Option<String>,
    /// The password, when it is not in the url.
    pub password: Option<String>,
    /// Who we are for the server; a name of its own for each connection unless set.
    pub container_id: Option<String>,
    /// The name by which we ask for the server; that of the url unless set. RabbitMQ wants `vhost:NAME` here.
    pub hostname: Option<String>,
    /// Certificates for `amqps://`.
    pub tls: TlsConfig,
    /// A connection on which nothing comes for this long is dead; 30 s unless set.
    #[serde(with = "durations")]
    pub idle_timeout: Duration,
    /// How long connecting may take; 10 s unless set.
    #[serde(with = "durations")]
    pub connect_timeout: Duration,
    /// Where id, kind and key are read from.
    #[serde(skip)]
    pub mapping: Mapping,
}

/// Where an [`Amqp1Sink`](crate::Amqp1Sink) sends to.
///
/// ```
/// use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig};
///
/// let sink = Amqp1Sink::new(Amqp1SinkConfig::new("amqp://guest:guest@localhost", "/exchanges/events"))?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Amqp1SinkConfig {
    /// `amqp://HOST:PORT`, or `amqps://HOST:PORT` with TLS; the ports are 5672 and 5671 unless set.
    pub url: String,
    /// Where to send to, as the server calls it: `orders`, `/queues/orders`, `/exchanges/events`.
    pub address: String,
    /// The user, when it is not in the url; nobody in particular (anonymous) unless set.
    pub username: Option<String>,
    /// The password, when it is not in the url.
    pub password: Option<String>,
    /// Who we are for the server; a name of its own for each connection unless set.
    pub container_id: Option<String>,
    /// The name by which we ask for the server; that of the url unless set. RabbitMQ wants `vhost:NAME` here.
    pub hostname: Option<String>,
    /// Certificates for `amqps://`.
    pub tls: TlsConfig,
    /// A connection on which nothing comes for this long is dead; 30 s unless set.
    #[serde(with = "durations")]
    pub idle_timeout: Duration,
    /// How long connecting may take; 10 s unless set.
    #[serde(with = "durations")]
    pub connect_timeout: Duration,
}

impl Default for Amqp1SourceConfig {
    fn default() -> Self {
        Self {
            url: "amqp://localhost".to_owned(),
            address: String::new(),
            prefetch: 500,
            return_after: Duration::from_secs(1),
            username: None,
            password: None,
            container_id: None,
            hostname: None,
            tls: TlsConfig::default(),
            idle_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            mapping: default_mapping(),
        }
    }
}

impl Default for Amqp1SinkConfig {
    fn default() -> Self {
        Self {
            url: "amqp://localhost".to_owned(),
            address: String::new(),
            username: None,
            password: None,
            container_id: None,
            hostname: None,
            tls: TlsConfig::default(),
            idle_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

impl Amqp1SourceConfig {
    /// A source on this address of the server at this url.
    pub fn new(url: impl Into<String>, address: impl Into<String>) -> Self {
        Self { url: url.into(), address: address.into(), ..Self::default() }
    }

    /// How many messages may be here unsettled.
    pub fn prefetch(mut self, messages: u32) -> Self {
        self.prefetch = messages;
        self
    }

    /// How long a message that could not be taken in waits before the server gets it back.
    pub fn return_after(mut self, length: Duration) -> Self {
        self.return_after = length;
        self
    }

    /// The user and the password; for Azure Service Bus the name and the key of a shared access policy.
    pub fn credentials(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
        (self.username, self.password) = (Some(username.into()), Some(password.into()));
        self
    }

    /// Certificates for `amqps://`.
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = tls;
        self
    }

    /// A connection on which nothing comes for this long is dead.
    pub fn idle_timeout(mut self, length: Duration) -> Self {
        self.idle_timeout = length;
        self
    }

    /// Where id, kind and key are read from.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Refuses what cannot work, with the remedy.
    pub(crate) fn check(&self) -> Result<Server, Error> {
        if self.prefetch == 0 {
            return Err(Error::invalid("`prefetch` is 0: nothing would ever come; set 1 or more"));
        }
        let access = Access {
            url: &self.url,
            address: &self.address,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            container_id: self.container_id.as_deref(),
            hostname: self.hostname.as_deref(),
            tls: &self.tls,
            idle_timeout: self.idle_timeout,
            connect_timeout: self.connect_timeout,
        };
        access.read()
    }
}

impl Amqp1SinkConfig {
    /// A sink to this address of the server at this url.
    pub fn new(url: impl Into<String>, address: impl Into<String>) -> Self {
        Self { url: url.into(), address: address.into(), ..Self::default() }
    }

    /// The user and the password; for Azure Service Bus the name and the key of a shared access policy.
    pub fn credentials(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
        (self.username, self.password) = (Some(username.into()), Some(password.into()));
        self
    }

    /// Certificates for `amqps://`.
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = tls;
        self
    }

    /// A connection on which nothing comes for this long is dead.
    pub fn idle_timeout(mut self, length: Duration) -> Self {
        self.idle_timeout = length;
        self
    }

    /// Refuses what cannot work, with the remedy.
    pub(crate) fn check(&self) -> Result<Server, Error> {
        let access = Access {
            url: &self.url,
            address: &self.address,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            container_id: self.container_id.as_deref(),
            hostname: self.hostname.as_deref(),
            tls: &self.tls,
            idle_timeout: self.idle_timeout,
            connect_timeout: self.connect_timeout,
        };
        access.read()
    }
}

// By hand, because nothing secret may be printed.
impl fmt::Debug for Amqp1SourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Amqp1SourceConfig")
            .field("url", &without_login(&self.url))
            .field("address", &self.address)
            .field("prefetch", &self.prefetch)
            .field("username", &self.username)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Amqp1SinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Amqp1SinkConfig")
            .field("url", &without_login(&self.url))
            .field("address", &self.address)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Where [`Amqp1Sink`](crate::Amqp1Sink) writes them.
fn default_mapping() -> Mapping {
    let kind = format!("header:{KIND_HEADER}");
    Mapping::new(&["property:message-id"], &["property:subject", &kind])
        .and_then(|mapping| mapping.key(&["property:group-id"]))
        .expect("these places can be read")
}
