//! The settings of a source and of a sink, in Rust and in TOML.

use std::collections::BTreeMap;
use std::fmt;

use oncebox_core::mapping::Mapping;
use oncebox_core::{Error, ErrorKind};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Deserializer};

/// The longest wait before a broker is tried again, unless set. With librdkafka's own ten seconds nothing may be sent for
/// as long after a broker is back, and `message.timeout.ms` is over by then.
const RECONNECT_MILLIS: u64 = 1000;

/// Where a source reads from, and how.
///
/// ```
/// use oncebox_kafka::{KafkaSourceConfig, Start};
///
/// let config = KafkaSourceConfig::new("kafka-1:9092,kafka-2:9092", "orders")
///     .group("shop")
///     .start(Start::Latest)
///     .property("fetch.min.bytes", "100000");
/// assert_eq!(config.topics, ["orders"]);
/// ```
///
/// In TOML `topic` and `brokers` are a text or a list of texts.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct KafkaSourceConfig {
    /// Some of the brokers, as `host:port`; the others are found through them.
    #[serde(deserialize_with = "one_or_many")]
    pub brokers: Vec<String>,
    /// The topics to read; one that begins with `^` is a regular expression.
    #[serde(rename = "topic", deserialize_with = "one_or_many")]
    pub topics: Vec<String>,
    /// The consumer group: its members share the partitions, and Kafka keeps its offsets.
    pub group: String,
    /// Where to begin in a partition of which the group has no offset, or one that Kafka has removed.
    pub start: Start,
    /// How many messages the source holds ready; 2,000 unless set.
    pub prefetch: usize,
    /// How many bytes of messages the source holds ready; 16 MiB unless set. The client library has as many, and at most one
    /// answer of a broker more.
    pub prefetch_bytes: usize,
    /// Any other property of librdkafka, such as `security.protocol`; see its `CONFIGURATION.md`.
    #[serde(deserialize_with = "properties")]
    pub properties: BTreeMap<String, String>,
    /// Where id, kind and key are read from.
    #[serde(skip)]
    pub mapping: Mapping,
}

/// Where to begin in a partition of which a group has no offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With the oldest message there is.
    #[default]
    Earliest,
    /// With the next one that is produced; what lies there already is never read.
    Latest,
}

/// Where a sink writes to.
///
/// ```
/// use oncebox_kafka::KafkaSinkConfig;
///
/// let config = KafkaSinkConfig::new("localhost:9092", "events").property("compression.type", "gzip");
/// assert_eq!(config.topic, "events");
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct KafkaSinkConfig {
    /// Some of the brokers, as `host:port`; the others are found through them.
    #[serde(deserialize_with = "one_or_many")]
    pub brokers: Vec<String>,
    /// The topic every message is written to.
    pub topic: String,
    /// Any other property of librdkafka, such as `compression.type`; see its `CONFIGURATION.md`.
    #[serde(deserialize_with = "properties")]
    pub properties: BTreeMap<String, String>,
}

/// The id from the header `message-id`, the kind from the header `message-kind` or else the topic, the key from the
/// record's key.
pub(crate) fn default_mapping() -> Mapping {
    Mapping::new(&["header:message-id"], &["header:message-kind", "topic"])
        .and_then(|mapping| mapping.key(&["property:key"]))
        .expect("these places exist")
}

impl Default for KafkaSourceConfig {
    fn default() -> Self {
        Self {
            brokers: default_brokers(),
            topics: Vec::new(),
            group: "oncebox".to_owned(),
            start: Start::Earliest,
            prefetch: 2000,
            prefetch_bytes: 16 * 1024 * 1024,
            properties: BTreeMap::new(),
            mapping: default_mapping(),
        }
    }
}

impl Default for KafkaSinkConfig {
    fn default() -> Self {
        Self { brokers: default_brokers(), topic: String::new(), properties: BTreeMap::new() }
    }
}

fn default_brokers() -> Vec<String> {
    vec!["localhost:9092".to_owned()]
}

