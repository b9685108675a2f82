//! Takes messages from a source, stores or handles them, and only then acknowledges.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::engine::receive::Ready;
use crate::engine::unreadable::{self, Unreadable};
use crate::error::{Error, ErrorKind};
use crate::inbox::{Inbox, Processed};
use crate::message::Message;
use crate::retry::Backoff;
use crate::source::{Incoming, Settle, Source};
use crate::store::{Arrival, Store};

/// The most messages taken from a source at once.
const AT_ONCE: usize = 1000;

/// No more is read ahead from so many bytes on.
const AHEAD_BYTES: usize = 8 * 1024 * 1024;

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
///
/// While messages are stored the source is told what became of the ones before them, and asked for the next ones.
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
    let mut ahead = Ahead::default();
    // What was taken in and the source does not know yet; nothing unless something was read ahead.
    let mut untold = Vec::new();
    loop {
        let next = match ahead.take() {
            Some(next) => next,
            None => {
                if *stop.borrow() {
                    return;
                }
                if Instant::now() >= lag_at {
                    lag_at = Instant::now() + LAG_EVERY;
                    ask_lag(inbox, &name, source).await;
                }
                let is_paused = paused.borrow_and_update().contains(&name);
                tokio::select! {
                    // In this order, so that nothing is taken once it has been told to pause.
                    biased;
                    _ = stop.wait_for(|stopping| *stopping) => return,
                    // A source that is dropped while it waits has taken nothing.
                    Ok(()) = paused.changed() => continue,
                    next = source.next(AT_ONCE), if !is_paused => next.map(|incoming| {
                        let mut batch = Batch::new(mode);
                        batch.add(inbox, &name, incoming);
                        batch
                    }),
                    () = tokio::time::sleep_until(lag_at) => continue,
                }
            }
        };
        let batch = match next {
            Ok(batch) if batch.is_empty() => return,
            Ok(batch) => batch,
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
            status.delivered += batch.receipts.len() as u64;
        });
        let Batch { receipts, messages } = batch;
        // Handlers take their time, and messages in hand are messages that nobody else gets.
        let mut reads_ahead = mode == Mode::Stored && Instant::now() < lag_at;
        // What the source answered after these comes first.
        reads_ahead &= ahead.then.is_none();
        reads_ahead &= !*stop.borrow() && !paused.borrow_and_update().contains(&name);
        let mut stopping = stop.clone();
        let (stored, is_stored) = oneshot::channel::<()>();
        let storing = async {
            let settled = take_in(inbox, &name, &messages, &mut stop).await;
            drop(stored);
            settled
        };
        let meanwhile = async {
            tell(&name, source, std::mem::take(&mut untold)).await;
            let enough = async {
                tokio::select! {
                    _ = is_stored => {}
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                    Ok(()) = paused.changed() => {}
                }
            };
            if reads_ahead {
                ahead.read(inbox, source, &name, enough).await;
            }
        };
        let (settled, ()) = tokio::join!(storing, meanwhile);
        let go_back = settled.contains(&Settle::Return);
        untold.extend(receipts.into_iter().zip(settled));
        if go_back {
            // They come again, so what is behind them must not be stored before them.
            untold.extend(ahead.give_back());
        }
        if ahead.batch.is_empty() {
            tell(&name, source, std::mem::take(&mut untold)).await;
        }
    }
}

/// What a source has handed over before anybody could store it.
struct Ahead<R> {
    batch: Batch<R>,
    /// What it answered after that, when it was no message: an error, or nothing, because it has ended.
    then: Option<Result<(), Error>>,
}

impl<R> Default for Ahead<R> {
    fn default() -> Self {
        Self { batch: Batch::new(Mode::Stored), then: None }
    }
}

impl<R> Ahead<R> {
    /// Asks the source again and again, until one lot is full, it has no more to say, or `enough` is done.
    async fn read<St, S>(
        &mut self,
        inbox: &Inbox<St, S>,
        source: &mut impl Source<Receipt = R>,
        name: &str,
        enough: impl Future<Output = ()>,
    ) where
        St: Store,
        S: Clone + Send + Sync + 'static,
    {
        let mut enough = pin!(enough);
        while self.batch.receipts.len() < AT_ONCE && self.batch.messages.bytes < AHEAD_BYTES {
            let next = tokio::select! {
                biased;
                () = &mut enough => return,
                next = source.next(AT_ONCE - self.batch.receipts.len()) => next,
            };
            match next {
                Ok(incoming) if !incoming.is_empty() => self.batch.add(inbox, name, incoming),
                none => {
                    self.then = Some(none.map(drop));
                    return;
                }
            }
        }
    }

    /// The source's next answer, if it was asked already.
    fn take(&mut self) -> Option<Result<Batch<R>, Error>> {
        if self.batch.is_empty() {
            return self.then.take().map(|then| then.map(|()| Batch::new(Mode::Stored)));
        }
        Some(Ok(std::mem::replace(&mut self.batch, Batch::new(Mode::Stored))))
    }

