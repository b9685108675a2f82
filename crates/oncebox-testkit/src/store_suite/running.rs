//! Whole runners: sources that misbehave, several processes, hints and polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::admin::{DeliveryFilter, DeliveryInfo, DeliveryState};
use oncebox_core::{Counter, ErrorKind, Failure, Inbox, Limits, Message, Store, UNREADABLE, run};
use tokio::sync::watch;

use crate::broker::{Manners, MemoryBroker};
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{
    HOUR, KIND, assert_once, failing, handler, ids, message, numbered, receive, registered, start,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

const FAST: Duration = Duration::from_millis(20);

/// Fails the first attempt of every fifth message.
fn shaky(message: &Message, attempt: u32) -> bool {
    attempt == 1 && (message.id.ends_with('0') || message.id.ends_with('5'))
}

fn quick() -> oncebox_core::Backoff {
    oncebox_core::Backoff::new(Duration::from_millis(5), Duration::from_millis(20))
}

/// Each message one to five times, in any order, acknowledgements forgotten, connections lost.
pub async fn a_badly_behaved_source_has_each_effect_once_when_stored<T: Subject>(subject: T) {
    bad_source(&subject, Way::Stored).await;
}

/// The same when messages are handled before they are acknowledged.
pub async fn a_badly_behaved_source_has_each_effect_once_inline<T: Subject>(subject: T) {
    bad_source(&subject, Way::Inline).await;
}

enum Way {
    Stored,
    Inline,
}

async fn bad_source<T: Subject>(subject: &T, way: Way) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", failing::<T>("ship", shaky)).backoff(quick()));
    let broker = MemoryBroker::new(11, Manners::BAD);
    let runner = run(inbox).concurrency(2).poll_every(FAST);
    let running = start(match way {
        Way::Stored => runner.consume(broker.source("orders")),
        Way::Inline => runner.consume_inline(broker.source("orders")),
    });
    let messages = numbered(150);
    for lot in messages.chunks(30) {
        broker.put(lot.to_vec());
        broker.disconnect();
    }
    until("the broker has nothing left", || async { broker.pending() == 0 }).await;
    until("every effect is there", || async { subject.effects().await.len() >= 300 }).await;
    running.stop().await;
    assert!(broker.deliveries() > 300, "the broker did misbehave: {}", broker.deliveries());
    assert_once(subject, &messages, &["charge", "ship"]).await;
}

/// The scope of a source's messages is its name.
pub async fn the_same_id_from_two_sources_is_two_messages<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")));
    let (shop, billing) = (MemoryBroker::new(1, Manners::GOOD), MemoryBroker::new(2, Manners::GOOD));
    shop.put([message("7")]);
    billing.put([message("7")]);
    let runner = run(inbox).consume(shop.source("shop")).consume_inline(billing.source("billing"));
    let running = start(runner.poll_every(FAST));
    until("both are charged", || async { subject.effects().await.len() == 2 }).await;
    running.stop().await;
    assert_eq!(ids(&subject, "charge").await, ["7", "7"]);
}

/// While nothing can be stored, nothing is acknowledged.
pub async fn nothing_is_acknowledged_before_it_is_committed<T: Subject>(subject: T) {
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::ErrorForEver });
    let store = Faulty::new(subject.store(), plan.clone());
    let inbox = Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.put(numbered(10));
    let running = start(run(inbox).consume(broker.source("orders")).poll_every(FAST));
    plan.struck().await;
    until("it was tried again", || async { plan.calls()["receive"] >= 3 }).await;
    assert_eq!(broker.pending(), 10);
    plan.heal();
    until("the broker has nothing left", || async { broker.pending() == 0 }).await;
    until("every effect is there", || async { subject.effects().await.len() == 10 }).await;
    running.stop().await;
    assert_once(&subject, &numbered(10), &["charge"]).await;
}

