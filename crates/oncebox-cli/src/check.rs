//! `oncebox check`: is this configuration good, does everything in it answer, and what would run?

use std::path::PathBuf;

use clap::Args;
use oncebox_server::config::ReadError;
use serde_json::json;

use crate::serve::configuration;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file; `oncebox.toml` in this folder when there is one, else the defaults.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn check(options: Options) -> Result<bool, String> {
    let config = match configuration(options.config.as_deref()) {
        Ok((config, _)) => config,
        Err(error @ ReadError::File(..)) => return Err(error.to_string()),
        Err(error) => {
            if options.json {
                println!("{}", json!({ "good": false, "configuration": error.to_string() }));
            } else {
                eprintln!("{error}");
            }
            return Ok(false);
        }
    };
    let report = oncebox_server::check(&config).await;
    if options.json {
        let findings = report
            .findings
            .iter()
            .map(|finding| json!({ "what": finding.what, "does": finding.does, "problem": finding.problem }));
        println!("{}", json!({ "good": report.is_good(), "findings": findings.collect::<Vec<_>>() }));
        return Ok(report.is_good());
    }
    let width = report.findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    for finding in &report.findings {
        match &finding.problem {
            None => println!("ok       {:width$}  {}", finding.what, finding.does),
            Some(problem) => println!("problem  {:width$}  {}: {problem}", finding.what, finding.does),
        }
    }
    Ok(report.is_good())
}
