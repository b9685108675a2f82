//! What the person on call does: look, replay, discard, pause. Works on the store itself, with or without a service, or
//! through a service.

mod change;
mod desk;
mod doctor;
mod find;
mod look;
mod open;
mod purge;
mod replay;
mod screen;
mod token;

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use oncebox::admin::{AdminStore, DeliveryFilter, DeliveryState};

use desk::{Desk, Done, Server, StoreDesk};
use open::{OnStore, open};
use screen::safe;

/// The store that is meant unless one is named.
const STORE: &str = "sqlite:oncebox.db";

/// Where the token is, so that it stands in no list of processes.
const TOKEN_VARIABLE: &str = "ONCEBOX_TOKEN";

/// Where the store is.
#[derive(Debug, Args)]
pub(crate) struct StoreTarget {
    /// The store: `sqlite:FILE`, `postgres://…` or `mysql://…`; `sqlite:oncebox.db` unless set.
    #[arg(long, global = true)]
    store: Option<String>,
    /// The schema on Postgres and MariaDB; the beginning of the tables' names on SQLite.
    #[arg(long, global = true)]
    schema: Option<String>,
}

/// Where the store is, or a service on it.
#[derive(Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    store: StoreTarget,
    /// A running service instead of the store: its address, as in http://127.0.0.1:8420.
    #[arg(long)]
    server: Option<String>,
    /// A token for the service; better in the variable ONCEBOX_TOKEN, where no list of processes shows it.
    #[arg(long, requires = "server")]
    token: Option<String>,
}

/// The commands themselves; see `main.rs` for how they are called.
#[derive(Debug, Subcommand)]
pub(crate) enum Operation {
    /// One screen: per handler what waits, retries and is dead; what waits in the outbox.
    Status(On<look::Status>),
    /// Deliveries that have a row of their own: retrying, held, scheduled, dead, discarded.
    List(On<look::List>),
    /// Messages in the log, whatever became of them, newest first.
    Search(On<find::Search>),
    /// A message with its payload, headers, and per handler how far it is with every failed attempt.
    Show(On<find::Show>),
    /// Put a message into the inbox.
    Send(On<change::Send>),
    /// Let dead letters run again.
    Replay(On<replay::Replay>),
    /// Give dead letters up for good, with a reason.
    Discard(On<change::Discard>),
    /// Let a handler or a source take nothing more, in every process.
    Pause(On<change::Pause>),
    /// Let a paused handler or source go on.
    Resume(On<change::Pause>),
    /// Messages in the outbox: why they were not sent, and when they are tried next.
    Outbox(On<look::Outbox>),
    /// Who changed what, newest first.
    Audit(On<look::Audit>),
    /// Remove now what is done and old enough; the runners do it by themselves as well.
    Purge(OnOnly<purge::Purge>),
    /// Tokens for a service on this store: make, list, revoke.
    Token(OnOnly<token::Token>),
    /// What is wrong with a store and the service on it, worst first, each with its remedy.
    Doctor(doctor::Doctor),
}

/// A command and where it works.
#[derive(Debug, Args)]
pub(crate) struct On<T: Args> {
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    target: Target,
}

/// A command that works on the store only.
#[derive(Debug, Args)]
pub(crate) struct OnOnly<T: Args> {
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    target: StoreTarget,
}

impl Operation {
    fn store(&self) -> (Option<&str>, Option<&str>) {
        let target = match self {
            Self::Purge(on) => &on.target,
            Self::Token(on) => &on.target,
            other => match other.target() {
                Some(target) => &target.store,
                None => return (None, None),
            },
        };
        (target.store.as_deref(), target.schema.as_deref())
    }

    /// `None` for commands that work on the store only.
    fn target(&self) -> Option<&Target> {
        match self {
            Self::Status(on) => Some(&on.target),
            Self::List(on) => Some(&on.target),
            Self::Search(on) => Some(&on.target),
            Self::Show(on) => Some(&on.target),
            Self::Send(on) => Some(&on.target),
            Self::Replay(on) => Some(&on.target),
            Self::Discard(on) => Some(&on.target),
            Self::Pause(on) | Self::Resume(on) => Some(&on.target),
            Self::Outbox(on) => Some(&on.target),
            Self::Audit(on) => Some(&on.target),
            Self::Purge(_) | Self::Token(_) | Self::Doctor(_) => None,
        }
    }

    /// Does what works at any desk.
    async fn at(self, desk: &impl Desk) -> Done<bool> {
        match self {
            Self::Status(status) => look::status(desk, status.own).await,
            Self::List(list) => look::list(desk, list.own).await,
            Self::Search(search) => find::search(desk, search.own).await,
            Self::Show(show) => find::show(desk, show.own).await,
            Self::Send(send) => change::send(desk, send.own).await,
            Self::Replay(replay) => replay::replay(desk, replay.own).await,
            Self::Discard(discard) => change::discard(desk, discard.own).await,
            Self::Pause(pause) => change::set_paused(desk, pause.own, true).await,
            Self::Resume(resume) => change::set_paused(desk, resume.own, false).await,
            Self::Outbox(outbox) => look::outbox(desk, outbox.own).await,
            Self::Audit(audit) => look::audit(desk, audit.own).await,
            Self::Purge(_) | Self::Token(_) | Self::Doctor(_) => {
                Err("this command works on the store itself; give --store".to_owned())
            }
        }
    }
}

