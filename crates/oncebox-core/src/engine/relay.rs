//! Moves messages from the outbox to a sink. No transaction is open while the sink works.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse, FusedFuture};
use tokio::time::Instant;

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

/// How many lots of the sink's size are leased at once, so that some can be written down while others are sent.
const LOTS: usize = 8;

/// About the most bytes of payloads in several lots; with larger messages one lot is leased at a time, as memory holds it.
const LOTS_BYTES: usize = 16 * 1024 * 1024;

/// With this many lots left to send, or fewer, the next lease is asked for, so that the sink need not wait for it.
const LOTS_LEFT: usize = 2;

/// What was leased, and since when the lanes are ours at the latest.
#[derive(Debug)]
struct Leased {
    due: Vec<Outgoing>,
    at: Instant,
    /// As many as were asked for, so that more may wait.
    full: bool,
}

/// Whether the lanes stay ours until one more call of the sink has been answered and written down.
fn holds<K>(leased_at: Instant, relay: &Relay<K>) -> bool {
    leased_at.elapsed() + relay.timeout <= LANES_FOR * 14 / 15
}

/// Sends what is due until nothing is. Answers whether anything was sent or tried.
pub(crate) async fn step<St: Store, S: Send + Sync, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    stop: impl Fn() -> bool,
) -> Result<bool, Error> {
    let token = new_token(&inbox.shared.seed);
    let mut any = false;
    // How large the messages are is not known yet.
    let mut lots = 1;
    let mut meanwhile = Meanwhile::new(inbox, relay, token);
    let result = loop {
        if stop() {
            break Ok(());
        }
        let leased = match meanwhile.next_lease(lots).await {
            Ok(leased) => leased,
            Err(error) => break Err(error),
        };
        if leased.due.is_empty() {
            relay.careful.store(false, Ordering::Relaxed);
            break Ok(());
        }
        any = true;
        lots = lots_next(&leased.due, relay.batch);
        if let Err(error) = send(&mut meanwhile, leased, lots).await {
            break Err(error);
        }
    };
    // A lease that is asked for must not outlive the giving back of the lanes.
    let result = meanwhile.finish().await.and(result);
    if any {
        let released = inbox.store.settle_outgoing(&relay.name, token, &[], true).await;
        if let (Ok(()), Err(error)) = (&result, released) {
            tracing::debug!(sink = relay.name, %error, "lanes of the outbox could not be given back; they time out");
        }
    }
    result.map(|()| any)
}

async fn lease<St: Store, S, K>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    token: Token,
    limit: usize,
) -> Result<Leased, Error> {
    // Before the store is asked: its clock may run for as long as the answer takes.
    let at = Instant::now();
    let ask = AskOutgoing { sink: &relay.name, token, limit, lease_for: LANES_FOR };
    let due = inbox.store.lease_outgoing(&ask).await?;
    let full = due.len() >= limit;
    Ok(Leased { due, at, full })
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
        let judged = judge(inbox, relay, &unreadable, answers.collect(), &mut HashSet::new());
        write(inbox, relay, token, judged).await?;
    }
    Ok(due)
}

/// Sends what was leased, in lots of the sink's size, in waves where the sink does not keep order by itself.
///
/// What became of a wave is written while the next ones are on their way. If that fails, or the process dies, the waves
/// not yet written are sent again.
async fn send<St: Store, S: Send + Sync, K: Sink>(
    meanwhile: &mut Meanwhile<'_, St, S, K>,
    leased: Leased,
    lots: usize,
) -> Result<(), Error> {
    // Keys with a message that was not confirmed: what comes after it waits with it.
    let mut stuck: HashSet<String> = HashSet::new();
    let sent = send_waves(leased, lots, meanwhile, &mut stuck).await;
    if stuck.is_empty() && matches!(sent, Ok(true)) {
        // The last waves are written while the next ones are sent.
        return meanwhile.wait_for_lease().await;
    }
    let all = meanwhile.finish().await.and(sent)?;
    meanwhile.ahead = meanwhile.ahead.take().filter(|_| all);
    if let Some(ahead) = &mut meanwhile.ahead {
        // It may have been read before the failure was noted.
        ahead.due.retain(|outgoing| !is_stuck(outgoing, &stuck));
    }
    Ok(())
}

