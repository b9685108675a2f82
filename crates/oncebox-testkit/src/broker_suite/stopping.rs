//! Stopping and starting again while messages flow.

use oncebox_core::Counter;

use super::fixtures::{
    assert_acknowledged, charging, consuming, in_turn, put, until_acknowledged, until_effects,
};
use super::subject::BrokerSubject;
use crate::fixtures::assert_once;
use crate::subject::Subject;
use crate::wait::until;

/// Fifty runners (where that takes too long, [`BrokerSubject::STOPS`]) after each other, each stopped as soon as it has
/// done something.
pub async fn stopping_fifty_times_under_load_loses_and_doubles_nothing<B: BrokerSubject, T: Subject>(
    broker: B,
    store: T,
) {
    let count = 20 * B::STOPS;
    let messages = in_turn(count, &["a", "b", "c"]);
    for (number, lot) in messages.chunks(20).enumerate() {
        put(&broker, lot).await;
        let inbox = charging(&store);
        let running = consuming(&broker, &inbox);
        until("the source has delivered", || async {
            let counters = inbox.counters();
            counters.get("", Counter::Received) + counters.get("", Counter::Duplicate) > 0
        })
        .await;
        // Every fifth one dies instead.
        if number % 5 == 4 { running.kill().await } else { running.stop().await }
    }
    let inbox = charging(&store);
    let running = consuming(&broker, &inbox);
    until_effects(&store, count).await;
    until_acknowledged(&broker).await;
    running.stop().await;
    assert_once(&store, &messages, &["charge"]).await;
    assert_acknowledged(&broker, &store).await;
}