/// Nothing that was delivered goes away unseen: it is a dead letter with its bytes, once however often it comes.
pub async fn an_unreadable_message_is_kept_and_stops_nobody<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store()).limits(Limits { payload_bytes: 100 });
    let inbox = inbox.on(KIND, handler("charge", recording::<T>("charge")));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let long = Message::new(KIND, "long id").id("x".repeat(600));
    let unreadable = [Message::new(KIND, vec![7; 101]).id("large"), message(""), long, message("\0")];
    for round in ["a", "b"] {
        broker.put([message(round)]);
        broker.put(unreadable.clone());
    }
    broker.put([Message::new("x".repeat(300), "long kind").id("kind"), message("c")]);
    let running = start(run(inbox.clone()).consume(broker.source("orders")).poll_every(FAST));
    until("the good ones are charged", || async { subject.effects().await.len() == 3 }).await;
    running.stop().await;
    assert_eq!((broker.pending(), broker.rejected().len()), (0, 0));
    assert_once(&subject, &[message("a"), message("b"), message("c")], &["charge"]).await;
    let filter = DeliveryFilter::all().handler(UNREADABLE).state(DeliveryState::Dead);
    let kept = subject.store().deliveries(&filter).await.unwrap();
    assert_eq!(kept.len(), 5, "{kept:?}");
    assert_eq!(inbox.counters().get(UNREADABLE, Counter::Dead), 5);
    for original in unreadable {
        let letter = kept.iter().find(|letter| letter.message.payload == original.payload);
        assert!(letter.is_some(), "{original:?} is not among {kept:?}");
    }
    let says_why = |letter: &DeliveryInfo| letter.history[0].error.contains("from source `orders`: ");
    assert!(kept.iter().all(says_why), "{kept:?}");
}

/// Nothing is given up because the store has a fault of its own, whatever that is.
pub async fn an_unreadable_message_waits_for_a_store_that_is_broken<T: Subject>(subject: T) {
    let fault = Fault { method: "begin_inline", call: 1, side: Side::Before, how: How::Broken };
    let plan = Plan::with(fault);
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.put([message("")]);
    let running = start(run(inbox).consume(broker.source("orders")).poll_every(FAST));
    until("it was tried again", || async {
        plan.calls().get("begin_inline").is_some_and(|calls| *calls >= 3)
    })
    .await;
    assert!(broker.rejected().is_empty());
    plan.heal();
    let filter = DeliveryFilter::all().handler(UNREADABLE).state(DeliveryState::Dead);
    until("it is kept", || async { subject.store().deliveries(&filter).await.unwrap().len() == 1 }).await;
    running.stop().await;
    assert_eq!((broker.pending(), broker.rejected().len()), (0, 0));
}

/// A hint from another process wakes an idle runner long before its poll.
pub async fn an_idle_runner_is_woken_by_another_process<T: Subject>(subject: T) {
    if !T::HINTS {
        return;
    }
    let inbox = Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")));
    let running = start(run(registered(inbox).await).poll_every(HOUR));
    let other = Inbox::new(subject.reopen().await);
    for number in 0..5 {
        receive(&other, &[message(number.to_string())]).await;
        until("the message is handled", || async { subject.effects().await.len() == number + 1 }).await;
    }
    running.stop().await;
}

/// Hints are only hints. The other store gives none, because its `announce` fails.
pub async fn polling_alone_finds_everything<T: Subject>(subject: T) {
    let plan = Plan::with(Fault { method: "announce", call: 1, side: Side::Before, how: How::ErrorForEver });
    let inbox = Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")));
    let running = start(run(registered(inbox).await).poll_every(FAST));
    let other = Inbox::new(Faulty::new(subject.reopen().await, plan));
    for lot in numbered(30).chunks(10) {
        receive(&other, lot).await;
    }
    until("everything is handled", || async { subject.effects().await.len() >= 30 }).await;
    running.stop().await;
    assert_once(&subject, &numbered(30), &["charge"]).await;
}

/// Any number of processes on one store.
pub async fn several_runners_share_the_work_and_double_nothing<T: Subject>(subject: T) {
    let inbox = |store| {
        Inbox::new(store)
            .on(KIND, handler("charge", recording::<T>("charge")).batch(5))
            .on(KIND, handler("ship", failing::<T>("ship", shaky)).backoff(quick()).batch(5))
    };
    let first = registered(inbox(subject.store())).await;
    let mut runners = Vec::new();
    for _ in 0..3 {
        runners.push(start(run(inbox(subject.reopen().await)).concurrency(2).poll_every(FAST)));
    }
    for lot in numbered(200).chunks(20) {
        receive(&first, lot).await;
    }
    until("everything is handled", || async { subject.effects().await.len() >= 400 }).await;
    for runner in runners {
        runner.stop().await;
    }
    assert_once(&subject, &numbered(200), &["charge", "ship"]).await;
}

