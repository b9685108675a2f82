//! `oncebox check`: connects to everything and says what would run, without running it.

use std::time::Duration;

use oncebox::store::{Connection, TxLimits};
use oncebox::{Error, ErrorKind, MariaStore, PgStore, SqliteStore};
use url::Url;

use crate::config::{Action, Config, HandlerConfig, SinkType, SourceType, StoreType, TokenRule};
use crate::handlers::address;
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
    /// `store`, `http`, `source NAME`, `handler NAME`, `sink NAME`.
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

    fn add(&mut self, what: impl Into<String>, does: impl Into<String>, tried: Result<(), String>) {
        self.findings.push(Finding { what: what.into(), does: does.into(), problem: tried.err() });
    }
}

/// How long any one of them may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries everything that a configuration names. Changes nothing.
pub async fn check(config: &Config) -> Report {
    use_ring();
    let mut report = Report::default();
    match config.store.database {
        StoreType::Sqlite => on_store::<SqliteStore>(config, &mut report).await,
        StoreType::Postgres => on_store::<PgStore>(config, &mut report).await,
        StoreType::Mariadb => on_store::<MariaStore>(config, &mut report).await,
    }
    report
}

async fn on_store<St: ServiceStore>(config: &Config, report: &mut Report) {
    let database = config.store.database.as_str();
    let opened = open::<St>(config).await;
    let pending = match &opened {
        Ok(store) => store.pending_migrations().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let (does, tried) = match pending {
        Ok(0) => (format!("{database}, its tables are up to date"), Ok(())),
        Ok(_) if config.store.migrate => {
            (format!("{database}, whose tables are brought up to date at start"), Ok(()))
        }
        Ok(count) => {
            let text =
                format!("{count} migrations are not applied; run `oncebox migrate`, or set `migrate = true`");
            (database.to_owned(), Err(text))
        }
        Err(problem) => (database.to_owned(), Err(problem)),
    };
    report.add("store", does, tried);

    let listen = config.http.listen;
    match tokio::net::TcpListener::bind(listen).await {
        Ok(_) => report.add("http", format!("listens on {listen}"), Ok(())),
        // Most likely the service that is to be replaced.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            report.add("http", format!("listens on {listen}, where somebody listens now"), Ok(()));
        }
        Err(error) => report.add("http", format!("listens on {listen}"), Err(error.to_string())),
    }
    for source in &config.sources {
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
                report.add(what, format!("takes POST /in/{} {proof}", source.name), Ok(()));
            }
            SourceType::Broker { broker, .. } => {
                let asking = tokio::time::timeout(PATIENCE, broker.lag(&source.name)).await;
                let (does, tried) = match asking {
                    Ok(Ok(Some(lag))) => {
                        (format!("takes messages from {}, where {lag} wait", broker.word()), Ok(()))
                    }
                    Ok(Ok(None)) => {
                        (format!("takes messages from {}, which was not asked", broker.word()), Ok(()))
                    }
                    Ok(Err(error)) => {
                        (format!("takes messages from {}", broker.word()), Err(error.to_string()))
                    }
                    Err(_) => {
                        let text = format!("it does not answer within {PATIENCE:?}");
                        (format!("takes messages from {}", broker.word()), Err(text))
                    }
                };
                report.add(what, does, tried);
            }
        }
    }
    for handler in &config.handlers {
        let does = format!("{} on {}", handler.action.as_str(), handler.on.join(", "));
        let tried = match &opened {
            Ok(store) => try_handler(store, config, handler).await,
            Err(_) => Ok(()),
        };
        report.add(format!("handler {}", handler.name), does, tried);
    }
    for sink in &config.sinks {
        let what = format!("sink {}", sink.name);
        match &sink.sink {
            SinkType::Http(http) => {
                let host = http.url.host_str().unwrap_or_default();
                report.add(what, format!("posts to {host}"), connect(&http.url).await);
            }
            SinkType::Broker(broker) => {
                report.add(what, format!("sends to {}, which was not asked", broker.word()), Ok(()));
            }
        }
    }
}

/// Opens the store, but makes no file that is not there.
async fn open<St: ServiceStore>(config: &Config) -> Result<St, Error> {
    if config.store.database == StoreType::Sqlite {
        let url = config.store.url.expose();
        let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
        let path = path.split('?').next().unwrap_or_default();
        if !std::path::Path::new(path).exists() {
            let folder = std::path::Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("there is no folder for `{path}`; make it"),
                ));
            }
            let text =
                format!("there is no file `{path}` yet; `oncebox serve` or `oncebox migrate` makes it");
            return Err(Error::new(ErrorKind::Schema, text));
        }
    }
    open_in_time(&config.store).await
}

async fn try_handler<St: ServiceStore>(
    store: &St,
    config: &Config,
    handler: &HandlerConfig,
) -> Result<(), String> {
    match &handler.action {
        Action::Sql(statements) => {
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
        Action::Http(action) => connect(&action.url).await,
        Action::Sink(_) => Ok(()),
    }
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
        tokio::net::TcpStream::connect(&found[..])
            .await
            .map(drop)
            .map_err(|error| format!("`{host}` port {port} cannot be reached: {error}"))
    };
    tokio::time::timeout(PATIENCE, trying).await.unwrap_or_else(|_| Err(format!("`{host}` does not answer")))
}
