//! Settings of a source and a sink, as they stand in a configuration file.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use oncebox_core::access::without_login;
use oncebox_core::mapping::{KEY_HEADER, KIND_HEADER, Mapping};
use oncebox_core::{Error, durations};
use serde::Deserialize;

use crate::envelope::ID_HEADER;

/// How to get in; give what the server asks for and leave out the rest.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsAuth {
    /// The user, with `password`.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// A token instead.
    pub token: Option<String>,
    /// The seed of an nkey instead (`SU…`).
    pub nkey: Option<String>,
    /// The path of a credentials file instead (a JWT and its nkey).
    pub credentials: Option<PathBuf>,
}

impl fmt::Debug for NatsAuth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "…");
        formatter
            .debug_struct("NatsAuth")
            .field("user", &self.user)
            .field("password", &hidden(&self.password))
            .field("token", &hidden(&self.token))
            .field("nkey", &hidden(&self.nkey))
            .field("credentials", &self.credentials)
            .finish()
    }
}

/// With any of these, only connections with TLS are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsTls {
    /// Makes no connection without TLS, whatever the server offers.
    pub required: bool,
    /// The file of the certificate that signed the server's; those of the system unless set.
    pub ca: Option<PathBuf>,
    /// The file of our own certificate, for a server that asks for one.
    pub certificate: Option<PathBuf>,
    /// The file of its private key.
    pub key: Option<PathBuf>,
    /// Begin with TLS instead of the server's greeting, for servers set to `handshake_first`.
    pub first: bool,
}

/// What happens to a stored message that was acknowledged, for a stream that the source creates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NatsRetention {
    /// It stays until a limit of the stream removes it.
    #[default]
    Limits,
    /// It is removed; the stream has one consumer for each subject.
    WorkQueue,
    /// It is removed when every consumer has acknowledged it.
    Interest,
}

/// Where a [`NatsSource`](crate::NatsSource) reads.
///
/// ```
/// use oncebox_nats::NatsSourceConfig;
///
/// let config = NatsSourceConfig::new("nats://localhost", "ORDERS", "oncebox").create(["orders.>"]);
/// assert_eq!(config.prefetch, 4000);
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsSourceConfig {
    /// One server, or several separated by commas: `nats://a:4222,nats://b:4222`; `tls://` for TLS.
    pub url: String,
    /// How to get in.
    pub auth: NatsAuth,
    /// Settings of TLS.
    pub tls: NatsTls,
    /// The JetStream domain, where servers have one.
    pub domain: Option<String>,
    /// The stream.
    pub stream: String,
    /// The durable pull consumer. Processes that share the work use the same one.
    pub consumer: String,
    /// Creates the stream and the consumer when they do not exist.
    pub create: bool,
    /// The subjects of a stream that is created.
    pub subjects: Vec<String>,
    /// What becomes of acknowledged messages of a stream that is created.
    pub retention: NatsRetention,
    /// How many servers keep a copy of a stream that is created; 1 unless set.
    pub replicas: usize,
    /// Only messages of this subject, for a consumer that is created; `*` and `>` stand for any word and any rest.
    pub filter: Option<String>,
    /// How long the server waits for an acknowledgement, for a consumer that is created; 30 s unless set.
    #[serde(with = "durations")]
    pub ack_wait: Duration,
    /// The most messages that all processes together may hold, for a consumer that is created; four times `prefetch`
    /// unless set.
    pub max_ack_pending: Option<u32>,
    /// The most messages this source holds; 4000 unless set.
    pub prefetch: usize,
    /// About the most bytes of messages it holds; 64 MiB unless set.
    pub prefetch_bytes: usize,
    /// Waits until the server has confirmed each acknowledgement. Off unless set: one that is lost only makes a
    /// duplicate, which is dropped.
    pub confirm_acks: bool,
    /// When a message that could not be stored comes again; after 1 s unless set.
    #[serde(with = "durations")]
    pub return_delay: Duration,
    /// Where the id, kind and key are read.
    #[serde(skip)]
    pub mapping: Mapping,
}

