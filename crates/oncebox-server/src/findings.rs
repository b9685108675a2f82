//! What is wrong with a store and the service on it, worst first: for `GET /api/v1/findings` and `oncebox doctor`.

use oncebox::Error;
use oncebox::admin::{AdminStore, Finding, HandlerStatus, Severity};

use crate::config::Config;

/// Messages that nobody wants are worth a word when they are more than one in so many.
const MANY_UNROUTED: i64 = 100;

/// What a service is configured for.
#[derive(Debug, Clone, Default)]
pub struct Configured {
    /// The names of its handlers.
    pub handlers: Vec<String>,
    /// The names of its sources.
    pub sources: Vec<String>,
    /// Whether `[http]` has a token.
    pub has_token: bool,
}

impl Configured {
    /// What this configuration says.
    pub fn of(config: &Config) -> Self {
        Self {
            handlers: config.handlers.iter().map(|handler| handler.name.clone()).collect(),
            sources: config.sources.iter().map(|source| source.name.clone()).collect(),
            has_token: config.http.token.is_some(),
        }
    }
}

/// What is wrong with a store, and with a service on it when one is given; worst first.
///
/// Fails when the store does not answer. For a person who asks, as [`AdminStore::findings`] says.
pub async fn examine<St: AdminStore>(
    store: &St,
    service: Option<&Configured>,
) -> Result<Vec<Finding>, Error> {
    let mut findings = store.findings().await?;
    // Tables that are missing or of another version answer nothing more.
    let readable = !findings.iter().any(|finding| finding.code == "schema");
    if let Some(service) = service.filter(|_| readable) {
        let (handlers, counts) = (store.handlers().await?, store.counts().await?);
        findings.extend(handlers.iter().filter_map(|handler| unknown_handler(service, handler)));
        findings.extend(store.paused_sources().await?.iter().map(|source| paused_source(service, source)));
        let total = |name: &str| {
            let own = counts.iter().find(|count| count.handler.is_empty() && count.name == name);
            own.map_or(0, |count| count.value)
        };
        findings.extend(unrouted(total("unrouted"), total("received")));
        findings.extend(open_service(service, store.tokens().await?.is_empty()));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

fn unknown_handler(service: &Configured, handler: &HandlerStatus) -> Option<Finding> {
    if service.handlers.contains(&handler.name) {
        return None;
    }
    let waits = handler.waiting + handler.retrying + handler.held + handler.scheduled + handler.dead;
    let (severity, much) = match waits {
        0 => (Severity::Note, String::new()),
        1 => (Severity::Warning, ", and 1 message waits for it".to_owned()),
        _ => (Severity::Warning, format!(", and {waits} messages wait for it")),
    };
    let what = format!("handler `{}` is in the store and not in the configuration{much}", handler.name);
    let remedy = "if another process runs it, all is well; if it was renamed, say so with `formerly`; if it is gone for \
                  good, forget it (`Store::forget`), or its messages are kept for ever";
    Some(Finding::new("handler-unknown", severity, what, remedy))
}

fn paused_source(service: &Configured, source: &str) -> Finding {
    let remedy = format!("let it go on with `oncebox resume --source {source}` when its reason is gone");
    if service.sources.iter().any(|own| own == source) {
        let what = format!("source `{source}` is paused: nothing is taken from it");
        return Finding::new("source-paused", Severity::Warning, what, remedy);
    }
    let what = format!("source `{source}` is paused and not in the configuration");
    Finding::new("source-paused", Severity::Note, what, remedy)
}

fn unrouted(unrouted: i64, received: i64) -> Option<Finding> {
    let severity =
        if unrouted.saturating_mul(MANY_UNROUTED) > received { Severity::Warning } else { Severity::Note };
    let messages = if unrouted == 1 { "message was" } else { "messages were" };
    let what = format!("{unrouted} {messages} of a kind that no handler wanted, of {received} received");
    let remedy = "look which with `oncebox search`, and give a handler their kind, or stop sending them";
    (unrouted > 0).then(|| Finding::new("unrouted", severity, what, remedy))
}

/// A service that other machines reach has a token, or its configuration is refused. What is left: everybody on this
/// machine, while there is no token.
fn open_service(service: &Configured, no_tokens: bool) -> Option<Finding> {
    let what = "there is no token, so every program on this machine may do everything through the API";
    let remedy = "make a token with `oncebox token create NAME --role ROLE`, or set `token` in [http]";
    (!service.has_token && no_tokens).then(|| Finding::new("no-token", Severity::Note, what, remedy))
}