impl KafkaSourceConfig {
    /// Reads this topic from these brokers (`host:port`, more than one separated by commas).
    pub fn new(brokers: &str, topic: impl Into<String>) -> Self {
        Self { brokers: split(brokers), topics: vec![topic.into()], ..Self::default() }
    }

    /// Reads one more topic.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Sets the consumer group; `oncebox` unless set.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets where to begin in a partition of which the group has no offset.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets how many messages, and how many bytes of them, the source holds ready.
    pub fn prefetch(mut self, messages: usize, bytes: usize) -> Self {
        (self.prefetch, self.prefetch_bytes) = (messages, bytes);
        self
    }

    /// Sets a property of librdkafka.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Sets where id, kind and key are read from.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// What librdkafka is given. Fails on a setting that is missing, not ours to change, or not known to it.
    pub(crate) fn client(&self) -> Result<ClientConfig, Error> {
        check_brokers(&self.brokers)?;
        if self.topics.is_empty() || self.topics.iter().any(|topic| topic.trim().is_empty()) {
            return Err(Error::invalid("a Kafka source needs a topic; set `topic` to its name"));
        }
        if self.group.trim().is_empty() {
            return Err(Error::invalid("`group` of a Kafka source is empty; name the consumer group"));
        }
        if self.prefetch == 0 || self.prefetch_bytes < 1024 {
            return Err(Error::invalid(
                "`prefetch` of a Kafka source must be at least 1, and `prefetch_bytes` at least 1024",
            ));
        }
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", self.brokers.join(","))
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("auto.offset.reset", if self.start == Start::Earliest { "earliest" } else { "latest" })
            .set("isolation.level", "read_committed")
            .set("queued.min.messages", self.prefetch.min(10_000_000).to_string())
            .set("queued.max.messages.kbytes", (self.prefetch_bytes / 1024).min(2_097_151).to_string())
            // How long it does not fetch when it has that much; with its default of a second the source runs dry.
            .set("fetch.queue.backoff.ms", "10")
            // A connection over which nothing comes any more is given up after this.
            .set("socket.timeout.ms", "15000")
            .set("reconnect.backoff.max.ms", reconnect_millis(&self.properties))
            .set("socket.keepalive.enable", "true");
        // The newer protocol has its assignors on the broker's side and refuses this one.
        if self.properties.get("group.protocol").is_none_or(|protocol| protocol == "classic") {
            client.set("partition.assignment.strategy", "cooperative-sticky");
        }
        let ours = [
            ("bootstrap.servers", "set `brokers` instead"),
            ("metadata.broker.list", "set `brokers` instead"),
            ("group.id", "set `group` instead"),
            ("auto.offset.reset", "set `start` instead"),
            ("queued.min.messages", "set `prefetch` instead"),
            ("queued.max.messages.kbytes", "set `prefetch_bytes` instead"),
            ("enable.auto.commit", "offsets are committed when messages are stored; remove it"),
            ("auto.commit.enable", "offsets are committed when messages are stored; remove it"),
            ("enable.auto.offset.store", "offsets are committed when messages are stored; remove it"),
            ("enable.partition.eof", "the source has no use for it; remove it"),
        ];
        add_properties(&mut client, &self.properties, &ours)?;
        checked(client)
    }
}

impl KafkaSinkConfig {
    /// Writes to this topic through these brokers (`host:port`, more than one separated by commas).
    pub fn new(brokers: &str, topic: impl Into<String>) -> Self {
        Self { brokers: split(brokers), topic: topic.into(), ..Self::default() }
    }

