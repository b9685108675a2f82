//! Puts a configuration to work: the store, the listener, the runner; and stops them in order.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use oncebox::{Error, ErrorKind, Inbox, Limits, MariaStore, PgStore, SqliteStore, run};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::access::Access;
use crate::api::events::Events;
use crate::config::{Config, HealthConfig, HttpConfig, SinkType, SourceType, StoreType};
use crate::handlers;
use crate::ingest::{HttpSource, InFlight};
use crate::keeper::{self, Pauses};
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::routes;
use crate::shared::Shared;
use crate::stores::{ServiceStore, open_in_time};
use crate::view;

/// A service that has started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Started {
    /// Where it listens; with the port it got when port 0 was asked for.
    pub address: SocketAddr,
}

/// How a service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything that had begun was finished.
    Drained,
    /// The time for stopping was over. Nothing is lost: what was not finished is begun again at the next start.
    Cut,
}

/// Runs a service until `stop` is ready.
///
/// `started` is called once requests are answered. Fails when it cannot start: the store cannot be reached, a table is
/// missing, the address is taken.
pub async fn serve(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
    started: impl FnOnce(&Started),
) -> Result<Ended, Error> {
    use_ring();
    match config.store.database {
        StoreType::Sqlite => serve_on::<SqliteStore>(config, stop, started).await,
        StoreType::Postgres => serve_on::<PgStore>(config, stop, started).await,
        StoreType::Mariadb => serve_on::<MariaStore>(config, stop, started).await,
    }
}

