//! Attempts: when they come, how they are counted, and what happens when a process dies in one.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::store::{Commit, Connection, LAPSED, Park, ParkState, TxLimits};
use oncebox_core::{Attempt, Failure, Inbox, Message, Store, run};
use tokio::sync::Notify;

use crate::fixtures::{
    HOUR, KIND, assert_once, delivery, drain, failing, handler, killed_at, message, notes, receive,
    record_attempt, registered, ten_seconds,
};
use crate::subject::{Subject, TxOf};

const SECOND: Duration = Duration::from_secs(1);

/// The wait is between three quarters and all of its nominal length, and doubles.
pub async fn the_wait_between_attempts_grows_by_the_database_clock<T: Subject>(subject: T) {
    let charge = handler("charge", failing::<T>("charge", |_, attempt| attempt < 4)).backoff(ten_seconds());
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    for nominal in [10, 20, 40] {
        let before = delivery(inbox.store(), "charge").await.attempts;
        subject.clock().advance(nominal * 3 / 4 * SECOND - SECOND);
        drain(&inbox).await;
        assert_eq!(
            delivery(inbox.store(), "charge").await.attempts,
            before,
            "too early, nominal {nominal} s"
        );
        subject.clock().advance(nominal / 4 * SECOND + 2 * SECOND);
        drain(&inbox).await;
    }
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// The database's clock is a day ahead of ours, and nobody notices.
pub async fn the_clock_of_the_client_does_not_matter<T: Subject>(subject: T) {
    subject.clock().advance(24 * HOUR);
    let charge = handler("charge", failing::<T>("charge", |_, attempt| attempt == 1)).backoff(ten_seconds());
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "due only when the database says so");
    let waiting = delivery(inbox.store(), "charge").await;
    assert!(waiting.due_at > jiff::Timestamp::now() + 23 * HOUR, "{:?}", waiting.due_at);

    subject.clock().advance(11 * SECOND);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// `now()` of Postgres stands still inside a transaction.
pub async fn a_wait_begins_when_it_is_written<T: Subject>(subject: T) {
    let store = subject.store();
    registered(Inbox::new(store.clone()).on(KIND, handler("charge", failing::<T>("charge", |_, _| false))))
        .await;
    let limits = TxLimits { statement: Duration::from_secs(20) };
    let park = |id: &str| Park {
        handler: "charge".to_owned(),
        message: message(id).scope("s"),
        state: ParkState::Ready(HOUR),
        attempts: 1,
        error: None,
    };
    let quick = store.begin_plain(limits).await.unwrap();
    store.commit(quick, Commit { park: vec![park("quick")], ..Commit::default() }).await.unwrap();
    let mut slow = store.begin_plain(limits).await.unwrap();
    T::work_for(&mut slow, Duration::from_millis(500)).await.unwrap();
    store.commit(slow, Commit { park: vec![park("slow")], ..Commit::default() }).await.unwrap();

    let rows = crate::fixtures::deliveries(&store, "charge").await;
    let due = |id: &str| rows.iter().find(|info| info.message.id == id).unwrap().due_at;
    let apart = due("slow").duration_since(due("quick"));
    assert!(apart.as_millis() >= 400, "the second wait began {apart:?} after the first");
}

/// From one, and told to the handler.
pub async fn attempts_are_counted_from_one<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        record_attempt::<T>(&mut tx, "charge", &message, attempt).await?;
        if attempt < 3 { Err(Failure::from("not yet")) } else { Ok(()) }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a")]).await;
    for _ in 0..3 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    assert_eq!(notes(&subject, "charge").await, ["3"]);
}

/// An attempt is counted before it runs, so that a message that kills the process uses its attempts up.
pub async fn an_attempt_that_died_with_its_process_counts<T: Subject>(subject: T) {
    let entered = Arc::new(Notify::new());
    let bell = entered.clone();
    let charge = move |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| {
        let bell = bell.clone();
        async move {
            record_attempt::<T>(&mut tx, "charge", &message, attempt).await?;
            match attempt {
                1 => Err(Failure::from("fails")),
                2 => {
                    bell.notify_one();
                    std::future::pending().await
                }
                _ => Ok(()),
            }
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    killed_at(run(inbox.clone()).drain(), entered.notified()).await;
    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "the lease of the dead process still holds");

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(notes(&subject, "charge").await, ["3"]);
}

/// The dead process's attempt is in the history, and the last one makes a dead letter without another run.
pub async fn a_delivery_whose_last_attempt_died_is_dead<T: Subject>(subject: T) {
    let entered = Arc::new(Notify::new());
    let bell = entered.clone();
    let charge = move |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| {
        let bell = bell.clone();
        async move {
            record_attempt::<T>(&mut tx, "charge", &message, attempt).await?;
            if attempt == 1 {
                return Err(Failure::from("fails"));
            }
            bell.notify_one();
            std::future::pending().await
        }
    };
    let charge = handler("charge", charge).max_attempts(3);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    for _ in 0..2 {
        subject.clock().advance(HOUR);
        killed_at(run(inbox.clone()).drain(), entered.notified()).await;
        // The server may notice it later than we do, and until then nobody gets the delivery.
        assert_eq!(subject.stuck_transactions().await, 0);
    }
    subject.clock().advance(HOUR);
    drain(&inbox).await;

    let dead = delivery(inbox.store(), "charge").await;
    assert_eq!(dead.state, DeliveryState::Dead);
    let lapsed = dead.history.iter().filter(|attempt| attempt.error == LAPSED).count();
    assert_eq!(lapsed, 2, "{:?}", dead.history);
    assert_eq!(subject.effects().await, []);
}

/// Giving a connection back with something open on it.
pub async fn a_begun_transaction_that_is_dropped_leaves_nothing_open<T: Subject>(subject: T) {
    let store = subject.store();
    let limits = TxLimits { statement: Duration::from_secs(20) };
    for _ in 0..10 {
        let mut dropped = store.begin_plain(limits).await.unwrap();
        T::record(&mut dropped, crate::Effect::of("nobody", &message("a"))).await.unwrap();
        drop(dropped);
        let mut rolled_back = store.begin_plain(limits).await.unwrap();
        T::record(&mut rolled_back, crate::Effect::of("nobody", &message("b"))).await.unwrap();
        rolled_back.rollback().await;
    }
    assert_eq!(subject.stuck_transactions().await, 0);
    assert_eq!(subject.effects().await, []);
}