    /// Sets a property of librdkafka.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// What librdkafka is given. Fails on a setting that is missing, not ours to change, or not known to it.
    pub(crate) fn client(&self) -> Result<ClientConfig, Error> {
        check_brokers(&self.brokers)?;
        if self.topic.trim().is_empty() {
            return Err(Error::invalid("a Kafka sink needs a topic; set `topic` to its name"));
        }
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", self.brokers.join(","))
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // The relay waits 15 s for one call, so a message is given up before that.
            .set("message.timeout.ms", "10000")
            .set("socket.timeout.ms", "8000")
            .set("reconnect.backoff.max.ms", reconnect_millis(&self.properties))
            .set("socket.keepalive.enable", "true")
            // A topic that was made a moment ago may not be known everywhere yet.
            .set("topic.metadata.propagation.max.ms", "5000")
            // Where the Java client puts a key, so do we.
            .set("partitioner", "murmur2_random");
        let ours = [
            ("bootstrap.servers", "set `brokers` instead"),
            ("metadata.broker.list", "set `brokers` instead"),
            ("enable.idempotence", "without it a retry changes the order and makes copies; remove it"),
            ("acks", "a message counts as sent when all in-sync replicas have it; remove it"),
            (
                "request.required.acks",
                "a message counts as sent when all in-sync replicas have it; remove it",
            ),
            ("transactional.id", "the sink sends outside Kafka's transactions; remove it"),
        ];
        add_properties(&mut client, &self.properties, &ours)?;
        checked(client)
    }
}

/// The shortest wait may be set to more, and the longest must not be less.
fn reconnect_millis(properties: &BTreeMap<String, String>) -> String {
    let shortest = properties.get("reconnect.backoff.ms").and_then(|millis| millis.parse().ok());
    shortest.unwrap_or(0).max(RECONNECT_MILLIS).to_string()
}

impl fmt::Debug for KafkaSourceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KafkaSourceConfig")
            .field("brokers", &self.brokers)
            .field("topics", &self.topics)
            .field("group", &self.group)
            .field("start", &self.start)
            .field("prefetch", &self.prefetch)
            .field("prefetch_bytes", &self.prefetch_bytes)
            // Values may be passwords.
            .field("properties", &self.properties.keys())
            .field("mapping", &self.mapping)
            .finish()
    }
}

impl fmt::Debug for KafkaSinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KafkaSinkConfig")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("properties", &self.properties.keys())
            .finish()
    }
}

fn split(brokers: &str) -> Vec<String> {
    brokers.split(',').map(|broker| broker.trim().to_owned()).collect()
}

fn check_brokers(brokers: &[String]) -> Result<(), Error> {
    if brokers.is_empty() || brokers.iter().any(|broker| broker.trim().is_empty()) {
        return Err(Error::invalid("`brokers` names no broker; write `host:port` of one at least"));
    }
    Ok(())
}

fn add_properties(
    client: &mut ClientConfig,
    properties: &BTreeMap<String, String>,
    ours: &[(&str, &str)],
) -> Result<(), Error> {
    for (name, value) in properties {
        if let Some((_, remedy)) = ours.iter().find(|(own, _)| own == name) {
            return Err(Error::invalid(format!("the property `{name}` cannot be changed: {remedy}")));
        }
        client.set(name, value);
    }
    Ok(())
}

/// Lets librdkafka look at the names and values, without connecting.
fn checked(mut client: ClientConfig) -> Result<ClientConfig, Error> {
    // Its log lines are mapped to ours, and filtered there.
    client.set_log_level(RDKafkaLogLevel::Info);
    client.create_native_config().map_err(refused)?;
    check_login(&client)?;
    Ok(client)
}

/// The error for a setting that librdkafka does not take; never with a value, which may be a password.
pub(crate) fn refused(error: KafkaError) -> Error {
    let KafkaError::ClientConfig(_, why, name, value) = error else {
        return Error::caused(ErrorKind::Invalid, "the settings for Kafka do not go together", error);
    };
    let why = if value.is_empty() { why } else { why.replace(&value, "…") };
    let mut text = format!("the property `{name}` is refused by this build of librdkafka: {}", why.trim());
    let about_tls = name.starts_with("ssl.") || name.starts_with("sasl.") || name == "security.protocol";
    if about_tls && !build_has("ssl") {
        text += NO_TLS;
    }
    Error::invalid(text)
}

