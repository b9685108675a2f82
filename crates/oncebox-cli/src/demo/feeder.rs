//! The at-least-once source of the demo: what is to be delivered, and what each runner has not acknowledged yet.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncebox::clock::Seed;
use tokio::sync::Notify;

/// How many messages a runner may have unacknowledged.
const WINDOW: usize = 400;

/// The most deliveries in one go.
const LOT: usize = 100;

/// A message as the feeder knows it: there may be millions of them.
pub(crate) type Number = u32;

/// The id under which a message is delivered.
pub(crate) fn id_of(number: Number) -> String {
    format!("order-{number}")
}

/// The message that has this id.
pub(crate) fn number_of(id: &str) -> Option<Number> {
    id.strip_prefix("order-")?.parse().ok()
}

/// Deliveries still to be made, and those that runners have not acknowledged.
pub(crate) struct Feeder {
    state: Mutex<State>,
    changed: Notify,
    planned: u64,
    messages: u64,
}

struct State {
    queue: VecDeque<Number>,
    unacknowledged: HashMap<u64, (usize, Number)>,
    /// By the number of the runner, so that a seed chooses the same ones again.
    runners: BTreeMap<usize, Standing>,
    next_receipt: u64,
    /// Nothing is handed over beyond this many deliveries: whoever strikes runners raises it.
    allowed: u64,
    deliveries: u64,
    redelivered: u64,
    acknowledged: u64,
    /// For each message, whether one of its deliveries was acknowledged; and how many were.
    is_stored: Vec<bool>,
    stored: u64,
}

/// How a runner stands.
#[derive(Default)]
struct Standing {
    holds: usize,
    acknowledged: u64,
    frozen: bool,
}

impl Standing {
    /// It has been through the store, and has more before it.
    fn is_at_work(&self) -> bool {
        self.acknowledged > 0 && self.holds > 0 && !self.frozen
    }
}

