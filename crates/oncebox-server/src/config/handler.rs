//! `[handler.NAME]`

use std::time::Duration;

use oncebox::Backoff;
use oncebox_core::Kinds;
use url::Url;

use super::problem::suggestion;
use super::secret::Secret;
use super::section::{Reader, Section};
use super::sink::SinkConfig;
use super::source::is_name;
use super::units::Rate;
use crate::handlers::address;
use crate::handlers::statement::Statement;

/// A handler and what it does.
#[derive(Debug, Clone)]
pub struct HandlerConfig {
    /// Its name: stored data.
    pub name: String,
    /// The kinds it wants.
    pub on: Vec<String>,
    /// What it does.
    pub action: Action,
    /// Messages of one key in order.
    pub ordered: bool,
    /// The most messages in one transaction.
    pub batch: usize,
    /// Then it is a dead letter.
    pub max_attempts: u32,
    /// How long between attempts.
    pub backoff: Backoff,
    /// Of one call.
    pub timeout: Duration,
    /// Calls at one time, when not as the runner says.
    pub concurrency: Option<usize>,
    /// The most messages in a time.
    pub rate: Option<Rate>,
    /// Paused at start.
    pub paused: bool,
    /// Names it had before.
    pub formerly: Vec<String>,
    /// Begins with the oldest stored message.
    pub from_start: bool,
}

/// What a configured handler does with a message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// Statements in the transaction of the done mark.
    Sql(Vec<Statement>),
    /// A request, at least once.
    Http(HttpAction),
    /// Into the outbox, for this sink.
    Sink(String),
}

impl Action {
    /// What it is called in lists.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Sql(_) => "sql",
            Self::Http(_) => "http",
            Self::Sink(_) => "sink",
        }
    }
}

/// A request to be made for each message.
#[derive(Debug, Clone)]
pub struct HttpAction {
    /// Where to.
    pub url: Url,
    /// What signs it; the first signs too while the second is being introduced.
    pub secrets: Vec<Secret>,
    /// Headers of the user's own.
    pub headers: Vec<(String, Secret)>,
    /// How much of an answer is kept.
    pub max_response: usize,
    /// When to stop asking for a while.
    pub breaker: BreakerConfig,
}

/// When a handler leaves the other side alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// After so many failures in a row; 0 for never.
    pub failures: u32,
    /// For so long.
    pub open: Duration,
}

const ACTIONS: [&str; 3] = ["sql", "http", "sink"];

pub(super) fn read_all(reader: &Reader<'_>, sinks: &[SinkConfig]) -> Vec<HandlerConfig> {
    let mut names = reader.names("handler");
    names.retain(|(name, at)| is_name(reader, "handler", name, at));
    let handlers: Vec<_> = names.iter().filter_map(|(name, _)| read(reader, name, sinks)).collect();
    check_former_names(reader, &handlers, &names);
    handlers
}

pub(super) fn check_defaults(reader: &Reader<'_>) {
    let section = reader.section("defaults.handler", "defaults.handler");
    settings(&section, "defaults", Vec::new(), Action::Sql(Vec::new()));
    request(&section);
    for key in ["on", "sql", "http", "sink"] {
        if section.has(key) {
            section.wrong(key, format!("`{key}` belongs to one handler; move it to its own section"));
        }
    }
    section.finish();
}

fn read(reader: &Reader<'_>, name: &str, sinks: &[SinkConfig]) -> Option<HandlerConfig> {
    let path = format!("handler.{name}");
    let section = reader.section(&path, "defaults.handler");
    let on = section.texts("on");
    check_kinds(&section, &on);
    let action = action(&section, name, sinks);
    // Read in any case, so that their keys are known and their values checked.
    let request = request(&section);
    if !matches!(action, Some(Action::Http(_))) {
        for key in ["secret", "headers", "max_response", "breaker"] {
            if section.has(key) {
                section.wrong(key, format!("`{key}` is for handlers with `http`; leave it out"));
            }
        }
    }
    let action = match action {
        Some(Action::Http(target)) => Some(Action::Http(HttpAction { url: target.url, ..request })),
        other => other,
    };
    let handler = settings(&section, name, on, action.unwrap_or(Action::Sql(Vec::new())));
    section.finish();
    Some(handler)
}

fn check_kinds(section: &Section<'_>, on: &[String]) {
    if on.is_empty() && !section.has("on") {
        section.reader().problem(section.at(), "the handler has no `on`; name its kinds, or [\"*\"] for all");
    } else if on.is_empty() {
        section.wrong("on", "`on` names no kind; write [\"*\"] for all");
    }
    for pattern in on {
        if let Err(wrong) = Kinds::default().add(pattern) {
            section.wrong("on", wrong);
        }
    }
}

fn action(section: &Section<'_>, name: &str, sinks: &[SinkConfig]) -> Option<Action> {
    let given: Vec<&'static str> = ACTIONS.into_iter().filter(|key| section.has(key)).collect();
    match given[..] {
        ["sql"] => Some(Action::Sql(statements(section))),
        ["http"] => target(section).map(Action::Http),
        ["sink"] => {
            let sink = section.required_text("sink");
            if !sinks.iter().any(|known| known.name == sink) {
                let names = sinks.iter().map(|known| known.name.as_str());
                let hint = if sinks.is_empty() {
                    "; add a section [sink.NAME]".to_owned()
                } else {
                    suggestion(&sink, names.clone())
                };
                section.wrong("sink", format!("there is no sink `{sink}`{hint}"));
            }
            Some(Action::Sink(sink))
        }
        [] => {
            let text = format!("handler `{name}` does nothing; give it one of sql, http and sink");
            section.reader().problem(section.at(), text);
            None
        }
        _ => {
            let second = given.get(1).copied().unwrap_or("sql");
            section.wrong(second, format!("handler `{name}` has {}; keep one of them", given.join(" and ")));
            None
        }
    }
}

