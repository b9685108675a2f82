//! Receives messages: calls that arrive at the same time share one statement and one commit.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::counters::{Counter, Counters};
use crate::error::{Error, ErrorKind};
use crate::kinds::Kinds;
use crate::message::Message;
use crate::store::{Arrival, Received, Store};
use crate::wake::Wake;

/// The most messages and bytes of them in one statement.
pub(crate) const MOST_MESSAGES: usize = 1000;
pub(crate) const MOST_BYTES: usize = 8 * 1024 * 1024;

/// At most one hint to other processes in this time.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(10);

/// How often the list of kinds that other processes' handlers want is read again.
const ROUTES_EVERY: Duration = Duration::from_secs(10);

/// Collects calls while the previous statement is under way.
pub(crate) struct Receiver<St> {
    inner: Arc<Inner<St>>,
}

struct Inner<St> {
    store: St,
    counters: Arc<Counters>,
    wake: Wake,
    queue: Mutex<Queue>,
    announcing: AtomicBool,
    last: Mutex<Times>,
    routes: Mutex<Arc<Vec<Kinds>>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    running: bool,
    /// Those that have gone are looked for when there are so many.
    look_at: usize,
}

/// So few calls take no room worth a look.
const FEW_CALLS: usize = 64;

impl Queue {
    /// While the store stands still, callers give up and others come: those that have gone leave room.
    fn push(&mut self, call: Waiting) {
        if self.waiting.len() >= self.look_at {
            self.waiting.retain(|call| !call.is_given_up());
            // Each look is at no more calls than have come since the one before.
            self.look_at = FEW_CALLS.max(2 * self.waiting.len());
        }
        self.waiting.push_back(call);
    }
}

/// A call whose turn has not come. It keeps its messages itself, so that they go with it when it is given up: while the
/// store stands still, senders give up and send again.
struct Waiting {
    arrivals: Weak<Vec<Arrival>>,
    answer: oneshot::Sender<Outcome>,
}

impl Waiting {
    fn is_given_up(&self) -> bool {
        self.arrivals.strong_count() == 0
    }
}

/// A call whose messages are stored whether it waits for that or not.
struct Request {
    arrivals: Arc<Vec<Arrival>>,
    answer: oneshot::Sender<Outcome>,
}

/// What one call is told. Calls of one statement share its error.
type Outcome = Result<Vec<Received>, Arc<Error>>;

#[derive(Default)]
struct Times {
    announced: Option<Instant>,
    routes: Option<Instant>,
}

/// Messages that only wait to be stored: checked, and with their scope. Copies of it share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready {
    /// What goes into one statement.
    chunks: Vec<Arc<Vec<Arrival>>>,
    /// Of the last chunk.
    bytes: usize,
}

impl Ready {
    pub(crate) fn new(messages: &[Message]) -> Self {
        let mut ready = Self::default();
        ready.extend(messages);
        ready
    }

    pub(crate) fn extend(&mut self, mut messages: &[Message]) {
        while !messages.is_empty() {
            let fits = self.chunks.last().is_some_and(|chunk| chunk.len() < MOST_MESSAGES);
            if !fits || self.bytes >= MOST_BYTES {
                self.chunks.push(Arc::default());
                self.bytes = 0;
            }
            let Some(chunk) = self.chunks.last_mut() else { return };
            let chunk = Arc::make_mut(chunk);
            let (piece, rest) = split(messages, MOST_MESSAGES - chunk.len(), &mut self.bytes);
            chunk.extend(Arrival::all(piece));
            messages = rest;
        }
    }

