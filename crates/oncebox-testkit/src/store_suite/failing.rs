//! One run that goes wrong: it leaves nothing behind, is counted, and comes again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Failure, Inbox, Message, run};

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{
    HOUR, KIND, assert_once, delivery, drain, failing, handler, keyed, message, receive, registered,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};
use crate::wait::until;

/// The id is not remembered as handled before the effect is there.
pub async fn an_error_leaves_nothing_behind_and_the_message_runs_again<T: Subject>(subject: T) {
    let charge = handler("charge", failing::<T>("charge", |_, attempt| attempt == 1));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &[message("a")]).await;

    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "the failed attempt was rolled back");
    let waiting = delivery(inbox.store(), "charge").await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Retrying, 1));
    assert_eq!(waiting.history[0].error, "charge failed on purpose, attempt 1");

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// As far as a panic can be caught.
pub async fn a_panic_is_a_failure_like_any_other<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("charge", &message)).await?;
        assert!(attempt > 1, "the first attempt panics");
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;

    assert_eq!(subject.effects().await, []);
    let error = delivery(inbox.store(), "charge").await.history[0].error.clone();
    assert!(error.contains("panicked") && error.contains("the first attempt panics"), "{error}");
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// A time limit on our side alone would leave the statement and its locks on the server.
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

/// The server counts the time of a statement, we count the time of the handler: a statement that begins late is
/// still running when the handler's time is over, and must not keep the lanes of its neighbours.
pub async fn a_statement_that_began_late_is_ended_with_its_handler<T: Subject>(subject: T) {
    let late = |mut tx: TxOf<T>, message: Message| async move {
        T::record(&mut tx, Effect::of("late", &message)).await?;
        if message.id == "late" {
            tokio::time::sleep(Duration::from_millis(1400)).await;
            T::work_for(&mut tx, Duration::from_secs(30)).await?;
        }
        Ok::<(), Failure>(())
    };
    let late = handler("late", late).timeout(Duration::from_millis(1500)).max_attempts(1);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, late)).await;
    receive(&inbox, &[keyed("before", "k"), keyed("late", "k"), keyed("after", "k")]).await;
    drain(&inbox).await;

    let dead = delivery(inbox.store(), "late").await;
    assert_eq!((dead.message.id.as_str(), dead.state), ("late", DeliveryState::Dead));
    assert_once(&subject, &[message("before"), message("after")], &["late"]).await;
    assert_eq!(subject.stuck_transactions().await, 0);
}

/// A handler that waits for something else than the database.
pub async fn a_handler_that_never_returns_is_stopped_by_its_timeout<T: Subject>(subject: T) {
    let stuck = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("stuck", &message)).await?;
        if attempt == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<(), Failure>(())
    };
    let stuck = handler("stuck", stuck).timeout(Duration::from_millis(100));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, stuck)).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;

    let error = delivery(inbox.store(), "stuck").await.history[0].error.clone();
    assert!(error.contains("100ms"), "{error}");
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["stuck"]).await;
}

/// Trying again would not help, and the handler says so.
pub async fn a_permanent_failure_is_dead_at_once<T: Subject>(subject: T) {
    let refuse = |mut tx: TxOf<T>, message: Message| async move {
        T::record(&mut tx, Effect::of("refuse", &message)).await?;
        Err::<(), _>(Failure::permanent("over the limit"))
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("refuse", refuse))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    drain(&inbox).await;

    let dead = delivery(inbox.store(), "refuse").await;
    assert_eq!((dead.state, dead.attempts), (DeliveryState::Dead, 1));
    assert_eq!(dead.history[0].error, "over the limit");
    assert_eq!(subject.effects().await, []);
}

/// The handler knows better than the backoff.
pub async fn a_failure_can_choose_when_to_come_again<T: Subject>(subject: T) {
    let later = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("later", &message)).await?;
        if attempt == 1 { Err(Failure::retry_in(HOUR, "rate limited")) } else { Ok(()) }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("later", later))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;

    subject.clock().advance(HOUR - Duration::from_secs(60));
    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "not before its time");
    subject.clock().advance(Duration::from_secs(61));
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["later"]).await;
}