/// A login that this build cannot do, which librdkafka says only when it connects.
fn check_login(client: &ClientConfig) -> Result<(), Error> {
    let protocol = client.get("security.protocol").unwrap_or_default().to_ascii_lowercase();
    if !protocol.starts_with("sasl_") {
        return Ok(());
    }
    let Some(mechanism) = client.get("sasl.mechanism").or_else(|| client.get("sasl.mechanisms")) else {
        return Err(Error::invalid(
            "`security.protocol` asks for a login; set `sasl.mechanism`, for example to PLAIN",
        ));
    };
    let feature = match mechanism {
        "GSSAPI" => "sasl_gssapi",
        "OAUTHBEARER" => "sasl_oauthbearer",
        scram if scram.starts_with("SCRAM-SHA-") => "sasl_scram",
        _ => return Ok(()),
    };
    if build_has(feature) {
        return Ok(());
    }
    let remedy = if feature == "sasl_gssapi" {
        "; Kerberos needs a build of your own, see the Kafka guide"
    } else {
        NO_TLS
    };
    Err(Error::invalid(format!("this build of librdkafka has no `{feature}`{remedy}")))
}

/// Whether librdkafka was built with this; others than us may have asked for it.
fn build_has(feature: &str) -> bool {
    let features =
        ClientConfig::new().create_native_config().and_then(|native| native.get("builtin.features"));
    features.is_ok_and(|features| features.split(',').any(|own| own.trim() == feature))
}

const NO_TLS: &str = "; TLS and SASL mechanisms other than PLAIN need the feature `kafka-tls` of `oncebox` or of the \
                      command, which needs OpenSSL; see the Kafka guide";

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => split(&one),
        OneOrMany::Many(many) => many,
    })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Whole(i64),
    Truth(bool),
    Fraction(f64),
}

