//! What an operator reads and changes.

mod audit;
mod conflicts;
mod finding;
mod found;
mod health;
mod outgoing;
mod replay;
mod search;
mod store;
mod stored_filter;
mod token;
mod walk;

pub use audit::{Audit, AuditEntry};
pub use conflicts::{Conflict, ConflictAsk, ConflictPage, ConflictPlace};
pub use finding::{Finding, Severity};
pub use found::{Found, Standing};
pub use health::{Health, OVERDUE_AFTER, Overdue, rough};
pub use outgoing::{OutgoingFilter, OutgoingInfo, OutgoingState};
pub use replay::{Pace, Replay, ReplayId, ReplayInfo, ReplayState, StoredReplay};
pub use search::{
    HandlerState, HeaderMatch, MessageHit, MessageInfo, MessagePage, MessageSearch, PayloadMatch, Progress,
};
pub use store::AdminStore;
pub use token::{LONGEST_NAME, Role, TokenInfo, check_name};
pub use walk::{LogReader, Window};

use std::time::Duration;

use jiff::Timestamp;

use crate::message::Message;
use crate::store::DeliveryId;

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeliveryState {
    /// Due or running, nothing has failed yet.
    Waiting,
    /// At least one attempt failed; another one comes.
    Retrying,
    /// Behind an earlier message of its key.
    Held,
    /// Not due before its `not_before`.
    Scheduled,
    /// Waits for a person.
    Dead,
    /// Given up by a person, with a reason.
    Discarded,
    /// Another version wrote a state that this one does not know.
    Unreadable,
}

impl DeliveryState {
    /// The word for it, as commands and tables show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Which deliveries are meant; every field that is set must match.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DeliveryFilter {
    /// These rows only.
    pub deliveries: Vec<DeliveryId>,
    /// This handler.
    pub handler: Option<String>,
    /// This state. `replay` and `discard` touch dead letters only, whatever it says.
    pub state: Option<DeliveryState>,
    /// This scope.
    pub scope: Option<String>,
    /// This message id.
    pub message_id: Option<String>,
    /// This kind.
    pub kind: Option<String>,
    /// This key.
    pub key: Option<String>,
    /// Whose last error contains this text.
    pub error: Option<String>,
    /// Received at or after this time.
    pub since: Option<Timestamp>,
    /// Received before this time.
    pub until: Option<Timestamp>,
    /// Skip to rows after this one (for paging).
    pub after: Option<DeliveryId>,
    /// The most rows. Unless set: 100 when listing, all when replaying or discarding.
    pub limit: Option<usize>,
    /// When listing: no more rows once those before have so many bytes of payload, so that one row is always there.
    pub bytes: Option<usize>,
}

impl DeliveryFilter {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Of this handler only.
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = Some(handler.into());
        self
    }

    /// In this state only.
    pub fn state(mut self, state: DeliveryState) -> Self {
        self.state = Some(state);
        self
    }

    /// Of this message id only.
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Of this kind only.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Of this key only.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Whose last error contains this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// At most this many.
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Dead letters of one handler.
    pub fn dead(handler: impl Into<String>) -> Self {
        Self { handler: Some(handler.into()), state: Some(DeliveryState::Dead), ..Self::default() }
    }
}

/// A delivery that has a row of its own.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeliveryInfo {
    /// Its number.
    pub id: DeliveryId,
    /// Its handler.
    pub handler: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// Attempts counted so far.
    pub attempts: u32,
    /// When the next attempt is due (or the running one's lease ends).
    pub due_at: Timestamp,
    /// When the message came.
    pub received_at: Timestamp,
    /// The message, byte by byte.
    pub message: Message,
    /// Every failed attempt, oldest first.
    pub history: Vec<AttemptInfo>,
}

impl DeliveryInfo {
    /// Used by stores to build one.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: DeliveryId,
        handler: String,
        state: DeliveryState,
        attempts: u32,
        due_at: Timestamp,
        received_at: Timestamp,
        message: Message,
        history: Vec<AttemptInfo>,
    ) -> Self {
        Self { id, handler, state, attempts, due_at, received_at, message, history }
    }
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptInfo {
    /// Its number, from 1; a replay starts again at 1.
    pub attempt: u32,
    /// When it ended.
    pub at: Timestamp,
    /// The error's text.
    pub error: String,
}

/// A handler as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerStatus {
    /// Its name.
    pub name: String,
    /// The kinds it wants, as written.
    pub kinds: Vec<String>,
    /// Whether it is paused.
    pub paused: bool,
    /// Messages of any kind behind its cursors: counted up to a bound, estimated beyond it.
    pub waiting: u64,
    /// False when `waiting` is an estimate.
    pub waiting_is_exact: bool,
    /// How long the oldest message behind its cursors has waited.
    pub lag: Option<Duration>,
    /// Deliveries with a row of their own, per state; each counted up to 10,000.
    pub retrying: u64,
    /// See `retrying`.
    pub held: u64,
    /// See `retrying`.
    pub scheduled: u64,
    /// See `retrying`.
    pub dead: u64,
}

/// What waits in the outbox for one sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxStatus {
    /// The sink; empty for the relay without a name.
    pub sink: String,
    /// Messages not yet sent, counted up to 10,000.
    pub waiting: u64,
    /// Of them: failed at least once.
    pub retrying: u64,
    /// Refused for good.
    pub dead: u64,
    /// How long the oldest has waited.
    pub lag: Option<Duration>,
}
