//! Handles messages in the transaction that records them as seen.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Counter;
use crate::engine::call::{Open, call_outside};
use crate::engine::lanes::Tally;
use crate::engine::outcome_of;
use crate::engine::receive::pieces;
use crate::engine::transaction::{self, Begun, Item, Work};
use crate::error::{Error, ErrorKind};
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::{Inbox, Processed};
use crate::message::Message;
use crate::store::{
    Arrival, Commit, InlineBatch, Outcome, Park, ParkState, ReadInline, Received, Store, TxLimits,
};
use crate::tx::TxState;

/// How many messages share a transaction at most.
const TOGETHER: usize = 500;

/// Handles messages and answers for each, in order.
pub(crate) async fn process<St, S>(
    inbox: &Inbox<St, S>,
    messages: &[Message],
) -> Result<Vec<Processed>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    if !inbox.settings.remembers {
        return process_direct(inbox, messages).await;
    }
    let mut answers: Vec<Option<Processed>> = vec![None; messages.len()];
    // What is left to the runner, and the places of it.
    let (mut stored, mut stored_places) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    let mut place = 0;
    for piece in pieces(messages, TOGETHER) {
        let (mut fresh, mut fresh_places) = (Vec::new(), Vec::new());
        for (arrival, message) in Arrival::all(piece).zip(piece) {
            let wanted = inbox.handlers.iter().any(|handler| handler.wants(&message.kind));
            if wanted && known.insert(arrival.identity) {
                fresh.push(arrival);
                fresh_places.push(place);
            } else {
                // A kind nobody wants is stored; a second copy in one call is for the store to judge, after the first.
                stored.push(message.clone());
                stored_places.push(place);
            }
            place += 1;
        }
        if fresh.is_empty() {
            continue;
        }
        let count = fresh.len();
        let mut work = InlineWork::new(inbox, fresh);
        transaction::run(inbox, &mut work, count).await?;
        for (place, answer) in fresh_places.into_iter().zip(work.answers) {
            answers[place] = answer;
        }
    }
    if !stored.is_empty() {
        let received = inbox.receive_checked(&stored).await?;
        for (place, received) in stored_places.into_iter().zip(received) {
            answers[place] = Some(match received {
                Received::New => Processed::Stored,
                Received::Duplicate => Processed::Duplicate,
                Received::Conflict => Processed::Conflict,
            });
        }
    }
    answers.into_iter().map(answered).collect()
}

/// One message after the other; nothing is remembered, and a failure is the caller's.
async fn process_direct<St, S>(inbox: &Inbox<St, S>, messages: &[Message]) -> Result<Vec<Processed>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let mut answers = Vec::with_capacity(messages.len());
    'messages: for message in messages {
        let kind = &message.kind;
        if !inbox.handlers.iter().any(|handler| handler.wants(kind)) {
            // Nothing is stored here, so answering "done" would make the message vanish.
            inbox.shared.counters.add("", Counter::Unrouted, 1);
            answers.push(Processed::Failed(format!("no handler wants the kind `{kind}`")));
            continue;
        }
        let arrival = Arrival::new(message);
        let wanted = inbox.handlers.iter().filter(|handler| handler.wants(kind));
        for handler in wanted.filter(|handler| !handler.takes_tx) {
            if let Err(failure) = call_outside(inbox, handler, &mut vec![arrival.to_message()], 1).await {
                answers.push(Processed::Failed(failure.text()));
                continue 'messages;
            }
        }
        let mut work = InlineWork::new(inbox, vec![arrival]);
        transaction::run(inbox, &mut work, 1).await?;
        answers.push(answered(work.answers.remove(0))?);
    }
    Ok(answers)
}

fn answered(answer: Option<Processed>) -> Result<Processed, Error> {
    answer.ok_or_else(|| {
        let text = "a message could not be handled inline; its outcome is unknown, process it again";
        Error::new(ErrorKind::Unavailable, text)
    })
}

struct InlineWork<'a, St: Store, S> {
    inbox: &'a Inbox<St, S>,
    arrivals: Vec<Arrival>,
    /// The handlers that failed alone, per message, with what follows.
    blamed: HashMap<(usize, String), Outcome>,
    /// Rows for handlers that are not called, per message; made anew at every begin.
    parks: Vec<Vec<Park>>,
    /// What to answer per message once it is committed, and what has been committed.
    pending: Vec<Processed>,
    answers: Vec<Option<Processed>>,
}

