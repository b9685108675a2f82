//! The one place that begins, checks and commits a handler's transaction.
//!
//! Many deliveries share a transaction while all goes well. When one fails, everything is rolled back and the stretch
//! is run again in pieces, so that the failing one is alone in its transaction before it is blamed. A commit whose
//! outcome is unknown is never guessed at: the stretch is begun again, and what the store reads back tells.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::engine::TRANSACTION_BUDGET;
use crate::engine::call::{Open, TimeLimit, call_in_tx};
use crate::error::{Error, ErrorKind};
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::store::{Connection, LaneMessage, Store};

/// How often a stretch is begun again for a cause that is no message's fault before it counts as a failure.
const PATIENCE: u32 = 5;

/// A stretch of deliveries that can be begun in pieces, in order, and knows what to write for each.
pub(crate) trait Work<St: Store, S> {
    /// Begins a transaction for these items. Fewer items than asked for means there are no more.
    ///
    /// A blamed item comes back without calls. `None`: nothing of this span is left to do here.
    fn begin(
        &mut self,
        span: Range<usize>,
    ) -> impl Future<Output = Result<Option<Begun<St, S>>, Error>> + Send;

    /// Writes the outcome of these items and commits. `last` is false while other spans are still to come.
    fn commit(
        &mut self,
        span: Range<usize>,
        items: &[Item<St, S>],
        open: Open<St::Connection>,
        last: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether a begun transaction may be committed for its first items only, the others being begun again.
    ///
    /// False where beginning has already written something for each of them.
    fn may_stop_early(&self) -> bool {
        true
    }

    /// Whether an item of this span has failed and its outcome is not yet in the store.
    fn has_blame(&self, span: &Range<usize>) -> bool {
        let _ = span;
        false
    }

    /// Notes that this item failed for this handler, alone in its transaction.
    fn blame(&mut self, index: usize, handler: &Arc<Registered<St, S>>, failure: Failure);
}

/// A begun transaction.
pub(crate) struct Begun<St: Store, S> {
    pub(crate) connection: St::Connection,
    pub(crate) items: Vec<Item<St, S>>,
}

/// One delivery, or one inline message with all its handlers.
pub(crate) struct Item<St: Store, S> {
    /// Gone once the last of its handlers was called.
    pub(crate) message: Option<LaneMessage>,
    pub(crate) attempt: u32,
    /// Who is to be called with it; nobody when it is skipped or parked.
    pub(crate) handlers: Arc<[Arc<Registered<St, S>>]>,
}

/// Runs the items `0..count` of a stretch. Answers how many items were committed.
pub(crate) fn run<'a, St, S, W>(
    inbox: &'a Inbox<St, S>,
    work: &'a mut W,
    count: usize,
) -> BoxFuture<'a, Result<usize, Error>>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
    W: Work<St, S> + Send,
{
    // Boxed, so that the compiler can see here that it is `Send`.
    Box::pin(run_spans(inbox, work, count))
}