fn statements(section: &Section<'_>) -> Vec<Statement> {
    let texts = section.texts("sql");
    if texts.is_empty() {
        section.wrong("sql", "`sql` is empty; write a statement, or a list of them");
    }
    let read = |text: &String| match Statement::parse(text) {
        Ok(statement) => Some(statement),
        Err(wrong) => {
            section.wrong("sql", wrong);
            None
        }
    };
    texts.iter().filter_map(read).collect()
}

fn target(section: &Section<'_>) -> Option<HttpAction> {
    let url = url(section, "http")?;
    let breaker = BreakerConfig { failures: 0, open: Duration::ZERO };
    Some(HttpAction { url, secrets: Vec::new(), headers: Vec::new(), max_response: 0, breaker })
}

/// An address to send to. Nothing of it is shown when it is wrong: it may hold a password.
pub(super) fn url(section: &Section<'_>, key: &'static str) -> Option<Url> {
    let text = section.required_text(key);
    if text.is_empty() {
        return None;
    }
    let checked = Url::parse(&text).map_err(|error| error.to_string()).and_then(|url| {
        address::check_url(&url)?;
        Ok(url)
    });
    match checked {
        Ok(url) => Some(url),
        Err(wrong) => {
            section.wrong(key, format!("`{key}` is no address to send to: {wrong}; write https://HOST/PATH"));
            None
        }
    }
}

fn request(section: &Section<'_>) -> HttpAction {
    let breaker = match section.inner("breaker") {
        Some(inner) => {
            let breaker = BreakerConfig {
                failures: inner.whole("failures", 0, 1_000_000),
                open: inner.positive_duration("open"),
            };
            inner.finish();
            breaker
        }
        None => BreakerConfig { failures: 0, open: Duration::from_secs(1) },
    };
    HttpAction {
        url: Url::parse("http://localhost/").expect("a good address"),
        secrets: section.secrets("secret"),
        headers: headers(section),
        max_response: section.size("max_response"),
        breaker,
    }
}

/// Headers to send; those that Oncebox sets itself are refused.
pub(super) fn headers(section: &Section<'_>) -> Vec<(String, Secret)> {
    let headers = section.pairs("headers");
    for (name, value) in &headers {
        let lower = name.to_ascii_lowercase();
        let ours = [
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "idempotency-key",
            "content-length",
            "host",
        ];
        let good = axum::http::HeaderName::from_bytes(name.as_bytes()).is_ok()
            && axum::http::HeaderValue::from_str(value.expose()).is_ok();
        if !good {
            section.wrong("headers", format!("header `{name}` has a name or value that HTTP does not allow"));
        } else if ours.contains(&lower.as_str()) {
            section.wrong("headers", format!("header `{name}` is set by Oncebox; leave it out"));
        }
    }
    headers
}

pub(super) fn backoff(section: &Section<'_>) -> Backoff {
    let Some(inner) = section.inner("backoff") else { return Backoff::default() };
    let (first, max) = (inner.duration("first"), inner.duration("max"));
    inner.finish();
    if first > max {
        section.wrong("backoff", "`backoff`: `first` is longer than `max`");
        return Backoff::default();
    }
    Backoff::new(first, max)
}

fn settings(section: &Section<'_>, name: &str, on: Vec<String>, action: Action) -> HandlerConfig {
    let concurrency = section.whole("concurrency", 0, 10_000) as usize;
    HandlerConfig {
        name: name.to_owned(),
        on,
        action,
        ordered: section.flag("ordered"),
        batch: section.whole("batch", 1, 10_000) as usize,
        max_attempts: section.whole("max_attempts", 1, 1_000_000),
        backoff: backoff(section),
        timeout: section.positive_duration("timeout"),
        concurrency: (concurrency > 0).then_some(concurrency),
        rate: section.rate("rate"),
        paused: section.flag("paused"),
        formerly: section.texts("formerly"),
        from_start: section.flag("from_start"),
    }
}

/// A former name must be free: two handlers of one name would share what is done.
fn check_former_names(
    reader: &Reader<'_>,
    handlers: &[HandlerConfig],
    names: &[(String, std::ops::Range<usize>)],
) {
    for handler in handlers {
        for former in &handler.formerly {
            let taken = names.iter().any(|(name, _)| name == former)
                || handlers.iter().any(|other| other.name != handler.name && other.formerly.contains(former));
            let good = former.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte));
            let section = reader.section(&format!("handler.{}", handler.name), "defaults.handler");
            if taken {
                section.wrong(
                    "formerly",
                    format!("`{former}` is the name of two handlers; a former name must be free"),
                );
            } else if !good || former.is_empty() {
                section.wrong("formerly", format!("`{former}` cannot be the name of a handler"));
            }
        }
    }
}
