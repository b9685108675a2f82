//! Handling a message in the transaction that remembers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Batch, Failure, Inbox, Message, Processed, Received, Store, run};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{
    ENDER, FAILER, HOUR, KIND, assert_nothing_lost, assert_once, deliveries, delivery, drain, ending,
    failing, handler, ids, message, notes, numbered, receive, registered,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

/// Done when it returns; nothing of it stays but the id.
pub async fn an_inline_message_is_done_when_it_returns<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", recording::<T>("ship")));
    let inbox = registered(inbox).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Done);
    assert_once(&subject, &[message("a")], &["charge", "ship"]).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Duplicate);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge", "ship"]).await;
}

/// One memory of ids for both ways in.
pub async fn inline_and_stored_messages_share_their_memory<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    assert_eq!(inbox.process(message("inline")).await.unwrap(), Processed::Done);
    receive(&inbox, &[message("stored")]).await;
    assert_eq!(inbox.receive(&[message("inline")]).await.unwrap(), [Received::Duplicate]);
    assert_eq!(inbox.process(message("stored")).await.unwrap(), Processed::Duplicate);
    drain(&inbox).await;
    assert_once(&subject, &[message("inline"), message("stored")], &["charge"]).await;
}

/// Nothing that came under a known id is dropped unseen.
pub async fn an_inline_message_with_other_bytes_is_a_conflict<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Done);
    let other = Message::new(KIND, "other").id("a");
    assert_eq!(inbox.process(other.clone()).await.unwrap(), Processed::Conflict);
    let lot = vec![message("b"), other, message("a"), message("c")];
    let answers = inbox.process_all(lot).await.unwrap();
    assert_eq!(answers, [Processed::Done, Processed::Conflict, Processed::Duplicate, Processed::Done]);
    assert_once(&subject, &[message("a"), message("b"), message("c")], &["charge"]).await;
    assert_eq!(inbox.store().conflicts(10).await.unwrap().len(), 1);
}

/// A statement may answer for two copies with one row.
pub async fn copies_in_one_inline_call_are_one_message<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let answers =
        inbox.process_all(vec![message("a"), message("a"), message("b"), message("a")]).await.unwrap();
    assert_eq!(answers, [Processed::Done, Processed::Duplicate, Processed::Done, Processed::Duplicate]);
    drain(&inbox).await;
    assert_once(&subject, &[message("a"), message("b")], &["charge"]).await;
}

/// More than one transaction holds, with strays and copies among them, some of them far from their first.
pub async fn a_large_inline_call_is_answered_in_order<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let wanted = numbered(1101);
    let (mut lot, mut expected) = (Vec::new(), Vec::new());
    for (number, one) in wanted.iter().enumerate() {
        lot.push(one.clone());
        expected.push(Processed::Done);
        if number % 100 == 7 {
            lot.push(Message::new("nobody.cares", "x").id(format!("stray-{number}")));
            expected.push(Processed::Stored);
            lot.push(wanted[number / 2].clone());
            expected.push(Processed::Duplicate);
        }
    }
    assert_eq!(inbox.process_all(lot.clone()).await.unwrap(), expected);
    assert_once(&subject, &wanted, &["charge"]).await;
    let again = inbox.process_all(lot.clone()).await.unwrap();
    assert_eq!(again, vec![Processed::Duplicate; lot.len()]);
    drain(&inbox).await;
    assert_once(&subject, &wanted, &["charge"]).await;
}

/// With a scope, and without a sink: that says where to send, and it has come.
pub async fn a_handler_sees_one_message_whichever_way_it_came<T: Subject>(subject: T) {
    let look = |mut tx: TxOf<T>, message: Message| async move {
        let note = format!("{:?} {:?}", message.scope, message.sink);
        T::record(&mut tx, Effect { note, ..Effect::of("look", &message) }).await?;
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("look", look))).await;
    let direct = Inbox::direct(subject.store()).on(KIND, handler("look", look));
    assert_eq!(inbox.process(message("inline").to("billing")).await.unwrap(), Processed::Done);
    assert_eq!(direct.process(message("direct").to("billing")).await.unwrap(), Processed::Done);
    receive(&inbox, &[message("stored").to("billing")]).await;
    drain(&inbox).await;
    assert_eq!(notes(&subject, "look").await, [r#""default" """#; 3]);
}

/// One retry rule, one place for dead letters.
pub async fn a_failed_inline_message_becomes_a_stored_delivery<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "bad" && attempt < 3;
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", failing::<T>("ship", fails)));
    let inbox = registered(inbox).await;
    assert_eq!(inbox.process(message("bad")).await.unwrap(), Processed::Stored);
    assert_eq!(ids(&subject, "charge").await, ["bad"], "the other handler is done");
    let waiting = delivery(inbox.store(), "ship").await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Retrying, 1));
    assert_eq!(waiting.message.payload, message("bad").payload);
    assert_eq!(inbox.process(message("bad")).await.unwrap(), Processed::Duplicate);
    for _ in 0..2 {
        subject.clock().advance(HOUR);
        drain(&inbox).await;
    }
    assert_once(&subject, &[message("bad")], &["charge", "ship"]).await;
}