async fn run_spans<St, S, W>(inbox: &Inbox<St, S>, work: &mut W, count: usize) -> Result<usize, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
    W: Work<St, S> + Send,
{
    let mut committed = 0;
    let mut strikes = 0;
    // The span to run next is at the end.
    let mut spans: Vec<Range<usize>> = std::iter::once(0..count).collect();
    while let Some(span) = spans.pop() {
        let begun = match work.begin(span.clone()).await {
            Ok(Some(begun)) => begun,
            // A transaction that did not roll back in time may hold the locks a moment longer than its handler.
            Ok(None) if work.has_blame(&span) && strikes < PATIENCE => {
                strikes += 1;
                pause(inbox, strikes * 2).await;
                spans.push(span);
                continue;
            }
            Ok(None) => continue,
            Err(error) if error.kind() == ErrorKind::Contention && strikes < PATIENCE => {
                strikes += 1;
                pause(inbox, strikes).await;
                spans.push(span);
                continue;
            }
            Err(error) => return Err(error),
        };
        let Begun { connection, mut items } = begun;
        let span = span.start..span.start + items.len();
        let open = Open::new(connection, inbox.settings.limits);
        let budget = work.may_stop_early().then_some(TRANSACTION_BUDGET);
        match run_items(inbox, &mut items, open, budget).await {
            Ran::All(open, reached) => {
                let rest = span.start + reached..span.end;
                let span = span.start..span.start + reached;
                if !rest.is_empty() {
                    spans.push(rest);
                }
                match work.commit(span.clone(), &items[..reached], open, spans.is_empty()).await {
                    Ok(()) => {
                        committed += reached;
                        strikes = 0;
                    }
                    Err(error) if error.is_transient() && strikes < PATIENCE => {
                        strikes += 1;
                        pause(inbox, strikes).await;
                        spans.push(span);
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                    Err(error) => blame_commit(work, &mut spans, span, &items, error)?,
                }
            }
            Ran::Failed { open, call, earlier, failure } => {
                let ended = match open {
                    Some(open) => open.state.connection.rollback_unless_ended().await,
                    None => false,
                };
                if ended && !earlier.is_empty() {
                    run_alone(&mut spans, span, &call);
                    continue;
                }
                if strikes < PATIENCE && is_transient(inbox, &failure) {
                    strikes += 1;
                    pause(inbox, strikes).await;
                    spans.push(span);
                    continue;
                }
                split(work, &mut spans, span, call, &earlier, failure);
            }
        }
    }
    Ok(committed)
}

enum Ran<St: Store, S> {
    /// The items up to this count were run.
    All(Open<St::Connection>, usize),
    /// A call failed.
    Failed { open: Option<Open<St::Connection>>, call: CallOf<St, S>, earlier: Vec<usize>, failure: Failure },
}

/// A call of one handler with these items.
struct CallOf<St: Store, S> {
    handler: Arc<Registered<St, S>>,
    items: Vec<usize>,
}

async fn run_items<St, S>(
    inbox: &Inbox<St, S>,
    items: &mut [Item<St, S>],
    mut open: Open<St::Connection>,
    budget: Option<Duration>,
) -> Ran<St, S>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let started = Instant::now();
    let mut time = TimeLimit::new();
    let mut earlier = Vec::with_capacity(items.len());
    let mut reached = items.len();
    // What the next call gets.
    let mut messages = Vec::with_capacity(1);
    for index in 0..items.len() {
        let (this, rest) = items[index..].split_at_mut(1);
        let Item { message, attempt, handlers } = &mut this[0];
        let last = handlers.len().saturating_sub(1);
        let batched = handlers.iter().filter(|handler| handler.takes_batch).count();
        if message.is_none() || batched == handlers.len() {
            continue;
        }
        for (number, handler) in handlers.iter().enumerate().filter(|(_, handler)| !handler.takes_batch) {
            let for_last = if number == last && batched == 0 { message.take() } else { message.clone() };
            messages.clear();
            messages.extend(for_last.map(LaneMessage::into_message));
            let call = pin!(call_in_tx(inbox, handler, &mut messages, *attempt, open, &mut time));
            // While the database works for this one, the next one is made ready.
            let (given_back, result) = meanwhile(call, || {
                if let Some(next) = rest.first_mut().and_then(|item| item.message.as_mut()) {
                    next.take_out();
                }
            })
            .await;
            match (given_back, result) {
                (Some(back), Ok(())) => open = back,
                (open, Err(failure)) => {
                    let call = CallOf { handler: handler.clone(), items: vec![index] };
                    return Ran::Failed { open, call, earlier, failure };
                }
                (None, Ok(())) => unreachable!("a handler that kept its transaction has failed"),
            }
        }
        earlier.push(index);
        if budget.is_some_and(|budget| started.elapsed() >= budget) {
            reached = index + 1;
            break;
        }
    }
    let calls = batch_calls(&items[..reached]);
    let alone = calls.len() == 1;
    for call in calls {
        let attempt = call.items.iter().map(|&index| items[index].attempt).max().unwrap_or(1);
        messages.clear();
        messages.extend(call.items.iter().filter_map(|&index| {
            let message = &mut items[index].message;
            let for_last = if alone { message.take() } else { message.clone() };
            for_last.map(LaneMessage::into_message)
        }));
        let (given_back, result) =
            call_in_tx(inbox, &call.handler, &mut messages, attempt, open, &mut time).await;
        match (given_back, result) {
            (Some(back), Ok(())) => open = back,
            (open, Err(failure)) => return Ran::Failed { open, call, earlier, failure },
            (None, Ok(())) => unreachable!("a handler that kept its transaction has failed"),
        }
    }
    Ran::All(open, reached)
}

/// Awaits a future, and does some work of ours when it waits for the first time, if it does.
async fn meanwhile<T>(mut future: Pin<&mut impl Future<Output = T>>, work: impl FnOnce()) -> T {
    let mut work = Some(work);
    poll_fn(|context| {
        let poll = future.as_mut().poll(context);
        if poll.is_pending()
            && let Some(work) = work.take()
        {
            work();
        }
        poll
    })
    .await
}

/// Each handler that takes batches, with the items it wants.
fn batch_calls<St: Store, S>(items: &[Item<St, S>]) -> Vec<CallOf<St, S>> {
    let mut calls: Vec<CallOf<St, S>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        for handler in item.handlers.iter().filter(|handler| handler.takes_batch) {
            match calls.iter_mut().find(|call| Arc::ptr_eq(&call.handler, handler)) {
                Some(call) => call.items.push(index),
                None => calls.push(CallOf { handler: handler.clone(), items: vec![index] }),
            }
        }
    }
    calls
}

