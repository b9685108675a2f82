//! Settings of a source and a sink, as they stand in a configuration file.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use oncebox_core::access::TlsConfig as RedisTls;
use oncebox_core::access::without_login;
use oncebox_core::mapping::Mapping;
use oncebox_core::{Error, durations};
use serde::Deserialize;

/// Where a [`RedisSource`](crate::RedisSource) reads.
///
/// ```
/// use oncebox_redis::RedisSourceConfig;
///
/// let config = RedisSourceConfig::new("redis://localhost", "orders", "oncebox").create().consumer("billing-1");
/// assert_eq!(config.prefetch, 1000);
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisSourceConfig {
    /// The server: `redis://USER:PASSWORD@HOST:6379/DATABASE`; `rediss://` for TLS.
    pub url: String,
    /// Settings of TLS.
    pub tls: RedisTls,
    /// The stream's key.
    pub stream: String,
    /// The consumer group. Processes that share the work use the same one.
    pub group: String,
    /// The name of this source in the group; made of host and process unless set. Two sources never share one. One
    /// that stays the same lets a process go on at once with what it held before a restart.
    pub consumer: String,
    /// Creates the stream and the group, from the stream's beginning, when they do not exist.
    pub create: bool,
    /// The most messages this source holds; 1000 unless set.
    pub prefetch: usize,
    /// Messages that nobody has acknowledged for so long are taken over from their consumer; 1 minute unless set. A
    /// source that lives tells the server about what it holds more often than that.
    #[serde(with = "durations")]
    pub claim_after: Duration,
    /// The field that holds the payload; `payload` unless set.
    pub payload_field: String,
    /// Where the id, kind and key are read.
    #[serde(skip)]
    pub mapping: Mapping,
}

impl Default for RedisSourceConfig {
    fn default() -> Self {
        Self {
            url: "redis://localhost:6379".to_owned(),
            tls: RedisTls::default(),
            stream: String::new(),
            group: String::new(),
            consumer: fresh_consumer(),
            create: false,
            prefetch: 1000,
            claim_after: Duration::from_secs(60),
            payload_field: "payload".to_owned(),
            mapping: default_mapping(),
        }
    }
}

impl RedisSourceConfig {
    /// A group of a stream, both there already.
    pub fn new(url: impl Into<String>, stream: impl Into<String>, group: impl Into<String>) -> Self {
        Self { url: url.into(), stream: stream.into(), group: group.into(), ..Self::default() }
    }

    /// Sets TLS.
    pub fn tls(mut self, tls: RedisTls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets the name of this source in the group.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Creates the stream and the group when they do not exist.
    pub fn create(mut self) -> Self {
        self.create = true;
        self
    }

    /// Sets the most messages this source holds.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages;
        self
    }

    /// Sets after how long messages are taken over from a consumer that has died.
    pub fn claim_after(mut self, idle: Duration) -> Self {
        self.claim_after = idle;
        self
    }

