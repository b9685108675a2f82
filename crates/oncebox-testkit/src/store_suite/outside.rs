//! Handlers that work outside the database: no transaction while they run, and a fencing token when they finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::store::{AskLease, Commit, DoneLeases, LAPSED, Outcome, Settlement, Token, TxLimits};
use oncebox_core::{Attempt, ErrorKind, Failure, Inbox, Message, Store, run};
use tokio::sync::{Barrier, Notify};

use crate::fixtures::{
    HOUR, KIND, deliveries, delivery, drain, failing, handler, killed_at, message, numbered, receive,
    registered, start,
};
use crate::ledger::Effect;
use crate::subject::Subject;
use crate::wait::until;

/// Longer than a lease, which is 10 s.
const LEASE_AND_MORE: Duration = Duration::from_secs(11);

/// With a single connection the handler can use it.
pub async fn an_outside_handler_holds_no_connection<T: Subject>(subject: T) {
    let store = subject.store_with_one_connection().await;
    let inner = store.clone();
    let call = move |message: Message| {
        let store = inner.clone();
        async move {
            let limits = TxLimits { statement: Duration::from_secs(10) };
            let mut tx = store.begin_plain(limits).await?;
            T::record(&mut tx, Effect::of("call", &message)).await?;
            store.commit(tx, Commit::default()).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(store).on(KIND, handler("call", call).concurrency(4))).await;
    receive(&inbox, &numbered(6)).await;
    drain(&inbox).await;
    crate::fixtures::assert_once(&subject, &numbered(6), &["call"]).await;
    assert_eq!(deliveries(inbox.store(), "call").await.len(), 0);
}

/// As many at once as asked for, and no more.
pub async fn outside_handlers_run_at_once_up_to_their_concurrency<T: Subject>(subject: T) {
    let barrier = Arc::new(Barrier::new(4));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, highest) = (now.clone(), most.clone());
    let call = move |_: Message| {
        let (barrier, running, highest) = (barrier.clone(), running.clone(), highest.clone());
        async move {
            highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Never comes open unless four are here at once.
            barrier.wait().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("call", call).concurrency(4))).await;
    receive(&inbox, &numbered(16)).await;
    drain(&inbox).await;
    assert_eq!((now.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 4));
}

/// Retries and dead letters are the same as inside.
pub async fn a_failing_outside_handler_is_retried_and_then_dead<T: Subject>(subject: T) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let call = move |message: Message| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(message.id != "panics", "on purpose");
            Err::<(), _>(Failure::from("on purpose"))
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("call", call).max_attempts(3))).await;
    receive(&inbox, &[message("fails"), message("panics")]).await;
    for _ in 0..5 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 6);
    for info in deliveries(inbox.store(), "call").await {
        assert_eq!((info.state, info.attempts, info.history.len()), (DeliveryState::Dead, 3, 3));
    }
}

/// Dead after exactly as many kills as attempts.
pub async fn a_message_that_kills_the_process_outside_is_dead_after_its_attempts<T: Subject>(subject: T) {
    let entered = Arc::new(Notify::new());
    let bell = entered.clone();
    let call = move |message: Message, Attempt(_): Attempt| {
        let bell = bell.clone();
        async move {
            if message.id == "killer" {
                bell.notify_one();
                std::future::pending::<()>().await;
            }
            Ok::<(), Failure>(())
        }
    };
    let call = handler("call", call).max_attempts(3).concurrency(1);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, call)).await;
    receive(&inbox, &[message("killer"), message("innocent")]).await;
    for _ in 0..3 {
        killed_at(run(inbox.clone()).drain(), entered.notified()).await;
        subject.clock().advance(LEASE_AND_MORE);
    }
    drain(&inbox).await;
    let dead = delivery(inbox.store(), "call").await;
    assert_eq!((dead.message.id.as_str(), dead.state), ("killer", DeliveryState::Dead));
    assert_eq!(
        dead.history.iter().filter(|attempt| attempt.error == LAPSED).count(),
        3,
        "{:?}",
        dead.history
    );
}

