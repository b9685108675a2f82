//! Connections that break and servers that restart, under load: nothing lost, nothing doubled.

use std::collections::BTreeSet;
use std::time::Instant;

use oncebox_core::admin::{AdminStore, OutgoingFilter};
use oncebox_core::{Inbox, Message, Relay, Run, Store, run};

use super::fixtures::{FAST, assert_acknowledged, charging, in_turn, put, until_acknowledged, until_effects};
use super::round_trip::publish;
use super::subject::{BrokerSubject, Restart};
use crate::fixtures::{assert_once, start};
use crate::proxy::Proxy;
use crate::subject::Subject;
use crate::wait::until;

/// The relay tries again soon, as these cases break its sends on purpose.
fn patient<B: BrokerSubject, St: Store>(run: Run<St, ()>, sink: B::Sink) -> Run<St, ()> {
    let soon = std::time::Duration::from_millis(100);
    let backoff = oncebox_core::Backoff::new(soon, 10 * soon);
    let relay = Relay::new(sink).backoff(backoff).max_attempts(1000).timeout(50 * soon).batch(50);
    run.relay(relay).poll_every(FAST)
}

/// Every connection of the source is closed again and again.
pub async fn a_cut_connection_of_a_source_is_made_again<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    if !B::FACTS.proxied {
        return;
    }
    let proxy = Proxy::start(broker.address()).await;
    let inbox = charging(&store);
    let running = start(run(inbox).consume(broker.source(proxy.address(), None)).poll_every(FAST));
    let messages = in_turn(400, &["a", "b", "c"]);
    for lot in messages.chunks(50) {
        let before = store.effects().await.len();
        put(&broker, lot).await;
        until("some have come", || async { store.effects().await.len() > before }).await;
        proxy.cut();
    }
    until_effects(&store, 400).await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert!(proxy.connections() > 1);
    assert_once(&store, &messages, &["charge"]).await;
    drop(proxy);
    assert_acknowledged(&broker, &store).await;
}

/// The connection stands, but nothing comes through any more; only a heartbeat can tell.
pub async fn a_half_open_connection_of_a_source_is_noticed<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    if !B::FACTS.proxied {
        return;
    }
    let proxy = Proxy::start(broker.address()).await;
    let inbox = charging(&store);
    let running = start(run(inbox.clone()).consume(broker.source(proxy.address(), None)).poll_every(FAST));
    let messages = in_turn(100, &["a", "b", "c"]);
    put(&broker, &messages[..50]).await;
    // Some are still on their way.
    until("some have come", || async { !store.effects().await.is_empty() }).await;
    proxy.freeze();
    put(&broker, &messages[50..]).await;
    until_effects(&store, 100).await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    drop(proxy);
    assert_acknowledged(&broker, &store).await;
}

/// While the server is away the status says so, and the source tries again after pauses that grow.
pub async fn an_outage_is_shown_and_ends_by_itself<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    if !B::FACTS.proxied {
        return;
    }
    let proxy = Proxy::start(broker.address()).await;
    let inbox = charging(&store);
    let running = start(run(inbox.clone()).consume(broker.source(proxy.address(), None)).poll_every(FAST));
    let messages = in_turn(20, &["a", "b", "c"]);
    put(&broker, &messages[..10]).await;
    until_effects(&store, 10).await;
    proxy.refuse();
    let status = || inbox.sources().remove(0);
    until("the outage is shown", || async { !status().connected && status().error.is_some() }).await;
    let tries = async |count: u64| {
        let began = (Instant::now(), proxy.connections());
        until("it tries again", || async { proxy.connections() >= began.1 + count }).await;
        began.0.elapsed()
    };
    let (first, later) = (tries(2).await, tries(2).await);
    assert!(later > first && later > 4 * FAST, "two tries in {first:?}, two more in {later:?}");
    put(&broker, &messages[10..]).await;
    proxy.admit();
    until_effects(&store, 20).await;
    until("it is well again", || async {
        let lag_is_known = !B::FACTS.tells_lag || status().lag == Some(0);
        status().connected && status().error.is_none() && lag_is_known
    })
    .await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    drop(proxy);
    assert_acknowledged(&broker, &store).await;
}

