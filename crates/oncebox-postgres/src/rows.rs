//! Messages as columns to bind, and rows as messages.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use oncebox_core::store::{Lease, MessageView, StoredMessage};
use oncebox_core::{Error, ErrorKind, Message};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::error::Problem;

/// The fields of many messages, one array for each column.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) scopes: Vec<&'a str>,
    pub(crate) ids: Vec<&'a str>,
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) keys: Vec<Option<&'a str>>,
    pub(crate) headers: Vec<String>,
    pub(crate) payloads: Vec<&'a [u8]>,
    pub(crate) not_before: Vec<Option<i64>>,
}

impl<'a, T: Into<MessageView<'a>>> FromIterator<T> for Columns<'a> {
    fn from_iter<I: IntoIterator<Item = T>>(messages: I) -> Self {
        let mut columns = Self::default();
        for message in messages {
            let message: MessageView<'a> = message.into();
            columns.scopes.push(message.scope);
            columns.ids.push(message.id);
            columns.kinds.push(message.kind);
            columns.keys.push(message.key);
            columns.headers.push(message.stored_headers());
            columns.payloads.push(message.payload);
            columns.not_before.push(message.not_before.map(Timestamp::as_microsecond));
        }
        columns
    }
}

impl Columns<'_> {
    /// Shortens what need not be said for every row: a list of one where all are the same, none where all are null.
    pub(crate) fn collapsed(mut self) -> Self {
        collapse(&mut self.scopes);
        collapse(&mut self.kinds);
        collapse(&mut self.headers);
        if self.keys.iter().all(Option::is_none) {
            self.keys.clear();
        }
        if self.not_before.iter().all(Option::is_none) {
            self.not_before.clear();
        }
        self
    }

    /// About how many bytes they take on the way to the server, where each value has its length before it.
    pub(crate) fn size(&self) -> usize {
        fn texts<T: AsRef<[u8]>>(column: &[T]) -> usize {
            column.iter().map(|value| value.as_ref().len() + 4).sum()
        }
        let keys: usize = self.keys.iter().map(|key| key.map_or(0, str::len) + 4).sum();
        texts(&self.scopes)
            + texts(&self.ids)
            + texts(&self.kinds)
            + keys
            + texts(&self.headers)
            + texts(&self.payloads)
            + self.not_before.len() * 12
    }
}

fn collapse<T: PartialEq>(column: &mut Vec<T>) {
    if let Some((first, rest)) = column.split_first()
        && rest.iter().all(|value| value == first)
    {
        column.truncate(1);
    }
}

/// Reads scope, id, kind, key, headers, payload and not_before, starting at this column; and what of it is unreadable.
pub(crate) fn message(row: &PgRow, first: usize) -> Result<(Message, Option<String>), Problem> {
    let stored = StoredMessage {
        scope: bytes(row, first)?,
        id: bytes(row, first + 1)?,
        kind: bytes(row, first + 2)?,
        key: row.try_get_unchecked(first + 3)?,
        headers: bytes(row, first + 4)?,
        payload: Bytes::copy_from_slice(bytes(row, first + 5)?),
        not_before: row.try_get_unchecked(first + 6)?,
    };
    Ok(stored.read())
}

/// The bytes of a text or a bytea. In the binary form of the protocol, which every prepared statement uses, both are the
/// bytes themselves, so the driver need not look at the type for each row.
fn bytes(row: &PgRow, column: usize) -> Result<&[u8], sqlx::Error> {
    row.try_get_unchecked(column)
}

/// A stored time.
pub(crate) fn timestamp(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros)
        .map_err(|error| Error::caused(ErrorKind::Store, "a stored time is out of range", error))
}

/// A stored length of time; what is already over is zero.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The 16 bytes as the type Postgres keeps them in.
pub(crate) fn uuids<'a>(bytes: impl IntoIterator<Item = &'a [u8; 16]>) -> Vec<Uuid> {
    bytes.into_iter().map(|bytes| Uuid::from_bytes(*bytes)).collect()
}

/// A lane as Postgres keeps it.
pub(crate) fn stored_lane(lane: u16) -> i16 {
    i16::try_from(lane).unwrap_or(i16::MAX)
}

/// A lane as the engine counts it.
pub(crate) fn lane(row: &PgRow, column: usize) -> Result<u16, Problem> {
    let lane: i16 = row.try_get(column)?;
    Ok(u16::try_from(lane).unwrap_or(u16::MAX))
}

/// A bigint that counts something.
pub(crate) fn amount(row: &PgRow, column: usize) -> Result<u64, Problem> {
    let amount: i64 = row.try_get(column)?;
    Ok(u64::try_from(amount).unwrap_or(0))
}

/// A limit to bind.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A number of attempts to bind.
pub(crate) fn stored_attempts(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

/// A number of attempts as the engine counts it.
pub(crate) fn attempts(row: &PgRow, column: usize) -> Result<u32, Problem> {
    let attempts: i32 = row.try_get(column)?;
    Ok(u32::try_from(attempts).unwrap_or(0))
}

/// Leases, one array for each column.
#[derive(Default)]
pub(crate) struct LeaseColumns {
    pub(crate) ids: Vec<i64>,
    pub(crate) tokens: Vec<i64>,
    pub(crate) attempts: Vec<i32>,
}

impl<'a> FromIterator<&'a Lease> for LeaseColumns {
    fn from_iter<I: IntoIterator<Item = &'a Lease>>(leases: I) -> Self {
        let mut columns = Self::default();
        for lease in leases {
            columns.ids.push(lease.delivery.0);
            columns.tokens.push(lease.token.0);
            columns.attempts.push(stored_attempts(lease.attempt));
        }
        columns
    }
}