/// Refused for good is a dead letter at once, also inline.
pub async fn a_permanent_inline_failure_is_a_dead_letter<T: Subject>(subject: T) {
    let refuse = |_: TxOf<T>| async { Err::<(), _>(Failure::permanent("never")) };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("refuse", refuse))).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Stored);
    let dead = delivery(inbox.store(), "refuse").await;
    assert_eq!((dead.state, dead.history.len()), (DeliveryState::Dead, 1));
}

/// A bad one in a lot, by error, at commit, and by ending the transaction.
pub async fn a_bad_inline_message_leaves_its_neighbours_unharmed<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("charge", &message)).await?;
        match message.id.as_str() {
            "m-003" if attempt == 1 => Err(Failure::from("bad")),
            "m-011" if attempt == 1 => Ok(T::fail_at_commit(&mut tx).await?),
            _ => Ok(()),
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    let answers = inbox.process_all(numbered(20)).await.unwrap();
    for (number, answer) in answers.iter().enumerate() {
        let expected = if [3, 11].contains(&number) { Processed::Stored } else { Processed::Done };
        assert_eq!(*answer, expected, "message {number}");
    }
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &numbered(20), &["charge"]).await;
}

/// One of many in a transaction ends it: their ids must not be committed without their work.
pub async fn an_inline_message_that_ends_the_transaction_loses_nothing<T: Subject>(subject: T) {
    ended_inline(subject, true).await;
}

/// The same when the handler does not say what the database answered.
pub async fn an_inline_message_that_hides_the_end_of_the_transaction_loses_nothing<T: Subject>(subject: T) {
    ended_inline(subject, false).await;
}

async fn ended_inline<T: Subject>(subject: T, tells: bool) {
    let charge = handler("charge", ending::<T>("charge", tells));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    let answers = inbox.process_all(numbered(7)).await.unwrap();
    for (message, answer) in numbered(7).iter().zip(answers) {
        let failed = [ENDER, FAILER].contains(&message.id.as_str());
        let expected = if failed { Processed::Stored } else { Processed::Done };
        assert_eq!(answer, expected, "{}", message.id);
    }
    assert_nothing_lost(&subject, &inbox, "charge", &numbered(7), tells).await;
}

/// The ids of the whole call are in one transaction, so it cannot be cut short: what was not run would be lost.
pub async fn a_slow_inline_call_loses_nothing<T: Subject>(subject: T) {
    let slow = |mut tx: TxOf<T>, message: Message| async move {
        T::work_for(&mut tx, Duration::from_millis(120)).await?;
        T::record(&mut tx, Effect::of("slow", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("slow", slow))).await;
    assert_eq!(inbox.process_all(numbered(6)).await.unwrap(), vec![Processed::Done; 6]);
    assert_once(&subject, &numbered(6), &["slow"]).await;
}

/// Many in one call, also inline.
pub async fn an_inline_batch_handler_gets_the_whole_call<T: Subject>(subject: T) {
    let count = |mut tx: TxOf<T>, Batch(messages): Batch<Message>| async move {
        for message in &messages {
            T::record(&mut tx, Effect { note: messages.len().to_string(), ..Effect::of("count", message) })
                .await?;
        }
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("count", count))).await;
    assert_eq!(inbox.process_all(numbered(9)).await.unwrap(), vec![Processed::Done; 9]);
    assert_eq!(notes(&subject, "count").await, ["9"; 9]);
}

/// An effect outside the database is made by the runner, after the commit.
pub async fn an_outside_handler_of_an_inline_message_is_left_to_the_runner<T: Subject>(subject: T) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mail = move |_: Message| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), Failure>(()) }
    };
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("mail", mail));
    let inbox = registered(inbox).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Stored);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_once(&subject, &[message("a")], &["charge"]).await;
    drain(&inbox).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(deliveries(inbox.store(), "mail").await.len(), 0);
}

