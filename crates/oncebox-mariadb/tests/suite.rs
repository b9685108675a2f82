//! The store suite of the test kit, on MariaDB, and what only MariaDB can get wrong.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::{Attempt, ErrorKind, Failure, Inbox, Message, handler, run};
use oncebox_mariadb::MariaTx;
use oncebox_testkit::{Effect, Subject, recording, store_suite, until};
use sqlx::Executor;
use support::MariaSubject;

store_suite!(MariaSubject);

/// At these levels InnoDB locks gaps, and rivals get into deadlocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_isolation_level_has_each_effect_once() {
    for settings in [
        "set session transaction isolation level repeatable read",
        "set session transaction isolation level serializable",
    ] {
        let Some(subject) = MariaSubject::with_settings(settings).await else { return };
        store_suite::receiving::copies_received_at_the_same_time_are_one_message(subject).await;
        let subject = MariaSubject::with_settings(settings).await.unwrap();
        store_suite::receiving::batches_in_opposite_order_do_not_deadlock(subject).await;
        let subject = MariaSubject::with_settings(settings).await.unwrap();
        store_suite::inline::copies_processed_at_the_same_time_are_one_message(subject).await;
        let subject = MariaSubject::with_settings(settings).await.unwrap();
        store_suite::running::several_runners_share_the_work_and_double_nothing(subject).await;
        let subject = MariaSubject::with_settings(settings).await.unwrap();
        store_suite::relaying::two_relays_at_once_keep_the_order_of_each_key(subject).await;
    }
}

/// A replica would answer "not seen" for what it has not received yet.
#[tokio::test]
async fn a_session_that_accepts_no_writes_is_refused_at_start() {
    let settings = "set session transaction read only";
    let Some(subject) = MariaSubject::with_settings(settings).await else { return };
    let inbox =
        Inbox::new(subject.store()).on("order", handler("charge", recording::<MariaSubject>("charge")));
    let error = run(inbox).drain().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

/// The server ends the session in the middle of the handler; the message is not to blame.
#[tokio::test]
async fn a_connection_lost_in_a_handler_blames_no_message() {
    let Some(subject) = MariaSubject::create().await else { return };
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let charge = move |mut tx: MariaTx, message: Message, Attempt(attempt): Attempt| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let effect = Effect { note: attempt.to_string(), ..Effect::of("charge", &message) };
            MariaSubject::record(&mut tx, effect).await?;
            if first {
                tx.execute("kill connection connection_id()").await?;
            }
            Ok::<(), Failure>(())
        }
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("charge", charge).max_attempts(1));
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    let expected = Effect { id: "a".to_owned(), handler: "charge".to_owned(), note: "1".to_owned() };
    assert_eq!(subject.effects().await, [expected]);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// Locks of a session outlive a rollback and leak through poolers, so there are none.
#[tokio::test]
async fn a_handlers_transaction_holds_no_lock_of_its_session() {
    let Some(subject) = MariaSubject::create().await else { return };
    let charge = |mut tx: MariaTx, message: Message| async move {
        let locks: i64 =
            sqlx::query_scalar("select cast(release_all_locks() as signed)").fetch_one(&mut *tx).await?;
        let effect = Effect { note: locks.to_string(), ..Effect::of("charge", &message) };
        MariaSubject::record(&mut tx, effect).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("charge", charge).ordered());
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a").key("k")]).await.unwrap();
    inbox.process(Message::new("order", "x").id("b").key("k")).await.unwrap();
    run(inbox).drain().await.unwrap();
    let notes: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.note).collect();
    assert_eq!(notes, ["0", "0"]);
}

/// Messages of another process are found without a hint, and long before the next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_notices_what_another_process_receives() {
    let Some(subject) = MariaSubject::create().await else { return };
    let charge = handler("charge", recording::<MariaSubject>("charge"));
    let inbox = Inbox::new(subject.store()).on("order", charge);
    run(inbox.clone()).drain().await.unwrap();
    let running = tokio::spawn(run(inbox).poll_every(Duration::from_secs(3600)).into_future());
    let other = Inbox::new(subject.reopen().await);
    for number in 0..3 {
        other.receive(&[Message::new("order", "x").id(number.to_string())]).await.unwrap();
        until("the message is handled", || async { subject.effects().await.len() == number + 1 }).await;
    }
    running.abort();
}
