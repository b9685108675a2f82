//! Takes messages from a source, stores or handles them, and only then acknowledges.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::unreadable::{self, Unreadable};
use crate::error::{Error, ErrorKind};
use crate::inbox::{Inbox, Processed};
use crate::message::Message;
use crate::retry::Backoff;
use crate::source::{Incoming, Settle, Source};
use crate::store::Store;

/// The most messages taken from a source at once.
const AT_ONCE: usize = 1000;

/// How messages of a source are taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Stored now, handled by the runner.
    Stored,
    /// Handled now.
    Inline,
}

/// How often a source is asked how much waits at its other side.
const LAG_EVERY: Duration = Duration::from_secs(5);

/// Runs until the source ends or `stop` turns true. What the source had handed over by then is still taken in.
pub(crate) async fn consume<St, S, R>(
    inbox: &Inbox<St, S>,
    source: &mut R,
    mode: Mode,
    mut stop: watch::Receiver<bool>,
) where
    St: Store,
    S: Clone + Send + Sync + 'static,
    R: Source,
{
    let name = source.name().to_owned();
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    let mut failures = 0;
    let mut lag_at = Instant::now();
    let mut ahead = Ahead::default();
    while !*stop.borrow() || !ahead.incoming.is_empty() {
        if Instant::now() >= lag_at {
            lag_at = Instant::now() + LAG_EVERY;
            ask_lag(inbox, &name, source).await;
        }
        let next = match ahead.take() {
            Some(next) => next,
            None => tokio::select! {
                next = source.next(AT_ONCE) => next,
                () = tokio::time::sleep_until(lag_at) => continue,
                _ = stop.wait_for(|stopping| *stopping) => return,
            },
        };
        let incoming = match next {
            Ok(incoming) if incoming.is_empty() => return,
            Ok(incoming) => incoming,
            Err(error) => {
                failures += 1;
                tracing::warn!(source = name, %error, "the source failed; it is asked again");
                inbox.shared.note_source(&name, |status| {
                    status.connected = false;
                    status.error = Some(error.to_string());
                });
                wait(&mut stop, backoff.delay(failures, inbox.shared.seed.next())).await;
                continue;
            }
        };
        failures = 0;
        inbox.shared.note_source(&name, |status| {
            status.connected = true;
            status.error = None;
            status.delivered += incoming.len() as u64;
        });
        let (sorted, receipts) = sort(inbox, &name, incoming);
        // Without an inbox a failed message comes again from the source, and must come before what follows it.
        let asks_ahead = !*stop.borrow() && inbox.settings.remembers;
        let taking_in = take_in(inbox, &name, sorted, mode, &mut stop);
        let settled = if asks_ahead { ahead.fill_while(source, taking_in).await } else { taking_in.await };
        let is_returned = settled.contains(&Settle::Return);
        let mut settled: Vec<_> = receipts.into_iter().zip(settled).collect();
        if is_returned {
            // So that nothing overtakes what goes back.
            settled.extend(ahead.incoming.drain(..).map(|one| (one.receipt, Settle::Return)));
        }
        if let Err(error) = source.settle(settled).await {
            // What was committed comes again and is a duplicate then.
            tracing::warn!(source = name, %error, "the source could not be told what became of its messages");
        }
    }
}

/// The next lot, asked for while the store works on the one before: neither of the two waits for the other.
///
/// It is never more than one lot, and never begun before the one before it is settled, so order stays as it is.
#[derive(Debug)]
struct Ahead<R> {
    incoming: Vec<Incoming<R>>,
    /// The source has ended or failed after these.
    last: Option<Result<(), Error>>,
}

impl<R> Default for Ahead<R> {
    fn default() -> Self {
        Self { incoming: Vec::new(), last: None }
    }
}

impl<R: Send> Ahead<R> {
    /// What was asked for ahead, as the source would have answered.
    fn take(&mut self) -> Option<Result<Vec<Incoming<R>>, Error>> {
        if !self.incoming.is_empty() {
            return Some(Ok(std::mem::take(&mut self.incoming)));
        }
        self.last.take().map(|last| last.map(|()| Vec::new()))
    }

