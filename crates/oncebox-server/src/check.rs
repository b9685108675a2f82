//! `oncebox check`: connects to everything and says what would run, without running it.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::store::{Connection, TxLimits};
use oncebox::{Error, MariaStore, PgStore, SqliteStore};
use url::Url;

use crate::config::{Action, Config, SinkConfig, SinkType, SourceConfig, SourceType, StoreType, TokenRule};
use crate::handlers::address;
use crate::handlers::statement::Statement;
use crate::service::use_ring;
use crate::stores::{ServiceStore, open_in_time};

/// What would run, and what would not work.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// In the order of the configuration.
    pub findings: Vec<Finding>,
}

/// One part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// `store`, `http`, `telemetry`, `source NAME`, `handler NAME`, `sink NAME`.
    pub what: String,
    /// What it would do.
    pub does: String,
    /// Why it would not.
    pub problem: Option<String>,
}

impl Report {
    /// True when everything would work.
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.problem.is_none())
    }
}

impl Finding {
    fn new(what: impl Into<String>, does: impl Into<String>, tried: Result<(), String>) -> Self {
        Self { what: what.into(), does: does.into(), problem: tried.err() }
    }
}

/// How long any one of them may take to answer; longer than brokers take by themselves, whose errors say more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Tries everything that a configuration names, all at one time. Changes nothing.
pub async fn check(config: &Config) -> Report {
    use_ring();
    match config.store.database {
        StoreType::Sqlite => on_store::<SqliteStore>(config).await,
        StoreType::Postgres => on_store::<PgStore>(config).await,
        StoreType::Mariadb => on_store::<MariaStore>(config).await,
    }
}

async fn on_store<St: ServiceStore>(config: &Config) -> Report {
    let (store, http, telemetry, sources, sinks) = tokio::join!(
        with_store::<St>(config),
        http(config),
        telemetry(config),
        join_all(config.sources.iter().map(|one| source(config, one))),
        join_all(config.sinks.iter().map(sink)),
    );
    let (store, handlers) = store;
    let findings = [store, http].into_iter().chain(telemetry).chain(sources).chain(handlers).chain(sinks);
    Report { findings: findings.collect() }
}

/// The store, and the handlers, of which some need it.
async fn with_store<St: ServiceStore>(config: &Config) -> (Finding, Vec<Finding>) {
    let opening = async {
        let opened = open::<St>(config).await;
        let finding = store(config, &opened).await;
        (finding, opened)
    };
    let posting = join_all(config.handlers.iter().map(|handler| async {
        match &handler.action {
            Action::Http(action) => connect(&action.url).await,
            Action::Sql(_) | Action::Sink(_) => Ok(()),
        }
    }));
    let ((finding, opened), posted) = tokio::join!(opening, posting);
    let mut handlers = Vec::new();
    for (handler, posted) in config.handlers.iter().zip(posted) {
        let does = format!("{} on {}", handler.action.as_str(), handler.on.join(", "));
        let (does, tried) = match (&handler.action, &opened) {
            (Action::Sql(statements), Opened::Store(store)) => {
                (does, try_statements(store, config, statements).await)
            }
            (Action::Sql(_), _) => (format!("{does}, not tried without a database"), Ok(())),
            (Action::Http(_) | Action::Sink(_), _) => (does, posted),
        };
        handlers.push(Finding::new(format!("handler {}", handler.name), does, tried));
    }
    (finding, handlers)
}

/// What became of the store.
enum Opened<St> {
    Store(St),
    /// It is a file that is not there.
    NoFile(String),
    Failed(String),
}

/// Opens the store, but makes no file that is not there.
async fn open<St: ServiceStore>(config: &Config) -> Opened<St> {
    if config.store.database == StoreType::Sqlite {
        let url = config.store.url.expose();
        let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
        let path = Path::new(path.split('?').next().unwrap_or_default());
        let shown = path.display().to_string();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            return Opened::Failed(format!("there is no folder for `{shown}`; make it"));
        }
        if !path.exists() && shown != ":memory:" {
            return Opened::NoFile(shown);
        }
    }
    match open_in_time(&config.store).await {
        Ok(store) => Opened::Store(store),
        Err(error) => Opened::Failed(error.to_string()),
    }
}

async fn store<St: ServiceStore>(config: &Config, opened: &Opened<St>) -> Finding {
    let database = config.store.database.as_str();
    let store = match opened {
        Opened::Store(store) => store,
        Opened::NoFile(path) if config.store.migrate => {
            let does = format!("{database}, whose file `{path}` is not there yet and would be created");
            return Finding::new("store", does, Ok(()));
        }
        Opened::NoFile(path) => {
            let text = format!("there is no file `{path}`; run `oncebox migrate`, or set `migrate = true`");
            return Finding::new("store", database, Err(text));
        }
        Opened::Failed(problem) => return Finding::new("store", database, Err(problem.clone())),
    };
    let pending = tokio::time::timeout(PATIENCE, store.pending_migrations()).await;
    let (does, tried) = match pending {
        Ok(Ok(0)) => (format!("{database}, its tables are up to date"), Ok(())),
        Ok(Ok(_)) if config.store.migrate => {
            (format!("{database}, whose tables are brought up to date at start"), Ok(()))
        }
        Ok(Ok(count)) => {
            let text =
                format!("{count} migrations are not applied; run `oncebox migrate`, or set `migrate = true`");
            (database.to_owned(), Err(text))
        }
        Ok(Err(error)) => (database.to_owned(), Err(error.to_string())),
        Err(_) => (database.to_owned(), Err(late())),
    };
    Finding::new("store", does, tried)
}

