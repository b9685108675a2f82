//! The configuration: a TOML file, read strictly.
//!
//! `config.default.toml` is compiled in: it is the reference and the source of every default. Whatever is wrong with a
//! file is reported with its place and, where there is one, the word that was likely meant; all of it at once.

mod document;
mod handler;
mod problem;
mod secret;
mod section;
mod sink;
mod source;
mod store;
mod units;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

pub use handler::{Action, BreakerConfig, HandlerConfig, HttpAction};
pub use problem::{ConfigError, Problem};
pub use secret::Secret;
pub use sink::{HttpSinkConfig, SinkConfig, SinkType};
pub use source::{Encoding, HttpSourceConfig, Scheme, SourceConfig, SourceType, TokenRule, Verify};
pub use store::{StoreConfig, StoreType};
pub use units::Rate;

pub(crate) use problem::suggestion;
pub(crate) use units::duration;

use document::Document;
use section::{Reader, Section};

/// The reference: every key with its default.
pub const DEFAULTS: &str = include_str!("../../config.default.toml");
const DEFAULTS_NAME: &str = "config.default.toml";

/// A whole configuration, checked as far as that is possible without connecting to anything.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[store]`
    pub store: StoreConfig,
    /// `[http]`
    pub http: HttpConfig,
    /// `[run]`
    pub run: RunConfig,
    /// `[health]`
    pub health: HealthConfig,
    /// `[log]`
    pub log: LogConfig,
    /// `[telemetry]`
    pub telemetry: TelemetryConfig,
    /// `[source.NAME]`, by name.
    pub sources: Vec<SourceConfig>,
    /// `[handler.NAME]`, by name.
    pub handlers: Vec<HandlerConfig>,
    /// `[sink.NAME]`, by name.
    pub sinks: Vec<SinkConfig>,
}

/// `[http]`: the listener and its limits.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The bearer token, if any.
    pub token: Option<Secret>,
    /// The largest request.
    pub max_body: usize,
    /// The most bytes of bodies at one time; a line of a batch counts as 512 at least.
    pub max_in_flight: usize,
    /// The most connections.
    pub max_connections: usize,
    /// The most headers of a request, and of a line of a batch.
    pub max_headers: usize,
    /// The most bytes of a request's headers.
    pub max_header_size: usize,
    /// How long headers may take.
    pub header_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// How many different wrong tokens an address may try in a minute; 0 for any number.
    pub max_wrong_tokens: usize,
    /// How deep JSON may be nested.
    pub json_depth: usize,
    /// What a refused client is told to wait.
    pub retry_after: Duration,
}

/// `[run]`: the runner.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// Calls of each handler at one time.
    pub concurrency: usize,
    /// How often to look for work.
    pub poll: Duration,
    /// How long stopping may take.
    pub shutdown: Duration,
}

/// `[health]`: when the service is ready.
#[derive(Debug, Clone)]
pub struct HealthConfig {
    /// The oldest that a waiting message may be; zero for any age.
    pub max_lag: Duration,
    /// How long the store may take to answer.
    pub timeout: Duration,
}

/// `[log]`: how to log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Lines for people or for programs.
    pub format: LogFormat,
    /// The least important level that is logged.
    pub level: &'static str,
}

/// `[telemetry]`: where traces go.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// The collector, if any.
    pub otlp: Option<url::Url>,
    /// What this service is called there.
    pub service_name: String,
    /// The share of traces that begin here and are written down.
    pub sample: f64,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

impl Config {
    /// What `oncebox serve` runs without a file.
    pub fn default_config() -> Self {
        Self::parse(DEFAULTS_NAME, "", &|_| None).expect("the compiled-in defaults are a valid configuration")
    }

    /// Reads a file, filling `${NAME}` from the environment.
    ///
    /// Fails with every problem of the file at once. A file that others can read must not hold a secret.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ReadError::File(name.clone(), error))?;
        let environment = |name: &str| std::env::var(name).ok();
        let (config, literal_secret) = Self::parse_noting(&name, &text, &environment)?;
        if literal_secret && others_can_read(path) {
            return Err(ReadError::Readable(name));
        }
        Ok(config)
    }

    /// Listens somewhere else than the configuration says.
    ///
    /// Fails for an address that other machines can reach when there is no token.
    pub fn listen_on(mut self, address: SocketAddr) -> Result<Self, String> {
        if self.http.token.is_none() && !address.ip().is_loopback() {
            return Err(needs_token(address));
        }
        if let Some(open) =
            self.sources.iter().find(|source| source.is_open()).filter(|_| !address.ip().is_loopback())
        {
            return Err(format!("{} at {address}", source::needs_proof(&open.name)));
        }
        self.http.listen = address;
        Ok(self)
    }

    /// Reads a text; `name` is what problems call it.
    pub fn parse(
        name: &str,
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        Self::parse_noting(name, text, environment).map(|(config, _)| config)
    }

    /// Also answers whether a secret stands in the text itself.
    fn parse_noting(
        name: &str,
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, bool), ConfigError> {
        let defaults = Document::parse(DEFAULTS_NAME, DEFAULTS)?;
        let file = Document::parse(name, text)?;
        let reader = Reader::new(&file, &defaults, environment);
        let config = config(&reader);
        let literal_secret = reader.has_literal_secret();
        let problems = reader.into_problems();
        if problems.is_empty() { Ok((config, literal_secret)) } else { Err(ConfigError { problems }) }
    }
}