/// As many transactions of a handler at once as asked for, where the database can.
pub async fn a_handler_runs_in_several_transactions_at_once<T: Subject>(subject: T) {
    if !T::FACTS.parallel_transactions {
        return;
    }
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(watch::Sender::new(0)));
    let (running, highest) = (now.clone(), most.clone());
    let charge = move |mut tx: TxOf<T>, message: Message| {
        let (running, highest) = (running.clone(), highest.clone());
        async move {
            let count = running.fetch_add(1, Ordering::SeqCst) + 1;
            highest.send_modify(|highest| *highest = count.max(*highest));
            // The first ones wait until three are here at once.
            let _ = highest.subscribe().wait_for(|highest| *highest >= 3).await;
            running.fetch_sub(1, Ordering::SeqCst);
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge).batch(1))).await;
    receive(&inbox, &numbered(30)).await;
    let running = start(run(inbox).concurrency(3).poll_every(FAST));
    until("everything is handled", || async { subject.effects().await.len() >= 30 }).await;
    running.stop().await;
    assert_eq!((now.load(Ordering::SeqCst), *most.borrow()), (0, 3));
    assert_once(&subject, &numbered(30), &["charge"]).await;
}

/// Handlers, calls outside, a relay, inline messages and receiving, all through one connection.
pub async fn one_connection_is_enough_for_everything<T: Subject>(subject: T) {
    let store = subject.store_with_one_connection().await;
    let publish = |mut tx: TxOf<T>, message: Message| async move {
        T::record(&mut tx, Effect::of("pay", &message)).await?;
        tx.publish(Message::new("order.paid", "x").id(message.id)).await?;
        Ok::<(), Failure>(())
    };
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mail = move |_: Message| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), Failure>(()) }
    };
    let inbox = Inbox::new(store)
        .on(KIND, handler("pay", publish))
        .on(KIND, handler("ship", failing::<T>("ship", shaky)).backoff(quick()).ordered())
        .on(KIND, handler("mail", mail));
    let inbox = registered(inbox).await;
    let broker = MemoryBroker::new(5, Manners::BAD);
    let sink = MemoryBroker::new(6, Manners::GOOD);
    let runner = run(inbox.clone()).consume_inline(broker.source("orders")).relay(sink.clone());
    let running = start(runner.concurrency(4).poll_every(FAST));
    let messages = numbered(40);
    broker.put(messages[..20].to_vec());
    receive(&inbox, &messages[20..]).await;
    until("every effect is there", || async { subject.effects().await.len() >= 80 }).await;
    until("everything is called and sent", || async {
        calls.load(Ordering::SeqCst) >= 40 && sink.sent().len() >= 40 && broker.pending() == 0
    })
    .await;
    running.stop().await;
    assert_once(&subject, &messages, &["pay", "ship"]).await;
    assert_eq!((calls.load(Ordering::SeqCst), sink.sent().len()), (40, 40));
}

/// Without an inbox a failure goes back to the source, which delivers again.
pub async fn a_direct_inbox_gives_failures_back_to_the_source<T: Subject>(subject: T) {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let charge = move |mut tx: TxOf<T>, message: Message| {
        let fails = counted.fetch_add(1, Ordering::SeqCst) < 3;
        async move {
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            if fails { Err(Failure::from("not yet")) } else { Ok(()) }
        }
    };
    let inbox = Inbox::direct(subject.store()).on(KIND, handler("charge", charge));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.put(numbered(3));
    let running = start(run(inbox).consume_inline(broker.source("orders")).poll_every(FAST));
    until("the broker has nothing left", || async { broker.pending() == 0 }).await;
    running.stop().await;
    assert_once(&subject, &numbered(3), &["charge"]).await;
    assert_eq!(broker.deliveries(), 6);
}

/// Each message would be refused as if it were to blame, and the broker told to give it up.
pub async fn a_direct_inbox_takes_nothing_to_be_stored<T: Subject>(subject: T) {
    let charge = handler("charge", recording::<T>("charge"));
    let inbox = Inbox::direct(subject.store()).on(KIND, charge);
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.put(numbered(3));
    let error = run(inbox).consume(broker.source("orders")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`consume`"), "{error}");
    assert_eq!((broker.pending(), broker.deliveries()), (3, 0));
}

/// A transaction that somebody forgot to end does not stop the others.
pub async fn an_idle_transaction_of_somebody_else_stops_nobody<T: Subject>(subject: T) {
    if !T::FACTS.parallel_transactions {
        return;
    }
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let mut forgotten = subject.begin().await;
    T::record(&mut forgotten, Effect::of("forgotten", &message("x"))).await.unwrap();
    receive(&inbox, &numbered(10)).await;
    crate::fixtures::drain(&inbox).await;
    assert_once(&subject, &numbered(10), &["charge"]).await;
    T::rollback(forgotten).await;
}
