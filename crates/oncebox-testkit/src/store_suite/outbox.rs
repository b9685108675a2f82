//! Outgoing messages: written with the work, sent after the commit, under one id.

use jiff::Timestamp;
use oncebox_core::{Attempt, Failure, Inbox, Message, Relay, Store, run};

use crate::broker::{Manners, MemoryBroker};
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{HOUR, KIND, drain, handler, keyed, message, numbered, receive, registered};
use crate::subject::{Subject, TxOf};

fn ids_sent(broker: &MemoryBroker) -> Vec<String> {
    broker.sent().into_iter().map(|message| message.id).collect()
}

/// Publishes `paid-<id>` for each message; fails afterwards where `fails` says so.
fn paying<St: Store<Connection = C>, C: oncebox_core::store::Connection>(
    store: St,
    fails: fn(&Message, u32) -> bool,
) -> Inbox<St> {
    let pay = move |mut tx: oncebox_core::Tx<C>, message: Message, Attempt(attempt): Attempt| async move {
        let mut paid = Message::new("order.paid", message.payload.clone()).id(format!("paid-{}", message.id));
        paid.key = message.key.clone();
        paid.headers.push("attempt", attempt.to_string());
        assert_eq!(tx.publish(paid).await?, format!("paid-{}", message.id));
        if fails(&message, attempt) { Err(Failure::from("after publishing")) } else { Ok(()) }
    };
    Inbox::new(store).on(KIND, handler("pay", pay))
}

/// With everything it was given.
pub async fn what_a_handler_publishes_is_sent_once_it_is_committed<T: Subject>(subject: T) {
    let inbox = registered(paying(subject.store(), |_, _| false)).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    receive(&inbox, &[keyed("a", "k")]).await;
    drain(&inbox).await;
    let status = inbox.store().outbox().await.unwrap();
    assert_eq!((status[0].sink.as_str(), status[0].waiting, status[0].dead), ("", 1, 0));

    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    let sent = broker.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].id.as_str(), sent[0].kind.as_str()), ("paid-a", "order.paid"));
    assert_eq!((sent[0].key.as_deref(), &sent[0].payload), (Some("k"), &message("a").payload));
    assert_eq!(sent[0].headers.text("attempt"), Some("1"));
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(broker.sent().len(), 1, "what was confirmed is gone");
    assert!(inbox.store().outbox().await.unwrap().iter().all(|status| status.waiting == 0));
}

/// A message that was flushed before the commit would be one about nothing.
pub async fn what_was_rolled_back_is_never_sent<T: Subject>(subject: T) {
    let inbox = registered(paying(subject.store(), |message, attempt| {
        message.id == "m-003" && attempt < 3 || message.id == "m-007"
    }))
    .await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    receive(&inbox, &numbered(10)).await;
    for _ in 0..4 {
        run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
        subject.clock().advance(HOUR);
    }
    let mut sent = broker.sent();
    sent.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(sent.len(), 9, "all but the one that never worked, each once");
    assert!(!sent.iter().any(|message| message.id == "paid-m-007"));
    let third = sent.iter().find(|message| message.id == "paid-m-003").unwrap();
    assert_eq!(
        third.headers.text("attempt"),
        Some("3"),
        "the attempt that committed is the one that is sent"
    );
}

/// The sink may see it twice, but never under two ids.
pub async fn every_copy_of_an_outgoing_message_has_one_id<T: Subject>(subject: T) {
    let plan =
        Plan::with(Fault { method: "settle_outgoing", call: 1, side: Side::Before, how: How::ErrorOnce });
    let no_id = |mut tx: TxOf<T>, message: Message| async move {
        tx.publish(Message::new("order.paid", message.payload)).await.map(drop)
    };
    let store = Faulty::new(subject.store(), plan);
    let inbox = registered(Inbox::new(store).on(KIND, handler("pay", no_id))).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    receive(&inbox, &numbered(5)).await;
    let first = run(inbox.clone()).relay(broker.clone()).drain().await;
    assert!(first.is_err(), "the relay could not note what it had sent");
    subject.clock().advance(HOUR);
    run(inbox).relay(broker.clone()).drain().await.unwrap();

    let sent = broker.sent();
    assert_eq!(sent.len(), 10, "each once more");
    for message in &sent {
        let copies = sent.iter().filter(|other| other.id == message.id);
        assert_eq!(copies.filter(|other| *other == message).count(), 2, "{}", message.id);
    }
}