/// A kind nobody wants is not lost inline either.
pub async fn an_inline_message_nobody_wants_is_stored<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let stray = Message::new("nobody.cares", "x").id("stray");
    assert_eq!(inbox.process(stray.clone()).await.unwrap(), Processed::Stored);
    assert_eq!(inbox.process(stray).await.unwrap(), Processed::Duplicate);
    let late = handler("late", recording::<T>("late")).from_start();
    drain(&Inbox::new(subject.store()).on("nobody.*", late)).await;
    assert_eq!(ids(&subject, "late").await, ["stray"]);
}

/// Nobody looks first and writes later.
pub async fn copies_processed_at_the_same_time_are_one_message<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")));
    let first = registered(inbox(subject.store())).await;
    let second = inbox(subject.reopen().await);
    for message in numbered(10) {
        let barrier = Arc::new(Barrier::new(4));
        let mut calls = JoinSet::new();
        for number in 0..4 {
            let inbox = if number % 2 == 0 { first.clone() } else { second.clone() };
            let (barrier, message) = (barrier.clone(), message.clone());
            calls.spawn(async move {
                barrier.wait().await;
                inbox.process(message).await.unwrap()
            });
        }
        let answers = calls.join_all().await;
        let done = answers.iter().filter(|answer| **answer == Processed::Done).count();
        let duplicates = answers.iter().filter(|answer| **answer == Processed::Duplicate).count();
        assert_eq!((done, duplicates), (1, 3), "{answers:?}");
    }
    assert_once(&subject, &numbered(10), &["charge"]).await;
}

/// A copy waits for a rival that has not committed, and takes over when the rival dies.
pub async fn a_copy_takes_over_when_its_rival_dies<T: Subject>(subject: T) {
    rival::<T>(&subject, true).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// The other way: the rival commits, and the copy is a duplicate.
pub async fn a_copy_is_a_duplicate_when_its_rival_commits<T: Subject>(subject: T) {
    rival::<T>(&subject, false).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

async fn rival<T: Subject>(subject: &T, dies: bool) {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell, gate) = (entered.clone(), go.clone());
    let slow = move |mut tx: TxOf<T>, message: Message| {
        let (bell, gate) = (bell.clone(), gate.clone());
        async move {
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            bell.notify_one();
            gate.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let rival = registered(Inbox::new(subject.store()).on(KIND, handler("charge", slow))).await;
    let copy = Inbox::new(subject.reopen().await).on(KIND, handler("charge", recording::<T>("charge")));
    let first = tokio::spawn(async move { rival.process(message("a")).await });
    entered.notified().await;
    let second = tokio::spawn(async move { copy.process(message("a")).await });
    if dies {
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(second.await.unwrap().unwrap(), Processed::Done);
    } else {
        go.notify_one();
        assert_eq!(first.await.unwrap().unwrap(), Processed::Done);
        assert_eq!(second.await.unwrap().unwrap(), Processed::Duplicate);
    }
}

/// What an inline handler publishes goes the same way.
pub async fn what_an_inline_handler_publishes_is_sent<T: Subject>(subject: T) {
    let publish = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        tx.publish(Message::new("order.paid", "x").id(format!("paid-{}-{attempt}", message.id))).await?;
        if message.id == "bad" { Err(Failure::permanent("no")) } else { Ok(()) }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("pay", publish))).await;
    inbox.process_all(vec![message("a"), message("bad"), message("b")]).await.unwrap();
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox).relay(broker.clone()).drain().await.unwrap();
    let mut sent: Vec<String> = broker.sent().into_iter().map(|message| message.id).collect();
    sent.sort_unstable();
    assert_eq!(sent, ["paid-a-1", "paid-b-1"]);
}

/// No inbox at all: nothing is remembered, and a failure is the caller's.
pub async fn a_direct_inbox_remembers_nothing<T: Subject>(subject: T) {
    let fails = |message: &Message, _| message.id == "bad";
    let inbox = Inbox::direct(subject.store()).on(KIND, handler("charge", failing::<T>("charge", fails)));
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Done);
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Done);
    let failed = inbox.process(message("bad")).await.unwrap();
    assert_eq!(failed, Processed::Failed("charge failed on purpose, attempt 1".to_owned()));
    assert!(inbox.receive(&[message("a")]).await.is_err(), "it has no log");
    assert_eq!(ids(&subject, "charge").await, ["a", "a"]);

    let store = subject.store();
    until("nothing is open", || async { subject.stuck_transactions().await == 0 }).await;
    assert_eq!(deliveries(&store, "charge").await.len(), 0);
}
