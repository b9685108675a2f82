//! How handlers, deliveries, messages and the outbox look as JSON: the same in the API and in `--json` of the commands.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use oncebox::admin::{
    AttemptInfo, AuditEntry, Conflict, DeliveryInfo, HandlerState, HandlerStatus, MessageHit, MessageInfo,
    OutboxStatus, OutgoingInfo, Progress, ReplayInfo,
};
use oncebox::store::Count;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything on one screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Per handler what waits, retries and is dead.
    pub handlers: Vec<Handler>,
    /// Per sink what waits to be sent.
    pub outbox: Vec<Outbox>,
    /// Running totals of all counters.
    pub counts: Vec<Counted>,
}

/// A handler and what waits for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Handler {
    /// Its name.
    pub handler: String,
    /// The kinds it wants, as written.
    pub on: Vec<String>,
    /// Whether it is paused.
    pub paused: bool,
    /// Messages of any kind behind its cursors.
    pub waiting: u64,
    /// False when `waiting` is an estimate.
    pub waiting_is_exact: bool,
    /// How long the oldest of them has waited.
    pub lag_seconds: Option<f64>,
    /// Deliveries that wait for another attempt, counted up to 10,000.
    pub retrying: u64,
    /// Deliveries behind an earlier message of their key, counted up to 10,000.
    pub held: u64,
    /// Deliveries that are not due yet, counted up to 10,000.
    pub scheduled: u64,
    /// Deliveries that wait for a person, counted up to 10,000.
    pub dead: u64,
}

/// What waits for a sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outbox {
    /// The sink; empty for the relay without a name.
    pub sink: String,
    /// Messages not yet sent, counted up to 10,000.
    pub waiting: u64,
    /// Of them: failed at least once.
    pub retrying: u64,
    /// Refused for good.
    pub dead: u64,
    /// How long the oldest has waited.
    pub lag_seconds: Option<f64>,
}

/// A message in the outbox, without its headers and payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outgoing {
    /// Its number; a higher one was published later, or at the same time.
    pub number: i64,
    /// The sink; empty for the relay without a name.
    pub sink: String,
    /// `waiting`, `retrying` or `dead`.
    pub state: String,
    /// How often sending has failed.
    pub attempts: u32,
    /// When it is tried next; null for a dead one, which waits for a person.
    #[schema(inline = false)]
    pub due_at: Option<Moment>,
    /// When it was published.
    pub created_at: Moment,
    /// Why the last try failed, or why it is dead.
    pub error: Option<String>,
    /// The name space of its id.
    pub scope: String,
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<String>,
}

/// One thing that is wrong, with its remedy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// A short stable word for programs, such as `dead-letters`.
    pub code: String,
    /// `note`, `warning` or `fault`.
    pub severity: String,
    /// What was seen, with names and numbers.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// The total of a counter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// The handler; empty for the inbox as a whole.
    pub handler: String,
    /// What was counted, such as `received` or `duplicate`.
    pub name: String,
    /// How many.
    pub value: i64,
}

/// An instant, such as `2026-05-01T12:00:00Z`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, format = DateTime)]
pub struct Moment(String);

impl Moment {
    /// The instant; `None` when another version of the service wrote what this one cannot read.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.0.parse().ok()
    }
}

/// To the second, for people.
impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timestamp() {
            Some(at) => write!(formatter, "{at:.0}"),
            None => write!(formatter, "{}", self.0.escape_debug()),
        }
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        Self(at.to_string())
    }
}

/// A message, byte by byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// The name space of its id.
    pub scope: String,
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<String>,
    /// Pairs of names and values.
    pub headers: Vec<Vec<String>>,
    /// The payload, when it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub payload: Option<String>,
    /// The payload, when it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub payload_base64: Option<String>,
}

impl Message {
    /// The bytes of its payload; `None` when they are not base64 although they should be.
    pub fn payload_bytes(&self) -> Option<Vec<u8>> {
        match (&self.payload, &self.payload_base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(encoded)) => STANDARD.decode(encoded).ok(),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its number, from 1; a replay starts again at 1.
    pub attempt: u32,
    /// When it ended.
    pub at: Moment,
    /// The error's text.
    pub error: String,
}

/// A delivery with its message and every failed attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// Its number.
    pub delivery: i64,
    /// Its handler.
    pub handler: String,
    /// `waiting`, `retrying`, `held`, `scheduled`, `dead` or `discarded`; `unreadable` when another version wrote a state
    /// that this one does not know.
    pub state: String,
    /// Attempts counted so far.
    pub attempts: u32,
    /// When the next attempt is due.
    pub due_at: Moment,
    /// When the message came.
    pub received_at: Moment,
    /// Every failed attempt, oldest first.
    pub history: Vec<Attempt>,
    /// The message.
    #[serde(flatten)]
    pub message: Message,
}