impl Default for NatsSourceConfig {
    fn default() -> Self {
        Self {
            url: "nats://localhost:4222".to_owned(),
            auth: NatsAuth::default(),
            tls: NatsTls::default(),
            domain: None,
            stream: String::new(),
            consumer: String::new(),
            create: false,
            subjects: Vec::new(),
            retention: NatsRetention::Limits,
            replicas: 1,
            filter: None,
            ack_wait: Duration::from_secs(30),
            max_ack_pending: None,
            prefetch: 4000,
            prefetch_bytes: 64 * 1024 * 1024,
            confirm_acks: false,
            return_delay: Duration::from_secs(1),
            mapping: default_mapping(),
        }
    }
}

impl NatsSourceConfig {
    /// A durable consumer of a stream, both there already.
    pub fn new(url: impl Into<String>, stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        Self { url: url.into(), stream: stream.into(), consumer: consumer.into(), ..Self::default() }
    }

    /// Sets how to get in.
    pub fn auth(mut self, auth: NatsAuth) -> Self {
        self.auth = auth;
        self
    }

    /// Makes connections with TLS only, with these settings.
    pub fn tls(mut self, tls: NatsTls) -> Self {
        self.tls = NatsTls { required: true, ..tls };
        self
    }

    /// Creates the stream with these subjects, and the consumer, when they do not exist.
    pub fn create<T: Into<String>>(mut self, subjects: impl IntoIterator<Item = T>) -> Self {
        self.create = true;
        self.subjects = subjects.into_iter().map(Into::into).collect();
        self
    }

    /// Sets what becomes of acknowledged messages of a stream that is created.
    pub fn retention(mut self, retention: NatsRetention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets which subjects a consumer that is created delivers.
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filter = Some(subject.into());
        self
    }

    /// Sets how long the server waits for an acknowledgement, for a consumer that is created.
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait;
        self
    }

    /// Sets the most messages this source holds.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages;
        self
    }

    /// Waits until the server has confirmed each acknowledgement.
    pub fn confirm_acks(mut self) -> Self {
        self.confirm_acks = true;
        self
    }

    /// Sets when a message that could not be stored comes again.
    pub fn return_delay(mut self, delay: Duration) -> Self {
        self.return_delay = delay;
        self
    }

    /// Sets where the id, kind and key are read.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Refuses what can never work, naming the setting and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        check_connection(&self.url, &self.auth, &self.tls)?;
        check_name("stream", &self.stream)?;
        check_name("consumer", &self.consumer)?;
        for subject in self.subjects.iter().chain(&self.filter) {
            check_subject("subjects and filter", subject)?;
        }
        if self.create && self.subjects.is_empty() && self.filter.is_none() {
            return Err(Error::invalid(
                "create: a stream needs subjects; set `subjects`, or leave `create` out and create it yourself",
            ));
        }
        if self.prefetch == 0 || self.prefetch_bytes == 0 {
            return Err(Error::invalid("prefetch and prefetch_bytes must be at least 1"));
        }
        if self.ack_wait < Duration::from_secs(1) {
            return Err(Error::invalid("ack_wait must be at least 1s, else every message comes twice"));
        }
        if !(1..=5).contains(&self.replicas) {
            return Err(Error::invalid("replicas must be 1 to 5"));
        }
        Ok(())
    }
}

impl fmt::Debug for NatsSourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NatsSourceConfig")
            .field("url", &without_login(&self.url))
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .field("create", &self.create)
            .field("prefetch", &self.prefetch)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

