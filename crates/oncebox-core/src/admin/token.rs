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

impl TokenInfo {
    /// Used by stores to build one. A role that this library does not know allows nothing: the token has expired.
    pub fn stored(
        name: String,
        hash: String,
        role: &str,
        created_at: Timestamp,
        expires_at: Option<Timestamp>,
    ) -> Self {
        let (role, expires_at) = match Role::from_word(role) {
            Some(role) => (role, expires_at),
            None => (Role::Ingest, Some(Timestamp::UNIX_EPOCH)),
        };
        Self { name, hash, role, created_at, expires_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_of_the_future_allows_nothing() {
        let token = |role| {
            TokenInfo::stored("t".to_owned(), String::new(), role, Timestamp::UNIX_EPOCH, None).expires_at
        };
        assert_eq!(token("read"), None);
        assert_eq!(token("emperor"), Some(Timestamp::UNIX_EPOCH));
    }
}