/// While the server is away the outbox holds exactly what was not confirmed; afterwards nothing.
pub async fn what_is_not_confirmed_stays_in_the_outbox<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    if !B::FACTS.proxied {
        return;
    }
    let proxy = Proxy::start(broker.address()).await;
    let running = start(patient::<B, _>(run(Inbox::new(store.store())), broker.sink(proxy.address())));
    let messages = in_turn(20, &["a", "b", "c"]);
    let outbox = async || store.store().outgoing(&OutgoingFilter::default()).await.unwrap();
    publish(&store, &messages[..10]).await;
    until("the first are sent", || async { outbox().await.is_empty() }).await;
    proxy.refuse();
    let tries = proxy.connections();
    publish(&store, &messages[10..]).await;
    until("it was tried in vain", || async { proxy.connections() >= tries + 3 }).await;
    let left: BTreeSet<String> = outbox().await.into_iter().map(|left| left.id).collect();
    assert_eq!(left, messages[10..].iter().map(|message| message.id.clone()).collect());
    assert_all_sent(&broker, &messages[..10]).await;
    proxy.admit();
    assert_all_sent(&broker, &messages).await;
    until("nothing is left", || async { outbox().await.is_empty() }).await;
    running.stop().await;
}

/// What was not confirmed when the connection broke is sent again; what is in the outbox is never given up.
pub async fn a_sink_loses_nothing_to_broken_connections<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    if !B::FACTS.proxied {
        return;
    }
    let proxy = Proxy::start(broker.address()).await;
    let running = start(patient::<B, _>(run(Inbox::new(store.store())), broker.sink(proxy.address())));
    let messages = in_turn(300, &["a", "b", "c"]);
    for (number, lot) in messages.chunks(30).enumerate() {
        let before = broker.taken().await.len();
        publish(&store, lot).await;
        until("some are sent", || async { broker.taken().await.len() > before }).await;
        if number == 5 {
            proxy.freeze();
        } else {
            proxy.cut();
        }
    }
    assert_all_sent(&broker, &messages).await;
    running.stop().await;
}

/// Returns when the destination has all of these; in the order of each key, copies aside.
async fn assert_all_sent<B: BrokerSubject>(broker: &B, messages: &[Message]) {
    let expected: BTreeSet<&str> = messages.iter().map(|message| message.id.as_str()).collect();
    until("everything is sent", || async {
        let taken = broker.taken().await;
        taken.iter().map(|taken| taken.id.as_str()).collect::<BTreeSet<_>>() == expected
    })
    .await;
    let mut seen = BTreeSet::new();
    let mut first_copies = broker.taken().await;
    first_copies.retain(|taken| seen.insert(taken.id.clone()));
    for key in ["a", "b", "c"] {
        let of_key = first_copies.iter().filter(|taken| taken.key.as_deref() == Some(key));
        let ids: Vec<&str> = of_key.map(|taken| taken.id.as_str()).collect();
        assert!(ids.is_sorted(), "key {key}: {ids:?}");
    }
}

/// The server is restarted while messages go in and out, first in good order, then by killing it.
pub async fn a_restart_of_the_broker_loses_and_doubles_nothing<B: BrokerSubject, T: Subject>(
    mut broker: B,
    store: T,
) {
    let inbox = charging(&store);
    let at = broker.address();
    let runner = run(inbox.clone()).consume(broker.source(at, None));
    let running = start(patient::<B, _>(runner, broker.sink(at)));
    let (incoming, outgoing) = (in_turn(200, &["a", "b", "c"]), in_turn(200, &["a", "b", "c"]));
    let mut restarts = vec![Restart::Graceful];
    if B::FACTS.survives_crash {
        restarts.push(Restart::Crash);
    }
    let mut halves = incoming.chunks(100).zip(outgoing.chunks(100));
    for how in restarts {
        let (into, out) = halves.next().unwrap();
        let before = store.effects().await.len();
        put(&broker, &into[..50]).await;
        publish(&store, &out[..50]).await;
        until("some have come", || async { store.effects().await.len() > before }).await;
        broker.restart(how).await;
        put(&broker, &into[50..]).await;
        publish(&store, &out[50..]).await;
    }
    for (into, out) in halves {
        put(&broker, into).await;
        publish(&store, out).await;
    }
    until_effects(&store, 200).await;
    assert_all_sent(&broker, &outgoing).await;
    until("the source is well again", || async {
        let status = inbox.sources().remove(0);
        status.connected && status.error.is_none()
    })
    .await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert_once(&store, &incoming, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}
