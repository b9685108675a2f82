//! The reference has every key of every broker with the default of that broker's crate, each key has an effect, and a
//! test of that crate fails when it is ignored.

#![cfg(all(
    feature = "rabbitmq",
    feature = "kafka",
    feature = "nats",
    feature = "redis",
    feature = "mqtt",
    feature = "amqp1"
))]
#![allow(clippy::unwrap_used)]

mod keys;

use std::collections::BTreeSet;
use std::path::Path;

use keys::{OF_SINKS, OF_SOURCES};
use oncebox::amqp1::{Amqp1SinkConfig, Amqp1SourceConfig};
use oncebox::kafka::{KafkaSinkConfig, KafkaSourceConfig};
use oncebox::mqtt::{MqttSinkConfig, MqttSourceConfig};
use oncebox::nats::{NatsSinkConfig, NatsSourceConfig};
use oncebox::rabbitmq::{RabbitmqSinkConfig, RabbitmqSourceConfig};
use oncebox::redis::{RedisSinkConfig, RedisSourceConfig};
use oncebox_server::Config;
use oncebox_server::brokers::{BrokerSink, BrokerSource};
use oncebox_server::config::{DEFAULTS, SinkType, SourceType};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

/// What a source of each type needs to be one; Redis would make up a name otherwise.
const SOURCES: &[(&str, &str)] = &[
    ("rabbitmq", "queue = 'q'\n"),
    ("kafka", "topic = 't'\n"),
    ("nats", "stream = 's'\nconsumer = 'c'\n"),
    ("redis", "stream = 's'\ngroup = 'g'\nconsumer = 'c'\n"),
    ("mqtt", "client_id = 'c'\ntopic = 't'\n"),
    ("amqp1", "address = 'a'\n"),
];

/// The same for sinks.
const SINKS: &[(&str, &str)] = &[
    ("rabbitmq", ""),
    ("kafka", "topic = 't'\n"),
    ("nats", ""),
    ("redis", "stream = 's'\n"),
    ("mqtt", ""),
    ("amqp1", "address = 'a'\n"),
];

fn needed(of: &[(&'static str, &'static str)], word: &str) -> &'static str {
    of.iter().find(|(own, _)| *own == word).unwrap().1
}

