//! Moves messages from the outbox to a sink. No transaction is open while the sink works.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::counters::Counter;
use crate::engine::new_token;
use crate::error::{Error, ErrorKind};
use crate::inbox::Inbox;
use crate::message::Message;
use crate::sink::{Relay, SendFailure, Sink};
use crate::store::{AskOutgoing, Outgoing, SendOutcome, Sent, Store, Token};
use crate::trace::TraceContext;

/// How long lanes of the outbox stay ours without being asked for again. Longer than one call of a sink may take.
const LANES_FOR: Duration = Duration::from_secs(30);

/// Sends what is due until nothing is. Answers whether anything was sent or tried.
pub(crate) async fn step<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    stop: impl Fn() -> bool,
) -> Result<bool, Error> {
    let token = new_token(&inbox.shared.seed);
    let mut any = false;
    let result = loop {
        if stop() {
            break Ok(());
        }
        let limit = if relay.careful.load(Ordering::Relaxed) { 1 } else { relay.batch };
        let ask = AskOutgoing { sink: &relay.name, token, limit, lease_for: LANES_FOR };
        let due = match inbox.store.lease_outgoing(&ask).await {
            Ok(due) if due.is_empty() => {
                relay.careful.store(false, Ordering::Relaxed);
                break Ok(());
            }
            Ok(due) => due,
            Err(error) => break Err(error),
        };
        any = true;
        let sent = match bury_unreadable(inbox, relay, token, due).await {
            Ok(due) => send(inbox, relay, token, due).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            break Err(error);
        }
    };
    if any {
        let released = inbox.store.settle_outgoing(&relay.name, token, &[], true).await;
        if let (Ok(()), Err(error)) = (&result, released) {
            tracing::debug!(sink = relay.name, %error, "lanes of the outbox could not be given back; they time out");
        }
    }
    result.map(|()| any)
}

/// Messages that cannot be read: dead, without being sent. Answers the others.
async fn bury_unreadable<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    token: Token,
    due: Vec<Outgoing>,
) -> Result<Vec<Outgoing>, Error> {
    let (unreadable, due): (Vec<_>, Vec<_>) =
        due.into_iter().partition(|outgoing| outgoing.unreadable.is_some());
    if !unreadable.is_empty() {
        let reason = |outgoing: &Outgoing| outgoing.unreadable.clone().unwrap_or_default();
        let answers = unreadable.iter().map(|outgoing| Err(SendFailure::Permanent(reason(outgoing))));
        let answers = answers.collect();
        settle(inbox, relay, token, &unreadable, answers, &mut HashSet::new()).await?;
    }
    Ok(due)
}

