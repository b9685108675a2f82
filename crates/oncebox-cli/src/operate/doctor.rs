//! `oncebox doctor`: what is wrong with a store and the service on it, worst first, each with its remedy.

use std::path::{Path, PathBuf};

use clap::Args;
use oncebox::admin::{AdminStore, Finding, Severity};
use oncebox_server::config::{ConfigError, ReadError};
use oncebox_server::findings::{Configured, examine};
use oncebox_server::{Config, view};
use serde_json::json;

use super::desk::Server;
use super::open::{OnStore, open};
use super::screen::{Colour, paint, safe};
use super::{STORE, token_for};
use crate::serve::{USUAL, configuration};

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
    /// A running service, which examines itself and its store: its address, as in http://127.0.0.1:8420.
    #[arg(long, conflicts_with_all = ["store", "config"])]
    server: Option<String>,
    /// A token for the service; better in the variable ONCEBOX_TOKEN, where no list of processes shows it.
    #[arg(long, requires = "server")]
    token: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) async fn doctor(options: Doctor) -> Result<bool, String> {
    if let Some(url) = &options.server {
        let server = Server::new(url, token_for(options.token))?;
        return Ok(report(server.findings().await?, options.json));
    }
    let mut findings = Vec::new();
    let path = options.config.clone().or_else(|| {
        (options.store.is_none() && Path::new(USUAL).exists()).then(|| Path::new(USUAL).to_owned())
    });
    let config = match &path {
        Some(path) => match read(path, &mut findings)? {
            Some(config) => Some(config),
            // Without it nothing says where the store is.
            None => return Ok(report(views(&findings), options.json)),
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
        report(views(&findings), options.json);
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
        let configured = self.config.as_ref().map(Configured::of);
        self.findings.extend(examine(&store, configured.as_ref()).await.map_err(told)?);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(report(views(&self.findings), self.json))
    }
}

fn views(findings: &[Finding]) -> Vec<view::Finding> {
    findings.iter().map(view::finding).collect()
}

/// Prints what was found; true when nothing is worse than a note.
fn report(findings: Vec<view::Finding>, as_json: bool) -> bool {
    let good = findings.iter().all(|finding| finding.severity == "note");
    if as_json {
        println!("{}", json!({ "good": good, "findings": findings }));
        return good;
    }
    for finding in &findings {
        let colour = match finding.severity.as_str() {
            "fault" => Colour::Red,
            "warning" => Colour::Yellow,
            _ => Colour::Plain,
        };
        let word = format!("{:7}", safe(&finding.severity));
        println!("{}  {} ({})", paint(&word, colour), safe(&finding.what), safe(&finding.code));
        println!("         {}", safe(&finding.remedy));
    }
    if findings.is_empty() {
        println!("nothing is wrong");
    }
    good
}
