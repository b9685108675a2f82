//! A broker in memory that behaves as badly as real ones may: it duplicates, reorders and redelivers on purpose.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use oncebox_core::clock::Seed;
use oncebox_core::{Error, ErrorKind, Incoming, Message, SendFailure, Settle, Sink, Source};
use tokio::sync::Notify;

/// A handle on the broker; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    seed: Seed,
    manners: Manners,
}

/// How badly the broker behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Each message is delivered 1 to this many times.
    pub copies: u64,
    /// Whether copies and messages are shuffled.
    pub reorders: bool,
    /// Of 100 acknowledgements, this many are forgotten: the message comes once more.
    pub forgotten_acks: u64,
}

impl Manners {
    /// Delivers everything once, in order.
    pub const GOOD: Self = Self { copies: 1, reorders: false, forgotten_acks: 0 };
    /// Does everything that at-least-once allows.
    pub const BAD: Self = Self { copies: 5, reorders: true, forgotten_acks: 20 };
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Message>,
    in_flight: HashMap<u64, Message>,
    next_receipt: u64,
    closed: bool,
    deliveries: u64,
    signed_off: usize,
    rejected: Vec<Message>,
    sent: Vec<Message>,
    failing_sends: FailingSends,
}

#[derive(Debug, Default)]
enum FailingSends {
    #[default]
    None,
    /// The sink is away.
    All,
    /// These ids are refused, again and again or for good.
    Ids(HashMap<String, SendFailure>),
}

impl MemoryBroker {
    /// A broker whose bad manners follow from the seed.
    pub fn new(seed: u64, manners: Manners) -> Self {
        let shared =
            Shared { state: Mutex::default(), changed: Notify::new(), seed: Seed::fixed(seed), manners };
        Self { shared: Arc::new(shared) }
    }

    /// Puts messages on the queue, with as many copies as the manners say.
    pub fn put(&self, messages: impl IntoIterator<Item = Message>) {
        let Shared { seed, manners, .. } = &*self.shared;
        let mut state = self.lock();
        for message in messages {
            for _ in 0..=(seed.next() % manners.copies.max(1)) {
                let place = if manners.reorders {
                    usize::try_from(seed.next()).unwrap_or(0) % (state.queue.len() + 1)
                } else {
                    state.queue.len()
                };
                state.queue.insert(place, message.clone());
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// No more messages will be put: sources end once everything is acknowledged.
    pub fn close(&self) {
        self.lock().closed = true;
        self.shared.changed.notify_waiters();
    }

    /// Puts everything unacknowledged back on the queue, as a broker does when a consumer's connection is lost.
    pub fn disconnect(&self) {
        let mut state = self.lock();
        let lost: Vec<Message> = state.in_flight.drain().map(|(_, message)| message).collect();
        state.queue.extend(lost);
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// A source on the queue; several may compete.
    pub fn source(&self, name: impl Into<String>) -> MemorySource {
        MemorySource { broker: self.clone(), name: name.into() }
    }

    /// How many messages were handed over, copies included.
    pub fn deliveries(&self) -> u64 {
        self.lock().deliveries
    }

    /// How many sources have signed off.
    pub fn signed_off(&self) -> usize {
        self.lock().signed_off
    }

    /// How many messages wait or are unacknowledged.
    pub fn pending(&self) -> usize {
        let state = self.lock();
        state.queue.len() + state.in_flight.len()
    }

    /// Messages settled as rejected.
    pub fn rejected(&self) -> Vec<Message> {
        self.lock().rejected.clone()
    }

    /// Messages sent to this broker, copies included, in order.
    pub fn sent(&self) -> Vec<Message> {
        self.lock().sent.clone()
    }

    /// The sink is away from now on (or back).
    pub fn set_unreachable(&self, unreachable: bool) {
        self.lock().failing_sends = if unreachable { FailingSends::All } else { FailingSends::None };
    }

    /// Messages with these ids are refused from now on.
    pub fn refuse(&self, failures: impl IntoIterator<Item = (String, SendFailure)>) {
        self.lock().failing_sends = FailingSends::Ids(failures.into_iter().collect());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, most: usize) -> Option<Vec<Incoming<u64>>> {
        let mut state = self.lock();
        if state.queue.is_empty() {
            return (state.closed && state.in_flight.is_empty()).then(Vec::new);
        }
        let count = most.min(state.queue.len());
        let messages: Vec<Message> = state.queue.drain(..count).collect();
        let taken = messages.into_iter().map(|message| {
            let receipt = state.next_receipt;
            state.next_receipt += 1;
            state.deliveries += 1;
            state.in_flight.insert(receipt, message.clone());
            Incoming::new(message, receipt)
        });
        Some(taken.collect())
    }
}

/// A source on a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemorySource {
    broker: MemoryBroker,
    name: String,
}

impl Source for MemorySource {
    type Receipt = u64;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<u64>>, Error> {
        loop {
            let changed = self.broker.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(taken) = self.broker.take(most) {
                return Ok(taken);
            }
            changed.await;
        }
    }

    async fn settle(&mut self, settled: Vec<(u64, Settle)>) -> Result<(), Error> {
        let Shared { seed, manners, .. } = &*self.broker.shared;
        let mut state = self.broker.lock();
        for (receipt, settle) in settled {
            // A receipt from before a disconnect: the message has already gone back to the queue.
            let Some(message) = state.in_flight.remove(&receipt) else { continue };
            match settle {
                Settle::Accept if seed.next() % 100 < manners.forgotten_acks => {
                    state.queue.push_back(message)
                }
                Settle::Accept => {}
                Settle::Return => state.queue.push_back(message),
                Settle::Reject => state.rejected.push(message),
            }
        }
        drop(state);
        self.broker.shared.changed.notify_waiters();
        Ok(())
    }

    async fn close(&mut self) {
        self.broker.lock().signed_off += 1;
    }
}

impl Sink for MemoryBroker {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        let mut state = self.lock();
        if matches!(state.failing_sends, FailingSends::All) {
            return Err(Error::new(ErrorKind::Unavailable, "the broker is away"));
        }
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            let refusal = match &state.failing_sends {
                FailingSends::Ids(failures) => failures.get(&message.id).cloned(),
                _ => None,
            };
            answers.push(match refusal {
                Some(failure) => Err(failure),
                None => {
                    state.sent.push(message.clone());
                    Ok(())
                }
            });
        }
        Ok(answers)
    }
}