/// Sends one lot, in waves where the sink does not keep order by itself.
async fn send<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    token: Token,
    due: Vec<Outgoing>,
) -> Result<(), Error> {
    let waves = if relay.sink.keeps_order() { vec![due] } else { waves(due) };
    // Keys with a message that was not confirmed: what comes after it in this lot waits with it.
    let mut stuck: HashSet<String> = HashSet::new();
    for wave in waves {
        let wave: Vec<Outgoing> = wave
            .into_iter()
            .filter(|outgoing| !outgoing.message.key.as_ref().is_some_and(|key| stuck.contains(key)))
            .collect();
        if wave.is_empty() {
            continue;
        }
        let mut messages: Vec<Message> = wave.iter().map(|outgoing| outgoing.message.clone()).collect();
        let spans = send_spans(inbox, &relay.name, &mut messages);
        let sending = tokio::time::timeout(relay.timeout, relay.sink.send(&messages)).await;
        let answers = match sending {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => {
                let text = format!("sink `{}` cannot be reached", relay.name);
                return Err(Error::caused(ErrorKind::Unavailable, text, error));
            }
            // Alone, it is the message's own doing; in a lot, nobody can tell, so they go one by one.
            Err(_) if messages.len() == 1 => {
                relay.careful.store(false, Ordering::Relaxed);
                vec![Err(SendFailure::Retry(format!(
                    "the sink did not confirm it within {:?}",
                    relay.timeout
                )))]
            }
            Err(_) => {
                relay.careful.store(true, Ordering::Relaxed);
                let text = format!("sink `{}` did not confirm within {:?}", relay.name, relay.timeout);
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        };
        for (span, answer) in spans.iter().zip(&answers) {
            if let Err(SendFailure::Retry(text) | SendFailure::Permanent(text)) = answer {
                span.record("failure", text);
            }
        }
        drop(spans);
        settle(inbox, relay, token, &wave, answers, &mut stuck).await?;
    }
    Ok(())
}

async fn settle<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    token: Token,
    wave: &[Outgoing],
    answers: Vec<Result<(), SendFailure>>,
    stuck: &mut HashSet<String>,
) -> Result<(), Error> {
    let (mut sent, mut failed, mut dead) = (0, 0, 0);
    let mut answers = answers.into_iter();
    let mut results = Vec::with_capacity(wave.len());
    // Keys with a message in this wave that is to be tried again, or was for the last time.
    let mut untried: HashSet<&String> = HashSet::new();
    for outgoing in wave {
        let answer = answers.next().unwrap_or_else(|| {
            Err(SendFailure::Retry("the sink did not say whether it has the message".to_owned()))
        });
        let attempt = outgoing.attempts + 1;
        let key = outgoing.message.key.as_ref();
        let outcome = match answer {
            // A sink that keeps order did not try it, because of the one before it: it waits with that one.
            Err(SendFailure::Retry(_)) if key.is_some_and(|key| untried.contains(key)) => continue,
            Ok(()) => {
                sent += 1;
                SendOutcome::Confirmed
            }
            Err(SendFailure::Retry(error)) if attempt < relay.max_attempts => {
                untried.extend(key);
                failed += 1;
                SendOutcome::Retry(relay.backoff.delay(attempt, inbox.shared.seed.next()), error)
            }
            Err(failure) => {
                untried.extend(key.filter(|_| matches!(failure, SendFailure::Retry(_))));
                failed += 1;
                dead += 1;
                let (SendFailure::Retry(error) | SendFailure::Permanent(error)) = failure;
                SendOutcome::Dead(error)
            }
        };
        if matches!(outcome, SendOutcome::Retry(..)) {
            stuck.extend(key.cloned());
        }
        results.push(Sent { seq: outgoing.seq, outcome });
    }
    inbox.store.settle_outgoing(&relay.name, token, &results, false).await?;
    let counters = &inbox.shared.counters;
    counters.add(&relay.name, Counter::Sent, sent);
    counters.add(&relay.name, Counter::SendFailed, failed);
    counters.add(&relay.name, Counter::SendDead, dead);
    if dead > 0 {
        tracing::warn!(sink = relay.name, dead, "outgoing messages were refused for good");
    }
    Ok(())
}

/// A span per message, which the copy that is sent carries; none unless traces are wanted.
fn send_spans<St: Store, S>(
    inbox: &Inbox<St, S>,
    sink: &str,
    messages: &mut [Message],
) -> Vec<tracing::Span> {
    if inbox.settings.traces.is_none() {
        return Vec::new();
    }
    let spans = messages.iter_mut().map(|message| {
        let Some(trace) = TraceContext::extract(&message.headers) else { return tracing::Span::none() };
        let trace = trace.child(inbox.shared.seed.next());
        trace.replace(&mut message.headers);
        tracing::debug_span!(
            "oncebox.send",
            sink,
            id = message.id,
            kind = message.kind,
            trace_id = trace.trace_id(),
            span_id = trace.span_id(),
            parent_id = trace.parent_id(),
            sampled = trace.is_sampled(),
            failure = tracing::field::Empty,
        )
    });
    spans.collect()
}

/// Splits a lot so that no key appears twice in a wave; messages without a key go in the first.
fn waves(due: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut waves: Vec<Vec<Outgoing>> = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for outgoing in due {
        let wave = match &outgoing.message.key {
            Some(key) => {
                let turn = seen.entry(key.clone()).or_default();
                *turn += 1;
                *turn - 1
            }
            None => 0,
        };
        if waves.len() <= wave {
            waves.push(Vec::new());
        }
        waves[wave].push(outgoing);
    }
    waves
}
