//! Counters: added up in memory, flushed to the store about once a second, never counted from tables.
//!
//! A process that dies loses at most its last second of counts. They are for people; nothing is decided by them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::store::{Count, Store};

/// What is counted. The names are part of the telemetry contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counter {
    /// Messages stored or handled inline for the first time.
    Received,
    /// Messages dropped because their id was known.
    Duplicate,
    /// Messages kept apart because their id was known with other bytes.
    Conflict,
    /// Messages of a kind that no handler wants.
    Unrouted,
    /// Messages refused because they break a limit.
    Refused,
    /// Deliveries whose work has been committed.
    Done,
    /// Attempts that failed.
    Failed,
    /// Failed attempts that will be made again.
    Retried,
    /// Deliveries that became dead letters.
    Dead,
    /// Deliveries that had to wait behind their key.
    Held,
    /// Outgoing messages confirmed by a sink.
    Sent,
    /// Tries to send an outgoing message that were not confirmed.
    SendFailed,
    /// Outgoing messages that became dead.
    SendDead,
}

impl Counter {
    /// The name under which the store keeps it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::Unrouted => "unrouted",
            Self::Refused => "refused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Retried => "retried",
            Self::Dead => "dead",
            Self::Held => "held",
            Self::Sent => "sent",
            Self::SendFailed => "send_failed",
            Self::SendDead => "send_dead",
        }
    }
}

/// This process's counts since it started, and those not yet in the store.
#[derive(Debug, Default)]
pub struct Counters(Mutex<HashMap<(String, Counter), Tally>>);

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    total: i64,
    unflushed: i64,
}

impl Counters {
    /// This process's count so far; the handler is empty for the inbox as a whole.
    pub fn get(&self, handler: &str, counter: Counter) -> i64 {
        self.lock().get(&(handler.to_owned(), counter)).map_or(0, |tally| tally.total)
    }

    /// All of this process's counts: (handler, counter, count).
    pub fn all(&self) -> Vec<(String, Counter, i64)> {
        self.lock()
            .iter()
            .map(|((handler, counter), tally)| (handler.clone(), *counter, tally.total))
            .collect()
    }

    pub(crate) fn add(&self, handler: &str, counter: Counter, value: usize) {
        if value == 0 {
            return;
        }
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let mut counters = self.lock();
        let tally = counters.entry((handler.to_owned(), counter)).or_default();
        tally.total = tally.total.saturating_add(value);
        tally.unflushed = tally.unflushed.saturating_add(value);
    }

    pub(crate) async fn flush<St: Store>(&self, store: &St) -> Result<(), Error> {
        let taken: Vec<((String, Counter), i64)> = self
            .lock()
            .iter_mut()
            .filter(|(_, tally)| tally.unflushed != 0)
            .map(|(name, tally)| (name.clone(), std::mem::take(&mut tally.unflushed)))
            .collect();
        if taken.is_empty() {
            return Ok(());
        }
        let counts: Vec<Count> = taken
            .iter()
            .map(|((handler, counter), value)| Count {
                handler: handler.clone(),
                name: counter.as_str().to_owned(),
                value: *value,
            })
            .collect();
        let flushed = store.add_counts(&counts).await;
        if flushed.is_err() {
            let mut counters = self.lock();
            for (name, value) in taken {
                counters.entry(name).or_default().unflushed += value;
            }
        }
        flushed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, Counter), Tally>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
