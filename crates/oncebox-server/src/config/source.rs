//! `[source.NAME]`: one function per type; the types of brokers come with features of this crate.

mod http;

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::mapping::Mapping;

use super::problem::suggestion;
use super::secret::Secret;
use super::section::{Reader, Section};
use crate::brokers::{BrokerSource, Wrong};

pub use http::HttpSourceConfig;

/// A source and where it gets its messages.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// Its name.
    pub name: String,
    /// What it is.
    pub source: SourceType,
}

impl SourceConfig {
    /// True when anybody who can reach it may post: there is no signature, and no token is wanted.
    pub(super) fn is_open(&self) -> bool {
        match &self.source {
            SourceType::Http(http) => http.verify.is_none() && http.token == TokenRule::Never,
            SourceType::Broker { .. } => false,
        }
    }
}

/// When a source that others post to wants a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRule {
    /// When there is any token, unless requests are signed.
    Auto,
    /// In any case, beside a signature too; as long as there is no token, nobody can post.
    Always,
    /// Never.
    Never,
}

/// The types of sources in this build.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SourceType {
    /// `POST /in/NAME`
    Http(Box<HttpSourceConfig>),
    /// A broker; its type is a feature of this crate.
    Broker {
        /// Which one, and how to reach it.
        broker: BrokerSource,
        /// Whether messages are handled before they are acknowledged, instead of stored.
        inline: bool,
    },
}

/// How a request proves where it comes from.
#[derive(Debug, Clone)]
pub struct Verify {
    /// The rules of the signature.
    pub scheme: Scheme,
    /// Any of them is good: the new one and the old one while they are being changed.
    pub secrets: Vec<Secret>,
    /// How far the sender's clock may be from ours, both ways.
    pub tolerance: Duration,
}

/// The signatures there are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    StandardWebhooks,
    /// `Stripe-Signature`.
    Stripe,
    /// `X-Hub-Signature-256`.
    Github,
    /// HMAC-SHA-256 of the body in a header of any name.
    Hmac {
        /// The header.
        header: String,
        /// What stands before the signature.
        prefix: String,
        /// How the bytes are written.
        encoding: Encoding,
    },
}

/// How bytes are written in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
}

/// Every type there is, in this build or another.
pub(super) const TYPES: &[&str] = &["http", "rabbitmq", "kafka", "nats", "redis", "mqtt", "amqp1"];

pub(super) fn read_all(reader: &Reader<'_>, is_local: bool) -> Vec<SourceConfig> {
    let mut names = reader.names("source");
    if names.is_empty() {
        let own = http::read("default", &reader.section("source.default", "defaults.source.http"));
        let own = SourceType::Http(Box::new(own));
        return vec![SourceConfig { name: "default".to_owned(), source: own }];
    }
    names.retain(|(name, at)| is_name(reader, "source", name, at));
    let sources: Vec<SourceConfig> =
        names.iter().filter_map(|(name, _)| read(reader, name.clone())).collect();
    for source in sources.iter().filter(|source| source.is_open() && !is_local) {
        let at = names.iter().find(|(name, _)| *name == source.name).map_or(0..0, |(_, at)| at.clone());
        reader.problem(at, needs_proof(&source.name));
    }
    sources
}

/// What is wrong with a source that takes messages from anybody in the network.
pub(super) fn needs_proof(name: &str) -> String {
    format!(
        "source `{name}` can be reached from other machines and proves nothing; give it `verify`, or leave `token` out"
    )
}

pub(super) fn check_defaults(reader: &Reader<'_>) {
    for (name, at) in reader.names("defaults.source") {
        if name == "broker" {
            let section = reader.section("defaults.source.broker", "defaults.source.broker");
            section.flag("inline");
            section.finish();
            continue;
        }
        let path = format!("defaults.source.{name}");
        let section = reader.section(&path, &path);
        if name != "http" {
            if !TYPES.contains(&name.as_str()) {
                unknown_type(reader, "source", &name, at);
                continue;
            }
            section.check_rest(&[]);
            let read = BrokerSource::read(&name, section.rest(OURS), mapping(&section));
            if let Some(Err(wrong)) = read {
                section.wrong_in_rest(&wrong);
            }
            continue;
        }
        http::read("", &section);
        section.finish();
    }
}

fn read(reader: &Reader<'_>, name: String) -> Option<SourceConfig> {
    let path = format!("source.{name}");
    let section = reader.section(&path, "defaults.source.http");
    let source = match section.required_text("type").as_str() {
        "http" => SourceType::Http(Box::new(http::read(&name, &section))),
        "" => return None,
        other => broker(reader, &name, other)?,
    };
    if matches!(source, SourceType::Http(_)) {
        section.finish();
    }
    Some(SourceConfig { name, source })
}