    /// The messages, in order.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// Cuts messages into pieces of at most so many, and of so many bytes as one statement takes.
pub(crate) fn pieces(mut messages: &[Message], most: usize) -> impl Iterator<Item = &[Message]> {
    std::iter::from_fn(move || {
        let (piece, rest) = split(messages, most, &mut 0);
        messages = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The messages that go together, at least one, and the rest. `bytes` are with them already, and then all of theirs.
fn split<'a>(messages: &'a [Message], most: usize, bytes: &mut usize) -> (&'a [Message], &'a [Message]) {
    let mut fitting = 0;
    for message in messages.iter().take(most) {
        fitting += 1;
        *bytes += message.size();
        if *bytes >= MOST_BYTES {
            break;
        }
    }
    messages.split_at(fitting)
}

impl<St: Store> Receiver<St> {
    pub(crate) fn new(store: St, counters: Arc<Counters>, wake: Wake) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                counters,
                wake,
                queue: Mutex::default(),
                announcing: AtomicBool::new(false),
                last: Mutex::default(),
                routes: Mutex::default(),
            }),
        }
    }

    /// Stores messages and answers for each, in order. `own` are the kinds wanted in this process.
    pub(crate) async fn receive(&self, ready: Ready, own: Vec<Kinds>) -> Result<Vec<Received>, Error> {
        if ready.chunks.is_empty() {
            return Ok(Vec::new());
        }
        self.inner.refresh_routes().await;
        let routes = lock(&self.inner.routes).clone();
        let unrouted = |kind: &str| !own.iter().chain(routes.iter()).any(|kinds| kinds.wants(kind));
        let is_unrouted: Vec<bool> =
            ready.arrivals().map(|arrival| unrouted(arrival.message().kind)).collect();
        let mut answers = Vec::with_capacity(is_unrouted.len());
        for chunk in ready.chunks {
            answers.extend(self.enqueue(chunk).await?);
        }
        let lost = answers.iter().zip(is_unrouted).filter(|(answer, un)| **answer == Received::New && *un);
        self.inner.counters.add("", Counter::Unrouted, lost.count());
        Ok(answers)
    }

    /// Tells other processes soon that there is something to do.
    pub(crate) fn announce(&self) {
        self.inner.clone().announce();
    }

    async fn enqueue(&self, arrivals: Arc<Vec<Arrival>>) -> Result<Vec<Received>, Error> {
        let (answer, answered) = oneshot::channel();
        let start = {
            let mut queue = lock(&self.inner.queue);
            queue.push(Waiting { arrivals: Arc::downgrade(&arrivals), answer });
            !std::mem::replace(&mut queue.running, true)
        };
        if start {
            // Made here: a runtime that shuts down may never run what is spawned on it.
            let working = Working(Some(self.inner.clone()));
            // Spawned, so that a caller that gives up does not take the others' messages with it.
            tokio::spawn(working.work_off());
        }
        let answered = answered.await;
        // Until here the queue relies on them.
        drop(arrivals);
        match answered {
            Ok(Ok(received)) => Ok(received),
            Ok(Err(error)) => Err(Error::caused(error.kind(), "messages could not be stored", error)),
            Err(_) => {
                let text = "it is not known whether messages were stored: the runtime shut down, or the store panicked";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }
}

impl<St: Store> Inner<St> {
    /// Stores all of them, those of a call together.
    async fn store_group(self: &Arc<Self>, group: Vec<Request>) {
        let mut left = vec![group];
        while let Some(mut group) = left.pop() {
            let calls: Vec<_> = group.iter().map(|request| request.arrivals.clone()).collect();
            match self.store_together(&calls).await {
                Ok(outcomes) => self.answer(group, outcomes),
                // One of the calls has something that the store refuses. The others must not hear of it.
                Err(error) if error.kind() == ErrorKind::Invalid && group.len() > 1 => {
                    let later = group.split_off(group.len() / 2);
                    left.extend([later, group]);
                }
                Err(error) if error.kind() == ErrorKind::Invalid => fail(group, &Arc::new(error)),
                // The store is away: the others need not find that out one after the other.
                Err(error) => {
                    let others = left.into_iter().rev().flatten();
                    return fail(group.into_iter().chain(others), &Arc::new(error));
                }
            }
        }
    }

    /// Says what became of messages, of which some at least are stored now.
    fn answer(self: &Arc<Self>, group: Vec<Request>, outcomes: Vec<Outcome>) {
        self.wake.ring();
        self.clone().announce();
        for (request, outcome) in group.into_iter().zip(outcomes) {
            if let Ok(received) = &outcome {
                self.count(received);
            }
            // The caller may have given up; its messages are stored all the same.
            let _ = request.answer.send(outcome);
        }
    }

    /// Stores the messages of several calls in one statement, and answers for each call.
    async fn store_together(&self, calls: &[Arc<Vec<Arrival>>]) -> Result<Vec<Outcome>, Error> {
        let Joined { unique, repeats, places } = Joined::new(calls);
        let stored = self.store.receive(&unique).await?;
        // Copies with other bytes of messages in the same statement: the store can judge them now.
        let repeated = self.store_repeats(repeats).await;
        let answers = |own: Vec<(usize, Copy)>| {
            own.into_iter().map(|(place, copy)| copy.answer(stored[place], &repeated)).collect()
        };
        Ok(places.into_iter().map(answers).collect())
    }

    /// A copy that cannot be stored concerns its own call; what came before it is stored.
    async fn store_repeats(&self, repeats: Vec<Arrival>) -> Vec<Result<Received, Arc<Error>>> {
        // One at a time: several of them may share an identity. This is as rare as it is wrong.
        let mut answers: Vec<Result<Received, Arc<Error>>> = Vec::with_capacity(repeats.len());
        for arrival in repeats {
            let away = answers.last().and_then(|last| last.as_ref().err());
            let away = away.filter(|error| error.kind() != ErrorKind::Invalid).cloned();
            answers.push(match away {
                Some(error) => Err(error),
                None => self.store_repeat(arrival).await.map_err(Arc::new),
            });
        }
        answers
    }

    async fn store_repeat(&self, arrival: Arrival) -> Result<Received, Error> {
        let answers = self.store.receive(&[arrival]).await?;
        answers
            .first()
            .copied()
            .ok_or_else(|| Error::new(ErrorKind::Store, "the store did not answer for a message"))
    }

    fn count(&self, received: &[Received]) {
        let of = |wanted: Received| received.iter().filter(|one| **one == wanted).count();
        self.counters.add("", Counter::Received, of(Received::New));
        self.counters.add("", Counter::Duplicate, of(Received::Duplicate));
        self.counters.add("", Counter::Conflict, of(Received::Conflict));
    }

    /// At once when the last hint is long ago, else once when its time has come.
    fn announce(self: Arc<Self>) {
        if self.announcing.swap(true, Ordering::SeqCst) {
            return;
        }
        let announcing = Announcing(self.clone());
        let wait = lock(&self.last)
            .announced
            .map_or(Duration::ZERO, |last| ANNOUNCE_EVERY.saturating_sub(last.elapsed()));
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            lock(&self.last).announced = Some(Instant::now());
            drop(announcing);
            if let Err(error) = self.store.announce().await {
                tracing::debug!(%error, "other processes could not be woken; they poll");
            }
        });
    }

    async fn refresh_routes(&self) {
        let stale = {
            let mut last = lock(&self.last);
            let stale = last.routes.is_none_or(|at| at.elapsed() > ROUTES_EVERY);
            if stale {
                last.routes = Some(Instant::now());
            }
            stale
        };
        if !stale {
            return;
        }
        // Only a counter depends on it, so an error is no reason to refuse messages.
        let Ok(known) = self.store.wanted_kinds().await else { return };
        let routes = known.into_iter().map(|patterns| {
            let mut kinds = Kinds::default();
            for pattern in patterns {
                let _ = kinds.add(&pattern);
            }
            kinds
        });
        *lock(&self.routes) = Arc::new(routes.collect());
    }
}