/// Answers whether all had their turn, those apart whose key is stuck.
async fn send_waves<St: Store, S: Send + Sync, K: Sink>(
    leased: Leased,
    lots: usize,
    meanwhile: &mut Meanwhile<'_, St, S, K>,
    stuck: &mut HashSet<String>,
) -> Result<bool, Error> {
    let Meanwhile { inbox, relay, token, .. } = *meanwhile;
    let Leased { due, at, full } = leased;
    let due = meanwhile.during(bury_unreadable(inbox, relay, token, due)).await?;
    let (mut left, mut sent_one) = (due.len(), false);
    // With large messages, memory holds one lot.
    let mut more = full && lots > 1;
    for wave in split(due, relay) {
        if more && left <= LOTS_LEFT * relay.batch && !relay.careful.load(Ordering::Relaxed) {
            meanwhile.lease_ahead(relay.batch * lots);
            more = false;
        }
        left -= wave.len();
        let mut wave: Vec<Outgoing> =
            wave.into_iter().filter(|outgoing| !is_stuck(outgoing, stuck)).collect();
        if wave.is_empty() {
            continue;
        }
        // The lanes might be somebody else's before this wave is answered for; the rest is leased again.
        if sent_one && !holds(at, relay) {
            return Ok(false);
        }
        let answers = meanwhile.during(send_wave(inbox, relay, &mut wave)).await?;
        sent_one = true;
        meanwhile.waiting.append(judge(inbox, relay, &wave, answers, stuck));
    }
    Ok(true)
}

fn is_stuck(outgoing: &Outgoing, stuck: &HashSet<String>) -> bool {
    outgoing.message.key.as_ref().is_some_and(|key| stuck.contains(key))
}

/// What the store does while the sink works: it writes what became of waves, one statement at a time (what comes meanwhile
/// is written together by the next one), and leases what is to be sent next.
struct Meanwhile<'a, St: Store, S, K> {
    inbox: &'a Inbox<St, S>,
    relay: &'a Relay<K>,
    token: Token,
    /// What was leased and is not written yet.
    in_hand: HashSet<i64>,
    /// What was written since the lease was asked for that is under way: it may answer with them still.
    written: Vec<i64>,
    waiting: Judged,
    writing: Fuse<BoxFuture<'a, Result<Vec<i64>, Error>>>,
    leasing: Fuse<BoxFuture<'a, Result<Leased, Error>>>,
    ahead: Option<Leased>,
}

impl<'a, St: Store, S: Send + Sync, K: Sink> Meanwhile<'a, St, S, K> {
    fn new(inbox: &'a Inbox<St, S>, relay: &'a Relay<K>, token: Token) -> Self {
        Self {
            inbox,
            relay,
            token,
            in_hand: HashSet::new(),
            written: Vec::new(),
            waiting: Judged::default(),
            writing: Fuse::terminated(),
            leasing: Fuse::terminated(),
            ahead: None,
        }
    }

    /// What is to be sent next: what was leased ahead, or else so many lots.
    async fn next_lease(&mut self, lots: usize) -> Result<Leased, Error> {
        let relay = self.relay;
        // A store that is slower than the sink must not leave more and more to be sent again, should the process die.
        while self.in_hand.len() > LOTS_LEFT * relay.batch && !self.is_idle() {
            self.start_writing();
            let written = (&mut self.writing).await;
            self.note(written)?;
        }
        let ahead = self.ahead.take().filter(|ahead| !ahead.due.is_empty() && holds(ahead.at, relay));
        let leased = match ahead {
            Some(leased) => leased,
            None => {
                self.finish().await?;
                let careful = relay.careful.load(Ordering::Relaxed);
                let limit = if careful { 1 } else { relay.batch * lots };
                lease(self.inbox, relay, self.token, limit).await?
            }
        };
        // Those that cannot be read are dead before the next lease is asked for.
        let readable = leased.due.iter().filter(|outgoing| outgoing.unreadable.is_none());
        self.in_hand.extend(readable.map(|outgoing| outgoing.seq));
        Ok(leased)
    }

    fn lease_ahead(&mut self, limit: usize) {
        // The store answers with what is in hand, too.
        let limit = self.in_hand.len() + limit;
        self.leasing = lease(self.inbox, self.relay, self.token, limit).boxed().fuse();
    }

    /// Waits for a lease that was asked for.
    async fn wait_for_lease(&mut self) -> Result<(), Error> {
        while !self.leasing.is_terminated() {
            self.start_writing();
            tokio::select! {
                written = &mut self.writing => self.note(written)?,
                leased = &mut self.leasing => self.keep(leased),
            }
        }
        Ok(())
    }