/// A message with the time at which it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Received {
    /// When it came.
    pub received_at: Moment,
    /// The message.
    #[serde(flatten)]
    pub message: Message,
}

/// One message and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Whole {
    /// The name space of its id.
    pub scope: String,
    /// Its id.
    pub id: String,
    /// When it came.
    pub received_at: Moment,
    /// Null when its payload was purged and only its id still blocks duplicates.
    #[schema(inline = false)]
    pub message: Option<Message>,
    /// Per handler that wants its kind, in order of names.
    pub handlers: Vec<Progressed>,
    /// The same id with other bytes.
    pub conflicts: Vec<Received>,
}

/// How far a handler is with a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progressed {
    /// The handler.
    pub handler: String,
    /// `done`, or the state of its delivery: `waiting`, `retrying`, `held`, `scheduled`, `dead` or `discarded`.
    pub state: String,
    /// The number of its delivery, when it has a row of its own.
    pub delivery: Option<i64>,
    /// Attempts counted so far, when it has a row of its own.
    pub attempts: Option<u32>,
    /// When the next attempt is due, when it has a row of its own.
    #[schema(inline = false)]
    pub due_at: Option<Moment>,
    /// Every failed attempt, oldest first.
    pub history: Vec<Attempt>,
}

/// A replay and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replay {
    /// Its number.
    pub replay: i64,
    /// `running`, `done` or `cancelled`; `unreadable` when another version wrote what this one cannot read: it is left
    /// alone, and can be cancelled.
    pub state: String,
    /// Letters that matched when it started, counted up to 100,000.
    pub matched: u64,
    /// Letters made to wait again so far.
    pub replayed: u64,
    /// The most letters in a second.
    pub rate: Option<u32>,
    /// Who asked for it.
    pub actor: String,
    /// When it started.
    pub started_at: Moment,
    /// When it was done or cancelled.
    #[schema(inline = false)]
    pub ended_at: Option<Moment>,
}

/// A change as it was written down before it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    /// Its number; a higher one is later.
    pub number: i64,
    /// When.
    pub at: Moment,
    /// Who asked for it: the name of a token, `config`, `loopback`, or the user of a command.
    pub actor: String,
    /// What: `pause`, `resume`, `replay`, `cancel-replay`, `discard`, `purge`, `send`, `create-token`, `revoke-token`.
    pub action: String,
    /// To what.
    pub target: String,
    /// What else there is to say: a JSON object as text, or empty.
    pub details: String,
}

/// Everything on one screen.
pub fn status(handlers: &[HandlerStatus], sinks: &[OutboxStatus], counts: &[Count]) -> Status {
    Status {
        handlers: handlers.iter().map(handler).collect(),
        outbox: sinks.iter().map(outbox).collect(),
        counts: counts.iter().map(counted).collect(),
    }
}

/// A handler and what waits for it.
pub fn handler(one: &HandlerStatus) -> Handler {
    Handler {
        handler: one.name.clone(),
        on: one.kinds.clone(),
        paused: one.paused,
        waiting: one.waiting,
        waiting_is_exact: one.waiting_is_exact,
        lag_seconds: one.lag.map(|lag| lag.as_secs_f64()),
        retrying: one.retrying,
        held: one.held,
        scheduled: one.scheduled,
        dead: one.dead,
    }
}

/// What waits for a sink.
pub fn outbox(one: &OutboxStatus) -> Outbox {
    Outbox {
        sink: one.sink.clone(),
        waiting: one.waiting,
        retrying: one.retrying,
        dead: one.dead,
        lag_seconds: one.lag.map(|lag| lag.as_secs_f64()),
    }
}

/// A message in the outbox.
pub fn outgoing(one: &OutgoingInfo) -> Outgoing {
    let is_dead = one.state == oncebox::admin::OutgoingState::Dead;
    Outgoing {
        number: one.seq,
        sink: one.sink.clone(),
        state: one.state.as_str().to_owned(),
        attempts: one.attempts,
        due_at: (!is_dead).then(|| one.due_at.into()),
        created_at: one.created_at.into(),
        error: one.error.clone(),
        scope: one.scope.clone(),
        id: one.id.clone(),
        kind: one.kind.clone(),
        key: one.key.clone(),
    }
}