impl Feeder {
    /// Messages 1 to `messages` are to be delivered 1 to `most_copies` times each, copies near and far from each other.
    ///
    /// Half of them come once only: of the others, another copy would make up for one that was lost.
    pub(crate) fn new(messages: Number, most_copies: u64, seed: &Seed) -> Arc<Self> {
        let mut deliveries: Vec<(u64, Number)> = Vec::new();
        for number in 1..=messages {
            let most = if seed.next().is_multiple_of(2) { 1 } else { most_copies.max(1) };
            for copy in 0..=(seed.next() % most) {
                // Half of the copies come right behind the message, in the same batch; the others much later.
                let is_near = copy == 0 || seed.next().is_multiple_of(2);
                let distance = if is_near { 20 } else { u64::from(messages) * 5 };
                deliveries.push((u64::from(number) * 10 + seed.next() % distance.max(1), number));
            }
        }
        deliveries.sort_unstable();
        let queue: VecDeque<Number> = deliveries.into_iter().map(|(_, number)| number).collect();
        let planned = queue.len() as u64;
        let state = State {
            queue,
            unacknowledged: HashMap::new(),
            runners: BTreeMap::new(),
            next_receipt: 0,
            allowed: 0,
            deliveries: 0,
            redelivered: 0,
            acknowledged: 0,
            is_stored: vec![false; messages as usize],
            stored: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            planned,
            messages: u64::from(messages),
        })
    }

    /// How many deliveries there are without those that become necessary again.
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }

    /// How many different messages there are.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.lock().deliveries
    }

    /// How many deliveries were taken from a runner that was killed or frozen, to be made again.
    pub(crate) fn redelivered(&self) -> u64 {
        self.lock().redelivered
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    /// How many different messages are known to be in the store.
    pub(crate) fn stored(&self) -> u64 {
        self.lock().stored
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().is_finished()
    }

    /// Whether everything that was handed over is acknowledged.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().unacknowledged.is_empty()
    }

    /// Lets deliveries go on up to this many, or as far as they were let go before.
    pub(crate) fn allow(&self, deliveries: u64) {
        let mut state = self.lock();
        state.allowed = state.allowed.max(deliveries);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns when so many deliveries have been made, or none are left.
    pub(crate) async fn reached(&self, deliveries: u64) {
        self.wait_for(|state| (state.deliveries >= deliveries || state.queue.is_empty()).then_some(())).await;
    }

    /// Returns when everything is acknowledged.
    pub(crate) async fn finished(&self) {
        self.wait_for(|state| state.is_finished().then_some(())).await;
    }

    /// Waits for runners that have acknowledged something since their start and hold more; answers their numbers.
    ///
    /// There are none when nothing is left to be delivered.
    pub(crate) async fn at_work(&self) -> Vec<usize> {
        self.wait_for(|state| {
            let at_work: Vec<usize> =
                state.runners.iter().filter(|(_, one)| one.is_at_work()).map(|(number, _)| *number).collect();
            (!at_work.is_empty() || state.queue.is_empty()).then_some(at_work)
        })
        .await
    }

    pub(crate) fn is_at_work(&self, runner: usize) -> bool {
        self.lock().runners.get(&runner).is_some_and(Standing::is_at_work)
    }

    /// Lets a little more be delivered when nothing may be any more: otherwise nobody would be at work.
    pub(crate) fn keep_flowing(&self) {
        let mut state = self.lock();
        let is_dry = state.deliveries >= state.allowed;
        if is_dry {
            state.allowed = state.deliveries + LOT as u64;
        }
        drop(state);
        if is_dry {
            self.changed.notify_waiters();
        }
    }

    /// The next deliveries for a runner; waits until there are some.
    pub(crate) async fn next_for(&self, runner: usize) -> Vec<(u64, Number)> {
        let taken = self
            .wait_for(|state| {
                let taken = state.take(runner);
                (!taken.is_empty()).then_some(taken)
            })
            .await;
        self.changed.notify_waiters();
        taken
    }

    /// Takes a line of a runner: `ack RECEIPT` or `return RECEIPT`.
    ///
    /// A receipt that was taken from the runner says nothing any more.
    pub(crate) fn settle(&self, line: &str) {
        let mut words = line.split(' ');
        let (Some(word), Some(Ok(receipt))) = (words.next(), words.next().map(str::parse::<u64>)) else {
            return;
        };
        let mut state = self.lock();
        let Some((runner, number)) = state.unacknowledged.remove(&receipt) else { return };
        let returned = word == "return";
        if returned {
            state.queue.push_back(number);
        } else {
            state.acknowledged += 1;
            let is_stored = state.is_stored.get_mut(number as usize - 1);
            let is_first = is_stored.is_some_and(|is_stored| !std::mem::replace(is_stored, true));
            state.stored += u64::from(is_first);
        }
        let standing = state.runners.entry(runner).or_default();
        standing.holds = standing.holds.saturating_sub(1);
        standing.acknowledged += u64::from(!returned);
        drop(state);
        self.changed.notify_waiters();
    }

    /// What a dead runner has not acknowledged is delivered again. Answers how much that is.
    pub(crate) fn lost(&self, runner: usize) -> usize {
        let mut state = self.lock();
        let taken = state.take_back(runner);
        state.runners.remove(&runner);
        drop(state);
        self.changed.notify_waiters();
        taken
    }

    /// What a frozen runner has not acknowledged is delivered again, to others, and it gets nothing until it is awake.
    ///
    /// So does a broker whose client has been silent for too long.
    pub(crate) fn frozen(&self, runner: usize) {
        let mut state = self.lock();
        state.take_back(runner);
        state.runners.entry(runner).or_default().frozen = true;
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn awake(&self, runner: usize) {
        self.lock().runners.entry(runner).or_default().frozen = false;
        self.changed.notify_waiters();
    }

    async fn wait_for<T>(&self, mut ask: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let answer = ask(&mut self.lock());
            if let Some(answer) = answer {
                return answer;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_finished(&self) -> bool {
        self.queue.is_empty() && self.unacknowledged.is_empty()
    }

    fn take(&mut self, runner: usize) -> Vec<(u64, Number)> {
        let standing = self.runners.entry(runner).or_default();
        if standing.frozen {
            return Vec::new();
        }
        let allowed = usize::try_from(self.allowed.saturating_sub(self.deliveries)).unwrap_or(usize::MAX);
        let room = WINDOW.saturating_sub(standing.holds);
        let count = room.min(allowed).min(self.queue.len()).min(LOT);
        standing.holds += count;
        self.deliveries += count as u64;
        let mut taken = Vec::with_capacity(count);
        for number in self.queue.drain(..count) {
            let receipt = self.next_receipt;
            self.next_receipt += 1;
            self.unacknowledged.insert(receipt, (runner, number));
            taken.push((receipt, number));
        }
        taken
    }

    fn take_back(&mut self, runner: usize) -> usize {
        let held = self.unacknowledged.extract_if(|_, (owner, _)| *owner == runner);
        let mut receipts: Vec<(u64, Number)> = held.map(|(receipt, (_, number))| (receipt, number)).collect();
        // In the order in which they were delivered.
        receipts.sort_unstable_by(|one, other| other.cmp(one));
        let taken = receipts.len();
        self.redelivered += taken as u64;
        for (_, number) in receipts {
            self.queue.push_front(number);
        }
        if let Some(standing) = self.runners.get_mut(&runner) {
            standing.holds = 0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(messages: Number) -> Arc<Feeder> {
        let feeder = Feeder::new(messages, 1, &Seed::fixed(1));
        feeder.allow(u64::MAX);
        feeder
    }

    #[tokio::test]
    async fn what_a_frozen_runner_holds_goes_to_others_and_its_late_acknowledgement_says_nothing() {
        let feeder = fed(3);
        let mut before = feeder.next_for(1).await;
        assert_eq!(before.len(), 3);
        feeder.settle(&format!("ack {}", before.remove(0).0));
        feeder.frozen(1);
        assert_eq!(feeder.redelivered(), 2);
        assert!(feeder.lock().take(1).is_empty(), "a frozen one gets nothing");
        let again = feeder.next_for(2).await;
        let numbers = |deliveries: &[(u64, Number)]| deliveries.iter().map(|one| one.1).collect::<Vec<_>>();
        assert_eq!(numbers(&again), numbers(&before));
        feeder.awake(1);
        for (receipt, _) in before {
            feeder.settle(&format!("ack {receipt}"));
        }
        assert!(!feeder.is_finished(), "the second owner has not acknowledged");
        for (receipt, _) in again {
            feeder.settle(&format!("ack {receipt}"));
        }
        assert!(feeder.is_finished());
        assert_eq!((feeder.deliveries(), feeder.acknowledged(), feeder.stored()), (5, 3, 3));
    }

    #[tokio::test]
    async fn a_message_is_stored_once_one_of_its_deliveries_is_acknowledged() {
        let mut feeders = (0..).map(|seed| Feeder::new(1, 9, &Seed::fixed(seed)));
        let feeder = feeders.find(|feeder| feeder.planned() > 3).expect("one comes several times");
        feeder.allow(u64::MAX);
        let copies = feeder.next_for(1).await;
        feeder.settle(&format!("return {}", copies[0].0));
        assert_eq!(feeder.stored(), 0);
        feeder.settle(&format!("ack {}", copies[1].0));
        feeder.settle(&format!("ack {}", copies[2].0));
        assert_eq!((feeder.stored(), feeder.acknowledged()), (1, 2));
        assert_eq!(feeder.lost(1), copies.len() - 3);
    }

    #[tokio::test]
    async fn a_runner_is_at_work_once_it_has_acknowledged_and_while_it_holds_more() {
        let feeder = fed(2);
        let taken = feeder.next_for(7).await;
        assert!(!feeder.is_at_work(7), "it may not even have opened the store");
        feeder.settle(&format!("ack {}", taken[0].0));
        assert!(feeder.is_at_work(7));
        assert_eq!(feeder.at_work().await, [7]);
        feeder.frozen(7);
        assert!(!feeder.is_at_work(7));
        feeder.awake(7);
        assert!(!feeder.is_at_work(7), "it holds nothing any more");
    }

    #[test]
    fn more_flows_only_when_nothing_may_flow() {
        let feeder = Feeder::new(1000, 1, &Seed::fixed(1));
        feeder.allow(10);
        feeder.keep_flowing();
        assert_eq!(feeder.lock().take(1).len(), 10);
        feeder.keep_flowing();
        assert_eq!(feeder.lock().take(1).len(), LOT);
    }
}