    /// Runs this future. An error of the store while writing ends it.
    async fn during<T>(&mut self, sending: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut sending = std::pin::pin!(sending);
        loop {
            self.start_writing();
            tokio::select! {
                answers = &mut sending => return answers,
                written = &mut self.writing => self.note(written)?,
                leased = &mut self.leasing => self.keep(leased),
            }
        }
    }

    /// Writes what is left and waits for a lease that was asked for.
    ///
    /// Where the sink could not be reached, what earlier waves came to is known, and not to be sent again.
    async fn finish(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        loop {
            self.start_writing();
            if self.is_idle() && self.leasing.is_terminated() {
                self.in_hand.clear();
                return result;
            }
            // Both, as either may hold what the other waits for.
            tokio::select! {
                written = &mut self.writing => result = result.and(self.note(written)),
                leased = &mut self.leasing => self.keep(leased),
            }
        }
    }

    fn note(&mut self, written: Result<Vec<i64>, Error>) -> Result<(), Error> {
        match written {
            Ok(seqs) => self.written.extend(seqs),
            Err(error) => {
                // The store is not asked once more for what came meanwhile.
                self.waiting = Judged::default();
                return Err(error);
            }
        }
        if self.leasing.is_terminated() {
            self.let_go();
        }
        Ok(())
    }

    /// What is written is in hand no more.
    fn let_go(&mut self) {
        for seq in self.written.drain(..) {
            self.in_hand.remove(&seq);
        }
    }

    /// Whether nothing is being written, or waits to be.
    fn is_idle(&self) -> bool {
        self.writing.is_terminated() && self.waiting.results.is_empty()
    }

    fn start_writing(&mut self) {
        let idle = self.writing.is_terminated();
        if idle && !self.waiting.results.is_empty() {
            let judged = std::mem::take(&mut self.waiting);
            self.writing = write(self.inbox, self.relay, self.token, judged).boxed().fuse();
        }
    }

    fn keep(&mut self, leased: Result<Leased, Error>) {
        match leased {
            Ok(mut leased) => {
                // It may have been read before what was in hand was removed, or noted as failed.
                leased.due.retain(|outgoing| !self.in_hand.contains(&outgoing.seq));
                self.ahead = Some(leased);
            }
            // If it is more than a moment's trouble, the next lease fails, too, and says so.
            Err(error) => tracing::debug!(sink = self.relay.name, %error, "nothing was leased ahead"),
        }
        self.let_go();
    }
}

/// One call of the sink.
async fn send_wave<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    wave: &mut [Outgoing],
) -> Result<Vec<Result<(), SendFailure>>, Error> {
    let nothing = || Message::with_id(String::new(), String::new(), Bytes::new());
    let taken = wave.iter_mut().map(|outgoing| std::mem::replace(&mut outgoing.message, nothing()));
    let mut messages: Vec<Message> = taken.collect();
    let spans = send_spans(inbox, &relay.name, &mut messages);
    let sending = tokio::time::timeout(relay.timeout, relay.sink.send(&messages)).await;
    let count = messages.len();
    for (outgoing, message) in wave.iter_mut().zip(messages) {
        outgoing.message = message;
    }
    match sending {
        Ok(Ok(answers)) => {
            for (span, answer) in spans.iter().zip(&answers) {
                if let Err(SendFailure::Retry(text) | SendFailure::Permanent(text)) = answer {
                    span.record("failure", text);
                }
            }
            Ok(answers)
        }
        Ok(Err(error)) => {
            let text = format!("sink `{}` cannot be reached", relay.name);
            Err(Error::caused(ErrorKind::Unavailable, text, error))
        }
        // Alone, it is the message's own doing; in a lot, nobody can tell, so they go one by one.
        Err(_) if count == 1 => {
            relay.careful.store(false, Ordering::Relaxed);
            let text = format!("the sink did not confirm it within {:?}", relay.timeout);
            for span in &spans {
                span.record("failure", &text);
            }
            Ok(vec![Err(SendFailure::Retry(text))])
        }
        Err(_) => {
            relay.careful.store(true, Ordering::Relaxed);
            let text = format!("sink `{}` did not confirm within {:?}", relay.name, relay.timeout);
            Err(Error::new(ErrorKind::Unavailable, text))
        }
    }
}

/// What became of a wave, not yet written.
#[derive(Debug, Default)]
struct Judged {
    results: Vec<Sent>,
    sent: usize,
    failed: usize,
    dead: usize,
}

impl Judged {
    fn append(&mut self, later: Self) {
        self.results.extend(later.results);
        self.sent += later.sent;
        self.failed += later.failed;
        self.dead += later.dead;
    }
}