/// The keys that are read here; the broker's crate reads the others.
const OURS: &[&str] = &["type", "id", "kind", "key", "inline"];

fn broker(reader: &Reader<'_>, name: &str, word: &str) -> Option<SourceType> {
    let path = format!("source.{name}");
    let section = reader.section(&path, &format!("defaults.source.{word}"));
    let inline = reader.section(&path, "defaults.source.broker").flag("inline");
    section.check_rest(OURS);
    let read = BrokerSource::read(word, section.rest(OURS), mapping(&section));
    match read.map(|read| read.and_then(|broker| broker.try_out(name).map(|()| broker))) {
        Some(Ok(broker)) => Some(SourceType::Broker { broker, inline }),
        Some(Err(mut wrong)) => {
            // The section says whose it is.
            let named = format!("source `{name}`: ");
            wrong.text = wrong.text.strip_prefix(&named).unwrap_or(&wrong.text).to_owned();
            section.wrong_in_rest(&wrong);
            None
        }
        None => {
            unknown_type(reader, "source", word, section.at());
            None
        }
    }
}

fn mapping(section: &Section<'_>) -> Result<Mapping, Wrong> {
    let wrong = |key: &str, error: Error| Wrong { path: vec![key.to_owned()], text: error.to_string() };
    let (ids, kinds, keys) = (section.texts("id"), section.texts("kind"), section.texts("key"));
    let mapping = Mapping::new(&["hash"], &["topic"]).map_err(Wrong::from)?;
    let mapping = mapping.id(&ids).map_err(|error| wrong("id", error))?;
    let mapping = mapping.kind(&kinds).map_err(|error| wrong("kind", error))?;
    mapping.key(&keys).map_err(|error| wrong("key", error))
}

/// Tells a type of another build from one that nobody has heard of.
pub(super) fn unknown_type(reader: &Reader<'_>, sort: &str, word: &str, at: std::ops::Range<usize>) {
    let text = if TYPES.contains(&word) {
        format!("{sort} type `{word}` is not in this build of oncebox; build it with `--features {word}`")
    } else {
        format!("unknown {sort} type `{word}`{}", suggestion(word, TYPES.iter().copied()))
    };
    reader.problem(at, text);
}

/// Names are stored data and parts of addresses.
pub(super) fn is_name(reader: &Reader<'_>, sort: &str, name: &str, at: &std::ops::Range<usize>) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let good = (1..=100).contains(&name.len()) && name.bytes().all(allowed);
    if !good {
        let text = format!("{sort} name `{name}`: use 1 to 100 letters, digits, `-`, `_` and `.`");
        reader.problem(at.clone(), text);
    }
    good
}

/// `verify = { … }`
fn verify(section: &Section<'_>) -> Option<Verify> {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        None,
        StandardWebhooks,
        Stripe,
        Github,
        Hmac,
    }
    let inner = section.inner("verify")?;
    let words = [
        ("none", Word::None),
        ("standard-webhooks", Word::StandardWebhooks),
        ("stripe", Word::Stripe),
        ("github", Word::Github),
        ("hmac-sha256", Word::Hmac),
    ];
    let word = inner.word("scheme", &words);
    let (secrets, tolerance) = (inner.secrets("secret"), inner.positive_duration("tolerance"));
    let (header, prefix) = (inner.text("header"), inner.text("prefix"));
    let encoding = inner.word("encoding", &[("hex", Encoding::Hex), ("base64", Encoding::Base64)]);
    for key in ["header", "prefix", "encoding"] {
        if inner.has(key) && !matches!(word, Word::Hmac | Word::None) {
            inner.wrong(key, format!("`{key}` is for `scheme = \"hmac-sha256\"`; leave it out"));
        }
    }
    if word != Word::None && secrets.is_empty() {
        section.wrong("verify", "`verify` has no `secret`; add it, as in secret = \"${SHOP_SECRET}\"");
    }
    if word == Word::None && !secrets.is_empty() {
        section.wrong(
            "verify",
            "`verify` has a `secret` and no `scheme`; name one, as in scheme = \"standard-webhooks\"",
        );
    }
    inner.finish();
    let scheme = match word {
        Word::None => return None,
        Word::StandardWebhooks => Scheme::StandardWebhooks,
        Word::Stripe => Scheme::Stripe,
        Word::Github => Scheme::Github,
        Word::Hmac => Scheme::Hmac { header, prefix, encoding },
    };
    let verify = Verify { scheme, secrets, tolerance };
    if let Err(wrong) = crate::ingest::signature::check(&verify) {
        section.wrong("verify", wrong);
    }
    Some(verify)
}
