//! What the driver's errors mean for the caller, and which of them are worth another try.

use std::error::Error as StdError;
use std::time::Duration;

use oncebox_core::clock::Seed;
use oncebox_core::{Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

/// What can go wrong while we work on a connection.
pub(crate) enum Problem {
    Driver(sqlx::Error),
    Ours(Error),
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Problem {
    /// True when the connection is still in step with the server.
    pub(crate) fn leaves_connection_usable(&self) -> bool {
        match self {
            Self::Driver(error) => is_usable_after(error),
            Self::Ours(_) => true,
        }
    }

    /// The server's error number, when it gave one.
    pub(crate) fn number(&self) -> Option<u16> {
        match self {
            Self::Driver(error) => number(error),
            Self::Ours(_) => None,
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Driver(error) => classify(error),
            Self::Ours(error) => error,
        }
    }
}

/// The XA transaction is not there, not in the state it should be in, or can only be rolled back.
pub(crate) fn is_over(number: u16) -> bool {
    matches!(number, 1397 | 1399 | 1400 | 1402 | 1613 | 1614)
}

/// True when a connection is still in step with the server after this error.
pub(crate) fn is_usable_after(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| !lost_connection(number))
}

/// The session to be ended is not there.
pub(crate) const NO_SESSION: u16 = 1094;
/// The user may not use or make the database.
pub(crate) const DENIED_DATABASE: u16 = 1044;
pub(crate) const NO_DATABASE: u16 = 1049;
pub(crate) const NO_TABLE: u16 = 1146;
/// There is a row with this key.
pub(crate) const DUPLICATE_KEY: u16 = 1062;

/// Our error for an error of the driver.
pub(crate) fn classify(error: sqlx::Error) -> Error {
    let (kind, text) = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_)
        | sqlx::Error::BeginFailed => (ErrorKind::Unavailable, "mariadb cannot be reached"),
        _ => match number(&error) {
            Some(number) if is_contention(number) || number == LOCK_WAIT => {
                (ErrorKind::Contention, "mariadb asks for the transaction again")
            }
            // A column, too: an older schema lacks some.
            Some(NO_DATABASE | NO_TABLE | 1054) => {
                (ErrorKind::Schema, "the tables of oncebox are missing or too old; run `migrate` first")
            }
            Some(1290 | 1792 | 1836) => (ErrorKind::ReadOnly, "mariadb accepts no writes here"),
            Some(1153) => (
                ErrorKind::Invalid,
                "a message is larger than the server takes in one packet; raise `max_allowed_packet`",
            ),
            Some(1969) => (ErrorKind::Unavailable, "mariadb stopped a statement that took too long"),
            Some(NO_ROOM_FOR_TABLES) => (
                ErrorKind::Unavailable,
                "mariadb has more tables in use than it keeps open; raise `table_definition_cache`",
            ),
            Some(number) if lost_connection(number) || is_overload(number) => {
                (ErrorKind::Unavailable, "mariadb cannot take the request now")
            }
            _ => (ErrorKind::Store, "mariadb refused a statement"),
        },
    };
    Error::caused(kind, text, error)
}

/// True when an error of the driver, anywhere in the chain, says nothing about the message being handled.
pub(crate) fn is_transient(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return match error {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
                | sqlx::Error::Protocol(_) => true,
                other => number(other).is_some_and(|number| {
                    is_contention(number)
                        || number == LOCK_WAIT
                        || lost_connection(number)
                        || is_overload(number)
                }),
            };
        }
        next = error.source();
    }
    false
}

/// Counts tries and waits between them.
#[derive(Default)]
pub(crate) struct Retry {
    tries: u32,
}

const MOST_TRIES: u32 = 10;

impl Retry {
    /// Returns after a short wait when another try may help, else gives the error back.
    pub(crate) async fn after(&mut self, problem: Problem, seed: &Seed) -> Result<(), Error> {
        self.tries += 1;
        if self.tries >= MOST_TRIES || !problem.number().is_some_and(is_contention) {
            return Err(problem.into_error());
        }
        let most = 2_u64 << self.tries;
        tokio::time::sleep(Duration::from_micros(seed.next() % (most * 1000))).await;
        Ok(())
    }
}

/// The user lacks a right that is one for the whole server.
pub(crate) const NEEDS_RIGHT: u16 = 1227;
/// A row with this key is there already.
pub(crate) const DUPLICATE: u16 = 1062;
/// The wait for a row lock was too long. Only the statement is undone, so whoever goes on must roll back himself.
pub(crate) const LOCK_WAIT: u16 = 1205;

fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// A deadlock, or a row that changed since it was read: the whole transaction is gone.
fn is_contention(number: u16) -> bool {
    matches!(number, 1213 | 1020)
}

/// The server ends the session, or has ended it: a shutdown, a `kill`, a limit, a network error.
fn lost_connection(number: u16) -> bool {
    matches!(number, 1053 | 1152..=1161 | 1184 | 1317 | 1927 | 4031)
}

/// The server has thrown a table out of a cache between preparing a statement and running it, again and again: it has more
/// tables in use than `table_definition_cache` holds. Nothing was done.
const NO_ROOM_FOR_TABLES: u16 = 1615;

/// Too many connections, no memory or no room for a while, a node that is not ready.
fn is_overload(number: u16) -> bool {
    matches!(number, 1021 | 1037 | 1038 | 1040 | 1041 | 1047 | 1135 | 1203 | 1226 | NO_ROOM_FOR_TABLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_transient_wherever_it_is_in_the_chain() {
        let inner = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        let outer = Error::caused(ErrorKind::Store, "outer", inner);
        assert!(is_transient(&outer));
        assert!(is_transient(&sqlx::Error::PoolTimedOut));
        assert!(!is_transient(&sqlx::Error::RowNotFound));
        assert!(!is_transient(&Error::invalid("no")));
    }

    #[test]
    fn errors_of_the_driver_get_the_kind_a_caller_can_act_on() {
        assert_eq!(classify(sqlx::Error::PoolClosed).kind(), ErrorKind::Unavailable);
        assert_eq!(classify(sqlx::Error::RowNotFound).kind(), ErrorKind::Store);
    }
}
