//! Who changed what.

use jiff::Timestamp;

/// A change that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Who asked for it: the name of a token, or the user and machine of a command.
    pub actor: String,
    /// What: `pause`, `resume`, `replay`, `cancel-replay`, `discard`, `purge`, `send`, `create-token`, `revoke-token`.
    pub action: String,
    /// To what: a handler's, a source's or a token's name, a replay's number, or the filter.
    pub target: String,
    /// What else there is to say: a reason, a count; a JSON object as text, or empty.
    pub details: String,
}

/// A change as it was written down. Entries are only ever added, never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Its number; a higher one is later.
    pub number: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// The change.
    pub change: Audit,
}

impl AuditEntry {
    /// Used by stores to build one.
    pub fn new(number: i64, at: Timestamp, change: Audit) -> Self {
        Self { number, at, change }
    }
}
