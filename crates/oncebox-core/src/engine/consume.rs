//! Takes messages from a source, stores or handles them, and only then acknowledges.

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

/// Runs until the source ends or `stop` turns true.
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
    let mut paused = inbox.shared.paused_sources();
    while !*stop.borrow() {
        if Instant::now() >= lag_at {
            lag_at = Instant::now() + LAG_EVERY;
            ask_lag(inbox, &name, source).await;
        }
        let is_paused = paused.borrow_and_update().contains(&name);
        let next = tokio::select! {
            // In this order, so that nothing is taken once it has been told to pause.
            biased;
            _ = stop.wait_for(|stopping| *stopping) => return,
            // A source that is dropped while it waits has taken nothing.
            Ok(()) = paused.changed() => continue,
            next = source.next(AT_ONCE), if !is_paused => next,
            () = tokio::time::sleep_until(lag_at) => continue,
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
        let settled = take_in(inbox, &name, sorted, mode, &mut stop).await;
        if let Err(error) = source.settle(receipts.into_iter().zip(settled).collect()).await {
            // What was committed comes again and is a duplicate then.
            tracing::warn!(source = name, %error, "the source could not be told what became of its messages");
        }
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