async fn http(config: &Config) -> Finding {
    let listen = config.http.listen;
    match tokio::net::TcpListener::bind(listen).await {
        Ok(_) => Finding::new("http", format!("listens on {listen}"), Ok(())),
        // Most likely the service that is to be replaced.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Finding::new("http", format!("listens on {listen}, where somebody listens now"), Ok(()))
        }
        Err(error) => Finding::new("http", format!("listens on {listen}"), Err(error.to_string())),
    }
}

async fn telemetry(config: &Config) -> Option<Finding> {
    let collector = config.telemetry.otlp.as_ref()?;
    let host = collector.host_str().unwrap_or_default();
    Some(Finding::new("telemetry", format!("sends traces to {host}"), connect(collector).await))
}

async fn source(config: &Config, source: &SourceConfig) -> Finding {
    let what = format!("source {}", source.name);
    match &source.source {
        SourceType::Http(http) => {
            let proof = match (&http.verify, http.token, &config.http.token) {
                (Some(_), TokenRule::Always, _) => "signed, with a token",
                (Some(_), ..) => "signed",
                (None, TokenRule::Always, _) | (None, TokenRule::Auto, Some(_)) => "with a token",
                (None, TokenRule::Auto, None) => "from this machine, with a token once there is one",
                (None, TokenRule::Never, _) => "from this machine",
            };
            Finding::new(what, format!("takes POST /in/{} {proof}", source.name), Ok(()))
        }
        SourceType::Broker { broker, .. } => {
            let does = format!("takes messages from {}", broker.word());
            let (does, tried) = found(does, broker.check(&source.name)).await;
            Finding::new(what, does, tried)
        }
    }
}

async fn sink(sink: &SinkConfig) -> Finding {
    let what = format!("sink {}", sink.name);
    match &sink.sink {
        SinkType::Http(http) => {
            let host = http.url.host_str().unwrap_or_default();
            Finding::new(what, format!("posts to {host}"), connect(&http.url).await)
        }
        SinkType::Broker(broker) => {
            let (does, tried) = found(format!("sends to {}", broker.word()), broker.check()).await;
            Finding::new(what, does, tried)
        }
    }
}

/// What a source or sink does, with what it has found, and why it would not.
async fn found(
    does: String,
    checking: impl Future<Output = Result<Option<String>, Error>>,
) -> (String, Result<(), String>) {
    match tokio::time::timeout(PATIENCE, checking).await {
        Ok(Ok(Some(found))) => (format!("{does}: {found}"), Ok(())),
        Ok(Ok(None)) => (format!("{does}, which was not asked"), Ok(())),
        Ok(Err(error)) => (does, Err(error.to_string())),
        Err(_) => (does, Err(late())),
    }
}

fn late() -> String {
    format!("it does not answer within {PATIENCE:?}; check its address")
}

/// Lets the database look at statements, in a transaction that is rolled back.
async fn try_statements<St: ServiceStore>(
    store: &St,
    config: &Config,
    statements: &[Statement],
) -> Result<(), String> {
    let limits = TxLimits { statement: PATIENCE };
    let mut connection = store.begin_plain(limits).await.map_err(|error| error.to_string())?;
    let mut tried = Ok(());
    for statement in statements {
        tried = St::prepare(&mut connection, &St::sql(statement, &config.store)).await;
        if tried.is_err() {
            break;
        }
    }
    connection.rollback().await;
    tried.map_err(|error| error.to_string())
}

/// Looks the host up and connects; sends nothing.
async fn connect(url: &Url) -> Result<(), String> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let trying = async {
        let found: Vec<_> = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| format!("`{host}` cannot be looked up: {error}"))?
            .filter(|found| !address::is_forbidden(found.ip()))
            .collect();
        if found.is_empty() {
            return Err(format!(
                "`{host}` stands for a link-local or metadata address, which is never asked"
            ));
        }
        tokio::net::TcpStream::connect(&found[..]).await.map(drop).map_err(|error| {
            format!("`{host}` port {port} cannot be reached (is it running? check the address): {error}")
        })
    };
    let late = || Err(format!("`{host}` port {port} does not answer within {PATIENCE:?}; check the address"));
    tokio::time::timeout(PATIENCE, trying).await.unwrap_or_else(|_| late())
}