fn parse(text: &str) -> Config {
    Config::parse("x.toml", text, &|_| None).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// The source of this type when its section, or the one for all of its type, also has these lines.
fn source(word: &str, own: &str, of_all: &str) -> BrokerSource {
    let needed = without(needed(SOURCES, word), own);
    let text = format!("[source.a]\ntype = '{word}'\n{needed}{own}\n[defaults.source.{word}]\n{of_all}\n");
    match parse(&text).sources.remove(0).source {
        SourceType::Broker { broker, .. } => broker,
        other => panic!("{other:?}"),
    }
}

fn sink(word: &str, own: &str, of_all: &str) -> BrokerSink {
    let needed = without(needed(SINKS, word), own);
    let text = format!("[sink.a]\ntype = '{word}'\n{needed}{own}\n[defaults.sink.{word}]\n{of_all}\n");
    match parse(&text).sinks.remove(0).sink {
        SinkType::Broker(broker) => broker,
        other => panic!("{other:?}"),
    }
}

/// The lines whose key the other ones do not have.
fn without(lines: &str, others: &str) -> String {
    let key = |line: &str| line.split(" = ").next().unwrap().to_owned();
    let taken: Vec<String> = others.lines().map(key).collect();
    lines.lines().filter(|line| !taken.contains(&key(line))).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_reference_has_the_defaults_of_the_brokers_crates() {
    let own = RabbitmqSourceConfig { queue: "q".into(), ..RabbitmqSourceConfig::default() };
    assert_eq!(source("rabbitmq", "", ""), BrokerSource::Rabbitmq(Box::new(own)));
    let mut own = KafkaSourceConfig::default();
    own.topics = vec!["t".into()];
    assert_eq!(source("kafka", "", ""), BrokerSource::Kafka(Box::new(own)));
    let mut own = NatsSourceConfig::default();
    (own.stream, own.consumer) = ("s".into(), "c".into());
    assert_eq!(source("nats", "", ""), BrokerSource::Nats(Box::new(own)));
    let mut own = RedisSourceConfig::default();
    (own.stream, own.group, own.consumer) = ("s".into(), "g".into(), "c".into());
    assert_eq!(source("redis", "", ""), BrokerSource::Redis(Box::new(own)));
    let mut own = MqttSourceConfig::default();
    (own.client_id, own.topic) = ("c".into(), vec!["t".into()]);
    assert_eq!(source("mqtt", "", ""), BrokerSource::Mqtt(Box::new(own)));
    let own = Amqp1SourceConfig { address: "a".into(), ..Amqp1SourceConfig::default() };
    assert_eq!(source("amqp1", "", ""), BrokerSource::Amqp1(Box::new(own)));

    let own = RabbitmqSinkConfig::default();
    assert_eq!(sink("rabbitmq", "", ""), BrokerSink::Rabbitmq(Box::new(own)));
    let mut own = KafkaSinkConfig::default();
    own.topic = "t".into();
    assert_eq!(sink("kafka", "", ""), BrokerSink::Kafka(Box::new(own)));
    assert_eq!(sink("nats", "", ""), BrokerSink::Nats(Box::default()));
    let mut own = RedisSinkConfig::default();
    own.stream = "s".into();
    assert_eq!(sink("redis", "", ""), BrokerSink::Redis(Box::new(own)));
    assert_eq!(sink("mqtt", "", ""), BrokerSink::Mqtt(Box::default()));
    let own = Amqp1SinkConfig { address: "a".into(), ..Amqp1SinkConfig::default() };
    assert_eq!(sink("amqp1", "", ""), BrokerSink::Amqp1(Box::new(own)));
}

/// All Rust of a crate, and of the suite that every broker's crate runs.
fn texts(word: &str) -> String {
    fn collect(folder: &Path, all: &mut String) {
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            let path = file.unwrap().path();
            if path.is_dir() {
                collect(&path, all);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = String::new();
    for folder in ["src", "tests"] {
        collect(&crates.join(format!("oncebox-{word}")).join(folder), &mut all);
    }
    collect(&crates.join("oncebox-testkit/src/broker_suite"), &mut all);
    all
}

#[test]
fn every_key_of_a_broker_has_an_effect_and_a_test() {
    for (word, needed) in SOURCES {
        let (plain, texts) = (source(word, "", ""), texts(word));
        let mut tested: BTreeSet<String> = ["id", "kind", "key"].map(str::to_owned).into();
        for (_, test, keys) in OF_SOURCES.iter().filter(|proof| proof.0 == *word) {
            assert!(texts.contains(&format!("fn {test}")), "{word}: there is no test `{test}`");
            for (key, lines) in *keys {
                assert_ne!(source(word, lines, ""), plain, "[source.…] {word}: {key}");
                let of_all = without(lines, needed);
                assert!(
                    of_all.is_empty() || source(word, "", &of_all) != plain,
                    "[defaults.source.{word}] {key}"
                );
                tested.insert((*key).to_owned());
            }
        }
        for line in ["id = 'hash'", "kind = 'text:k'", "key = 'json:/k'"] {
            assert_ne!(source(word, line, ""), plain, "{word}: {line}");
            assert_ne!(source(word, "", line), plain, "{word}: {line}");
        }
        assert_eq!(tested, leaves(keys(&["defaults", "source", word])), "[defaults.source.{word}]");
    }
    for (word, needed) in SINKS {
        let (plain, texts) = (sink(word, "", ""), texts(word));
        let mut tested = BTreeSet::new();
        for (_, test, keys) in OF_SINKS.iter().filter(|proof| proof.0 == *word) {
            assert!(texts.contains(&format!("fn {test}")), "{word}: there is no test `{test}`");
            for (key, lines) in *keys {
                assert_ne!(sink(word, lines, ""), plain, "[sink.…] {word}: {key}");
                let of_all = without(lines, needed);
                assert!(
                    of_all.is_empty() || sink(word, "", &of_all) != plain,
                    "[defaults.sink.{word}] {key}"
                );
                tested.insert((*key).to_owned());
            }
        }
        assert_eq!(tested, leaves(keys(&["defaults", "sink", word])), "[defaults.sink.{word}]");
    }
}

/// Without the tables that other keys are in.
fn leaves(keys: BTreeSet<String>) -> BTreeSet<String> {
    let is_table = |key: &String| keys.iter().any(|other| other.starts_with(&format!("{key}.")));
    keys.iter().filter(|key| !is_table(key)).cloned().collect()
}

/// A table of the reference: its keys, and those of the tables in it.
fn keys(path: &[&str]) -> BTreeSet<String> {
    let root = DeTable::parse(DEFAULTS).unwrap().into_inner();
    let mut value = DeValue::Table(root);
    for name in path {
        let DeValue::Table(mut table) = value else { panic!("{path:?}") };
        let key =
            table.keys().find(|key| key.get_ref() == name).unwrap_or_else(|| panic!("{path:?}")).clone();
        value = table.remove(&key).unwrap().into_inner();
    }
    let DeValue::Table(table) = value else { panic!("{path:?}") };
    let mut keys = BTreeSet::new();
    for (key, value) in &table {
        keys.insert(key.get_ref().to_string());
        if let DeValue::Table(inner) = value.get_ref() {
            keys.extend(inner.keys().map(|inner| format!("{}.{}", key.get_ref(), inner.get_ref())));
        }
    }
    keys
}

/// The keys that a broker's crate knows, as it says itself when it is given another one.
fn known<T: DeserializeOwned>() -> BTreeSet<String> {
    let told = |value: Value| -> Vec<String> {
        let told = serde_json::from_value::<T>(value).err().expect("there is no such key").to_string();
        assert!(told.starts_with("unknown field"), "{told}");
        told.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    };
    let mut known = BTreeSet::new();
    for key in told(json!({ "no such key": 1 })) {
        if matches!(key.as_str(), "tls" | "auth")
            && serde_json::from_value::<T>(json!({ key.clone(): {} })).is_ok()
        {
            known.extend(
                told(json!({ key.clone(): { "no such key": 1 } }))
                    .iter()
                    .map(|inner| format!("{key}.{inner}")),
            );
        }
        known.insert(key);
    }
    known
}

#[test]
fn the_reference_has_every_key_of_the_brokers_crates_and_no_other() {
    let mapping = ["id", "kind", "key"].map(str::to_owned);
    for (word, known) in [
        ("rabbitmq", known::<RabbitmqSourceConfig>()),
        ("kafka", known::<KafkaSourceConfig>()),
        ("nats", known::<NatsSourceConfig>()),
        ("redis", known::<RedisSourceConfig>()),
        ("mqtt", known::<MqttSourceConfig>()),
        ("amqp1", known::<Amqp1SourceConfig>()),
    ] {
        let known: BTreeSet<String> = known.into_iter().chain(mapping.clone()).collect();
        assert_eq!(keys(&["defaults", "source", word]), known, "[defaults.source.{word}]");
    }
    for (word, known) in [
        ("rabbitmq", known::<RabbitmqSinkConfig>()),
        ("kafka", known::<KafkaSinkConfig>()),
        ("nats", known::<NatsSinkConfig>()),
        ("redis", known::<RedisSinkConfig>()),
        ("mqtt", known::<MqttSinkConfig>()),
        ("amqp1", known::<Amqp1SinkConfig>()),
    ] {
        assert_eq!(keys(&["defaults", "sink", word]), known, "[defaults.sink.{word}]");
    }
}

#[test]
fn a_mistake_in_the_section_of_a_broker_has_its_place_and_the_nearest_word() {
    for (sections, expected) in [
        (
            "[source.a]\ntype = 'nats'\nsteam = 's'\n",
            "x.toml:3:1: unknown key `steam` in [source.a]; did you mean `stream`?",
        ),
        (
            "[source.a]\ntype = 'nats'\nstream = 's'\nconsumer = 'c'\nauth = { usr = 'u' }\n",
            "x.toml:5:10: unknown key `usr` in [source.a.auth]; did you mean `user`?",
        ),
        (
            "[source.a]\ntype = 'nats'\nstream = 's'\nconsumer = 'c'\ntls = { first = 'yes' }\n",
            "x.toml:5:9: `first`: it must be a boolean",
        ),
        (
            "[source.a]\ntype = 'nats'\nstream = 's'\nprefetch = 0\nconsumer = 'c'\n",
            "x.toml:4:1: [source.a]: prefetch",
        ),
        (
            "[source.a]\ntype = 'mqtt'\nclient_id = 'c'\ntopic = 't'\nqos = 3\n",
            "x.toml:5:1: [source.a]: `qos` is 3",
        ),
        ("[sink.a]\ntype = 'mqtt'\nqos = 0\n", "x.toml:3:1: [sink.a]: `qos` is 0"),
        (
            "[sink.a]\ntype = 'mqtt'\nqos = 2\n",
            "x.toml:3:1: [sink.a]: `qos` is 2: then the server does not tell",
        ),
        (
            "[source.a]\ntype = 'nats'\nstream = 's'\nconsumer = 'c'\nack_wait = '1 week'\n",
            "x.toml:5:1: `ack_wait`:",
        ),
        (
            "[sink.a]\ntype = 'redis'\nstream = 's'\ntimout = '1s'\n",
            "x.toml:4:1: unknown key `timout` in [sink.a]; did you mean `timeout`?",
        ),
        (
            "[defaults.source.kafka]\ngrup = 'g'\n",
            "x.toml:2:1: unknown key `grup` in [defaults.source.kafka]; did you mean `group`?",
        ),
        ("[defaults.source.kafka]\nprefetch = 'many'\n", "x.toml:2:1: `prefetch`: it must be usize"),
        ("[defaults.source.kafka]\nid = 'heder:x'\n", "x.toml:2:1: `id`: `heder:x` is no place"),
        ("[defaults.sink.mqtt]\nretain = 1\n", "x.toml:2:1: `retain`: it must be a boolean"),
        ("[defaults.sink.mqt]\n", "x.toml:1:16: unknown sink type `mqt`; did you mean `mqtt`?"),
        (
            "[source.a]\ntype = 'kafka'\ntopic = 't'\n[defaults.source.kafka]\nstart = 'soon'\n",
            "x.toml:5:1: `start`:",
        ),
    ] {
        let error = Config::parse("x.toml", sections, &|_| None).expect_err(sections);
        let told: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
        assert!(
            told.iter().any(|told| told.starts_with(expected)),
            "{sections}\nexpected: {expected}\n{told:#?}"
        );
    }
}