fn judge<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    wave: &[Outgoing],
    answers: Vec<Result<(), SendFailure>>,
    stuck: &mut HashSet<String>,
) -> Judged {
    let mut judged = Judged { results: Vec::with_capacity(wave.len()), ..Judged::default() };
    let mut answers = answers.into_iter();
    // Keys with a message in this wave that is to be tried again, or was for the last time.
    let mut untried: HashSet<&String> = HashSet::new();
    for outgoing in wave {
        let answer = answers.next().unwrap_or_else(|| {
            Err(SendFailure::Retry("the sink did not say whether it has the message".to_owned()))
        });
        let attempt = outgoing.attempts + 1;
        let key = outgoing.message.key.as_ref();
        let outcome = match answer {
            // A sink that keeps order did not try it, because of the one before it: it waits with that one, and what is
            // leased after it waits with it.
            Err(SendFailure::Retry(_)) if key.is_some_and(|key| untried.contains(key)) => {
                stuck.extend(key.cloned());
                continue;
            }
            Ok(()) => {
                judged.sent += 1;
                SendOutcome::Confirmed
            }
            Err(SendFailure::Retry(error)) if attempt < relay.max_attempts => {
                untried.extend(key);
                judged.failed += 1;
                SendOutcome::Retry(relay.backoff.delay(attempt, inbox.shared.seed.next()), error)
            }
            Err(failure) => {
                untried.extend(key.filter(|_| matches!(failure, SendFailure::Retry(_))));
                judged.failed += 1;
                judged.dead += 1;
                let (SendFailure::Retry(error) | SendFailure::Permanent(error)) = failure;
                SendOutcome::Dead(error)
            }
        };
        if matches!(outcome, SendOutcome::Retry(..)) {
            stuck.extend(key.cloned());
        }
        judged.results.push(Sent { seq: outgoing.seq, outcome });
    }
    judged
}

/// Writes what became of a wave, then counts it. Answers which messages it was about.
async fn write<St: Store, S, K: Sink>(
    inbox: &Inbox<St, S>,
    relay: &Relay<K>,
    token: Token,
    judged: Judged,
) -> Result<Vec<i64>, Error> {
    let Judged { results, sent, failed, dead } = judged;
    if results.is_empty() {
        return Ok(Vec::new());
    }
    inbox.store.settle_outgoing(&relay.name, token, &results, false).await?;
    let counters = &inbox.shared.counters;
    counters.add(&relay.name, Counter::Sent, sent);
    counters.add(&relay.name, Counter::SendFailed, failed);
    counters.add(&relay.name, Counter::SendDead, dead);
    if dead > 0 {
        tracing::warn!(sink = relay.name, dead, "outgoing messages were refused for good");
    }
    Ok(results.iter().map(|sent| sent.seq).collect())
}

/// How many lots to lease next, if the messages are as large as these.
fn lots_next(due: &[Outgoing], batch: usize) -> usize {
    let bytes: usize = due.iter().map(|outgoing| outgoing.message.payload.len()).sum();
    let bytes_of_a_lot = bytes.div_ceil(due.len().max(1)) * batch;
    (LOTS_BYTES / bytes_of_a_lot.max(1)).clamp(1, LOTS)
}

/// Splits a lease into what goes to the sink in one call each.
fn split<K: Sink>(mut due: Vec<Outgoing>, relay: &Relay<K>) -> Vec<Vec<Outgoing>> {
    let mut lots = Vec::new();
    while !due.is_empty() {
        let rest = due.split_off(due.len().min(relay.batch));
        let lot = std::mem::replace(&mut due, rest);
        if relay.sink.keeps_order() {
            lots.push(lot);
        } else {
            lots.extend(waves(lot));
        }
    }
    lots
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lots_are_leased_only_of_small_messages() {
        let lots = |bytes: usize, batch| {
            let message = Message::new("x", vec![b'x'; bytes]);
            let outgoing = |seq| Outgoing { seq, attempts: 0, message: message.clone(), unreadable: None };
            lots_next(&(0..3).map(outgoing).collect::<Vec<_>>(), batch)
        };
        assert_eq!(lots(0, 500), LOTS);
        assert_eq!(lots(200, 500), LOTS);
        assert_eq!(lots(16 * 1024, 500), 2);
        assert_eq!(lots(1024 * 1024, 500), 1);
        assert_eq!(lots(1024 * 1024, 4), 4);
        assert_eq!(lots(1024 * 1024, 2), LOTS);
    }
}