/// Why a configuration file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read at all.
    #[error("configuration `{0}` cannot be read: {1}")]
    File(String, #[source] std::io::Error),
    /// The file holds a secret and is not private.
    #[error(
        "`{0}` holds a secret and others can read it; run `chmod 600 {0}`, or put the secret into the environment \
         and write ${{NAME}}"
    )]
    Readable(String),
    /// The file says something that cannot be meant.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

const SECTIONS: &[&str] =
    &["store", "http", "run", "health", "log", "telemetry", "source", "handler", "sink", "defaults"];

fn config(reader: &Reader<'_>) -> Config {
    reader.check_top(SECTIONS);
    check_defaults(reader);
    let sinks = sink::read_all(reader);
    let http = http(reader.section("http", "http"));
    Config {
        store: store::read(reader.section("store", "store")),
        run: run(reader.section("run", "run")),
        health: health(reader.section("health", "health")),
        log: log(reader.section("log", "log")),
        telemetry: telemetry(reader.section("telemetry", "telemetry")),
        sources: source::read_all(reader, http.listen.ip().is_loopback()),
        http,
        handlers: handler::read_all(reader, &sinks),
        sinks,
    }
}

/// `[defaults.…]` of the file: known sorts only. Their keys are checked like those of a section of that sort.
fn check_defaults(reader: &Reader<'_>) {
    for (sort, at) in reader.names("defaults") {
        match sort.as_str() {
            "source" => source::check_defaults(reader),
            "sink" => sink::check_defaults(reader),
            "handler" => handler::check_defaults(reader),
            _ => {
                let hint = suggestion(&sort, ["source", "handler", "sink"]);
                reader.problem(at, format!("unknown section `defaults.{sort}`{hint}"));
            }
        }
    }
}

fn http(section: Section<'_>) -> HttpConfig {
    let listen = section.text("listen");
    let listen: SocketAddr = listen.parse().unwrap_or_else(|_| {
        section.wrong("listen", format!("`{listen}` is no address; write IP:PORT, as in \"127.0.0.1:8420\""));
        SocketAddr::from(([127, 0, 0, 1], 0))
    });
    let token = section.secret("token").filter(|token| !token.is_empty());
    match &token {
        None if !listen.ip().is_loopback() => section.wrong("listen", needs_token(listen)),
        Some(token) if token.expose().len() < 24 => {
            section.wrong(
                "token",
                "`token` is shorter than 24 characters; make one with `openssl rand -hex 24`",
            );
        }
        _ => {}
    }
    let http = HttpConfig {
        listen,
        token,
        max_body: section.size("max_body"),
        max_in_flight: section.size("max_in_flight"),
        max_connections: section.whole("max_connections", 1, 1_000_000) as usize,
        max_headers: section.whole("max_headers", 1, 10_000) as usize,
        max_header_size: section.size("max_header_size"),
        header_timeout: section.positive_duration("header_timeout"),
        body_timeout: section.positive_duration("body_timeout"),
        write_timeout: section.positive_duration("write_timeout"),
        max_wrong_tokens: section.whole("max_wrong_tokens", 0, 1000) as usize,
        json_depth: section.whole("json_depth", 1, 120) as usize,
        retry_after: section.positive_duration("retry_after"),
    };
    if http.max_in_flight < http.max_body {
        section.wrong(
            "max_in_flight",
            "`max_in_flight` is less than `max_body`: the largest request would never be taken",
        );
    }
    if http.max_header_size < 8 * 1024 {
        section.wrong("max_header_size", "`max_header_size` is at least 8KiB");
    }
    section.finish();
    http
}

fn needs_token(address: SocketAddr) -> String {
    format!(
        "`{address}` can be reached from other machines, so `token` in [http] is required; set it, or listen on 127.0.0.1"
    )
}

fn run(section: Section<'_>) -> RunConfig {
    let run = RunConfig {
        concurrency: section.whole("concurrency", 1, 10_000) as usize,
        poll: section.positive_duration("poll"),
        shutdown: section.duration("shutdown"),
    };
    section.finish();
    run
}

fn health(section: Section<'_>) -> HealthConfig {
    let health =
        HealthConfig { max_lag: section.duration("max_lag"), timeout: section.positive_duration("timeout") };
    section.finish();
    health
}

fn log(section: Section<'_>) -> LogConfig {
    let formats = [("auto", LogFormat::Auto), ("human", LogFormat::Human), ("json", LogFormat::Json)];
    let levels =
        [("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug"), ("trace", "trace")];
    let log = LogConfig { format: section.word("format", &formats), level: section.word("level", &levels) };
    section.finish();
    log
}

fn telemetry(section: Section<'_>) -> TelemetryConfig {
    let address = section.text("otlp");
    let otlp = (!address.is_empty()).then(|| url::Url::parse(&address).ok().filter(is_collector)).flatten();
    if otlp.is_none() && !address.is_empty() {
        section
            .wrong("otlp", "`otlp` is no address of a collector; write it as in \"http://127.0.0.1:4318\"");
    }
    if otlp.is_some() && !cfg!(feature = "otlp") {
        section.wrong("otlp", "this `oncebox` was built without traces; build it with `--features otlp`");
    }
    let telemetry =
        TelemetryConfig { otlp, service_name: section.text("service_name"), sample: section.share("sample") };
    if telemetry.service_name.is_empty() {
        section.wrong("service_name", "`service_name` is empty");
    }
    section.finish();
    telemetry
}

/// A password in the address would be shown in errors, so there may be none.
fn is_collector(url: &url::Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
}

#[cfg(unix)]
fn others_can_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn others_can_read(_path: &Path) -> bool {
    false
}