/// Postgres answers the COMMIT of an aborted transaction without an error.
pub async fn a_swallowed_sql_error_never_loses_the_effect<T: Subject>(subject: T) {
    let swallow = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("swallow", &message)).await?;
        if attempt == 1 {
            assert!(T::fail(&mut tx).await.is_err());
        }
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("swallow", swallow))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    if T::FACTS.error_aborts_transaction {
        assert_eq!(subject.effects().await, []);
        assert_eq!(delivery(inbox.store(), "swallow").await.state, DeliveryState::Retrying);
    }
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["swallow"]).await;
}

/// Done is what is written in the transaction that was begun, and in no other.
pub async fn a_handler_that_ends_its_transaction_has_failed<T: Subject>(subject: T) {
    let end = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        if attempt == 1 {
            tx.publish(Message::new("ghost", "x")).await?;
            // SQLite may say so in its answer; a handler may not care.
            let _ = T::end_transaction(&mut tx).await;
            return Ok(());
        }
        T::record(&mut tx, Effect::of("end", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("end", end))).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    receive(&inbox, &[message("a")]).await;
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    let waiting = delivery(inbox.store(), "end").await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Retrying, 1));

    subject.clock().advance(HOUR);
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    assert_once(&subject, &[message("a")], &["end"]).await;
    assert_eq!(broker.sent(), [], "what the ended transaction published is gone");
}

/// The runner that saw the commit fail goes on with the same message.
pub async fn an_error_at_commit_is_a_failure<T: Subject>(subject: T) {
    let late = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("late", &message)).await?;
        if attempt == 1 {
            T::fail_at_commit(&mut tx).await?;
        }
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("late", late))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    assert_eq!(subject.effects().await, []);
    let waiting = delivery(inbox.store(), "late").await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Retrying, 1));

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["late"]).await;
}

/// In a static, in a task: it is found out, ended, and blamed on the handler.
pub async fn a_handler_that_keeps_its_transaction_has_failed<T: Subject>(subject: T) {
    let kept: Arc<Mutex<Option<TxOf<T>>>> = Arc::default();
    let shelf = kept.clone();
    let keep = move |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| {
        let shelf = shelf.clone();
        async move {
            T::record(&mut tx, Effect::of("keep", &message)).await?;
            if attempt == 1 {
                *shelf.lock().unwrap() = Some(tx);
            }
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("keep", keep))).await;
    receive(&inbox, &[message("a")]).await;
    let draining = tokio::spawn(run(inbox.clone()).drain());

    until("the handler has its transaction on the shelf", || async { kept.lock().unwrap().is_some() }).await;
    let mut tx = kept.lock().unwrap().take().unwrap();
    let mut revoked = false;
    while !revoked {
        revoked = T::work_for(&mut tx, Duration::from_millis(50)).await.is_err();
    }
    drop(tx);
    draining.await.unwrap().unwrap();

    assert_eq!(subject.effects().await, []);
    let error = delivery(inbox.store(), "keep").await.history[0].error.clone();
    assert!(error.contains("kept its transaction"), "{error}");
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["keep"]).await;
    assert_eq!(subject.stuck_transactions().await, 0);
}

/// An error text must never be the reason that a failure cannot be noted.
pub async fn any_error_text_is_kept<T: Subject>(subject: T) {
    let refuse = |_: TxOf<T>, message: Message| async move {
        let text = if message.id == "nul" { "a\0b".to_owned() } else { "é".repeat(1_000_000) };
        Err::<(), _>(Failure::permanent(text))
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("refuse", refuse))).await;
    receive(&inbox, &[message("nul"), message("long")]).await;
    drain(&inbox).await;

    let dead = crate::fixtures::deliveries(inbox.store(), "refuse").await;
    assert_eq!(dead.len(), 2);
    assert!(dead.iter().all(|info| info.state == DeliveryState::Dead && info.history.len() == 1), "{dead:?}");
}
