//! The messages a source holds: arrived and not yet handed over, or handed over and not yet settled.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use oncebox_core::mapping::Mapped;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Numbers count on from session to session: what an old one has handed over must not stand for what a new one holds.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

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
            state.bytes += bytes;
            let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
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

#[cfg(test)]
mod tests {
    use oncebox_core::mapping::Delivered;

    use super::*;
    use crate::config::default_mapping;

    fn arrived() -> (Subject, usize, Mapped) {
        (Subject::from("reply"), 10, default_mapping().read(Delivered::default()))
    }

    fn numbers(held: &Held) -> Vec<u64> {
        match held.take(10) {
            Taken::Some(waiting) => waiting.into_iter().map(|waiting| waiting.number).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_an_old_session_has_handed_over_frees_no_place_of_a_new_one() {
        let (old, new) = (Held::default(), Held::default());
        old.add(vec![arrived(), arrived()]);
        new.add(vec![arrived(), arrived()]);
        new.forget(numbers(&old).into_iter());
        assert_eq!(new.size(), (2, 20));
        new.forget(numbers(&new).into_iter());
        assert_eq!(new.size(), (0, 0));
    }
}