    /// Lets the messages come again.
    fn give_back(&mut self) -> impl Iterator<Item = (R, Settle)> {
        let batch = std::mem::replace(&mut self.batch, Batch::new(Mode::Stored));
        batch.receipts.into_iter().map(|receipt| (receipt, Settle::Return))
    }
}

async fn tell<R: Source>(name: &str, source: &mut R, settled: Vec<(R::Receipt, Settle)>) {
    if settled.is_empty() {
        return;
    }
    if let Err(error) = source.settle(settled).await {
        // What was committed comes again and is a duplicate then.
        tracing::warn!(source = name, %error, "the source could not be told what became of its messages");
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

/// Messages that are taken in together, and what their source needs to settle them.
struct Batch<R> {
    receipts: Vec<R>,
    messages: Messages,
}

struct Messages {
    good: Good,
    unreadable: Vec<Unreadable>,
    /// Which of the two comes at each place.
    is_good: Vec<bool>,
    /// Of all of them.
    bytes: usize,
}

/// Messages that are taken in as they are.
enum Good {
    /// With their spans, which end when they are stored.
    Stored(Ready, Vec<tracing::Span>),
    Inline(Vec<Message>),
}

impl<R> Batch<R> {
    fn new(mode: Mode) -> Self {
        let good = match mode {
            Mode::Stored => Good::Stored(Ready::default(), Vec::new()),
            Mode::Inline => Good::Inline(Vec::new()),
        };
        let messages = Messages { good, unreadable: Vec::new(), is_good: Vec::new(), bytes: 0 };
        Self { receipts: Vec::new(), messages }
    }

    fn is_empty(&self) -> bool {
        self.receipts.is_empty()
    }

    fn add<St, S>(&mut self, inbox: &Inbox<St, S>, source: &str, incoming: Vec<Incoming<R>>)
    where
        St: Store,
        S: Clone + Send + Sync + 'static,
    {
        let Self { receipts, messages: Messages { good, unreadable, is_good, bytes } } = self;
        receipts.reserve(incoming.len());
        let mut readable = Vec::with_capacity(incoming.len());
        for Incoming { mut message, receipt, fault } in incoming {
            receipts.push(receipt);
            if message.scope.is_empty() {
                message.scope = source.to_owned();
            }
            let fault =
                fault.or_else(|| inbox.settings.limits.check(&message).err().map(|error| error.to_string()));
            is_good.push(fault.is_none());
            *bytes += message.size();
            match fault {
                None => readable.push(message),
                Some(fault) => unreadable.push(Unreadable::new(message, fault)),
            }
        }
        match good {
            Good::Stored(ready, spans) => {
                spans.extend(readable.iter_mut().filter_map(|message| inbox.receive_span(message)));
                ready.extend(&readable);
            }
            Good::Inline(messages) => messages.extend(readable),
        }
    }
}

/// Takes messages in, trying again while the store is away, and answers how to settle each.
async fn take_in<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    messages: &Messages,
    stop: &mut watch::Receiver<bool>,
) -> Vec<Settle>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let Messages { good, unreadable, is_good, .. } = messages;
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let mut failures = 0;
    let (mut good_settled, mut unreadable_settled) = (None, None);
    loop {
        let attempt = async {
            if good_settled.is_none() {
                good_settled = Some(match take_in_once(inbox, good).await {
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        take_in_singly(inbox, source, good).await?
                    }
                    settled => settled?,
                });
            }
            if unreadable_settled.is_none() {
                unreadable_settled = Some(unreadable::keep(inbox, source, unreadable).await?);
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
    let settled = is_good.iter().map(|is_good| if *is_good { good.next() } else { unreadable.next() });
    settled.map(|settle| settle.unwrap_or(Settle::Return)).collect()
}

/// One of them breaks a limit of the store's own (its largest packet, say): the others must not wait for it.
async fn take_in_singly<St, S>(inbox: &Inbox<St, S>, source: &str, good: &Good) -> Result<Vec<Settle>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let messages: Vec<Message> = match good {
        Good::Stored(ready, _) => ready.arrivals().map(Arrival::to_message).collect(),
        Good::Inline(messages) => messages.clone(),
    };
    let mut settled = Vec::with_capacity(messages.len());
    for message in messages {
        let one = std::slice::from_ref(&message);
        let alone = match good {
            Good::Stored(..) => Good::Stored(Ready::new(one), Vec::new()),
            Good::Inline(_) => Good::Inline(one.to_vec()),
        };
        settled.extend(match take_in_once(inbox, &alone).await {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let unreadable = Unreadable::new(message, error.to_string());
                unreadable::keep(inbox, source, &[unreadable]).await?
            }
            settled => settled?,
        });
    }
    Ok(settled)
}

async fn take_in_once<St, S>(inbox: &Inbox<St, S>, good: &Good) -> Result<Vec<Settle>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    match good {
        Good::Stored(ready, _) => {
            let received = inbox.receive_ready(ready.clone()).await?;
            Ok(vec![Settle::Accept; received.len()])
        }
        Good::Inline(messages) => {
            let processed = inbox.process_all(messages.clone()).await?;
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
