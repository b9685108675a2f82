//! How much a source takes at once, and how it says what waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::{Settle, Source};

use super::fixtures::{charging, charging_on, consuming, put, until_effects};
use super::subject::BrokerSubject;
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{message, numbered};
use crate::subject::Subject;
use crate::wait::{DEADLINE, until};

/// Far longer than a message takes, and far shorter than anybody may wait for more to come.
const SOON: Duration = Duration::from_secs(10);

/// One message is handed over at once; many that have arrived come together.
pub async fn what_has_arrived_comes_together_without_waiting<B: BrokerSubject, T: Subject>(
    broker: B,
    _store: T,
) {
    let mut source = broker.source(broker.address(), None);
    // The first one has to wait for the connection.
    for (id, limit) in [("first", DEADLINE), ("alone", SOON)] {
        put(&broker, &[message(id)]).await;
        let one = tokio::time::timeout(limit, source.next(1000)).await.expect("it has arrived").unwrap();
        assert_eq!(one.len(), 1);
        source.settle(one.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
    put(&broker, &numbered(500)).await;
    let (mut calls, mut messages) = (0, 0);
    while messages < 500 {
        let next =
            tokio::time::timeout(DEADLINE, source.next(1000)).await.expect("all have arrived").unwrap();
        calls += 1;
        messages += next.len();
        assert!(next.len() <= 1000);
        source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
    assert!(calls <= 250, "500 messages came in {calls} lots");
}

/// A call of `next` that asks for few gets few, and the rest later.
pub async fn no_more_is_handed_over_than_asked_for<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    put(&broker, &numbered(50)).await;
    let mut source = broker.source(broker.address(), None);
    let mut ids = std::collections::BTreeSet::new();
    while ids.len() < 50 {
        let next = tokio::time::timeout(DEADLINE, source.next(7)).await.expect("there are more").unwrap();
        assert!((1..=7).contains(&next.len()));
        ids.extend(next.iter().map(|one| one.message.id.clone()));
        source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
}

/// The engine gives up a waiting `next` at any time; nothing may get lost by that.
pub async fn a_dropped_next_takes_nothing_with_it<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    let mut source = broker.source(broker.address(), None);
    let mut ids = std::collections::BTreeSet::new();
    for lot in numbered(60).chunks(3) {
        for polls in 0..4 {
            let dropped = crate::sweep::poll_a_moment_then_drop(source.next(1000), polls).await;
            let Some(next) = dropped.and_then(Result::ok) else { continue };
            ids.extend(next.iter().map(|one| one.message.id.clone()));
            source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
        }
        put(&broker, lot).await;
    }
    while ids.len() < 60 {
        let next = tokio::time::timeout(DEADLINE, source.next(1000)).await.expect("nothing is lost").unwrap();
        ids.extend(next.iter().map(|one| one.message.id.clone()));
        source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
}

/// While the store is away the source holds no more than its prefetch.
pub async fn a_slow_store_bounds_what_is_taken<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let count = 3000;
    let messages: Vec<_> = (0..count).map(|number| message(format!("m-{number:05}"))).collect();
    put(&broker, &messages).await;
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::ErrorForEver });
    let inbox = charging_on::<T, _>(Faulty::new(store.store(), plan.clone()));
    let running = consuming(&broker, &inbox);
    plan.struck().await;
    until("it was tried again", || async { plan.calls()["receive"] >= 5 }).await;
    let taken = running.seen.messages.load(Ordering::SeqCst) as u64;
    // The lot that is to be stored, and the next.
    let most = B::FACTS.prefetch.min(2000);
    assert!(taken <= most, "{taken} were taken, {most} are allowed");
    if let Some(unacknowledged) = broker.unacknowledged().await {
        assert!(unacknowledged <= B::FACTS.prefetch, "{unacknowledged} are out");
    }
    plan.heal();
    until_effects(&store, count).await;
    running.stop().await;
}

/// The number that wait, before anything is taken; and the status of a source that runs.
pub async fn the_lag_is_shown<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    put(&broker, &numbered(50)).await;
    if B::FACTS.tells_lag {
        let source = tokio::sync::Mutex::new(broker.source(broker.address(), None));
        until("the lag is told", || async { matches!(source.lock().await.lag().await, Ok(Some(50))) }).await;
    }
    let inbox = charging(&store);
    let running = consuming(&broker, &inbox);
    until_effects(&store, 50).await;
    until("the status says so", || async {
        let status = inbox.sources().remove(0);
        status.connected && status.delivered >= 50 && (!B::FACTS.tells_lag || status.lag == Some(0))
    })
    .await;
    running.stop().await;
}
