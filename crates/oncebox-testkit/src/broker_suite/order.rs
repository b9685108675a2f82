//! Order per key, from the queue to the effect and from the outbox to the destination.

use oncebox_core::{Inbox, Relay, run};

use super::fixtures::{FAST, in_turn, put, until_effects};
use super::round_trip::publish;
use super::subject::BrokerSubject;
use crate::fixtures::{KIND, assert_once, handler, ids_of_key, start};
use crate::subject::{Subject, recording};
use crate::wait::until;

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An ordered handler sees each key in the order it was put.
pub async fn order_is_kept_from_the_queue_to_the_effect<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    if !B::FACTS.ordered {
        return;
    }
    let messages = in_turn(300, &KEYS);
    let ordered = handler("charge", recording::<T>("charge")).ordered();
    let inbox = Inbox::new(store.store()).on(KIND, ordered);
    put(&broker, &messages[..100]).await;
    let source = broker.source(broker.address(), None);
    let running = start(run(inbox).consume(source).poll_every(FAST));
    put(&broker, &messages[100..]).await;
    until_effects(&store, 300).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    for key in KEYS {
        let ids = ids_of_key(&store, "charge", key).await;
        assert!(ids.len() == 60 && ids.is_sorted(), "key {key}: {ids:?}");
    }
}

/// What was published is at the destination once, each key in its order.
pub async fn order_is_kept_from_the_outbox_to_the_destination<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let messages = in_turn(300, &KEYS);
    let relay = Relay::new(broker.sink(broker.address())).batch(40);
    let running = start(run(Inbox::new(store.store())).relay(relay).poll_every(FAST));
    for lot in messages.chunks(50) {
        publish(&store, lot).await;
    }
    until("everything is sent", || async { broker.taken().await.len() >= 300 }).await;
    running.stop().await;
    let taken = broker.taken().await;
    assert_eq!(taken.len(), 300, "nothing failed, so nothing is sent twice");
    for key in KEYS {
        let of_key = taken.iter().filter(|taken| taken.key.as_deref() == Some(key));
        let ids: Vec<&str> = of_key.map(|taken| taken.id.as_str()).collect();
        assert!(ids.len() == 60 && ids.is_sorted(), "key {key}: {ids:?}");
    }
}