/// Blames an item that was alone in its transaction; otherwise runs the stretch again in smaller pieces.
fn split<St, S, W>(
    work: &mut W,
    spans: &mut Vec<Range<usize>>,
    span: Range<usize>,
    call: CallOf<St, S>,
    earlier: &[usize],
    failure: Failure,
) where
    St: Store,
    W: Work<St, S>,
{
    let CallOf { handler, items } = call;
    match items[..] {
        [index] => {
            let absolute = span.start + index;
            let before = span.start..absolute;
            let others_ran = earlier.iter().any(|&ran| ran != index);
            let rest = absolute + 1..span.end;
            if others_ran {
                push_all(spans, [before, absolute..absolute + 1, rest]);
            } else {
                work.blame(absolute, &handler, failure);
                push_all(spans, [span.start..absolute + 1, rest, 0..0]);
            }
        }
        _ => halve(spans, span),
    }
}

/// Runs each item up to the failed call alone: one of them has ended the transaction, those after it may have been
/// committed statement by statement, and none of them may come behind it once more.
fn run_alone<St: Store, S>(spans: &mut Vec<Range<usize>>, span: Range<usize>, call: &CallOf<St, S>) {
    let ran = match call.items[..] {
        [index] => span.start + index + 1,
        _ => span.end,
    };
    if ran < span.end {
        spans.push(ran..span.end);
    }
    one_by_one(spans, span.start..ran);
}

/// A commit that was refused: by a fence, a deferred constraint, an error the handler swallowed, a handler that ended
/// the transaction.
///
/// In that last case nobody knows which of the calls it was, and the calls after it may have been committed statement by
/// statement. They must run again nevertheless, since they may as well have failed; so each runs alone from here on,
/// where halves would put some of them behind the one that ends the transaction again and again.
fn blame_commit<St, S, W>(
    work: &mut W,
    spans: &mut Vec<Range<usize>>,
    span: Range<usize>,
    items: &[Item<St, S>],
    error: Error,
) -> Result<(), Error>
where
    St: Store,
    W: Work<St, S>,
{
    let mut calls = items.iter().take(span.len()).enumerate().filter(|(_, item)| !item.handlers.is_empty());
    let first = calls.next();
    let more = calls.next().is_some();
    match first {
        Some((index, item)) if !more => {
            let text = match error.kind() {
                kind @ (ErrorKind::Fenced | ErrorKind::Ended) => Error::caused(
                    kind,
                    "the transaction could not be committed; return SQL errors instead of swallowing them, \
                     and do not commit or roll back yourself",
                    error,
                ),
                _ => error,
            };
            // With several handlers on one inline message the last one is blamed first; the others then run alone.
            if let Some(handler) = item.handlers.last() {
                work.blame(span.start + index, handler, Failure::from(text));
            }
            spans.push(span);
        }
        Some(_) if error.kind() == ErrorKind::Ended => one_by_one(spans, span),
        Some(_) => halve(spans, span),
        // Nothing was called, so nothing can be blamed: somebody else owns this work now.
        None if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Ended) => {
            tracing::warn!(%error, "a stretch without handler calls could not be committed; it is left to its owner");
        }
        // The store refuses our own rows. Going on at once would only spin.
        None => return Err(error),
    }
    Ok(())
}

fn halve(spans: &mut Vec<Range<usize>>, span: Range<usize>) {
    let middle = span.start + span.len() / 2;
    push_all(spans, [span.start..middle, middle..span.end, 0..0]);
}

fn one_by_one(spans: &mut Vec<Range<usize>>, span: Range<usize>) {
    spans.extend(span.rev().map(|index| index..index + 1));
}

/// Puts spans on the stack so that they are run in the order given.
fn push_all(spans: &mut Vec<Range<usize>>, in_order: [Range<usize>; 3]) {
    spans.extend(in_order.into_iter().rev().filter(|span| !span.is_empty()));
}

fn is_transient<St: Store, S>(inbox: &Inbox<St, S>, failure: &Failure) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(failure.error());
    while let Some(error) = cause {
        if inbox.store.is_transient(error) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A short, growing, jittered wait before the same transaction is begun again.
async fn pause<St: Store, S>(inbox: &Inbox<St, S>, strikes: u32) {
    let jitter = inbox.shared.seed.next() % 20;
    tokio::time::sleep(Duration::from_millis(10 * u64::from(strikes.pow(2)) + jitter)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_once_while_a_future_waits_and_never_instead_of_it() {
        let mut worked = 0;
        let waits = async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(meanwhile(pin!(waits), || worked += 1).await, 7);
        assert_eq!(worked, 1);
        assert_eq!(meanwhile(pin!(std::future::ready(8)), || worked += 1).await, 8);
        assert_eq!(worked, 1, "it never waited");
    }
}
