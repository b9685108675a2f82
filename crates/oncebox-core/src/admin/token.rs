//! Who may ask a service for what.

use jiff::Timestamp;

use crate::error::Error;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Hand messages in, and nothing else.
    Ingest,
    /// Look at everything, change nothing.
    Read,
    /// Look, and pause, resume, replay, discard.
    Operate,
    /// Everything, tokens included.
    Admin,
}

impl Role {
    /// The word for it, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// Whether who has this role may do what needs that one.
    ///
    /// ```
    /// use oncebox_core::admin::Role;
    ///
    /// assert!(Role::Operate.allows(Role::Read) && !Role::Operate.allows(Role::Ingest));
    /// assert!(Role::Admin.allows(Role::Ingest) && !Role::Ingest.allows(Role::Read));
    /// ```
    pub fn allows(self, needed: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Operate => matches!(needed, Self::Operate | Self::Read),
            Self::Read | Self::Ingest => self == needed,
        }
    }

    /// The role of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Ingest, Self::Read, Self::Operate, Self::Admin].into_iter().find(|role| role.as_str() == word)
    }
}

/// The longest name of a source or a token, in bytes.
pub const LONGEST_NAME: usize = 255;

/// Refuses a name that not every store can keep: an empty one, one over [`LONGEST_NAME`], one with a NUL.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
        return Err(Error::invalid(format!(
            "the name of a {what} has {} bytes; give it 1 to {LONGEST_NAME} bytes without NUL",
            name.len()
        )));
    }
    Ok(())
}

/// A token as a store keeps it: never the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its name, which stands in the audit log; unique.
    pub name: String,
    /// The SHA-256 of the token, in hexadecimal. Tokens are long and random, so no salt is needed.
    pub hash: String,
    /// What it allows.
    pub role: Role,
    /// When it was made, by the database's clock (ignored when one is added).
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
}