fn fail(group: impl IntoIterator<Item = Request>, error: &Arc<Error>) {
    for request in group {
        let _ = request.answer.send(Err(error.clone()));
    }
}

/// Whoever works off the queue; at most one at a time.
///
/// When it goes away before its end, because the store panicked or the runtime shut down, all who wait get an error, and
/// the next call starts another one.
struct Working<St>(Option<Arc<Inner<St>>>);

impl<St: Store> Working<St> {
    async fn work_off(mut self) {
        while let Some(inner) = self.0.clone() {
            let group = {
                let mut queue = lock(&inner.queue);
                let group = take_group(&mut queue.waiting);
                if group.is_empty() {
                    queue.running = false;
                    self.0 = None;
                    return;
                }
                group
            };
            inner.store_group(group).await;
        }
    }
}

impl<St> Drop for Working<St> {
    fn drop(&mut self) {
        if let Some(inner) = &self.0 {
            *lock(&inner.queue) = Queue::default();
        }
    }
}

/// A hint is under way; gone when it is, or when it will never be.
struct Announcing<St>(Arc<Inner<St>>);

impl<St> Drop for Announcing<St> {
    fn drop(&mut self) {
        self.0.announcing.store(false, Ordering::SeqCst);
    }
}

/// The calls of one statement.
struct Joined {
    /// The first copy of each message.
    unique: Arc<Vec<Arrival>>,
    /// Copies with other bytes.
    repeats: Vec<Arrival>,
    /// Per call and message: the place of its first copy, and how it relates to that.
    places: Vec<Vec<(usize, Copy)>>,
}

impl Joined {
    fn new(calls: &[Arc<Vec<Arrival>>]) -> Self {
        // What a source hands over is mostly a statement of its own, and is shared then.
        if let [only] = calls
            && is_distinct(only)
        {
            let places = vec![(0..only.len()).map(|place| (place, Copy::First)).collect()];
            return Self { unique: only.clone(), repeats: Vec::new(), places };
        }
        let mut first_of: HashMap<[u8; 16], usize> = HashMap::new();
        let (mut unique, mut repeats) = (Vec::<Arrival>::new(), Vec::<Arrival>::new());
        let mut places = Vec::with_capacity(calls.len());
        for arrivals in calls {
            let mut own = Vec::with_capacity(arrivals.len());
            for arrival in arrivals.iter().cloned() {
                match first_of.get(&arrival.identity) {
                    None => {
                        first_of.insert(arrival.identity, unique.len());
                        own.push((unique.len(), Copy::First));
                        unique.push(arrival);
                    }
                    Some(&first) if unique[first].fingerprint == arrival.fingerprint => {
                        own.push((first, Copy::Same));
                    }
                    Some(&first) => {
                        own.push((first, Copy::Other(repeats.len())));
                        repeats.push(arrival);
                    }
                }
            }
            places.push(own);
        }
        Self { unique: Arc::new(unique), repeats, places }
    }
}

