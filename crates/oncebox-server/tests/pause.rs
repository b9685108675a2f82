//! A paused source: nothing is taken from it, nothing is lost, and it goes on where it was.

#![allow(clippy::unwrap_used)]

use oncebox::{Counter, Inbox, Message, SqliteStore, run};
use oncebox_testkit::{Manners, MemoryBroker, until};

fn messages(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Message> {
    numbers.map(|number| Message::new("order.placed", "{}").id(format!("m{number}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_from_a_paused_source_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("pause.db").to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let inbox = Inbox::new(store);
    let (orders, others) = (MemoryBroker::new(1, Manners::GOOD), MemoryBroker::new(2, Manners::GOOD));
    // Before there is a source of that name.
    inbox.pause_source("orders");
    assert!(inbox.is_source_paused("orders") && !inbox.is_source_paused("others"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let runner = run(inbox.clone())
        .consume(orders.source("orders"))
        .consume(others.source("others"))
        .with_graceful_shutdown(async move { drop(stopped.await) });
    let runner = tokio::spawn(async move { runner.await });

    let received = |wanted: i64| {
        let inbox = inbox.clone();
        async move { inbox.counters().get("", Counter::Received) == wanted }
    };
    orders.put(messages(0..10));
    others.put(messages(0..10));
    until("the other source goes on", || received(10)).await;
    assert_eq!((orders.deliveries(), orders.pending()), (0, 10), "the paused one was not asked");

    inbox.resume_source("orders");
    until("it goes on", || received(20)).await;
    until("all is acknowledged", || async { orders.pending() == 0 }).await;

    // Now while it waits for messages.
    inbox.pause_source("orders");
    orders.put(messages(10..20));
    others.put(messages(10..20));
    until("the other source goes on again", || received(30)).await;
    assert_eq!((orders.deliveries(), orders.pending()), (10, 10));
    assert_eq!(inbox.paused_sources(), ["orders"]);
    inbox.resume_source("orders");
    until("nothing was lost", || received(40)).await;
    until("all is acknowledged", || async { orders.pending() + others.pending() == 0 }).await;
    stop.send(()).unwrap();
    runner.await.unwrap().unwrap();
}