/// TLS needs a provider of cryptography for the process; whoever installed one before is left alone.
pub fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What requests need.
pub(crate) struct App<St: ServiceStore> {
    pub(crate) inbox: Inbox<St>,
    pub(crate) sources: BTreeMap<String, HttpSource>,
    /// Sources on brokers, and the words for their types.
    pub(crate) brokers: Vec<(String, &'static str)>,
    pub(crate) sinks: Vec<(String, &'static str)>,
    pub(crate) http: HttpConfig,
    pub(crate) health: HealthConfig,
    pub(crate) max_payload: usize,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) metrics: Arc<Metrics>,
    /// Who may ask for what.
    pub(crate) access: Access,
    pub(crate) pauses: Pauses,
    pub(crate) events: Events,
    /// There may be a replay to step.
    pub(crate) replaying: Notify,
    /// The names of the configured handlers.
    pub(crate) handlers: Vec<String>,
    /// Why it is not ready, shared by those who ask at the same time.
    pub(crate) readiness: Shared<Option<String>>,
    /// What is wrong, shared in the same way: finding it out is work for the database.
    pub(crate) findings: Shared<Option<Arc<Vec<view::Finding>>>>,
}

/// Opens the store, makes its tables, and builds the inbox with every configured handler.
pub(crate) async fn open<St: ServiceStore>(config: &Config, metrics: &Metrics) -> Result<Inbox<St>, Error> {
    let mut inbox = Inbox::new(open_in_time::<St>(&config.store).await?)
        .keep(config.store.keep)
        .keep_payload(config.store.keep_payload)
        .limits(Limits { payload_bytes: config.store.max_payload });
    if config.telemetry.otlp.is_some() {
        inbox = inbox.traces(config.telemetry.sample);
    }
    handlers::register(inbox, config, metrics)
}

async fn serve_on<St: ServiceStore>(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
    started: impl FnOnce(&Started),
) -> Result<Ended, Error> {
    let metrics = Arc::new(Metrics::default());
    let inbox = open::<St>(&config, &metrics).await?;
    if config.store.migrate {
        inbox.store().bring_up_to_date().await?;
    }
    inbox.register().await?;
    for handler in config.handlers.iter().filter(|handler| handler.paused) {
        inbox.store().set_paused(&handler.name, true).await?;
    }
    let mut runner = run(inbox.clone()).concurrency(config.run.concurrency).poll_every(config.run.poll);
    for sink in &config.sinks {
        runner = match &sink.sink {
            SinkType::Http(http) => runner.relay(handlers::relay(sink, http)?),
            SinkType::Broker(broker) => broker.relay(sink, runner)?,
        };
    }
    for source in &config.sources {
        if let SourceType::Broker { broker, inline } = &source.source {
            runner = broker.consume(&source.name, *inline, runner)?;
        }
    }
    let listen = config.http.listen;
    let cannot = |error| {
        let text = format!("cannot listen on {listen}; end what listens there, or set `listen` in [http]");
        Error::caused(ErrorKind::Unavailable, text, error)
    };
    let listener = Listener::bind(&config.http).map_err(cannot)?;
    let address = listener.address().map_err(cannot)?;
    let shutdown = config.run.shutdown;
    let (stop_http, http_stops) = watch::channel(false);
    let app = Arc::new(app(inbox, config, &listener, http_stops.clone(), metrics));
    // Before the first request: who is not known yet must not find the door open.
    app.access.renew(app.inbox.store()).await?;
    app.pauses.renew(&app.inbox).await?;

    let (stop_runner, mut runner_stops) = watch::channel(false);
    // Half of the time for those who are sending; the rest for what they sent.
    let http = tokio::spawn(listener.serve(routes::router(app.clone()), http_stops, shutdown / 2));
    let keeper = tokio::spawn(keep(app, runner_stops.clone()));
    let runner = runner.with_graceful_shutdown(async move {
        let _ = runner_stops.wait_for(|stopping| *stopping).await;
    });
    let mut runner = tokio::spawn(async move { runner.await });
    started(&Started { address });

    tokio::select! {
        () = stop => {}
        // It ends by itself only when it cannot go on.
        ended = &mut runner => return ended.unwrap_or_else(|error| Err(Error::new(ErrorKind::Store, error.to_string()))).map(|()| Ended::Drained),
    }
    let deadline = Instant::now() + shutdown;
    stop_http.send_replace(true);
    let _ = http.await;
    stop_runner.send_replace(true);
    let _ = tokio::time::timeout_at(deadline, keeper).await;
    match tokio::time::timeout_at(deadline, runner).await {
        Ok(Ok(result)) => result.map(|()| Ended::Drained),
        Ok(Err(error)) => Err(Error::new(ErrorKind::Store, format!("the runner panicked: {error}"))),
        Err(_) => {
            tracing::warn!(
                "the time for stopping is over; what is unfinished is begun again at the next start"
            );
            Ok(Ended::Cut)
        }
    }
}

/// Everything a service does on its own, until it stops.
async fn keep<St: ServiceStore>(app: Arc<App<St>>, stopping: watch::Receiver<bool>) {
    tokio::join!(
        keeper::keep_access(&app, stopping.clone()),
        keeper::keep_replaying(&app, stopping),
        app.events.watch(&app),
    );
}

fn app<St: ServiceStore>(
    inbox: Inbox<St>,
    config: Config,
    listener: &Listener,
    http_stops: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
) -> App<St> {
    let mut sources = BTreeMap::new();
    let mut brokers = Vec::new();
    for source in config.sources {
        match source.source {
            SourceType::Http(http) => drop(sources.insert(source.name, HttpSource::new(*http))),
            SourceType::Broker { broker, .. } => brokers.push((source.name, broker.word())),
        }
    }
    let sinks = config.sinks.into_iter().map(|sink| match sink.sink {
        SinkType::Http(_) => (sink.name, "http"),
        SinkType::Broker(broker) => (sink.name, broker.word()),
    });
    App {
        inbox,
        sources,
        brokers,
        sinks: sinks.collect(),
        in_flight: InFlight::new(config.http.max_in_flight),
        connections: listener.open(),
        max_payload: config.store.max_payload,
        access: Access::new(&config.http),
        pauses: Pauses::default(),
        events: Events::new(http_stops),
        replaying: Notify::new(),
        handlers: config.handlers.into_iter().map(|handler| handler.name).collect(),
        readiness: Shared::new(Duration::from_secs(1)),
        findings: Shared::new(Duration::from_secs(5)),
        http: config.http,
        health: config.health,
        metrics,
    }
}
