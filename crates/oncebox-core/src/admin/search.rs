//! Finding messages in the log.

use jiff::Timestamp;

use super::DeliveryInfo;
use crate::message::Message;

/// Which received messages are meant; every field that is set must match. Newest first.
///
/// A search never takes long, however many messages there are: it looks at a bounded number of them, and says with
/// [`MessagePage::next`] where to go on.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MessageSearch {
    /// This scope.
    pub scope: Option<String>,
    /// This message id.
    pub id: Option<String>,
    /// This kind, or a beginning followed by `*`.
    pub kind: Option<String>,
    /// This key.
    pub key: Option<String>,
    /// Received at or after this time.
    pub since: Option<Timestamp>,
    /// Received before this time.
    pub until: Option<Timestamp>,
    /// With this header.
    pub header: Option<HeaderMatch>,
    /// With this in its payload.
    pub payload: Option<PayloadMatch>,
    /// Only messages older than this place (for paging): what [`MessagePage::next`] said.
    pub before: Option<i64>,
    /// The most messages in one page; 100 unless set.
    pub limit: Option<usize>,
    /// The page ends once it has so many bytes of payload.
    pub bytes: Option<usize>,
}

/// A header that a message must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name; upper and lower case are the same.
    pub name: String,
    /// Its value; `None`: any.
    pub value: Option<String>,
}

/// A value that a JSON payload must have.
#[derive(Debug, Clone, PartialEq)]
pub struct PayloadMatch {
    /// A JSON pointer, such as `/customer/id`.
    pub pointer: String,
    /// The value there as text: a string without quotes, anything else as JSON writes it.
    pub value: String,
}

/// A message that was found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MessageHit {
    /// Its place in the log; a higher one is later.
    pub seq: i64,
    /// When it came.
    pub received_at: Timestamp,
    /// The message, byte by byte.
    pub message: Message,
}

impl MessageHit {
    /// Used by stores to build one.
    pub fn new(seq: i64, received_at: Timestamp, message: Message) -> Self {
        Self { seq, received_at, message }
    }
}

/// A part of what a search finds.
#[derive(Debug, Clone)]
pub struct MessagePage {
    /// What was found, newest first; may be empty although there is more to search.
    pub messages: Vec<MessageHit>,
    /// Where to go on; `None` when the search is at its end.
    pub next: Option<i64>,
}

/// How far one handler is with a message.
#[derive(Debug, Clone)]
pub struct HandlerState {
    /// The handler.
    pub handler: String,
    /// How far it is.
    pub progress: Progress,
}

/// How far a handler is with a message.
#[derive(Debug, Clone)]
pub enum Progress {
    /// In the log, before the handler's cursor has reached it.
    Waiting,
    /// The handler has done it, and failed attempts, if any, are in the past. Also when the handler was added after the
    /// message had come, and passes over it.
    Done {
        /// Failed attempts before it was done.
        history: Vec<super::AttemptInfo>,
    },
    /// It has a row of its own.
    Delivery(Box<DeliveryInfo>),
}

/// One message and what became of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MessageInfo {
    /// When it came.
    pub received_at: Timestamp,
    /// The message, byte by byte; `None` when it was handled inline, or its payload was purged, and only its id still
    /// blocks duplicates.
    pub message: Option<Message>,
    /// Per handler that wants its kind, in order of names. Of a message that is `None` the kind is not known any more:
    /// then those that have failed at it.
    pub handlers: Vec<HandlerState>,
    /// Whether the same id came with other bytes.
    pub conflicts: Vec<super::Conflict>,
}

impl MessageInfo {
    /// Used by stores to build one.
    pub fn new(
        received_at: Timestamp,
        message: Option<Message>,
        handlers: Vec<HandlerState>,
        conflicts: Vec<super::Conflict>,
    ) -> Self {
        Self { received_at, message, handlers, conflicts }
    }
}