/// One thing that is wrong.
pub fn finding(one: &oncebox::admin::Finding) -> Finding {
    Finding {
        code: one.code.to_owned(),
        severity: one.severity.as_str().to_owned(),
        what: one.what.clone(),
        remedy: one.remedy.clone(),
    }
}

/// The total of a counter.
pub fn counted(one: &Count) -> Counted {
    Counted { handler: one.handler.clone(), name: one.name.clone(), value: one.value }
}

/// A delivery with its message and every failed attempt.
pub fn delivery(one: &DeliveryInfo) -> Delivery {
    Delivery {
        delivery: one.id.0,
        handler: one.handler.clone(),
        state: one.state.as_str().to_owned(),
        attempts: one.attempts,
        due_at: one.due_at.into(),
        received_at: one.received_at.into(),
        history: history(&one.history),
        message: message(&one.message),
    }
}

/// A message that was not accepted, because its id was known with other bytes.
pub fn conflict(one: &Conflict) -> Received {
    Received { received_at: one.received_at.into(), message: message(&one.message) }
}

/// A message that was found.
pub fn hit(one: &MessageHit) -> Received {
    Received { received_at: one.received_at.into(), message: message(&one.message) }
}

/// One message and what became of it.
pub fn whole(scope: &str, id: &str, one: &MessageInfo) -> Whole {
    Whole {
        scope: scope.to_owned(),
        id: id.to_owned(),
        received_at: one.received_at.into(),
        message: one.message.as_ref().map(message),
        handlers: one.handlers.iter().map(progressed).collect(),
        conflicts: one.conflicts.iter().map(conflict).collect(),
    }
}

/// A filter of dead letters in the words of the API, as an object; `{"all":true}` when it has no field that is set.
pub fn letters(filter: &oncebox::admin::DeliveryFilter) -> String {
    crate::api::deliveries::described(filter)
}

/// A replay and how far it is.
pub fn replay(one: &ReplayInfo) -> Replay {
    Replay {
        replay: one.id.0,
        state: one.state.as_str().to_owned(),
        matched: one.matched,
        replayed: one.replayed,
        rate: one.replay.rate,
        actor: one.replay.actor.clone(),
        started_at: one.started_at.into(),
        ended_at: one.ended_at.map(Moment::from),
    }
}

/// A change as it was written down.
pub fn audited(one: &AuditEntry) -> Audited {
    Audited {
        number: one.number,
        at: one.at.into(),
        actor: one.change.actor.clone(),
        action: one.change.action.clone(),
        target: one.change.target.clone(),
        details: one.change.details.clone(),
    }
}

fn progressed(one: &HandlerState) -> Progressed {
    let (state, delivery, past) = match &one.progress {
        Progress::Waiting => ("waiting", None, Vec::new()),
        Progress::Done { history: past } => ("done", None, history(past)),
        Progress::Delivery(delivery) => (delivery.state.as_str(), Some(delivery), history(&delivery.history)),
    };
    Progressed {
        handler: one.handler.clone(),
        state: state.to_owned(),
        delivery: delivery.map(|delivery| delivery.id.0),
        attempts: delivery.map(|delivery| delivery.attempts),
        due_at: delivery.map(|delivery| delivery.due_at.into()),
        history: past,
    }
}

fn history(attempts: &[AttemptInfo]) -> Vec<Attempt> {
    let attempt =
        |one: &AttemptInfo| Attempt { attempt: one.attempt, at: one.at.into(), error: one.error.clone() };
    attempts.iter().map(attempt).collect()
}

/// A payload that is text is `payload`, any other is `payload_base64`.
fn message(message: &oncebox::Message) -> Message {
    let (payload, payload_base64) = match std::str::from_utf8(&message.payload) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(&message.payload))),
    };
    let header = |(name, value): (&str, &bytes::Bytes)| {
        vec![name.to_owned(), String::from_utf8_lossy(value).into_owned()]
    };
    Message {
        scope: message.scope.clone(),
        id: message.id.clone(),
        kind: message.kind.clone(),
        key: message.key.clone(),
        headers: message.headers.iter().map(header).collect(),
        payload,
        payload_base64,
    }
}

macro_rules! as_json {
    ($($view:ident)*) => {$(
        /// As one line of JSON.
        impl fmt::Display for $view {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
            }
        }
    )*};
}

as_json!(Status Outgoing Delivery Received Whole Replay Audited);
