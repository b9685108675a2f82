//! The library's own error; what a handler returns is a [`Failure`](crate::Failure).

use std::error::Error as StdError;
use std::fmt;

/// What went wrong inside Oncebox or its store.
///
/// Ask [`Error::kind`] what to do about it; the text is for people.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`], by what the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input breaks a limit or rule; the same call will never succeed.
    Invalid,
    /// The store cannot be reached, or the outcome of a commit is unknown; try again, duplicates are dropped.
    Unavailable,
    /// The database asks for the whole transaction again (deadlock, serialization, lock wait).
    Contention,
    /// Another runner owns this work now; what was done here has been rolled back.
    Fenced,
    /// A handler ended the transaction it was given. Nothing of that transaction is kept, but what ran after its end may
    /// have been committed by itself.
    Ended,
    /// The schema is missing, or newer than this library.
    Schema,
    /// The call needs an open transaction and was given none.
    NotInTransaction,
    /// The database accepts no writes (a replica, or `read_only`).
    ReadOnly,
    /// Anything else the store reported.
    Store,
}

impl Error {
    /// An error of this kind with a text for people.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    /// An error caused by another one, whose text follows ours.
    pub fn caused(
        kind: ErrorKind,
        text: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, text: text.into(), source: Some(source.into()) }
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, text)
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True when the same call may succeed later with nothing changed by the caller.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Contention)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)?;
        if let Some(source) = &self.source {
            write!(formatter, ": {source}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
