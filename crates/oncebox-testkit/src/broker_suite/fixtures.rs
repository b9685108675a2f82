//! What many cases of the broker suite begin with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Counter, Error, Inbox, Incoming, Message, Settle, Source, Store, run};

use super::subject::BrokerSubject;
use crate::fixtures::{KIND, Running, handler, keyed, message, start};
use crate::proxy::Proxy;
use crate::subject::{Subject, recording};
use crate::wait::until;

/// How often runners of the suite poll.
pub(super) const FAST: Duration = Duration::from_millis(20);

/// An inbox whose handler writes one effect per message, with the key as its note.
pub(super) fn charging<T: Subject>(store: &T) -> Inbox<T::Store> {
    charging_on::<T, _>(store.store())
}

/// The same on another store over the subject's tables.
pub(super) fn charging_on<T, St>(store: St) -> Inbox<St>
where
    T: Subject,
    St: Store<Connection = <T::Store as Store>::Connection>,
{
    Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")))
}

/// A runner that takes messages from the broker.
pub(super) fn consuming<B: BrokerSubject, St: Store>(broker: &B, inbox: &Inbox<St>) -> Consuming {
    consuming_from(Tap::new(broker.source(broker.address(), None)), inbox)
}

/// The same with a source of one's own.
pub(super) fn consuming_from<S: Source, St: Store>(source: Tap<S>, inbox: &Inbox<St>) -> Consuming {
    let seen = source.seen.clone();
    Consuming { running: start(run(inbox.clone()).consume(source).poll_every(FAST)), seen }
}

/// The way of a source that is to die without a word, as a killed process does: through a proxy, where there can be one.
pub(super) struct Line {
    to: SocketAddr,
    proxy: Option<Proxy>,
}

impl Line {
    pub(super) async fn to<B: BrokerSubject>(broker: &B) -> Self {
        let to = broker.address();
        let proxy = if B::FACTS.proxied { Some(Proxy::start(to).await) } else { None };
        Self { to, proxy }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.to, Proxy::address)
    }

    /// From now on the broker hears nothing, not even that a connection is closed.
    pub(super) fn falls_silent(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.freeze();
        }
    }
}

/// A runner with one source.
pub(super) struct Consuming {
    running: Running,
    pub(super) seen: Arc<Seen>,
}

impl Consuming {
    /// Stops it gracefully and waits for its end.
    pub(super) async fn stop(self) {
        self.running.stop().await;
    }

    /// Drops it in the middle of whatever it does, and waits until its source is gone: it is dropped a moment later.
    pub(super) async fn kill(self) {
        self.running.kill().await;
        until("the source is gone", || async { Arc::strong_count(&self.seen) == 1 }).await;
    }
}

/// Puts messages on the queue in their natural layout.
pub(super) async fn put<B: BrokerSubject>(broker: &B, messages: &[Message]) {
    let deliveries: Vec<Delivered> =
        messages.iter().map(|message| B::delivery(message, Some(message.id.as_bytes()))).collect();
    broker.put(&deliveries).await;
}

/// Returns when this many effects are in the ledger.
pub(super) async fn until_effects<T: Subject>(store: &T, count: usize) {
    until("every effect is there", || async { store.effects().await.len() >= count }).await;
}

/// Returns when the broker, where it can tell, has nothing left: what was committed and not acknowledged, because a
/// process died or a connection broke, has come again to who still runs.
pub(super) async fn until_acknowledged<B: BrokerSubject>(broker: &B) {
    if broker.pending().await.is_some() {
        until("the broker has nothing left", || async { broker.pending().await == Some(0) }).await;
    }
}

/// Every message is acknowledged: the broker has nothing left, or else delivers nothing again.
pub(super) async fn assert_acknowledged<B: BrokerSubject, T: Subject>(broker: &B, store: &T) {
    if broker.pending().await.is_some() {
        until_acknowledged(broker).await;
        return;
    }
    // What is not acknowledged comes again on a new connection, before anything newer. Acknowledgements that the broker
    // had not read when the connection was taken over may make a copy, but not each time.
    let round = async |number: usize| {
        let inbox = charging(store);
        let before = store.effects().await.len();
        let running = consuming(broker, &inbox);
        put(broker, &[message(format!("marker {number} after everything else"))]).await;
        until_effects(store, before + 1).await;
        running.stop().await;
        inbox.counters().get("", Counter::Duplicate) == 0
    };
    let rounds = AtomicUsize::new(0);
    until("nothing is delivered again", || round(rounds.fetch_add(1, Ordering::SeqCst))).await;
}

/// `count` messages over these keys in turn; ids sort as they were put.
pub(super) fn in_turn(count: usize, keys: &[&str]) -> Vec<Message> {
    (0..count).map(|number| keyed(format!("m-{number:05}"), keys[number % keys.len()])).collect()
}

/// A source that another one looks through: it counts, and can keep acknowledgements back.
pub(super) struct Tap<S> {
    // Dropped before what it has seen, so that who has the other half of that knows when it is gone.
    source: S,
    pub(super) seen: Arc<Seen>,
}

/// What a [`Tap`] has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Messages handed over.
    pub(super) messages: AtomicUsize,
    /// While set, what is settled never reaches the source, and the call never returns.
    pub(super) holds_back: AtomicBool,
}

impl<S> Tap<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, seen: Arc::default() }
    }
}

impl<S: Source> Source for Tap<S> {
    type Receipt = S::Receipt;

    fn name(&self) -> &str {
        self.source.name()
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<S::Receipt>>, Error> {
        let incoming = self.source.next(most).await?;
        self.seen.messages.fetch_add(incoming.len(), Ordering::SeqCst);
        Ok(incoming)
    }

    async fn settle(&mut self, settled: Vec<(S::Receipt, Settle)>) -> Result<(), Error> {
        if self.seen.holds_back.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.source.settle(settled).await
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        self.source.lag().await
    }

    fn connected(&self) -> Option<bool> {
        self.source.connected()
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        self.source.check().await
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}
