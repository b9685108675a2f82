//! A replay of many dead letters as a thing of its own: it has a rate, shows how far it is and can be cancelled.

use jiff::Timestamp;

use super::DeliveryFilter;

/// The number of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplayId(pub i64);

/// A replay to start.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Which dead letters.
    pub filter: DeliveryFilter,
    /// The most letters in a second; `None`: as fast as it goes.
    pub rate: Option<u32>,
    /// Who asked for it.
    pub actor: String,
}

/// Where a replay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplayState {
    /// More letters are to come.
    Running,
    /// Every letter that matched when it started was looked at once.
    Done,
    /// Stopped by a person; what was replayed stays replayed.
    Cancelled,
}

impl ReplayState {
    /// The word for it, as commands and tables show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A replay and how far it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplayInfo {
    /// Its number.
    pub id: ReplayId,
    /// What was asked for.
    pub replay: Replay,
    /// Where it stands.
    pub state: ReplayState,
    /// Letters that matched when it started, counted up to 100,000.
    pub matched: u64,
    /// Letters made to wait again so far.
    pub replayed: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was done or cancelled.
    pub ended_at: Option<Timestamp>,
}

impl ReplayInfo {
    /// Used by stores to build one.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: ReplayId,
        replay: Replay,
        state: ReplayState,
        matched: u64,
        replayed: u64,
        started_at: Timestamp,
        ended_at: Option<Timestamp>,
    ) -> Self {
        Self { id, replay, state, matched, replayed, started_at, ended_at }
    }
}
