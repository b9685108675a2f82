//! Messages in the outbox, one by one: why they were not sent, and when they are tried next.

use jiff::Timestamp;

/// Where an outgoing message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutgoingState {
    /// Nobody has tried to send it yet.
    Waiting,
    /// It was not confirmed; another try comes.
    Retrying,
    /// Refused for good; waits for a person.
    Dead,
}

impl OutgoingState {
    /// The word for it, as commands and tables show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Dead => "dead",
        }
    }

    /// The state of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Waiting, Self::Retrying, Self::Dead].into_iter().find(|state| state.as_str() == word)
    }

    /// Used by stores: dead or not, and tried before or not.
    pub fn of(dead: bool, attempts: u32) -> Self {
        match (dead, attempts) {
            (true, _) => Self::Dead,
            (false, 0) => Self::Waiting,
            (false, _) => Self::Retrying,
        }
    }
}

/// Which outgoing messages are meant; every field that is set must match.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OutgoingFilter {
    /// For this sink; empty for the relay without a name.
    pub sink: Option<String>,
    /// In this state.
    pub state: Option<OutgoingState>,
    /// Skip to messages after this number (for paging).
    pub after: Option<i64>,
    /// The most messages; 100 unless set.
    pub limit: Option<usize>,
}

/// An outgoing message without its headers and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingInfo {
    /// Its number; a higher one was published later, or at the same time.
    pub seq: i64,
    /// The sink; empty for the relay without a name.
    pub sink: String,
    /// Where it stands.
    pub state: OutgoingState,
    /// How often sending has failed.
    pub attempts: u32,
    /// When it is tried next; of a dead one, when it would have been.
    pub due_at: Timestamp,
    /// When it was published.
    pub created_at: Timestamp,
    /// Why the last try failed, or why it is dead.
    pub error: Option<String>,
    /// The name space of its id.
    pub scope: String,
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<String>,
}
