//! What the person on call does: look, replay, discard, pause. Works on the store itself, with or without a service.

mod change;
mod look;
mod screen;
mod token;

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use oncebox::admin::{AdminStore, DeliveryFilter, DeliveryState};
use oncebox::{MariaStore, PgStore, SqliteStore};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

use crate::target::Place;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the store is.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The store: `sqlite:FILE`, `postgres://…` or `mysql://…`.
    #[arg(long, global = true, default_value = "sqlite:oncebox.db")]
    store: String,
    /// The schema on Postgres and MariaDB; the beginning of the tables' names on SQLite.
    #[arg(long, global = true)]
    schema: Option<String>,
}

/// The commands themselves; see `main.rs` for how they are called.
#[derive(Debug, Subcommand)]
pub(crate) enum Operation {
    /// One screen: per handler what waits, retries and is dead; what waits in the outbox.
    Status(On<look::Status>),
    /// Deliveries that have a row of their own: retrying, held, scheduled, dead, discarded.
    List(On<look::List>),
    /// A message with its payload, headers and every failed attempt, per handler.
    Show(On<look::Show>),
    /// Put a message into the inbox.
    Send(On<change::Send>),
    /// Let dead letters run again.
    Replay(On<change::Replay>),
    /// Give dead letters up for good, with a reason.
    Discard(On<change::Discard>),
    /// Let a handler take nothing more, in every process.
    Pause(On<change::Pause>),
    /// Let a paused handler go on.
    Resume(On<change::Pause>),
    /// Remove now what is done and old enough; the runners do it by themselves as well.
    Purge(On<change::Purge>),
    /// Tokens for a service on this store: make, list, revoke.
    Token(On<token::Token>),
}

/// A command and the store it works on.
#[derive(Debug, Args)]
pub(crate) struct On<T: Args> {
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    target: Target,
}

impl Operation {
    fn target(&self) -> &Target {
        match self {
            Self::Status(on) => &on.target,
            Self::List(on) => &on.target,
            Self::Show(on) => &on.target,
            Self::Send(on) => &on.target,
            Self::Replay(on) => &on.target,
            Self::Discard(on) => &on.target,
            Self::Pause(on) | Self::Resume(on) => &on.target,
            Self::Purge(on) => &on.target,
            Self::Token(on) => &on.target,
        }
    }
}

/// Which deliveries are meant.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Of this handler.
    #[arg(long)]
    handler: Option<String>,
    /// In this state: waiting, retrying, held, scheduled, dead or discarded.
    #[arg(long, value_parser = state)]
    state: Option<DeliveryState>,
    /// Of messages of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Of messages with this key.
    #[arg(long)]
    key: Option<String>,
    /// Of messages in this scope.
    #[arg(long)]
    scope: Option<String>,
    /// Of messages received within this time: 30s, 15m, 1h, 7d.
    #[arg(long, value_parser = duration)]
    since: Option<Duration>,
    /// Whose last error contains this text.
    #[arg(long)]
    error: Option<String>,
}

impl Filter {
    fn to_delivery_filter(&self) -> DeliveryFilter {
        let mut filter = DeliveryFilter::all();
        filter.handler = self.handler.clone();
        filter.state = self.state;
        filter.kind = self.kind.clone();
        filter.key = self.key.clone();
        filter.scope = self.scope.clone();
        filter.error = self.error.clone();
        filter.since = self.since.and_then(|ago| Timestamp::now().checked_sub(ago).ok());
        filter
    }

    fn is_empty(&self) -> bool {
        let Self { handler, state, kind, key, scope, since, error } = self;
        let texts = [handler, kind, key, scope, error];
        texts.iter().all(|text| text.is_none()) && state.is_none() && since.is_none()
    }
}

pub(crate) async fn operate(operation: Operation) -> Result<bool, String> {
    let target = operation.target();
    let place = Place { url: target.store.clone(), schema: String::new() };
    place.check()?;
    let told = |error: oncebox::Error| error.to_string();
    if place.is_postgres() {
        let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(&place.url);
        let pool = pool.await.map_err(|error| format!("Postgres cannot be reached: {error}"))?;
        let store = PgStore::new(pool);
        let store = match &target.schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return on_store(store, operation).await;
    }
    if place.is_mariadb() {
        let pool = MySqlPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(&place.url);
        let pool = pool.await.map_err(|error| format!("MariaDB cannot be reached: {error}"))?;
        let store = MariaStore::new(pool);
        let store = match &target.schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return on_store(store, operation).await;
    }
    let file = place.url.trim_start_matches("sqlite:").trim_start_matches("//");
    if !std::path::Path::new(file.split('?').next().unwrap_or_default()).exists() {
        return Err(format!("there is no file `{file}`; name the store with `--store sqlite:FILE`"));
    }
    let store = SqliteStore::open(file).await.map_err(told)?;
    let store = match &target.schema {
        Some(prefix) => store.prefix(prefix).map_err(told)?,
        None => store,
    };
    on_store(store, operation).await
}

async fn on_store<St: AdminStore>(store: St, operation: Operation) -> Result<bool, String> {
    let done = match operation {
        Operation::Status(status) => look::status(&store, status.own).await,
        Operation::List(list) => look::list(&store, list.own).await,
        Operation::Show(show) => look::show(&store, show.own).await,
        Operation::Send(send) => return change::send(store, send.own).await,
        Operation::Replay(replay) => change::replay(&store, replay.own).await,
        Operation::Discard(discard) => change::discard(&store, discard.own).await,
        Operation::Pause(pause) => change::set_paused(&store, pause.own, true).await,
        Operation::Resume(resume) => change::set_paused(&store, resume.own, false).await,
        Operation::Purge(purge) => change::purge(&store, purge.own).await,
        Operation::Token(token) => token::token(&store, token.own).await,
    };
    done.map_err(|error| error.to_string())
}

fn state(text: &str) -> Result<DeliveryState, String> {
    use DeliveryState::{Dead, Discarded, Held, Retrying, Scheduled, Waiting};
    let all = [Waiting, Retrying, Held, Scheduled, Dead, Discarded];
    all.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|state| state.as_str()).collect();
        format!("use one of {}", words.join(", "))
    })
}

/// A whole number and s, m, h or d.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}`: write a whole number and s, m, h or d, as in 1h");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}