    /// Does some work and collects what the source has meanwhile. Asking is given up when the work is done.
    async fn fill_while<T>(
        &mut self,
        source: &mut impl Source<Receipt = R>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        while self.last.is_none() && self.incoming.len() < AT_ONCE {
            tokio::select! {
                biased;
                done = &mut work => return done,
                next = source.next(AT_ONCE - self.incoming.len()) => match next {
                    Ok(more) if more.is_empty() => self.last = Some(Ok(())),
                    Ok(more) => self.incoming.extend(more),
                    Err(error) => self.last = Some(Err(error)),
                },
            }
        }
        work.await
    }
}

/// Notes how much waits at the other side; a source that answers is connected again.
async fn ask_lag<St: Store, S, R: Source>(inbox: &Inbox<St, S>, name: &str, source: &mut R) {
    let answer = tokio::time::timeout(LAG_EVERY, source.lag()).await;
    let connected = source.connected();
    inbox.shared.note_source(name, |status| match answer {
        Ok(Ok(lag)) => {
            status.connected = connected.unwrap_or(status.connected || lag.is_some());
            status.error = status.error.take().filter(|_| !status.connected);
            status.lag = lag;
        }
        Ok(Err(error)) => {
            status.connected = false;
            status.error = Some(error.to_string());
        }
        Err(_) => status.error = Some(format!("the source did not answer within {LAG_EVERY:?}")),
    });
}

/// What is taken in as it is, what is kept as unreadable, and which of the two comes at each place.
#[derive(Debug, Default)]
struct Sorted {
    good: Vec<Message>,
    unreadable: Vec<Unreadable>,
    is_good: Vec<bool>,
}

fn sort<St: Store, S, R>(inbox: &Inbox<St, S>, source: &str, incoming: Vec<Incoming<R>>) -> (Sorted, Vec<R>) {
    let mut sorted = Sorted::default();
    let mut receipts = Vec::with_capacity(incoming.len());
    for Incoming { mut message, receipt, fault } in incoming {
        if message.scope.is_empty() {
            message.scope = source.to_owned();
        }
        let fault =
            fault.or_else(|| inbox.settings.limits.check(&message).err().map(|error| error.to_string()));
        sorted.is_good.push(fault.is_none());
        match fault {
            None => sorted.good.push(message),
            Some(fault) => sorted.unreadable.push(Unreadable::new(message, fault)),
        }
        receipts.push(receipt);
    }
    (sorted, receipts)
}

/// Takes messages in, trying again while the store is away, and answers how to settle each.
async fn take_in<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    sorted: Sorted,
    mode: Mode,
    stop: &mut watch::Receiver<bool>,
) -> Vec<Settle>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let Sorted { good, unreadable, is_good } = sorted;
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let mut failures = 0;
    let (mut good_settled, mut unreadable_settled) = (None, None);
    loop {
        let attempt = async {
            if good_settled.is_none() {
                good_settled = Some(match take_in_once(inbox, &good, mode).await {
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        take_in_singly(inbox, source, &good, mode).await?
                    }
                    settled => settled?,
                });
            }
            if unreadable_settled.is_none() {
                unreadable_settled = Some(unreadable::keep(inbox, source, &unreadable).await?);
            }
            Ok::<_, Error>(())
        };
        let Err(error) = attempt.await else { break };
        failures += 1;
        tracing::warn!(source, %error, "messages could not be stored; nothing is acknowledged");
        // Unacknowledged messages come again, so stopping loses nothing.
        if wait(stop, backoff.delay(failures, inbox.shared.seed.next())).await {
            break;
        }
    }
    let mut good = good_settled.unwrap_or_default().into_iter();
    let mut unreadable = unreadable_settled.unwrap_or_default().into_iter();
    let settled = is_good.into_iter().map(|is_good| if is_good { good.next() } else { unreadable.next() });
    settled.map(|settle| settle.unwrap_or(Settle::Return)).collect()
}