/// In the order of the commits, key by key.
pub async fn outgoing_messages_of_a_key_are_sent_in_order<T: Subject>(subject: T) {
    let keys = ["a", "b", "c", "d"];
    let broker = MemoryBroker::new(1, Manners::GOOD);
    for lot in 0..10 {
        let mut own = subject.begin().await;
        let messages: Vec<Message> = (0..8)
            .map(|place| Message::new("x", "x").id(format!("{lot:02}-{place}")).key(keys[place % keys.len()]))
            .collect();
        subject.store().publish(&mut own, &messages).await.unwrap();
        T::commit(own).await;
    }
    let relay = Relay::new(broker.clone()).batch(7);
    run(Inbox::new(subject.store())).relay(relay).drain().await.unwrap();
    assert_eq!(broker.sent().len(), 80);
    for key in keys {
        let sent = broker.sent();
        let of_key: Vec<&str> = sent
            .iter()
            .filter(|message| message.key.as_deref() == Some(key))
            .map(|m| m.id.as_str())
            .collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

/// Each relay takes what is meant for its sink and nothing else.
pub async fn messages_go_to_the_sink_they_name<T: Subject>(subject: T) {
    let (plain, named) = (MemoryBroker::new(1, Manners::GOOD), MemoryBroker::new(2, Manners::GOOD));
    let mut own = subject.begin().await;
    let messages = [
        Message::new("x", "x").id("plain"),
        Message::new("x", "x").id("named").to("audit"),
        Message::new("x", "x").id("nowhere").to("unknown"),
    ];
    subject.store().publish(&mut own, &messages).await.unwrap();
    T::commit(own).await;
    let inbox = Inbox::new(subject.store());
    run(inbox.clone())
        .relay(plain.clone())
        .relay(Relay::new(named.clone()).named("audit"))
        .drain()
        .await
        .unwrap();
    assert_eq!((ids_sent(&plain), ids_sent(&named)), (vec!["plain".to_owned()], vec!["named".to_owned()]));
    let status = inbox.store().outbox().await.unwrap();
    let unknown = status.iter().find(|status| status.sink == "unknown").unwrap();
    assert_eq!(unknown.waiting, 1, "what no relay takes waits and is shown");
    assert!(unknown.lag.is_some());
}

/// The same rule as for incoming ones, by the same clock.
pub async fn a_scheduled_outgoing_message_waits_for_its_time<T: Subject>(subject: T) {
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let mut own = subject.begin().await;
    let later = Message::new("x", "x").id("later").not_before(Timestamp::now() + HOUR);
    subject.store().publish(&mut own, &[later, Message::new("x", "x").id("now")]).await.unwrap();
    T::commit(own).await;
    let inbox = Inbox::new(subject.store());
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["now"]);
    subject.clock().advance(HOUR + HOUR);
    run(inbox).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["now", "later"]);
}

/// A handler and a relay in one process, a poll that never comes.
pub async fn a_runner_sends_what_its_handlers_publish_at_once<T: Subject>(subject: T) {
    let inbox = registered(paying(subject.store(), |_, _| false)).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let running = crate::fixtures::start(run(inbox.clone()).relay(broker.clone()).poll_every(HOUR));
    receive(&inbox, &[message("a")]).await;
    crate::wait::until("the message is sent", || async { broker.sent().len() == 1 }).await;
    running.stop().await;
}