/// Where a [`NatsSink`](crate::NatsSink) writes.
///
/// ```
/// use oncebox_nats::NatsSinkConfig;
///
/// let config = NatsSinkConfig::new("nats://localhost").prefix("events");
/// assert_eq!(config.prefix.as_deref(), Some("events")); // `order.paid` goes to `events.order.paid`
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsSinkConfig {
    /// One server, or several separated by commas; `tls://` for TLS.
    pub url: String,
    /// How to get in.
    pub auth: NatsAuth,
    /// Settings of TLS.
    pub tls: NatsTls,
    /// Every message goes to this subject. Unless set, the kind is the subject.
    pub subject: Option<String>,
    /// Stands before the kind, with a dot, to make the subject.
    pub prefix: Option<String>,
    /// The stream that must take the messages; any stream that has the subject unless set.
    pub stream: Option<String>,
    /// How long the server may take to confirm all messages of one call; 10 s unless set.
    #[serde(with = "durations")]
    pub timeout: Duration,
}

impl Default for NatsSinkConfig {
    fn default() -> Self {
        Self {
            url: "nats://localhost:4222".to_owned(),
            auth: NatsAuth::default(),
            tls: NatsTls::default(),
            subject: None,
            prefix: None,
            stream: None,
            timeout: Duration::from_secs(10),
        }
    }
}

impl NatsSinkConfig {
    /// Sends each message to the subject that is its kind.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Sets how to get in.
    pub fn auth(mut self, auth: NatsAuth) -> Self {
        self.auth = auth;
        self
    }

    /// Makes connections with TLS only, with these settings.
    pub fn tls(mut self, tls: NatsTls) -> Self {
        self.tls = NatsTls { required: true, ..tls };
        self
    }

    /// Sends everything to this subject.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Puts this and a dot before the kind.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Only this stream may take the messages: another one refuses them.
    pub fn stream(mut self, stream: impl Into<String>) -> Self {
        self.stream = Some(stream.into());
        self
    }

    /// Sets how long the server may take to confirm all messages of one call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Refuses what can never work, naming the setting and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        check_connection(&self.url, &self.auth, &self.tls)?;
        for (setting, subject) in [("subject", &self.subject), ("prefix", &self.prefix)] {
            let Some(subject) = subject else { continue };
            check_subject(setting, subject)?;
            if subject.split('.').any(|word| matches!(word, "*" | ">")) {
                return Err(Error::invalid(format!(
                    "{setting}: `{subject}` stands for many; messages go to one"
                )));
            }
        }
        if self.subject.is_some() && self.prefix.is_some() {
            return Err(Error::invalid("subject and prefix are both set; a fixed subject has no prefix"));
        }
        if let Some(stream) = &self.stream {
            check_name("stream", stream)?;
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout must be more than nothing"));
        }
        Ok(())
    }
}

impl fmt::Debug for NatsSinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NatsSinkConfig")
            .field("url", &without_login(&self.url))
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("subject", &self.subject)
            .field("prefix", &self.prefix)
            .field("stream", &self.stream)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Ids from `Nats-Msg-Id`; kinds from the header `message-kind`, else the subject; keys from `message-key`.
pub(crate) fn default_mapping() -> Mapping {
    let id = format!("header:{ID_HEADER}");
    let kind = format!("header:{KIND_HEADER}");
    Mapping::new(&[id.as_str()], &[kind.as_str(), "subject"])
        .and_then(|mapping| mapping.key(&[format!("header:{KEY_HEADER}")]))
        .expect("these are places")
}

fn check_connection(url: &str, auth: &NatsAuth, tls: &NatsTls) -> Result<(), Error> {
    for one in url.split(',') {
        let scheme = one.trim().split_once("://").map(|(scheme, _)| scheme);
        if one.trim().is_empty() || !matches!(scheme, None | Some("nats" | "tls")) {
            return Err(Error::invalid(format!(
                "url: `{}` is no address of a NATS server; write `nats://HOST:4222` or `tls://HOST:4222`",
                without_login(one)
            )));
        }
    }
    let ways = [auth.user.is_some(), auth.token.is_some(), auth.nkey.is_some(), auth.credentials.is_some()];
    if ways.iter().filter(|given| **given).count() > 1 {
        return Err(Error::invalid("auth: give one of user and password, token, nkey, credentials"));
    }
    if auth.user.is_some() != auth.password.is_some() {
        return Err(Error::invalid("auth: user and password go together"));
    }
    if tls.certificate.is_some() != tls.key.is_some() {
        return Err(Error::invalid("tls: certificate and key go together"));
    }
    Ok(())
}

