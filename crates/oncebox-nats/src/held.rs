//! The messages a source holds: arrived and not yet handed over, or handed over and not yet settled.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use oncebox_core::mapping::Mapped;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A message that waits to be handed over.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Names it among the held ones.
    pub(crate) number: u64,
    pub(crate) reply: Subject,
    pub(crate) mapped: Mapped,
}

/// What there is to hand over.
#[derive(Debug)]
pub(crate) enum Taken {
    /// At least one.
    Some(Vec<Waiting>),
    /// None yet.
    Nothing,
    /// None, and none will come: why.
    Ended(String),
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    state: Mutex<State>,
    /// Something arrived, or the session ended.
    pub(crate) arrived: Notify,
    /// Something was settled.
    pub(crate) settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    held: HashMap<u64, One>,
    bytes: usize,
    last: u64,
    ended: Option<String>,
}

#[derive(Debug)]
struct One {
    reply: Subject,
    bytes: usize,
    /// When the server last learned that it is being worked on.
    marked_at: Instant,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics: every change is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes messages in; wakes who waits for them.
    pub(crate) fn add(&self, arrived: Vec<(Subject, usize, Mapped)>) {
        let now = Instant::now();
        let mut state = self.state();
        for (reply, bytes, mapped) in arrived {
            state.last += 1;
            state.bytes += bytes;
            let number = state.last;
            state.held.insert(number, One { reply: reply.clone(), bytes, marked_at: now });
            state.waiting.push_back(Waiting { number, reply, mapped });
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Hands over what has arrived, at most so many.
    pub(crate) fn take(&self, most: usize) -> Taken {
        let mut state = self.state();
        if let Some(why) = &state.ended {
            return Taken::Ended(why.clone());
        }
        if state.waiting.is_empty() {
            return Taken::Nothing;
        }
        let count = state.waiting.len().min(most.max(1));
        Taken::Some(state.waiting.drain(..count).collect())
    }

    /// Forgets messages that were settled.
    pub(crate) fn forget(&self, numbers: impl Iterator<Item = u64>) {
        let mut state = self.state();
        for number in numbers {
            if let Some(one) = state.held.remove(&number) {
                state.bytes -= one.bytes;
            }
        }
        drop(state);
        self.settled.notify_one();
    }

    /// How many messages and bytes are held.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.state();
        (state.held.len(), state.bytes)
    }

    /// Those the server has not heard of for so long; it is told about them now.
    pub(crate) fn to_mark(&self, older_than: Duration) -> Vec<Subject> {
        let now = Instant::now();
        let mut state = self.state();
        let old = state.held.values_mut().filter(|one| now.duration_since(one.marked_at) >= older_than);
        let marked = old.map(|one| {
            one.marked_at = now;
            one.reply.clone()
        });
        marked.collect()
    }

    /// No more will come; the reason is told once the next is asked for. Answers what was never handed over.
    pub(crate) fn end(&self, why: String) -> Vec<Subject> {
        let mut state = self.state();
        state.ended.get_or_insert(why);
        let left = state.waiting.drain(..).map(|waiting| waiting.reply).collect();
        drop(state);
        self.arrived.notify_one();
        left
    }
}
