//! What the driver's errors mean for the caller, and which of them are worth another try.

use std::error::Error as StdError;
use std::time::Duration;

use oncebox_core::clock::Seed;
use oncebox_core::{Error, ErrorKind};
use sqlx::postgres::PgDatabaseError;

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
            Self::Driver(error) => code(error).is_some_and(|code| !lost_connection(&code)),
            Self::Ours(_) => true,
        }
    }

    /// The SQLSTATE, when the server gave one.
    pub(crate) fn code(&self) -> Option<String> {
        match self {
            Self::Driver(error) => code(error),
            Self::Ours(_) => None,
        }
    }

    /// What the server says of the messages it was given: they are at fault, and not the server.
    pub(crate) fn blame_messages(self) -> Self {
        match (self.code(), self) {
            // A character that the database's encoding does not have.
            (Some(code), Self::Driver(error)) if matches!(code.as_str(), "22021" | "22P05") => {
                Error::caused(ErrorKind::Invalid, "postgres cannot hold a message", error).into()
            }
            (_, problem) => problem,
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Driver(error) => classify(error),
            Self::Ours(error) => error,
        }
    }
}

/// Our error for an error of the driver.
pub(crate) fn classify(error: sqlx::Error) -> Error {
    let (kind, text) = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_)
        | sqlx::Error::BeginFailed => (ErrorKind::Unavailable, "postgres cannot be reached"),
        _ => match code(&error).as_deref() {
            Some("40001" | "40P01" | "55P03") => {
                (ErrorKind::Contention, "postgres asks for the transaction again")
            }
            Some("42P01" | "3F000" | "42703") => {
                (ErrorKind::Schema, "the tables of oncebox are missing or too old; run `migrate` first")
            }
            Some("25006") => (ErrorKind::ReadOnly, "postgres accepts no writes here"),
            Some("57014") => (ErrorKind::Unavailable, "postgres stopped a statement that took too long"),
            Some("25P03" | "25P04") => {
                (ErrorKind::Unavailable, "postgres ended a transaction that was idle too long")
            }
            Some(code) if lost_connection(code) || code.starts_with("53") => {
                (ErrorKind::Unavailable, "postgres cannot take the request now")
            }
            Some("54000") if is_out_of_ids(&error) => {
                (ErrorKind::Unavailable, "postgres has run out of transaction ids; vacuum the database")
            }
            _ => (ErrorKind::Store, "postgres refused a statement"),
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
                other => code(other).is_some_and(|code| {
                    is_contention(&code) || lost_connection(&code) || code.starts_with("53")
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
    /// True after the first failure.
    pub(crate) fn tried(&self) -> bool {
        self.tries > 0
    }

    /// Returns after a short wait when another try may help, else gives the error back.
    pub(crate) async fn after(&mut self, problem: Problem, seed: &Seed) -> Result<(), Error> {
        self.tries += 1;
        if self.tries >= MOST_TRIES || !problem.code().is_some_and(|code| is_contention(&code)) {
            return Err(problem.into_error());
        }
        let most = 2_u64 << self.tries;
        tokio::time::sleep(Duration::from_micros(seed.next() % (most * 1000))).await;
        Ok(())
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error()?.code().map(|code| code.into_owned())
}

/// It writes nothing at all then. Its code, 54000, is that of other limits, too, which a single row may be over.
fn is_out_of_ids(error: &sqlx::Error) -> bool {
    let refused = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    refused
        .and_then(PgDatabaseError::routine)
        .is_some_and(|routine| matches!(routine, "GetNewTransactionId" | "GetNewMultiXactId"))
}

fn is_contention(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}

fn lost_connection(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04")
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
