//! `oncebox doctor`: what is wrong with a store and the service on it, worst first, each with its remedy.

use std::path::{Path, PathBuf};

use clap::Args;
use oncebox::admin::{AdminStore, Finding, HandlerStatus, Severity};
use oncebox_server::Config;
use oncebox_server::config::{ConfigError, ReadError};
use serde_json::json;

use super::open::{OnStore, open};
use super::screen::{Colour, paint, safe};
use super::{STORE, one_or_more};
use crate::serve::{USUAL, configuration};

/// Messages that nobody wants are worth a word when they are more than one in so many.
const MANY_UNROUTED: i64 = 100;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The store: `sqlite:FILE`, `postgres://…` or `mysql://…`; that of the configuration unless set.
    #[arg(long, conflicts_with = "config")]
    store: Option<String>,
    /// The schema on Postgres and MariaDB; the beginning of the tables' names on SQLite.
    #[arg(long, requires = "store")]
    schema: Option<String>,
    /// A configuration, which is examined as well; `oncebox.toml` in this folder when there is one and no --store.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) async fn doctor(options: Doctor) -> Result<bool, String> {
    let mut findings = Vec::new();
    let path = options.config.clone().or_else(|| {
        (options.store.is_none() && Path::new(USUAL).exists()).then(|| Path::new(USUAL).to_owned())
    });
    let config = match &path {
        Some(path) => match read(path, &mut findings)? {
            Some(config) => Some(config),
            // Without it nothing says where the store is.
            None => return Ok(report(findings, options.json)),
        },
        None => None,
    };
    let (url, schema) = match &config {
        Some(config) => {
            let schema = Some(config.store.schema.clone()).filter(|schema| !schema.is_empty());
            (config.store.url.expose().to_owned(), schema)
        }
        None => (options.store.unwrap_or_else(|| STORE.to_owned()), options.schema),
    };
    let work = Examine { config, findings: findings.clone(), json: options.json };
    let examined = open(&url, schema.as_deref(), work).await;
    if examined.is_err() && !findings.is_empty() {
        // What was found before the store failed is not lost.
        report(findings, options.json);
    }
    examined
}