impl<'a, St: Store, S: Clone + Send + Sync + 'static> InlineWork<'a, St, S> {
    fn new(inbox: &'a Inbox<St, S>, arrivals: Vec<Arrival>) -> Self {
        let count = arrivals.len();
        Self {
            inbox,
            arrivals,
            blamed: HashMap::new(),
            parks: vec![Vec::new(); count],
            pending: vec![Processed::Done; count],
            answers: vec![None; count],
        }
    }

    async fn open(&self, span: Range<usize>) -> Result<InlineBatch<St::Connection>, Error> {
        let longest = self.inbox.handlers.iter().map(|handler| handler.settings.timeout).max();
        let limits = TxLimits { statement: longest.unwrap_or(Duration::from_secs(30)) };
        if self.inbox.settings.remembers {
            let ordered = self.inbox.handlers.iter().filter(|handler| handler.settings.ordered);
            let ordered: Vec<&str> = ordered.map(|handler| handler.name()).collect();
            let inline = ReadInline { arrivals: &self.arrivals[span], ordered: &ordered, limits };
            return self.inbox.store.begin_inline(&inline).await;
        }
        Ok(InlineBatch {
            connection: self.inbox.store.begin_plain(limits).await?,
            received: vec![Received::New; span.len()],
            scheduled: vec![false; span.len()],
            held: Vec::new(),
        })
    }

    /// Decides, per handler that wants a new message, whether it is called or its delivery gets a row.
    fn plan(
        &mut self,
        index: usize,
        scheduled: bool,
        active: &mut HashSet<(String, String)>,
    ) -> Vec<Arc<Registered<St, S>>> {
        let arrival = &self.arrivals[index];
        let message = arrival.message();
        let mut called = Vec::new();
        for handler in self.inbox.handlers.iter().filter(|handler| handler.wants(message.kind)) {
            let name = handler.name().to_owned();
            let behind = message.key.filter(|_| handler.settings.ordered);
            let behind = behind.map(|key| (name.clone(), key.to_owned()));
            let park = match self.blamed.get(&(index, name.clone())) {
                Some(Outcome::Dead(error)) => Some((ParkState::Dead, 1, Some(error.clone()))),
                Some(Outcome::Retry(delay, error)) => {
                    Some((ParkState::Ready(*delay), 1, Some(error.clone())))
                }
                _ if scheduled => Some((ParkState::Scheduled, 0, None)),
                _ if behind.as_ref().is_some_and(|pair| active.contains(pair)) => {
                    Some((ParkState::Held, 0, None))
                }
                // An effect outside the database is never made inside a transaction: the runner does it.
                _ if !handler.takes_tx => Some((ParkState::Ready(Duration::ZERO), 0, None)),
                _ => None,
            };
            let Some((state, attempts, error)) = park else {
                called.push(handler.clone());
                continue;
            };
            if matches!(state, ParkState::Ready(_)) {
                active.extend(behind);
            }
            let message = arrival.to_message();
            self.parks[index].push(Park { handler: name, message, state, attempts, error });
        }
        called
    }
}

impl<St: Store, S: Clone + Send + Sync + 'static> Work<St, S> for InlineWork<'_, St, S> {
    async fn begin(&mut self, span: Range<usize>) -> Result<Option<Begun<St, S>>, Error> {
        if !self.inbox.settings.remembers
            && let Some((_, Outcome::Dead(error) | Outcome::Retry(_, error))) = self.blamed.iter().next()
        {
            self.answers[0] = Some(Processed::Failed(error.clone()));
            return Ok(None);
        }
        let batch = self.open(span.clone()).await?;
        let mut active: HashSet<(String, String)> = batch.held.into_iter().collect();
        let mut items = Vec::with_capacity(span.len());
        for (offset, index) in span.enumerate() {
            self.parks[index].clear();
            let mut handlers = Vec::new();
            self.pending[index] = match batch.received[offset] {
                Received::Duplicate => Processed::Duplicate,
                Received::Conflict => Processed::Conflict,
                Received::New if !self.inbox.settings.remembers => {
                    let wanted = self.inbox.handlers.iter().filter(|handler| handler.takes_tx);
                    let kind = self.arrivals[index].message().kind;
                    handlers = wanted.filter(|handler| handler.wants(kind)).cloned().collect();
                    Processed::Done
                }
                Received::New => {
                    handlers = self.plan(index, batch.scheduled[offset], &mut active);
                    if self.parks[index].is_empty() { Processed::Done } else { Processed::Stored }
                }
            };
            let message = (!handlers.is_empty()).then(|| self.arrivals[index].to_lane_message());
            items.push(Item { message, attempt: 1, handlers: handlers.into() });
        }
        Ok(Some(Begun { connection: batch.connection, items }))
    }

    async fn commit(
        &mut self,
        span: Range<usize>,
        items: &[Item<St, S>],
        open: Open<St::Connection>,
        _last: bool,
    ) -> Result<(), Error> {
        let park: Vec<Park> = self.parks[span.clone()].iter().flatten().cloned().collect();
        let mut tallies: HashMap<String, Tally> = HashMap::new();
        for handler in items.iter().flat_map(|item| item.handlers.iter()) {
            tallies.entry(handler.name().to_owned()).or_default().done += 1;
        }
        for parked in &park {
            tallies.entry(parked.handler.clone()).or_default().add(parked.state, parked.attempts);
        }
        let TxState { connection, outgoing, .. } = *open.state;
        let woken = !park.is_empty() || !outgoing.is_empty();
        let commit = Commit { park, outgoing, ..Commit::default() };
        self.inbox.store.commit(connection, commit).await?;

        let counters = &self.inbox.shared.counters;
        for index in span {
            let counter = match self.pending[index] {
                Processed::Duplicate => Counter::Duplicate,
                Processed::Conflict => Counter::Conflict,
                _ => Counter::Received,
            };
            counters.add("", counter, 1);
            self.answers[index] = Some(self.pending[index].clone());
        }
        for (handler, tally) in tallies {
            tally.count(self.inbox, &handler);
        }
        if woken {
            self.inbox.shared.ring_everywhere();
        }
        Ok(())
    }

    /// The ids of the whole span are in the transaction: committed without their work, they would be lost.
    fn may_stop_early(&self) -> bool {
        false
    }

    fn blame(&mut self, index: usize, handler: &Arc<Registered<St, S>>, failure: Failure) {
        let id = self.arrivals[index].message().id;
        tracing::debug!(handler = handler.name(), id, %failure, "the attempt failed");
        let outcome = outcome_of(handler, 1, &failure, &self.inbox.shared.seed);
        self.blamed.insert((index, handler.name().to_owned()), outcome);
    }
}