fn check_name(setting: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid(format!("{setting} is not set; name the one to use")));
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c)) {
        return Err(Error::invalid(format!(
            "{setting}: `{}` cannot be a name; leave out spaces and . * > / \\",
            name.escape_debug()
        )));
    }
    Ok(())
}

fn check_subject(setting: &str, subject: &str) -> Result<(), Error> {
    let words_are_good = subject
        .split('.')
        .all(|word| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control()));
    if words_are_good {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{setting}: `{}` is no subject; write words with dots between them",
        subject.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<NatsSourceConfig, String> {
        let config: NatsSourceConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn settings_are_read_from_toml() {
        let config = source(
            r#"
            url = "nats://a:4222, tls://b"
            stream = "ORDERS"
            consumer = "oncebox"
            create = true
            subjects = ["orders.>"]
            retention = "work-queue"
            ack_wait = "1m"
            prefetch = 50
            auth = { user = "ann", password = "secret" }
            tls = { ca = "ca.pem" }
            "#,
        )
        .unwrap();
        assert_eq!(config.ack_wait, Duration::from_secs(60));
        assert_eq!(config.retention, NatsRetention::WorkQueue);
        assert_eq!(config.mapping, default_mapping());
        let sink: NatsSinkConfig =
            toml::from_str("url = 'nats://a'\nprefix = 'events'\ntimeout = '5s'").unwrap();
        sink.check().unwrap();
        assert_eq!(sink.timeout, Duration::from_secs(5));
    }

    #[test]
    fn what_can_never_work_is_refused_by_name() {
        for (text, word) in [
            ("consumer = 'c'", "stream is not set"),
            ("stream = 's'", "consumer is not set"),
            ("stream = 'a.b'\nconsumer = 'c'", "stream: `a.b`"),
            ("stream = 's'\nconsumer = 'c'\nurl = 'http://x'", "url"),
            ("stream = 's'\nconsumer = 'c'\ncreate = true", "subjects"),
            ("stream = 's'\nconsumer = 'c'\nfilter = 'a..b'", "a..b"),
            ("stream = 's'\nconsumer = 'c'\nprefetch = 0", "prefetch"),
            ("stream = 's'\nconsumer = 'c'\nack_wait = '10ms'", "ack_wait"),
            ("stream = 's'\nconsumer = 'c'\nack_wait = '10'", "`30s`"),
            ("stream = 's'\nconsumer = 'c'\nqueue = 'q'", "queue"),
            ("stream = 's'\nconsumer = 'c'\nauth = { user = 'u' }", "go together"),
            ("stream = 's'\nconsumer = 'c'\nauth = { token = 't', nkey = 'n' }", "give one"),
        ] {
            let error = source(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        for (config, word) in [
            (NatsSinkConfig::new("nats://a").subject("a.*"), "stands for many"),
            (NatsSinkConfig::new("nats://a").subject("a").prefix("b"), "both set"),
            (NatsSinkConfig::new("").prefix("b"), "url"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn secrets_never_show() {
        let auth = NatsAuth {
            user: Some("ann".into()),
            password: Some("canary1".into()),
            token: Some("canary2".into()),
            nkey: Some("canary3".into()),
            ..NatsAuth::default()
        };
        let url = "nats://ann:canary4@host:4222,nats://canary5@b";
        let shown = format!(
            "{:?} {:?} {}",
            NatsSourceConfig::new(url, "s", "c").auth(auth.clone()),
            NatsSinkConfig::new(url).auth(auth),
            check_connection("http://ann:canary6@host", &NatsAuth::default(), &NatsTls::default())
                .unwrap_err()
        );
        assert!(shown.contains("host:4222") && !shown.contains("canary"), "{shown}");
    }
}
