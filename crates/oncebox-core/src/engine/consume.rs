//! Takes messages from a source, stores or handles them, and only then acknowledges.

use std::time::Duration;

use tokio::sync::watch;

use crate::counters::Counter;
use crate::error::Error;
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
    while !*stop.borrow() {
        let next = tokio::select! {
            next = source.next(AT_ONCE) => next,
            _ = stop.wait_for(|stopping| *stopping) => return,
        };
        let incoming = match next {
            Ok(incoming) if incoming.is_empty() => return,
            Ok(incoming) => incoming,
            Err(error) => {
                failures += 1;
                tracing::warn!(source = name, %error, "the source failed; it is asked again");
                wait(&mut stop, backoff.delay(failures, inbox.shared.seed.next())).await;
                continue;
            }
        };
        failures = 0;
        let (messages, receipts) = unpack(inbox, &name, incoming);
        let settled = take_in(inbox, &name, messages, mode, &mut stop).await;
        if let Err(error) = source.settle(receipts.into_iter().zip(settled).collect()).await {
            // What was committed comes again and is a duplicate then.
            tracing::warn!(source = name, %error, "the source could not be told what became of its messages");
        }
    }
}

/// Messages that keep the limits, and `None` for those that do not.
fn unpack<St: Store, S, R>(
    inbox: &Inbox<St, S>,
    source: &str,
    incoming: Vec<Incoming<R>>,
) -> (Vec<Option<Message>>, Vec<R>) {
    let unpacked = incoming.into_iter().map(|Incoming { mut message, receipt }| {
        if message.scope.is_empty() {
            message.scope = source.to_owned();
        }
        let checked = inbox.settings.limits.check(&message);
        if let Err(error) = &checked {
            inbox.shared.counters.add("", Counter::Refused, 1);
            tracing::error!(source, %error, "a message was refused; it goes back to the source as rejected");
        }
        (checked.is_ok().then_some(message), receipt)
    });
    unpacked.unzip()
}

/// Takes messages in, trying again while the store is away, and answers how to settle each.
async fn take_in<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    messages: Vec<Option<Message>>,
    mode: Mode,
    stop: &mut watch::Receiver<bool>,
) -> Vec<Settle>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let good: Vec<Message> = messages.iter().flatten().cloned().collect();
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let mut failures = 0;
    let answers = loop {
        match take_in_once(inbox, &good, mode).await {
            Ok(answers) => break answers,
            Err(error) => {
                failures += 1;
                tracing::warn!(source, %error, "messages could not be stored; nothing is acknowledged");
            }
        }
        // Unacknowledged messages come again, so stopping loses nothing.
        if wait(stop, backoff.delay(failures, inbox.shared.seed.next())).await {
            break vec![Settle::Return; good.len()];
        }
    };
    let mut answers = answers.into_iter();
    messages
        .iter()
        .map(|message| match message {
            Some(_) => answers.next().unwrap_or(Settle::Return),
            None => Settle::Reject,
        })
        .collect()
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