fn is_distinct(arrivals: &[Arrival]) -> bool {
    let mut identities: Vec<[u8; 16]> = arrivals.iter().map(|arrival| arrival.identity).collect();
    identities.sort_unstable();
    identities.windows(2).all(|pair| pair[0] != pair[1])
}

/// How a message relates to the first one of its identity in the same statement.
#[derive(Clone, Copy)]
enum Copy {
    First,
    Same,
    /// With other bytes; the place of its own answer.
    Other(usize),
}

impl Copy {
    fn answer(
        self,
        first: Received,
        repeated: &[Result<Received, Arc<Error>>],
    ) -> Result<Received, Arc<Error>> {
        match (self, first) {
            (Copy::First, first) => Ok(first),
            // The first one conflicts with an older message, and so does its copy.
            (Copy::Same, Received::Conflict) => Ok(Received::Conflict),
            (Copy::Same, _) => Ok(Received::Duplicate),
            (Copy::Other(place), _) => repeated[place].clone(),
        }
    }
}

/// The requests that fit into one statement, in the order they came.
///
/// Those whose callers have given up are left out: nobody was promised anything.
fn take_group(waiting: &mut VecDeque<Waiting>) -> Vec<Request> {
    let (mut messages, mut bytes) = (0, 0);
    let mut group = Vec::new();
    while let Some(next) = waiting.pop_front() {
        let Some(arrivals) = next.arrivals.upgrade() else { continue };
        messages += arrivals.len();
        bytes += arrivals.iter().map(Arrival::size).sum::<usize>();
        if !group.is_empty() && (messages > MOST_MESSAGES || bytes > MOST_BYTES) {
            waiting.push_front(next);
            break;
        }
        group.push(Request { arrivals, answer: next.answer });
    }
    group
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At least 3 bytes.
    fn of_size(bytes: usize) -> Message {
        Message::with_id("1", "k", vec![0; bytes - 3]).scope("s")
    }

    fn sizes(payloads: &[usize], most: usize) -> Vec<usize> {
        let messages: Vec<Message> = payloads.iter().map(|bytes| of_size(*bytes)).collect();
        pieces(&messages, most).map(<[Message]>::len).collect()
    }

    #[test]
    fn a_piece_has_so_many_messages_and_bytes_and_no_message_is_too_large_for_one() {
        assert_eq!(sizes(&[], 3), [0; 0]);
        assert_eq!(sizes(&[3; 7], 3), [3, 3, 1]);
        let half = MOST_BYTES / 2;
        assert_eq!(sizes(&[half, half, 3, half, half - 3, 9, 3], 100), [2, 3, 2]);
        assert_eq!(sizes(&[MOST_BYTES + 1, 3, MOST_BYTES * 2, 3], 100), [1, 2, 1]);
        let headers: Vec<Message> =
            (0..5).map(|_| Message::with_id("1", "k", "").header("h", vec![0; half])).collect();
        assert_eq!(pieces(&headers, 100).map(<[Message]>::len).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn calls_that_are_given_up_take_no_room() {
        let mut queue = Queue::default();
        let mut call = || {
            let arrivals = Arc::new(Vec::new());
            queue.push(Waiting { arrivals: Arc::downgrade(&arrivals), answer: oneshot::channel().0 });
            (arrivals, queue.waiting.len())
        };
        // Also behind one that waits.
        let (first, _) = call();
        let most = (0..10_000).map(|_| call().1).max();
        assert!(most <= Some(FEW_CALLS + 1), "{most:?}");
        let many: Vec<_> = (0..1000).map(|_| call()).collect();
        let most = (0..10_000).map(|_| call().1).max();
        assert!(most > Some(1000) && most <= Some(2 * (1000 + FEW_CALLS) + 1), "{most:?}");
        drop((first, many));
        let least = (0..10_000).map(|_| call().1).min();
        assert_eq!(least, Some(1));
    }

    #[test]
    fn what_is_added_fills_the_last_chunk_first() {
        let messages: Vec<Message> = (0..1500).map(|id| Message::with_id(id.to_string(), "k", "")).collect();
        let mut ready = Ready::new(&messages[..600]);
        ready.extend(&messages[600..]);
        assert_eq!(ready.chunks.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), [1000, 500]);
        let ids: Vec<String> = ready.arrivals().map(|arrival| arrival.message().id.to_owned()).collect();
        assert_eq!(ids, (0..1500).map(|id| id.to_string()).collect::<Vec<_>>());
        let large = Message::with_id("large", "k", vec![0; MOST_BYTES]);
        ready.extend(&[large.clone(), large]);
        assert_eq!(ready.chunks.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), [1000, 501, 1]);
    }
}
