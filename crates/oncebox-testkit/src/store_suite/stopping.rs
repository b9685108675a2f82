//! Graceful shutdown: what was taken is finished or given back, and what was published is sent.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Failure, Inbox, Message, run};
use tokio::sync::Notify;

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{
    HOUR, KIND, assert_once, drain, handler, message, numbered, receive, registered, start,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

/// Twenty stops in the middle of the work.
pub async fn stopping_under_load_loses_and_doubles_nothing<T: Subject>(subject: T) {
    let publish = |mut tx: TxOf<T>, message: Message| async move {
        T::record(&mut tx, Effect::of("pay", &message)).await?;
        tx.publish(Message::new("order.paid", "x").id(message.id)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = |store| {
        Inbox::new(store)
            .on(KIND, handler("pay", publish).batch(10))
            .on(KIND, handler("ship", recording::<T>("ship")).batch(10))
    };
    let messages = numbered(400);
    let broker = MemoryBroker::new(21, Manners::BAD);
    let sink = MemoryBroker::new(22, Manners::GOOD);
    for (number, lot) in messages.chunks(20).enumerate() {
        broker.put(lot.to_vec());
        let inbox = inbox(subject.store());
        let runner = run(inbox).consume(broker.source("orders")).relay(sink.clone());
        let running = start(runner.concurrency(2).poll_every(Duration::from_millis(10)));
        let before = broker.deliveries();
        until("something was delivered", || async { broker.deliveries() > before || broker.pending() == 0 })
            .await;
        running.stop().await;
        assert_eq!(broker.signed_off(), number + 1, "who stops says so");
        broker.disconnect();
    }
    let rest = inbox(subject.store());
    let runner = run(rest.clone()).consume(broker.source("orders")).relay(sink.clone());
    let running = start(runner.poll_every(Duration::from_millis(10)));
    until("the broker has nothing left", || async { broker.pending() == 0 }).await;
    running.stop().await;
    run(rest).relay(sink.clone()).drain().await.unwrap();
    assert_once(&subject, &messages, &["pay", "ship"]).await;
    let mut sent: Vec<String> = sink.sent().into_iter().map(|message| message.id).collect();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), 400, "everything committed was sent");
}

/// The handler that is running is not cut off, and its message is sent before the runner returns.
pub async fn a_stop_waits_for_what_is_running_and_sends_what_it_published<T: Subject>(subject: T) {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell, gate) = (entered.clone(), go.clone());
    let slow = move |mut tx: TxOf<T>, message: Message| {
        let (bell, gate) = (bell.clone(), gate.clone());
        async move {
            bell.notify_one();
            gate.notified().await;
            T::record(&mut tx, Effect::of("slow", &message)).await?;
            tx.publish(Message::new("order.paid", "x")).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("slow", slow))).await;
    let sink = MemoryBroker::new(1, Manners::GOOD);
    let running = start(run(inbox.clone()).relay(sink.clone()).poll_every(HOUR));
    receive(&inbox, &[message("a")]).await;
    entered.notified().await;
    let stopping = tokio::spawn(running.stop());
    go.notify_one();
    stopping.await.unwrap();
    assert_once(&subject, &[message("a")], &["slow"]).await;
    assert_eq!(sink.sent().len(), 1);
}

/// The same for a call outside the database: it is settled, not left to its lease.
pub async fn a_stop_settles_the_calls_that_are_running<T: Subject>(subject: T) {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell, gate) = (entered.clone(), go.clone());
    let call = move |_: Message| {
        let (bell, gate) = (bell.clone(), gate.clone());
        async move {
            bell.notify_one();
            gate.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("call", call))).await;
    let running = start(run(inbox.clone()).poll_every(HOUR));
    receive(&inbox, &[message("a")]).await;
    entered.notified().await;
    let stopping = tokio::spawn(running.stop());
    go.notify_one();
    stopping.await.unwrap();
    assert_eq!(crate::fixtures::deliveries(inbox.store(), "call").await.len(), 0);
}

/// A runner that was dropped instead of stopped leaves its work to the next one.
pub async fn a_dropped_runner_leaves_its_work_to_the_next<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")).batch(3));
    let first = registered(inbox(subject.store())).await;
    receive(&first, &numbered(60)).await;
    for _ in 0..5 {
        let before = subject.effects().await.len();
        let running = tokio::spawn(run(inbox(subject.reopen().await)).into_future());
        until("some of it is done", || async { subject.effects().await.len() > before || before >= 60 })
            .await;
        running.abort();
        let _ = running.await;
    }
    // Whoever was cut off in the middle has left its mark on a lane.
    until("the rest is done", || async {
        subject.clock().advance(Duration::from_secs(60));
        drain(&first).await;
        subject.effects().await.len() >= 60
    })
    .await;
    assert_once(&subject, &numbered(60), &["charge"]).await;
    assert_eq!(subject.stuck_transactions().await, 0);
}