impl OnStore for Operation {
    async fn run<St: AdminStore>(self, store: St) -> Result<bool, String> {
        match self {
            Self::Purge(purge) => purge::purge(&store, purge.own).await.map_err(|error| error.to_string()),
            Self::Token(token) => token::token(&store, token.own).await.map_err(|error| error.to_string()),
            other => other.at(&StoreDesk::new(store)).await,
        }
    }
}

pub(crate) async fn operate(operation: Operation) -> Result<bool, String> {
    let operation = match operation {
        Operation::Doctor(options) => return doctor::doctor(options).await,
        other => other,
    };
    if let Some((url, token)) =
        operation.target().and_then(|target| Some((target.server.clone()?, target.token.clone())))
    {
        if operation.store() != (None, None) {
            return Err("`--store` and `--server` name two places; leave one of them out".to_owned());
        }
        return operation.at(&Server::new(&url, token_for(token))?).await;
    }
    let (url, schema) = operation.store();
    let (url, schema) = (url.unwrap_or(STORE).to_owned(), schema.map(str::to_owned));
    open(&url, schema.as_deref(), operation).await
}

/// The token that was given, or that of the environment.
fn token_for(given: Option<String>) -> Option<String> {
    given.or_else(|| std::env::var(TOKEN_VARIABLE).ok()).filter(|token| !token.is_empty())
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
    /// Of messages received within this time: 30s, 15m, 1h, 7d; or since an instant: 2026-05-01T00:00:00Z.
    #[arg(long, value_parser = when)]
    since: Option<Timestamp>,
    /// Of messages received before that: 1h ago, or an instant.
    #[arg(long, value_parser = when)]
    until: Option<Timestamp>,
    /// Whose last error contains this text.
    #[arg(long)]
    error: Option<String>,
}

impl Filter {
    fn to_delivery_filter(&self) -> Done<DeliveryFilter> {
        in_order(self.since, self.until)?;
        let mut filter = DeliveryFilter::all();
        filter.handler = self.handler.clone();
        filter.state = self.state;
        filter.kind = self.kind.clone();
        filter.key = self.key.clone();
        filter.scope = self.scope.clone();
        filter.error = self.error.clone();
        (filter.since, filter.until) = (self.since, self.until);
        Ok(filter)
    }

    fn is_empty(&self) -> bool {
        let Self { handler, state, kind, key, scope, since, until, error } = self;
        let texts = [handler, kind, key, scope, error];
        texts.iter().all(|text| text.is_none()) && state.is_none() && since.is_none() && until.is_none()
    }
}

/// A misspelt handler matches nothing, so whoever found nothing is told which handlers there are.
async fn tell_unknown_handler(desk: &impl Desk, name: &str) -> Done<bool> {
    let known: Vec<String> = desk.status().await?.handlers.into_iter().map(|one| one.handler).collect();
    let is_unknown = !known.iter().any(|one| one == name);
    if is_unknown {
        let known: Vec<String> = known.iter().map(|name| safe(name)).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        eprintln!("the store knows no handler `{}`; it knows: {known}", safe(name));
    }
    Ok(is_unknown)
}

/// Nothing lies between an instant and an earlier one.
fn in_order(since: Option<Timestamp>, until: Option<Timestamp>) -> Done<()> {
    match (since, until) {
        (Some(since), Some(until)) if since >= until => {
            Err("`--since` is not before `--until`; swap them: --since 2h --until 1h".to_owned())
        }
        _ => Ok(()),
    }
}

fn state(text: &str) -> Result<DeliveryState, String> {
    use DeliveryState::{Dead, Discarded, Held, Retrying, Scheduled, Waiting};
    let all = [Waiting, Retrying, Held, Scheduled, Dead, Discarded];
    all.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|state| state.as_str()).collect();
        let done = if text == "done" { " (what is done has no row left: see `oncebox search`)" } else { "" };
        format!("use one of {}{done}", words.join(", "))
    })
}

/// So long ago, or an instant.
fn when(text: &str) -> Result<Timestamp, String> {
    if let Ok(instant) = text.parse() {
        return Ok(instant);
    }
    let wrong = || {
        format!(
            "`{text}`: write how long ago, as in 1h (s, m, h, d), or an instant, as in 2026-05-01T00:00:00Z"
        )
    };
    let ago = duration(text).map_err(|_| wrong())?;
    Timestamp::now().checked_sub(ago).map_err(|_| wrong())
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

/// How many rows a command shows.
fn limit(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|limit| *limit > 0).ok_or_else(|| "write a whole number from 1 on".to_owned())
}

fn one_or_more(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}
