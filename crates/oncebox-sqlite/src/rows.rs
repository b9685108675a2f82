//! Reading rows and writing values.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use oncebox_core::store::{Lease, StoredMessage};
use oncebox_core::{Error, ErrorKind, Message};
use serde_json::Value;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};

use crate::error::classify;

/// A column by its number.
pub(crate) fn get<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    column: usize,
) -> Result<T, Error> {
    row.try_get(column).map_err(classify)
}

/// The message in columns scope, id, kind, key, headers, payload, not_before, from this number on; and what of it is
/// unreadable.
pub(crate) fn message(row: &SqliteRow, first: usize) -> Result<(Message, Option<String>), Error> {
    let stored = StoredMessage {
        scope: bytes(row, first)?,
        id: bytes(row, first + 1)?,
        kind: bytes(row, first + 2)?,
        key: row.try_get_unchecked(first + 3).map_err(classify)?,
        headers: bytes(row, first + 4)?,
        payload: Bytes::copy_from_slice(bytes(row, first + 5)?),
        not_before: get(row, first + 6)?,
    };
    Ok(stored.read())
}

/// The bytes of a text or a blob: SQLite does not look whether a text is one.
fn bytes(row: &SqliteRow, column: usize) -> Result<&[u8], Error> {
    row.try_get_unchecked(column).map_err(classify)
}

/// The 16 bytes of an identity or a fingerprint.
pub(crate) fn sixteen(row: &SqliteRow, column: usize) -> Result<[u8; 16], Error> {
    let wrong = |_| Error::new(ErrorKind::Store, "a stored identity or fingerprint does not have 16 bytes");
    get::<&[u8]>(row, column)?.try_into().map_err(wrong)
}

/// A stored time.
pub(crate) fn timestamp(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros)
        .map_err(|error| Error::caused(ErrorKind::Store, "a stored time is out of range", error))
}

/// A length of time in stored microseconds; what lies in the past is zero.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A count that SQL gave as a signed number.
pub(crate) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A limit for SQL.
pub(crate) fn limit(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A list of [id, token, attempt] for `json_each`.
pub(crate) fn leases(leases: &[Lease]) -> String {
    let list = leases.iter().map(|lease| Value::from_iter(lease_values(lease)));
    Value::from_iter(list).to_string()
}

/// The first columns of a lease in such a list.
pub(crate) fn lease_values(lease: &Lease) -> [Value; 3] {
    [lease.delivery.0.into(), lease.token.0.into(), lease.attempt.into()]
}

/// A list for `json_each`.
pub(crate) fn list<T: Into<Value>>(values: impl IntoIterator<Item = T>) -> String {
    Value::from_iter(values).to_string()
}

/// Bytes as text for `unhex`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An error's text without NUL, at which SQLite's text functions would stop.
pub(crate) fn error_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
