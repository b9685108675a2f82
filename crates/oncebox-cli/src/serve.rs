//! `oncebox serve`: runs the service until it is told to stop.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use oncebox_server::config::{LogFormat, ReadError, SourceType};
use oncebox_server::{Config, Ended, Started};

use crate::log;
use crate::stop::Stop;

/// The configuration that is used when it is there.
pub(crate) const USUAL: &str = "oncebox.toml";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file; `oncebox.toml` in this folder when there is one, else the defaults.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Listen on this address instead of the configuration's.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

/// Reads the configuration that a command is to use, and says where it came from.
pub(crate) fn configuration(path: Option<&Path>) -> Result<(Config, String), ReadError> {
    match path {
        Some(path) => Ok((Config::read(path)?, path.display().to_string())),
        None if Path::new(USUAL).exists() => Ok((Config::read(Path::new(USUAL))?, USUAL.to_owned())),
        None => Ok((Config::default_config(), "the defaults".to_owned())),
    }
}

pub(crate) async fn serve(options: Options) -> Result<bool, String> {
    let (mut config, origin) = configuration(options.config.as_deref()).map_err(|error| error.to_string())?;
    if let Some(address) = options.listen {
        config = config.listen_on(address)?;
    }
    let json = match config.log.format {
        LogFormat::Json => true,
        LogFormat::Human => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    #[cfg(feature = "otlp")]
    let traces =
        oncebox_server::telemetry::Traces::start(&config.telemetry).map_err(|error| error.to_string())?;
    #[cfg(feature = "otlp")]
    let own = traces.as_ref().map(|traces| Box::new(traces.layer()) as log::Own);
    #[cfg(not(feature = "otlp"))]
    let own = None;
    log::start_service(config.log.level, json, own);
    let mut told = Stop::listen()?;
    let stop = async move {
        told.told().await;
    };
    let summary = Summary::of(&config, origin);
    let started = move |started: &Started| {
        tracing::info!(address = %started.address, "listening");
        if !json {
            summary.print(started.address);
        }
    };
    let ended = oncebox_server::serve(config, stop, started).await;
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.finish().await;
    }
    match ended {
        Ok(Ended::Drained | Ended::Cut) => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}

/// What is said at the start.
struct Summary {
    origin: String,
    store: &'static str,
    sources: Vec<String>,
    brokers: Vec<String>,
    handlers: Vec<String>,
    sinks: Vec<String>,
    with_token: bool,
}

impl Summary {
    fn of(config: &Config, origin: String) -> Self {
        let http =
            |source: &&oncebox_server::config::SourceConfig| matches!(source.source, SourceType::Http(_));
        Self {
            origin,
            store: config.store.database.as_str(),
            sources: config.sources.iter().filter(http).map(|source| source.name.clone()).collect(),
            brokers: config
                .sources
                .iter()
                .filter(|source| !http(source))
                .map(|source| source.name.clone())
                .collect(),
            handlers: config.handlers.iter().map(|handler| handler.name.clone()).collect(),
            sinks: config.sinks.iter().map(|sink| sink.name.clone()).collect(),
            with_token: config.http.token.is_some(),
        }
    }

    fn print(&self, address: SocketAddr) {
        let list =
            |names: &[String], none: &str| if names.is_empty() { none.to_owned() } else { names.join(", ") };
        eprintln!("oncebox {} on {}, from {}", env!("CARGO_PKG_VERSION"), self.store, self.origin);
        for source in &self.sources {
            eprintln!("  source    http://{address}/in/{source}");
        }
        for source in &self.brokers {
            eprintln!("  source    {source}");
        }
        eprintln!("  handlers  {}", list(&self.handlers, "none yet: messages are stored"));
        eprintln!("  sinks     {}", list(&self.sinks, "none"));
        eprintln!("  health    http://{address}/health/ready");
        eprintln!("  metrics   http://{address}/metrics");
        if let Some(source) = self.sources.first() {
            let token = if self.with_token { " -H \"authorization: bearer $ONCEBOX_TOKEN\"" } else { "" };
            eprintln!(
                "try: curl -i http://{address}/in/{source}{token} -d '{{\"id\":\"1\",\"type\":\"order.placed\"}}'"
            );
        }
    }
}
