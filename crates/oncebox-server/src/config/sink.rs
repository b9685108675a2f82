//! `[sink.NAME]`: one function per type; the types of brokers come with features of this crate.

mod http;

use std::time::Duration;

use oncebox::Backoff;

use super::section::{Reader, Section};
use super::source::{TYPES, is_name, unknown_type};
use crate::brokers::BrokerSink;

pub use http::HttpSinkConfig;

/// A sink and the relay that feeds it.
#[derive(Debug, Clone)]
pub struct SinkConfig {
    /// Its name.
    pub name: String,
    /// What it is.
    pub sink: SinkType,
    /// How long one call may take.
    pub timeout: Duration,
    /// Then an outgoing message is dead.
    pub max_attempts: u32,
    /// How long between tries.
    pub backoff: Backoff,
    /// The most messages in one call.
    pub batch: usize,
}

/// The types of sinks in this build.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SinkType {
    /// One request per message.
    Http(HttpSinkConfig),
    /// A broker; its type is a feature of this crate.
    Broker(BrokerSink),
}

pub(super) fn read_all(reader: &Reader<'_>) -> Vec<SinkConfig> {
    let mut names = reader.names("sink");
    names.retain(|(name, at)| is_name(reader, "sink", name, at));
    names.into_iter().filter_map(|(name, _)| read(reader, name)).collect()
}

pub(super) fn check_defaults(reader: &Reader<'_>) {
    for (name, at) in reader.names("defaults.sink") {
        if name == "broker" {
            let section = reader.section("defaults.sink.broker", "defaults.sink.broker");
            if let Some(relay) = section.inner("relay") {
                settings(&relay);
                relay.finish();
            }
            section.finish();
            continue;
        }
        let path = format!("defaults.sink.{name}");
        let section = reader.section(&path, &path);
        if name != "http" {
            if !TYPES.contains(&name.as_str()) {
                unknown_type(reader, "sink", &name, at);
                continue;
            }
            section.check_rest(&[]);
            if let Some(Err(wrong)) = BrokerSink::read(&name, section.rest(OURS)) {
                section.wrong_in_rest(&wrong);
            }
            continue;
        }
        relay(&section, String::new(), SinkType::Http(http::read_shared(&section)));
        section.finish();
    }
}

fn read(reader: &Reader<'_>, name: String) -> Option<SinkConfig> {
    let path = format!("sink.{name}");
    let section = reader.section(&path, "defaults.sink.http");
    let sink = match section.required_text("type").as_str() {
        "http" => SinkType::Http(http::read(&section)),
        "" => return None,
        other => return broker(reader, name, other),
    };
    let config = relay(&section, name, sink);
    section.finish();
    Some(config)
}

/// The keys that are read here; the broker's crate reads the others.
const OURS: &[&str] = &["type", "relay"];

fn broker(reader: &Reader<'_>, name: String, word: &str) -> Option<SinkConfig> {
    let path = format!("sink.{name}");
    let section = reader.section(&path, &format!("defaults.sink.{word}"));
    section.check_rest(OURS);
    let read = BrokerSink::read(word, section.rest(OURS));
    let sink = match read.map(|read| read.and_then(|broker| broker.try_out().map(|()| broker))) {
        Some(Ok(sink)) => SinkType::Broker(sink),
        Some(Err(wrong)) => {
            section.wrong_in_rest(&wrong);
            return None;
        }
        None => {
            unknown_type(reader, "sink", word, section.at());
            return None;
        }
    };
    // In a table of their own, because brokers have a `timeout` or `batch` of theirs.
    let settings = reader.section(&path, "defaults.sink.broker").inner("relay")?;
    let config = relay(&settings, name, sink);
    settings.finish();
    Some(config)
}

fn relay(section: &Section<'_>, name: String, sink: SinkType) -> SinkConfig {
    let (timeout, max_attempts, backoff, batch) = settings(section);
    SinkConfig { name, sink, timeout, max_attempts, backoff, batch }
}

fn settings(section: &Section<'_>) -> (Duration, u32, Backoff, usize) {
    let timeout = section.positive_duration("timeout");
    if timeout > Duration::from_secs(25) {
        section.wrong("timeout", "`timeout` of a sink is at most 25s");
    }
    let backoff = super::handler::backoff(section);
    (
        timeout,
        section.whole("max_attempts", 1, 1_000_000),
        backoff,
        section.whole("batch", 1, 10_000) as usize,
    )
}