/// One of them breaks a limit of the store's own (its largest packet, say): the others must not wait for it.
async fn take_in_singly<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    messages: &[Message],
    mode: Mode,
) -> Result<Vec<Settle>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let mut settled = Vec::with_capacity(messages.len());
    for message in messages {
        settled.extend(match take_in_once(inbox, std::slice::from_ref(message), mode).await {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let unreadable = Unreadable::new(message.clone(), error.to_string());
                unreadable::keep(inbox, source, &[unreadable]).await?
            }
            settled => settled?,
        });
    }
    Ok(settled)
}

async fn take_in_once<St, S>(
    inbox: &Inbox<St, S>,
    messages: &[Message],
    mode: Mode,
) -> Result<Vec<Settle>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    match mode {
        Mode::Stored => {
            let received = inbox.receive(messages).await?;
            Ok(vec![Settle::Accept; received.len()])
        }
        Mode::Inline => {
            let processed = inbox.process_all(messages.to_vec()).await?;
            let settle = |processed: &Processed| match processed {
                Processed::Failed(_) => Settle::Return,
                _ => Settle::Accept,
            };
            Ok(processed.iter().map(settle).collect())
        }
    }
}

/// Waits; true when it is time to stop.
async fn wait(stop: &mut watch::Receiver<bool>, delay: Duration) -> bool {
    tokio::time::timeout(delay, stop.wait_for(|stopping| *stopping)).await.is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Hands over lots that are written down here, then waits for ever.
    #[derive(Debug, Default)]
    struct Written(VecDeque<Result<Vec<u64>, Error>>);

    impl Source for Written {
        type Receipt = u64;

        fn name(&self) -> &str {
            "written"
        }

        async fn next(&mut self, most: usize) -> Result<Vec<Incoming<u64>>, Error> {
            let Some(next) = self.0.pop_front() else { return std::future::pending().await };
            let mut receipts = next?;
            if receipts.len() > most {
                self.0.push_front(Ok(receipts.split_off(most)));
            }
            Ok(receipts.into_iter().map(|receipt| Incoming::new(Message::new("k", ""), receipt)).collect())
        }

        async fn settle(&mut self, _settled: Vec<(u64, Settle)>) -> Result<(), Error> {
            Ok(())
        }
    }

    fn receipts(answer: Option<Result<Vec<Incoming<u64>>, Error>>) -> Vec<u64> {
        let incoming = answer.expect("something was asked for ahead").expect("it is no error");
        incoming.into_iter().map(|one| one.receipt).collect()
    }

    /// Work that ends when the source has been asked for all it has.
    async fn work() -> &'static str {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        "done"
    }

    #[tokio::test]
    async fn what_comes_while_the_store_works_is_the_next_lot() {
        let mut ahead = Ahead::default();
        let mut source = Written([Ok(vec![1, 2]), Ok(vec![3])].into());
        assert_eq!(ahead.fill_while(&mut source, work()).await, "done");
        assert_eq!(receipts(ahead.take()), [1, 2, 3], "in order, as one lot");
        assert!(ahead.take().is_none());
    }

    #[tokio::test]
    async fn no_more_than_one_lot_is_asked_for_ahead() {
        let mut ahead = Ahead::default();
        let all: Vec<u64> = (0..2500).collect();
        let mut source = Written([Ok(all[..700].to_vec()), Ok(all[700..].to_vec())].into());
        ahead.fill_while(&mut source, work()).await;
        assert_eq!(receipts(ahead.take()), all[..AT_ONCE]);
        assert_eq!(source.0.pop_front().expect("the rest is still there").expect("no error"), all[AT_ONCE..]);
    }

    #[tokio::test]
    async fn an_error_or_the_end_is_told_after_what_came_before_it() {
        let away = || Err(Error::new(ErrorKind::Unavailable, "away"));
        let mut ahead = Ahead::default();
        let mut source = Written([Ok(vec![1]), away(), Ok(vec![2]), Ok(vec![])].into());
        ahead.fill_while(&mut source, work()).await;
        assert_eq!(receipts(ahead.take()), [1]);
        assert!(ahead.take().is_some_and(|answer| answer.is_err()));
        ahead.fill_while(&mut source, work()).await;
        assert_eq!(receipts(ahead.take()), [2]);
        assert_eq!(receipts(ahead.take()), [0; 0], "the end");
    }
}