    /// Sets where the id, kind and key are read.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Refuses what can never work, naming the setting and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        check_connection(&self.url, &self.tls)?;
        for (setting, value) in [
            ("stream", &self.stream),
            ("group", &self.group),
            ("consumer", &self.consumer),
            ("payload_field", &self.payload_field),
        ] {
            if value.is_empty() {
                return Err(Error::invalid(format!("{setting} is not set; name the one to use")));
            }
        }
        if self.prefetch == 0 {
            return Err(Error::invalid("prefetch must be at least 1"));
        }
        if self.claim_after < Duration::from_secs(1) {
            return Err(Error::invalid(
                "claim_after must be at least 1s, else living sources rob each other",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for RedisSourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedisSourceConfig")
            .field("url", &without_login(&self.url))
            .field("tls", &self.tls)
            .field("stream", &self.stream)
            .field("group", &self.group)
            .field("consumer", &self.consumer)
            .field("create", &self.create)
            .field("prefetch", &self.prefetch)
            .field("claim_after", &self.claim_after)
            .field("payload_field", &self.payload_field)
            .field("mapping", &self.mapping)
            .finish()
    }
}

/// Where a [`RedisSink`](crate::RedisSink) writes.
///
/// ```
/// use oncebox_redis::RedisSinkConfig;
///
/// let config = RedisSinkConfig::new("redis://localhost", "events");
/// assert_eq!(config.max_length, None);
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisSinkConfig {
    /// The server: `redis://USER:PASSWORD@HOST:6379/DATABASE`; `rediss://` for TLS.
    pub url: String,
    /// Settings of TLS.
    pub tls: RedisTls,
    /// The stream's key.
    pub stream: String,
    /// Creates the stream with the first message; on unless set. When off, messages to a stream that does not exist
    /// are not sent.
    pub create: bool,
    /// About the most entries the stream keeps; all unless set. Older ones are removed, **read or not**: this can lose
    /// messages.
    pub max_length: Option<u64>,
    /// How long the server may take to confirm; 10 s unless set.
    #[serde(with = "durations")]
    pub timeout: Duration,
}

impl Default for RedisSinkConfig {
    fn default() -> Self {
        Self {
            url: "redis://localhost:6379".to_owned(),
            tls: RedisTls::default(),
            stream: String::new(),
            create: true,
            max_length: None,
            timeout: Duration::from_secs(10),
        }
    }
}

impl RedisSinkConfig {
    /// Adds to this stream.
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        Self { url: url.into(), stream: stream.into(), ..Self::default() }
    }

    /// Sets TLS.
    pub fn tls(mut self, tls: RedisTls) -> Self {
        self.tls = tls;
        self
    }

    /// Sends only to a stream that exists.
    pub fn only_existing(mut self) -> Self {
        self.create = false;
        self
    }

    /// Sets about the most entries the stream keeps; older ones are removed, read or not.
    pub fn max_length(mut self, entries: u64) -> Self {
        self.max_length = Some(entries);
        self
    }

    /// Sets how long the server may take to confirm.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Refuses what can never work, naming the setting and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        check_connection(&self.url, &self.tls)?;
        if self.stream.is_empty() {
            return Err(Error::invalid("stream is not set; name the one to use"));
        }
        if self.max_length == Some(0) {
            return Err(Error::invalid("max_length must be at least 1; leave it out to keep everything"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout must be more than nothing"));
        }
        Ok(())
    }
}

impl fmt::Debug for RedisSinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedisSinkConfig")
            .field("url", &without_login(&self.url))
            .field("tls", &self.tls)
            .field("stream", &self.stream)
            .field("create", &self.create)
            .field("max_length", &self.max_length)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Ids from the field `id`, kinds from `kind`, else the stream's key, keys from `key`.
pub(crate) fn default_mapping() -> Mapping {
    Mapping::new(&["property:id"], &["property:kind", "stream"])
        .and_then(|mapping| mapping.key(&["property:key"]))
        .expect("these are places")
}

/// A name that no other source has, not even in this process.
fn fresh_consumer() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    // A restarted container may get the same host name and process number, hence the time.
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("oncebox-{}-{}-{:x}-{number}", host.trim(), std::process::id(), since.as_millis())
}

fn check_connection(url: &str, tls: &RedisTls) -> Result<(), Error> {
    if !["redis://", "rediss://", "redis+unix://", "unix://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(Error::invalid(format!(
            "url: `{}` is no address of a Redis server; write `redis://HOST:6379` or `rediss://HOST:6379`",
            without_login(url)
        )));
    }
    if *tls != RedisTls::default() && !url.starts_with("rediss://") {
        return Err(Error::invalid("tls is set, but the url does not begin with `rediss://`"));
    }
    if tls.certificate.is_some() != tls.key.is_some() {
        return Err(Error::invalid("tls: certificate and key go together"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<RedisSourceConfig, String> {
        let config: RedisSourceConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn settings_are_read_from_toml() {
        let config = source(
            r#"
            url = "rediss://localhost:6379/2"
            stream = "orders"
            group = "oncebox"
            create = true
            claim_after = "30s"
            tls = { ca = "ca.pem" }
            "#,
        )
        .unwrap();
        assert_eq!(config.claim_after, Duration::from_secs(30));
        assert_eq!(config.mapping, default_mapping());
        assert_ne!(config.consumer, RedisSourceConfig::default().consumer, "no two sources share a name");
        let sink: RedisSinkConfig =
            toml::from_str("stream = 'events'\nmax_length = 5\ntimeout = '5s'").unwrap();
        sink.check().unwrap();
        assert_eq!((sink.max_length, sink.timeout), (Some(5), Duration::from_secs(5)));
    }

    #[test]
    fn what_can_never_work_is_refused_by_name() {
        for (text, word) in [
            ("group = 'g'", "stream is not set"),
            ("stream = 's'", "group is not set"),
            ("stream = 's'\ngroup = 'g'\nconsumer = ''", "consumer is not set"),
            ("stream = 's'\ngroup = 'g'\nurl = 'http://x'", "url"),
            ("stream = 's'\ngroup = 'g'\nprefetch = 0", "prefetch"),
            ("stream = 's'\ngroup = 'g'\nclaim_after = '10ms'", "claim_after"),
            ("stream = 's'\ngroup = 'g'\nqueue = 'q'", "queue"),
            ("stream = 's'\ngroup = 'g'\ntls = { ca = 'c' }", "rediss://"),
        ] {
            let error = source(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(RedisSinkConfig::new("redis://a", "").check().unwrap_err().to_string().contains("stream"));
        assert!(RedisSinkConfig::new("redis://a", "s").max_length(0).check().is_err());
    }

    #[test]
    fn secrets_never_show() {
        let url = "redis://ann:canary@host:6379/1";
        let wrong = RedisSinkConfig::new("http://ann:canary@host", "s").check().unwrap_err();
        let shown = format!(
            "{:?} {:?} {wrong}",
            RedisSourceConfig::new(url, "s", "g"),
            RedisSinkConfig::new(url, "s")
        );
        assert!(shown.contains("host:6379") && !shown.contains("canary"), "{shown}");
    }
}
