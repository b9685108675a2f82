//! A message: id, kind, optional key, headers and payload bytes.

use std::fmt::Display;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::Error;
use crate::headers::Headers;

/// What a source hands over and a handler gets; its bytes never change once received.
///
/// A message made here has a fresh id (UUID v7) unless you give it one. Give it one whenever the same thing may
/// be sent twice: the id is what makes the second copy a duplicate.
///
/// ```
/// use oncebox_core::Message;
///
/// let message = Message::json("order.placed", &serde_json::json!({"order_id": 7}))?
///     .id("order-7-placed")
///     .key(7)
///     .header("tenant", "acme");
/// assert_eq!(message.kind, "order.placed");
/// assert_eq!(message.key.as_deref(), Some("7"));
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The name space of the id. A message that comes without one gets the name of its source, or [`DEFAULT_SCOPE`].
    pub scope: String,
    /// Unique within the scope, compared byte by byte.
    pub id: String,
    /// Routes the message to handlers.
    pub kind: String,
    /// Messages with one key are handled in order by an `ordered` handler.
    pub key: Option<String>,
    /// Names and values, in order, byte by byte as they came.
    pub headers: Headers,
    /// The body, byte by byte as it came. It may be a part of a larger piece of memory, with other messages: copy what is
    /// to be kept for long.
    pub payload: Bytes,
    /// Not handled (or, in the outbox, not sent) before this time of the database's clock.
    pub not_before: Option<Timestamp>,
    /// The sink an outgoing message is meant for; empty for the relay without a name. A message that was received has
    /// none: it says where to send, and it has come.
    pub sink: String,
}

impl Message {
    /// A message with these payload bytes and a fresh id.
    pub fn new(kind: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self::with_id(Uuid::now_v7().to_string(), kind, payload)
    }

    /// A message with an id it already has; what [`Message::new`] and [`Message::id`] do, without making an id first.
    pub fn with_id(id: impl Into<String>, kind: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            scope: String::new(),
            id: id.into(),
            kind: kind.into(),
            key: None,
            headers: Headers::new(),
            payload: payload.into(),
            not_before: None,
            sink: String::new(),
        }
    }

    /// A message with a JSON payload.
    ///
    /// Fails when `body` cannot be written as JSON (a map with keys that are not strings, for one).
    pub fn json<T: Serialize + ?Sized>(kind: impl Into<String>, body: &T) -> Result<Self, Error> {
        let kind = kind.into();
        let payload = serde_json::to_vec(body).map_err(|error| {
            Error::invalid(format!("message of kind `{kind}` cannot be written as JSON: {error}"))
        })?;
        Ok(Self::new(kind, payload))
    }

    /// Sets the id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets the key, from anything that prints: a string, a number, a UUID.
    pub fn key(mut self, key: impl Display) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// Sets the scope of the id.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// Adds a header; a name may appear more than once.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// Waits until this time of the database's clock.
    pub fn not_before(mut self, at: Timestamp) -> Self {
        self.not_before = Some(at);
        self
    }

    /// Sends through the relay registered under this sink name.
    pub fn to(mut self, sink: impl Into<String>) -> Self {
        self.sink = sink.into();
        self
    }

    /// The payload read as JSON.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.payload).map_err(|error| {
            Error::invalid(format!("payload of kind `{}` is not the expected JSON: {error}", self.kind))
        })
    }

    /// The 16 bytes that stand for (scope, id) in the store, once the message has a scope.
    pub fn identity(&self) -> [u8; 16] {
        identity(&self.scope, &self.id)
    }

    /// The scope under which it is stored: its own, or that of messages that come without one.
    pub(crate) fn stored_scope(&self) -> &str {
        if self.scope.is_empty() { DEFAULT_SCOPE } else { &self.scope }
    }

    /// How many bytes its texts, headers and payload have.
    pub(crate) fn size(&self) -> usize {
        let texts = self.kind.len() + self.stored_scope().len() + self.id.len();
        texts + self.key.as_ref().map_or(0, String::len) + self.headers.size() + self.payload.len()
    }

    /// The 16 bytes that tell a duplicate (same kind and payload) from a conflict.
    pub fn fingerprint(&self) -> [u8; 16] {
        fingerprint(&self.kind, &self.payload)
    }

    /// The lane this message is appended to: by key when it has one, else by id.
    pub fn lane(&self) -> u16 {
        lane_of(self.key.as_ref().unwrap_or(&self.id))
    }
}

/// The scope of messages that come without one.
pub const DEFAULT_SCOPE: &str = "default";

/// Into how many lanes the log is split. Part of the stored data: the same for ever.
pub const LANES: u16 = 32;

/// The lane of a key (or of an id, where there is no key).
pub fn lane_of(text: &str) -> u16 {
    let hash = digest(&[text.as_bytes()]);
    u16::from_le_bytes([hash[0], hash[1]]) % LANES
}

/// The 16 bytes that stand for (scope, id): SHA-256 of scope, NUL, id; cut.
///
/// Neither may contain NUL, so two different pairs never share their input.
pub fn identity(scope: &str, id: &str) -> [u8; 16] {
    digest(&[scope.as_bytes(), b"\0", id.as_bytes()])
}

/// The 16 bytes that tell a duplicate from a conflict: SHA-256 of kind, NUL, payload; cut.
pub(crate) fn fingerprint(kind: &str, payload: &[u8]) -> [u8; 16] {
    digest(&[kind.as_bytes(), b"\0", payload])
}

/// The 16 bytes that stand for (handler, id) of `once`: the separator keeps it apart from every [`identity`].
pub fn once_identity(handler: &str, id: &str) -> [u8; 16] {
    digest(&[handler.as_bytes(), b"\x01", id.as_bytes()])
}

fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    first
}
