//! Messages as values to bind, and rows as messages.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use oncebox_core::store::{Lease, MessageView, StoredMessage};
use oncebox_core::{Error, ErrorKind, Message};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::error::Problem;

/// Reads scope, id, kind, key, headers, payload and not_before, starting at this column; and what of it is unreadable.
pub(crate) fn message(row: &MySqlRow, first: usize) -> Result<(Message, Option<String>), Problem> {
    let stored = StoredMessage {
        scope: row.try_get(first)?,
        id: row.try_get(first + 1)?,
        kind: row.try_get(first + 2)?,
        key: row.try_get(first + 3)?,
        headers: row.try_get(first + 4)?,
        payload: Bytes::copy_from_slice(row.try_get(first + 5)?),
        not_before: row.try_get(first + 6)?,
    };
    Ok(stored.read())
}

/// The most bytes a message takes in a statement.
pub(crate) fn size<'a>(message: impl Into<MessageView<'a>>) -> usize {
    let message = message.into();
    // As JSON, where a byte may become six: `\u0001`.
    let headers = message.headers().map(|(name, value)| 6 * (name.len() + value.len()) + 24).sum();
    size_with(message, headers)
}

/// The bytes a message takes in a statement.
pub(crate) fn exact_size(message: MessageView<'_>) -> usize {
    size_with(message, message.stored_headers().len())
}

fn size_with(message: MessageView<'_>, headers: usize) -> usize {
    let key = message.key.map_or(0, str::len);
    message.payload.len() + headers + message.id.len() + message.scope.len() + message.kind.len() + key + 200
}

pub(crate) fn not_before<'a>(message: impl Into<MessageView<'a>>) -> Option<i64> {
    message.into().not_before.map(|at| at.as_microsecond())
}

/// A text that is kept as bytes.
pub(crate) fn text(row: &MySqlRow, column: usize) -> Result<String, Problem> {
    utf8(row.try_get(column)?)
}

/// A text that is kept as bytes, or none.
pub(crate) fn optional_text(row: &MySqlRow, column: usize) -> Result<Option<String>, Problem> {
    row.try_get::<Option<&[u8]>, _>(column)?.map(utf8).transpose()
}

fn utf8(bytes: &[u8]) -> Result<String, Problem> {
    let text = str::from_utf8(bytes)
        .map_err(|error| Error::caused(ErrorKind::Store, "a stored text is not UTF-8", error))?;
    Ok(text.to_owned())
}

/// The 16 bytes of an identity or a fingerprint.
pub(crate) fn sixteen(row: &MySqlRow, column: usize) -> Result<[u8; 16], Problem> {
    let bytes: &[u8] = row.try_get(column)?;
    let sixteen = bytes.try_into().map_err(|_| {
        Error::new(ErrorKind::Store, "a stored identity or fingerprint does not have 16 bytes")
    })?;
    Ok(sixteen)
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

/// A lane as MariaDB keeps it.
pub(crate) fn stored_lane(lane: u16) -> i16 {
    i16::try_from(lane).unwrap_or(i16::MAX)
}

/// A lane as the engine counts it.
pub(crate) fn lane(row: &MySqlRow, column: usize) -> Result<u16, Problem> {
    let lane: i16 = row.try_get(column)?;
    Ok(u16::try_from(lane).unwrap_or(u16::MAX))
}

/// A bigint that counts something.
pub(crate) fn amount(row: &MySqlRow, column: usize) -> Result<u64, Problem> {
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
pub(crate) fn attempts(row: &MySqlRow, column: usize) -> Result<u32, Problem> {
    let attempts: i32 = row.try_get(column)?;
    Ok(u32::try_from(attempts).unwrap_or(0))
}

/// Leases as a JSON list of [id, token, attempt].
pub(crate) fn leases<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    list(leases.into_iter().map(|lease| json!([lease.delivery.0, lease.token.0, lease.attempt])))
}

/// A JSON list. Only of numbers and of hexadecimal texts, which no character set changes.
pub(crate) fn list(values: impl IntoIterator<Item = impl Into<Value>>) -> String {
    Value::from_iter(values).to_string()
}

/// Bytes for a JSON list.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
