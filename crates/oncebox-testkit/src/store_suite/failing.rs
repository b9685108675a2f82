//! One run that goes wrong: it leaves nothing behind, is counted, and comes again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Failure, Inbox, Message, handler, run};

use super::fixtures::{
    HOUR, KIND, assert_once, delivery, drain, failing, ids, in_state, message, receive, registered,
};
use crate::broker::{Manners, MemoryBroker};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};
use crate::wait::until;

/// B3.
pub async fn an_error_leaves_nothing_behind_and_the_message_runs_again<T: Subject>(subject: T) {
    let fails = |_: &Message, attempt| attempt == 1;
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", failing::<T>("charge", fails))));
    receive(&inbox, &[message("a")]).await;

    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "the failed attempt was rolled back");
    let waiting = delivery(inbox.store(), "charge").await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Retrying, 1));

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// B13: a time limit on our side alone would leave the statement and its locks on the server.
pub async fn a_timeout_is_a_failure_that_frees_the_locks<T: Subject>(subject: T) {
    let slow = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("slow", &message)).await?;
        if attempt == 1 {
            T::work_for(&mut tx, Duration::from_secs(30)).await?;
        }
        Ok::<(), Failure>(())
    };
    let slow = handler("slow", slow).timeout(Duration::from_millis(200));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, slow)).await;
    receive(&inbox, &[message("a")]).await;

    let started = Instant::now();
    drain(&inbox).await;
    assert_eq!(delivery(inbox.store(), "slow").await.state, DeliveryState::Retrying);
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert!(started.elapsed() < Duration::from_secs(15), "the server went on: {:?}", started.elapsed());
    assert_once(&subject, &[message("a")], &["slow"]).await;
    assert_eq!(subject.stuck_transactions().await, 0);
}