fn properties<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let properties: BTreeMap<String, Scalar> = BTreeMap::deserialize(deserializer)?;
    let text = |value| match value {
        Scalar::Text(text) => text,
        Scalar::Whole(number) => number.to_string(),
        Scalar::Truth(truth) => truth.to_string(),
        Scalar::Fraction(number) => number.to_string(),
    };
    Ok(properties.into_iter().map(|(name, value)| (name, text(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_from_toml() {
        let config: KafkaSourceConfig = toml::from_str(
            r#"
            brokers = ["one:9092", "two:9092"]
            topic = ["orders", "^refunds-.*"]
            group = "shop"
            start = "latest"
            prefetch = 500
            prefetch_bytes = 1000000
            [properties]
            "security.protocol" = "sasl_plaintext"
            "sasl.mechanism" = "PLAIN"
            "fetch.min.bytes" = 1000
            "check.crcs" = true
            "#,
        )
        .unwrap();
        assert_eq!(config.topics, ["orders", "^refunds-.*"]);
        assert_eq!(config.start, Start::Latest);
        let client = config.client().unwrap();
        for (name, value) in [
            ("bootstrap.servers", "one:9092,two:9092"),
            ("group.id", "shop"),
            ("auto.offset.reset", "latest"),
            ("enable.auto.commit", "false"),
            ("isolation.level", "read_committed"),
            ("queued.max.messages.kbytes", "976"),
            ("fetch.min.bytes", "1000"),
            ("check.crcs", "true"),
            ("partition.assignment.strategy", "cooperative-sticky"),
        ] {
            assert_eq!(client.get(name), Some(value), "{name}");
        }
        let short: KafkaSourceConfig = toml::from_str("topic = 'orders'\nbrokers = 'one:1, two:2'").unwrap();
        assert_eq!(short.brokers, ["one:1", "two:2"]);
        assert_eq!(short, KafkaSourceConfig::new("one:1,two:2", "orders"));
    }

    #[test]
    fn a_sink_is_read_from_toml() {
        let config: KafkaSinkConfig = toml::from_str(
            "brokers = ['localhost:9092']\ntopic = 'events'\nproperties = { 'linger.ms' = 1 }",
        )
        .unwrap();
        let client = config.client().unwrap();
        assert_eq!((client.get("acks"), client.get("linger.ms")), (Some("all"), Some("1")));
        assert_eq!(client.get("enable.idempotence"), Some("true"));
    }

    #[test]
    fn a_longer_wait_between_connections_can_be_set() {
        for (shortest, longest) in [("100", "1000"), ("2000", "2000")] {
            let sink = KafkaSinkConfig::new("b:1", "t").property("reconnect.backoff.ms", shortest);
            let source = KafkaSourceConfig::new("b:1", "t").property("reconnect.backoff.ms", shortest);
            for client in [sink.client().unwrap(), source.client().unwrap()] {
                assert_eq!(client.get("reconnect.backoff.max.ms"), Some(longest));
                client.create::<rdkafka::producer::BaseProducer>().unwrap();
            }
        }
    }

    #[test]
    fn mistakes_name_the_setting_and_the_remedy() {
        assert!(
            toml::from_str::<KafkaSourceConfig>("topics = ['a']").unwrap_err().to_string().contains("topics")
        );
        let source = || KafkaSourceConfig::new("localhost:9092", "orders");
        for (config, word) in [
            (KafkaSourceConfig::default(), "set `topic`"),
            (KafkaSourceConfig::new("", "orders"), "`brokers`"),
            (source().group(" "), "`group`"),
            (source().prefetch(0, 5000), "`prefetch`"),
            (source().property("enable.auto.commit", "true"), "remove it"),
            (source().property("auto.offset.reset", "latest"), "set `start`"),
            (source().property("no.such.thing", "1"), "`no.such.thing`"),
            (source().property("session.timeout.ms", "soon"), "`session.timeout.ms`"),
        ] {
            let error = config.client().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(word), "{error}");
        }
        for (config, word) in [
            (KafkaSinkConfig::default(), "set `topic`"),
            (KafkaSinkConfig::new("b:1", "t").property("acks", "1"), "in-sync"),
            (KafkaSinkConfig::new("b:1", "t").property("enable.idempotence", "false"), "remove it"),
        ] {
            let error = config.client().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn passwords_are_neither_printed_nor_in_errors() {
        let config = KafkaSourceConfig::new("localhost:9092", "orders")
            .property("sasl.password", "canary")
            .property("sasl.username", "shop")
            .property("sasl.mechanism", "canary");
        assert!(!format!("{config:?}").contains("canary"));
        assert!(format!("{config:?}").contains("sasl.password"));
        let sink = KafkaSinkConfig::new("localhost:9092", "events").property("sasl.password", "canary");
        assert!(!format!("{sink:?}").contains("canary"));
        let wrong =
            KafkaSourceConfig::new("localhost:9092", "orders").property("security.protocol", "canary");
        assert!(!wrong.client().unwrap_err().to_string().contains("canary"));
    }

    /// What the guide says about this build, unless somebody else's features add to it.
    #[test]
    fn the_build_can_do_what_the_guide_says() {
        let config = KafkaSourceConfig::new("localhost:9092", "orders").client().unwrap();
        let features = config.create_native_config().unwrap().get("builtin.features").unwrap();
        let features: Vec<&str> = features.split(',').map(str::trim).collect();
        for feature in ["gzip", "snappy", "lz4", "sasl_plain"] {
            assert!(features.contains(&feature), "{feature} is not in {features:?}");
        }
        let tls = KafkaSourceConfig::new("localhost:9092", "orders").property("security.protocol", "ssl");
        let scram = KafkaSourceConfig::new("localhost:9092", "orders")
            .property("security.protocol", "sasl_plaintext")
            .property("sasl.mechanism", "SCRAM-SHA-512");
        assert!(!cfg!(feature = "tls") || features.contains(&"ssl") && features.contains(&"sasl_scram"));
        for config in [tls, scram] {
            let answer = config.client().map(drop).map_err(|error| error.to_string());
            match features.contains(&"ssl") {
                true => assert_eq!(answer, Ok(())),
                false => assert!(
                    answer.as_ref().is_err_and(|error| error.contains("feature `kafka-tls`")),
                    "{answer:?}"
                ),
            }
        }
        let none = KafkaSourceConfig::new("localhost:9092", "orders")
            .property("security.protocol", "SASL_PLAINTEXT");
        assert!(none.client().unwrap_err().to_string().contains("set `sasl.mechanism`"));
        let plain = KafkaSourceConfig::new("localhost:9092", "orders")
            .property("security.protocol", "sasl_plaintext")
            .property("sasl.mechanism", "PLAIN")
            .property("sasl.username", "shop")
            .property("sasl.password", "secret");
        plain.client().unwrap();
    }
}