/// Who lost the lease changes nothing, neither by success nor by failure.
pub async fn who_has_lost_the_lease_settles_nothing<T: Subject>(subject: T) {
    let store = subject.store();
    let charge = handler("charge", failing::<T>("charge", |_, _| true)).max_attempts(9);
    let inbox = registered(Inbox::new(store.clone()).on(KIND, charge)).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);

    let ask =
        |token| AskLease { handler: "charge", token, limit: 5, lease_for: LEASE_AND_MORE, ordered: false };
    let zombie = store.lease(&ask(Token(1))).await.unwrap().deliveries.remove(0).lease;
    assert_eq!(store.lease(&ask(Token(2))).await.unwrap().deliveries.len(), 0, "it is leased");
    subject.clock().advance(LEASE_AND_MORE);
    let owner = store.lease(&ask(Token(2))).await.unwrap().deliveries.remove(0).lease;
    assert_eq!((zombie.attempt, owner.attempt), (2, 3));

    for outcome in [Outcome::Done, Outcome::Dead("no".to_owned()), Outcome::Retry(HOUR, "no".to_owned())] {
        let late = Settlement { lease: zombie, outcome };
        assert_eq!(store.settle("charge", &[late]).await.unwrap(), [false]);
    }
    assert_eq!(store.renew("charge", &[zombie, owner], HOUR).await.unwrap(), [false, true]);
    let limits = TxLimits { statement: Duration::from_secs(10) };
    assert!(store.begin_leased("charge", &[zombie], limits).await.unwrap().is_none());

    // A zombie that began in time and commits too late leaves no effect.
    let mut tx = store.begin_plain(limits).await.unwrap();
    T::record(&mut tx, Effect::of("zombie", &message("a"))).await.unwrap();
    let done = Some(DoneLeases { handler: "charge".to_owned(), leases: vec![zombie] });
    let error = store.commit(tx, Commit { done, ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(subject.effects().await, []);
    let done = Settlement { lease: owner, outcome: Outcome::Done };
    assert_eq!(store.settle("charge", &[done]).await.unwrap(), [true]);
    assert_eq!(deliveries(&store, "charge").await.len(), 0);
}

/// With two whole runners: the slow one finishes after the other and is not asked.
pub async fn a_runner_that_finishes_too_late_does_not_undo_its_successor<T: Subject>(subject: T) {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell, gate) = (entered.clone(), go.clone());
    let slow = move |_: Message| {
        let (bell, gate) = (bell.clone(), gate.clone());
        async move {
            bell.notify_one();
            gate.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let fails = |_: Message| async { Err::<(), _>(Failure::permanent("the successor says no")) };
    let first = registered(Inbox::new(subject.store()).on(KIND, handler("call", slow))).await;
    let second = Inbox::new(subject.reopen().await).on(KIND, handler("call", fails));
    receive(&first, &[message("a")]).await;
    let slow = tokio::spawn(run(first.clone()).drain());
    entered.notified().await;
    subject.clock().advance(LEASE_AND_MORE);
    drain(&second).await;
    go.notify_one();
    slow.await.unwrap().unwrap();

    let dead = delivery(first.store(), "call").await;
    assert_eq!((dead.state, dead.attempts), (DeliveryState::Dead, 2), "{dead:?}");
}

/// A long call keeps its lease, and nobody runs it twice. Takes as long as a runner waits to renew.
pub async fn a_long_call_keeps_its_lease<T: Subject>(subject: T) {
    let (calls, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, gate) = (calls.clone(), go.clone());
    let long = move |_: Message| {
        counted.fetch_add(1, Ordering::SeqCst);
        let gate = gate.clone();
        async move {
            gate.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("call", long))).await;
    receive(&inbox, &[message("a")]).await;
    let running = start(run(inbox.clone()).poll_every(HOUR));
    until("the call has begun", || async { calls.load(Ordering::SeqCst) == 1 }).await;
    let leased_until = delivery(inbox.store(), "call").await.due_at;
    until("the lease is renewed", || async { delivery(inbox.store(), "call").await.due_at > leased_until })
        .await;
    subject.clock().advance(Duration::from_secs(9));

    drain(&inbox).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1, "the renewed lease still holds");
    go.notify_one();
    until("the call is settled", || async { deliveries(inbox.store(), "call").await.is_empty() }).await;
    running.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