/// The configuration, and what is wrong with its file; `None` when it cannot be used.
fn read(path: &Path, findings: &mut Vec<Finding>) -> Result<Option<Config>, String> {
    match configuration(Some(path)) {
        Ok((config, _)) => Ok(Some(config)),
        Err(error @ ReadError::File(..)) => Err(error.to_string()),
        Err(ReadError::Config(error)) => {
            findings.extend(invalid(error));
            Ok(None)
        }
        // The rest of it can still be examined.
        Err(ReadError::Readable(name)) => {
            let what = format!("`{}` holds a secret and others can read it", safe(&name));
            let remedy = format!(
                "run `chmod 600 {}`, or put the secret into the environment and write ${{NAME}}; change the secret",
                safe(&name)
            );
            findings.push(Finding::new("config-readable", Severity::Fault, what, remedy));
            let text = std::fs::read_to_string(path).map_err(|error| format!("`{name}`: {error}"))?;
            match Config::parse(&name, &text, &|variable| std::env::var(variable).ok()) {
                Ok(config) => Ok(Some(config)),
                Err(error) => {
                    findings.extend(invalid(error));
                    Ok(None)
                }
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn invalid(error: ConfigError) -> impl Iterator<Item = Finding> {
    error.problems.into_iter().map(|problem| {
        let what = format!("{}:{}:{}: {}", problem.file, problem.line, problem.column, problem.text);
        let remedy = "mend the configuration; `oncebox check` shows the place";
        Finding::new("config-invalid", Severity::Fault, what, remedy)
    })
}

struct Examine {
    config: Option<Config>,
    findings: Vec<Finding>,
    json: bool,
}

impl OnStore for Examine {
    async fn run<St: AdminStore>(mut self, store: St) -> Result<bool, String> {
        let told = |error: oncebox::Error| error.to_string();
        let found = store.findings().await.map_err(told)?;
        // Tables that are missing or of another version answer nothing more.
        let readable = !found.iter().any(|finding| finding.code == "schema");
        self.findings.extend(found);
        if let Some(config) = self.config.as_ref().filter(|_| readable) {
            let (handlers, counts) =
                (store.handlers().await.map_err(told)?, store.counts().await.map_err(told)?);
            let paused = store.paused_sources().await.map_err(told)?;
            self.findings.extend(handlers.iter().filter_map(|handler| unknown_handler(config, handler)));
            self.findings.extend(paused.iter().map(|source| paused_source(config, source)));
            let total = |name: &str| {
                let own = counts.iter().find(|count| count.handler.is_empty() && count.name == name);
                own.map_or(0, |count| count.value)
            };
            self.findings.extend(unrouted(total("unrouted"), total("received")));
            self.findings.extend(open_service(config, store.tokens().await.map_err(told)?.is_empty()));
        }
        Ok(report(self.findings, self.json))
    }
}

fn unknown_handler(config: &Config, handler: &HandlerStatus) -> Option<Finding> {
    if config.handlers.iter().any(|own| own.name == handler.name) {
        return None;
    }
    let letters = handler.retrying + handler.held + handler.scheduled + handler.dead;
    let waits = handler.waiting + letters;
    let name = safe(&handler.name);
    let (severity, much) = match waits {
        0 => (Severity::Note, String::new()),
        _ => (
            Severity::Warning,
            format!(", and {} for it", one_or_more(waits, "message waits", "messages wait")),
        ),
    };
    let what = format!("handler `{name}` is in the store and not in the configuration{much}");
    let remedy = "if another process runs it, all is well; if it was renamed, say so with `formerly`; if it is gone for good, forget it (`Store::forget`), or its \
                  messages are kept for ever";
    Some(Finding::new("handler-unknown", severity, what, remedy))
}

fn paused_source(config: &Config, source: &str) -> Finding {
    let name = safe(source);
    let remedy = format!("let it go on with `oncebox resume --source {name}` when its reason is gone");
    if config.sources.iter().any(|own| own.name == source) {
        let what = format!("source `{name}` is paused: nothing is taken from it");
        return Finding::new("source-paused", Severity::Warning, what, remedy);
    }
    let what = format!("source `{name}` is paused and not in the configuration");
    Finding::new("source-paused", Severity::Note, what, remedy)
}

fn unrouted(unrouted: i64, received: i64) -> Option<Finding> {
    let severity =
        if unrouted.saturating_mul(MANY_UNROUTED) > received { Severity::Warning } else { Severity::Note };
    let what = format!(
        "{} of a kind that no handler wanted, of {received} received",
        one_or_more(unrouted.unsigned_abs(), "message was", "messages were")
    );
    let remedy = "look which with `oncebox search`, and give a handler their kind, or stop sending them";
    (unrouted > 0).then(|| Finding::new("unrouted", severity, what, remedy))
}

/// A service that other machines reach has a token, or its configuration is refused. What is left: everybody on this
/// machine, while there is no token.
fn open_service(config: &Config, no_tokens: bool) -> Option<Finding> {
    let what = "there is no token, so every program on this machine may do everything through the API";
    let remedy = "make a token with `oncebox token create NAME --role ROLE`, or set `token` in [http]";
    (config.http.token.is_none() && no_tokens).then(|| Finding::new("no-token", Severity::Note, what, remedy))
}

/// Prints what was found, worst first; true when nothing is worse than a note.
fn report(mut findings: Vec<Finding>, as_json: bool) -> bool {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let good = findings.iter().all(|finding| finding.severity == Severity::Note);
    if as_json {
        let all = findings.iter().map(|finding| {
            let Finding { code, severity, what, remedy } = finding;
            json!({ "code": code, "severity": severity.as_str(), "what": what, "remedy": remedy })
        });
        println!("{}", json!({ "good": good, "findings": all.collect::<Vec<_>>() }));
        return good;
    }
    for finding in &findings {
        let colour = match finding.severity {
            Severity::Fault => Colour::Red,
            Severity::Warning => Colour::Yellow,
            Severity::Note => Colour::Plain,
        };
        let word = format!("{:7}", finding.severity.as_str());
        println!("{}  {} ({})", paint(&word, colour), safe(&finding.what), finding.code);
        println!("         {}", safe(&finding.remedy));
    }
    if findings.is_empty() {
        println!("nothing is wrong");
    }
    good
}
