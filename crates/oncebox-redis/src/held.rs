//! The messages a source holds: arrived and not yet handed over, or handed over and not yet settled.
//!
//! Entries belong to a consumer by name, not to a connection, so they stay held when the connection is made again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::mapping::Mapped;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What there is to hand over.
#[derive(Debug)]
pub(crate) enum Taken {
    /// At least one.
    Some(Vec<(String, Mapped)>),
    /// None yet.
    Nothing,
    /// Something a person must know; told once.
    Trouble(String),
    /// The session has ended: why.
    Ended(String),
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    state: Mutex<State>,
    /// Something arrived, or is to be told.
    pub(crate) arrived: Notify,
    /// Something was settled.
    pub(crate) settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(String, Mapped)>,
    /// When the server last learned that somebody works on an entry.
    held: HashMap<String, Instant>,
    troubles: VecDeque<String>,
    session: u64,
    ended: Option<String>,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics: every change is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session begins; what an older one says of its end no longer counts.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state();
        state.session += 1;
        state.ended = None;
        state.session
    }

    /// Takes entries in, but those that are held already; wakes who waits for them.
    pub(crate) fn add(&self, arrived: Vec<(String, Mapped)>) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, mapped) in arrived {
            if state.held.insert(id.clone(), now).is_none() {
                state.waiting.push_back((id, mapped));
            }
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Hands over what has arrived, at most so many.
    pub(crate) fn take(&self, most: usize) -> Taken {
        let mut state = self.state();
        if let Some(trouble) = state.troubles.pop_front() {
            return Taken::Trouble(trouble);
        }
        if !state.waiting.is_empty() {
            let count = state.waiting.len().min(most.max(1));
            return Taken::Some(state.waiting.drain(..count).collect());
        }
        match &state.ended {
            Some(why) => Taken::Ended(why.clone()),
            None => Taken::Nothing,
        }
    }

    /// Forgets entries that were settled.
    pub(crate) fn forget(&self, ids: &[String]) {
        let mut state = self.state();
        for id in ids {
            state.held.remove(id);
        }
        drop(state);
        self.settled.notify_one();
    }

    /// How many are held.
    pub(crate) fn count(&self) -> usize {
        self.state().held.len()
    }

    /// Whether this one is held.
    pub(crate) fn holds(&self, id: &str) -> bool {
        self.state().held.contains_key(id)
    }

    /// Those the server has not heard of for so long; it is told about them now.
    pub(crate) fn to_refresh(&self, older_than: Duration) -> Vec<String> {
        let now = Instant::now();
        let mut state = self.state();
        let old = state.held.iter_mut().filter(|(_, at)| now.duration_since(**at) >= older_than);
        let refreshed = old.map(|(id, at)| {
            *at = now;
            id.clone()
        });
        refreshed.collect()
    }

    /// Gives up what was not handed over.
    pub(crate) fn give_up_waiting(&self) -> Vec<String> {
        let mut state = self.state();
        let ids: Vec<String> = state.waiting.drain(..).map(|(id, _)| id).collect();
        for id in &ids {
            state.held.remove(id);
        }
        ids
    }

    /// Has the source say this once.
    pub(crate) fn report(&self, trouble: String) {
        self.state().troubles.push_back(trouble);
        self.arrived.notify_one();
    }

    /// The session has ended.
    pub(crate) fn end(&self, session: u64, why: String) {
        let mut state = self.state();
        if state.session == session {
            state.ended.get_or_insert(why);
        }
        drop(state);
        self.arrived.notify_one();
    }
}
