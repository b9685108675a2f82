//! What SQLite's errors mean to the caller.

use std::error::Error as StdError;

use oncebox_core::{Error, ErrorKind};

const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const INTERRUPT: i32 = 9;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const TOOBIG: i32 = 18;

/// Turns the driver's error into ours, by what the caller can do about it.
pub(crate) fn classify(error: sqlx::Error) -> Error {
    if is_unreachable(&error) {
        return Error::caused(ErrorKind::Unavailable, "the SQLite database cannot be reached", error);
    }
    match primary_code(&error) {
        Some(BUSY | LOCKED) => Error::caused(
            ErrorKind::Contention,
            "another process kept the SQLite write lock for too long",
            error,
        ),
        Some(READONLY) => Error::caused(
            ErrorKind::ReadOnly,
            "the SQLite database accepts no writes; check the file's and its directory's permissions",
            error,
        ),
        Some(IOERR | FULL | CANTOPEN) => {
            Error::caused(ErrorKind::Unavailable, "the SQLite database file cannot be used", error)
        }
        Some(TOOBIG) => Error::caused(
            ErrorKind::Invalid,
            "a message is larger than SQLite can hold; lower `max_payload`, or store the body elsewhere",
            error,
        ),
        Some(INTERRUPT) => Error::caused(
            ErrorKind::Store,
            "a statement ran longer than its transaction's limit and was interrupted",
            error,
        ),
        Some(ERROR) if error.to_string().contains("no such table") => {
            Error::caused(ErrorKind::Schema, "a table of Oncebox is missing; run `migrate` first", error)
        }
        _ => Error::caused(ErrorKind::Store, "SQLite reported an error", error),
    }
}

/// True when SQLite asks to try again because somebody else has the lock.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

/// True when an error found in a handler's failure says nothing about the message.
pub(crate) fn is_transient(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(own) = error.downcast_ref::<Error>() {
            return own.is_transient();
        }
        if let Some(driver) = error.downcast_ref::<sqlx::Error>() {
            // Not INTERRUPT: that is our own limit, which the same message will meet again.
            return is_unreachable(driver)
                || matches!(primary_code(driver), Some(BUSY | LOCKED | IOERR | FULL | CANTOPEN));
        }
        next = error.source();
    }
    false
}

fn is_unreachable(error: &sqlx::Error) -> bool {
    use sqlx::Error as Driver;
    matches!(error, Driver::Io(_) | Driver::PoolTimedOut | Driver::PoolClosed | Driver::WorkerCrashed)
}

/// SQLite's result code without its extension (`SQLITE_BUSY` for `SQLITE_BUSY_SNAPSHOT`).
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, SqliteConnection};

    use super::*;

    #[tokio::test]
    async fn what_is_too_large_for_sqlite_is_the_messages_fault() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let too_large =
            sqlx::query("select zeroblob(2147483647)").execute(&mut connection).await.unwrap_err();
        let error = classify(too_large);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
