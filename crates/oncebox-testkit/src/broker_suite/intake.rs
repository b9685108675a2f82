//! From the broker to the committed effect: when messages are acknowledged, and what comes again.

use std::sync::atomic::Ordering;

use oncebox_core::{Counter, Message, run};

use super::fixtures::{
    FAST, Line, Tap, assert_acknowledged, charging, charging_on, consuming, consuming_from, in_turn, put,
    until_acknowledged, until_effects,
};
use super::subject::BrokerSubject;
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{assert_once, numbered, start};
use crate::subject::Subject;
use crate::wait::until;

/// The main job.
pub async fn everything_put_is_applied_once_and_acknowledged<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let messages = numbered(300);
    let inbox = charging(&store);
    put(&broker, &messages[..100]).await;
    let running = consuming(&broker, &inbox);
    put(&broker, &messages[100..]).await;
    until_effects(&store, 300).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// The same without a stored payload in between.
pub async fn everything_is_handled_inline_once<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let messages = numbered(100);
    let inbox = charging(&store);
    put(&broker, &messages).await;
    let source = broker.source(broker.address(), None);
    let running = start(run(inbox).consume_inline(source).poll_every(FAST));
    until_effects(&store, 100).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// While nothing can be stored, nothing is acknowledged, not even at a graceful stop.
pub async fn nothing_is_acknowledged_before_it_is_committed<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let messages = numbered(20);
    put(&broker, &messages).await;
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::ErrorForEver });
    let away = charging_on::<T, _>(Faulty::new(store.store(), plan.clone()));
    let running = consuming(&broker, &away);
    plan.struck().await;
    until("it was tried again", || async { plan.calls()["receive"] >= 3 }).await;
    if let Some(pending) = broker.pending().await {
        assert_eq!(pending, 20);
    }
    running.stop().await;
    let running = consuming(&broker, &charging(&store));
    until_effects(&store, 20).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// The process dies after the commit, before the broker is told.
pub async fn a_death_between_commit_and_acknowledgement_makes_a_duplicate<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let messages = numbered(20);
    put(&broker, &messages).await;
    let line = Line::to(&broker).await;
    let source = Tap::new(broker.source(line.address(), None));
    source.seen.holds_back.store(true, Ordering::SeqCst);
    let running = consuming_from(source, &charging(&store));
    until("something is charged", || async { !store.effects().await.is_empty() }).await;
    let committed = running.seen.messages.load(Ordering::SeqCst);
    line.falls_silent();
    running.kill().await;
    let second = charging(&store);
    let running = consuming(&broker, &second);
    until("what was committed comes again", || async {
        second.counters().get("", Counter::Duplicate) >= i64::try_from(committed).unwrap()
    })
    .await;
    until_effects(&store, 20).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// The process dies before the commit.
pub async fn a_death_before_the_commit_makes_a_redelivery<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let messages = numbered(20);
    put(&broker, &messages).await;
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::Hang });
    let line = Line::to(&broker).await;
    let source = Tap::new(broker.source(line.address(), None));
    let running = consuming_from(source, &charging_on::<T, _>(Faulty::new(store.store(), plan.clone())));
    plan.struck().await;
    line.falls_silent();
    running.kill().await;
    assert!(store.effects().await.is_empty());
    let running = consuming(&broker, &charging(&store));
    until_effects(&store, 20).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// Every message comes many times, also at the same time.
pub async fn a_storm_of_copies_has_one_effect_each<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let messages = numbered(60);
    let inbox = charging(&store);
    let running = consuming(&broker, &inbox);
    let mut put_in_all = 0;
    for round in 0..5 {
        let copies: Vec<Message> =
            messages.iter().cycle().skip(round * 7).take(60 + 20 * round).cloned().collect();
        put_in_all += copies.len();
        put(&broker, &copies).await;
    }
    until("every copy has arrived", || async {
        let counters = inbox.counters();
        counters.get("", Counter::Received) + counters.get("", Counter::Duplicate)
            >= i64::try_from(put_in_all).unwrap()
    })
    .await;
    until_effects(&store, 60).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// What was committed comes again and again, because nobody lives long enough to acknowledge it.
pub async fn a_storm_of_redeliveries_has_one_effect_each<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let messages = numbered(20);
    put(&broker, &messages).await;
    for _ in 0..5 {
        let source = Tap::new(broker.source(broker.address(), None));
        source.seen.holds_back.store(true, Ordering::SeqCst);
        let inbox = charging(&store);
        let running = consuming_from(source, &inbox);
        until("something has come again", || async {
            let counters = inbox.counters();
            counters.get("", Counter::Received) + counters.get("", Counter::Duplicate) > 0
        })
        .await;
        running.kill().await;
    }
    let running = consuming(&broker, &charging(&store));
    until_effects(&store, 20).await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}

/// Two processes read one queue; one of them dies.
pub async fn sources_share_a_queue_and_take_over_from_each_other<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let messages = in_turn(300, &["a", "b", "c"]);
    let one = consuming(&broker, &charging(&store));
    let two = consuming(&broker, &charging(&store));
    put(&broker, &messages[..150]).await;
    until("something is charged", || async { !store.effects().await.is_empty() }).await;
    one.kill().await;
    put(&broker, &messages[150..]).await;
    until_effects(&store, 300).await;
    until_acknowledged(&broker).await;
    two.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}
