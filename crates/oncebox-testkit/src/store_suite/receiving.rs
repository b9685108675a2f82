//! Receiving: new, duplicate, conflict.

use std::sync::Arc;

use oncebox_core::{ErrorKind, Inbox, Message, Received, Store};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{KIND, assert_once, drain, handler, message, notes, numbered, receive, registered};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};

/// The plainest case of all.
pub async fn a_new_message_is_stored_and_a_copy_is_a_duplicate<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;

    assert_eq!(inbox.receive(&[message("a")]).await.unwrap(), [Received::New]);
    assert_eq!(inbox.receive(&[message("a")]).await.unwrap(), [Received::Duplicate]);
    drain(&inbox).await;
    assert_eq!(inbox.receive(&[message("a")]).await.unwrap(), [Received::Duplicate], "also once it is done");
    drain(&inbox).await;

    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// An empty call is no error.
pub async fn no_messages_get_no_answers<T: Subject>(subject: T) {
    assert_eq!(Inbox::new(subject.store()).receive(&[]).await.unwrap(), []);
}

/// A statement may answer for two copies with one row.
pub async fn copies_in_one_call_are_one_message<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;

    let answers = inbox.receive(&[message("a"), message("a"), message("b")]).await.unwrap();
    assert_eq!(answers, [Received::New, Received::Duplicate, Received::New]);
    drain(&inbox).await;

    assert_once(&subject, &[message("a"), message("b")], &["charge"]).await;
}

/// More than fits into one statement, with duplicates among them.
pub async fn every_message_of_a_long_call_gets_its_own_answer<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let messages = numbered(2500);
    let known: Vec<Message> = messages.iter().step_by(3).cloned().collect();
    receive(&inbox, &known).await;

    let answers = inbox.receive(&messages).await.unwrap();
    for (number, answer) in answers.iter().enumerate() {
        let expected = if number % 3 == 0 { Received::Duplicate } else { Received::New };
        assert_eq!(*answer, expected, "message {number}");
    }
    assert_eq!(answers.len(), messages.len());
}

/// Nobody looks first and writes later.
pub async fn copies_received_at_the_same_time_are_one_message<T: Subject>(subject: T) {
    let first =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    // Another handle, as another process has it, so that the calls do not share a statement.
    let second = Inbox::new(subject.reopen().await);
    let messages = numbered(20);
    for message in &messages {
        let barrier = Arc::new(Barrier::new(4));
        let mut calls = JoinSet::new();
        for number in 0..4 {
            let (barrier, message) = (barrier.clone(), message.clone());
            let inbox = if number % 2 == 0 { first.clone() } else { Inbox::clone(&second) };
            calls.spawn(async move {
                barrier.wait().await;
                inbox.receive(&[message]).await.unwrap()[0]
            });
        }
        let answers = calls.join_all().await;
        let new = answers.iter().filter(|answer| **answer == Received::New).count();
        let duplicates = answers.iter().filter(|answer| **answer == Received::Duplicate).count();
        assert_eq!((new, duplicates), (1, 3));
    }
    drain(&first).await;
    assert_once(&subject, &messages, &["charge"]).await;
}

/// Calls that come while a statement runs share the next one, but not its refusal.
pub async fn a_call_that_the_store_refuses_harms_none_beside_it<T: Subject>(subject: T) {
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::Stall });
    plan.refuse("receive", "bad");
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let inbox = registered(inbox.on(KIND, handler("charge", recording::<T>("charge")))).await;
    let call = |ids: &[&str]| {
        let (inbox, messages) = (inbox.clone(), ids.iter().map(|id| message(*id)).collect::<Vec<_>>());
        async move { inbox.receive(&messages).await }
    };
    let first = tokio::spawn(call(&["first"]));
    plan.struck().await;
    let (one, bad, two, three, ()) =
        tokio::join!(call(&["a", "b"]), call(&["c", "bad"]), call(&["b", "d"]), call(&["d", "e"]), async {
            plan.heal();
        });
    assert_eq!(first.await.unwrap().unwrap(), [Received::New]);
    assert_eq!(one.unwrap(), [Received::New, Received::New]);
    assert_eq!(two.unwrap(), [Received::Duplicate, Received::New]);
    assert_eq!(three.unwrap(), [Received::Duplicate, Received::New]);
    let error = bad.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("refused on purpose"), "{error}");
    assert_eq!(plan.refusals(), 3, "with all the others, with half of them, and alone");
    assert_eq!(plan.calls()["receive"], 3, "the first, that beside it, and the other half");
    drain(&inbox).await;
    assert_once(&subject, &["first", "a", "b", "d", "e"].map(message), &["charge"]).await;
}

/// A copy with other bytes goes to the store after the message itself. What that refuses is not told to its neighbours,
/// and not stored once more: they would be called duplicates of themselves.
pub async fn a_refused_copy_with_other_bytes_harms_no_call_but_its_own<T: Subject>(subject: T) {
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::Stall });
    plan.refuse("receive", "other bytes");
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let inbox = registered(inbox.on(KIND, handler("charge", recording::<T>("charge")))).await;
    let call = |messages: Vec<Message>| {
        let inbox = inbox.clone();
        async move { inbox.receive(&messages).await }
    };
    let first = tokio::spawn(call(vec![message("first")]));
    plan.struck().await;
    let other = Message::new(KIND, "other bytes").id("a");
    let (one, bad, two, ()) = tokio::join!(
        call(vec![message("a")]),
        call(vec![other, message("b")]),
        call(vec![message("c")]),
        async { plan.heal() }
    );
    first.await.unwrap().unwrap();
    assert_eq!((one.unwrap(), two.unwrap()), (vec![Received::New], vec![Received::New]));
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::Invalid);
    drain(&inbox).await;
    assert_once(&subject, &["first", "a", "b", "c"].map(message), &["charge"]).await;
}

/// While the store stands still, senders give up and send again; what they gave up must not pile up in memory.
pub async fn calls_that_were_given_up_while_they_waited_are_not_stored<T: Subject>(subject: T) {
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::Stall });
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let inbox = registered(inbox.on(KIND, handler("charge", recording::<T>("charge")))).await;
    let call = |id: String| {
        let inbox = inbox.clone();
        async move { inbox.receive(&[message(id)]).await }
    };
    let first = tokio::spawn(call("first".to_owned()));
    plan.struck().await;
    for number in 0..50 {
        let mut given_up = Box::pin(call(format!("given-up-{number}")));
        assert!(futures_util::poll!(given_up.as_mut()).is_pending(), "the first statement still runs");
    }
    let (last, ()) = tokio::join!(call("last".to_owned()), async { plan.heal() });
    assert_eq!(last.unwrap(), [Received::New]);
    first.await.unwrap().unwrap();
    drain(&inbox).await;
    assert_once(&subject, &["first", "last"].map(message), &["charge"]).await;
}

/// Rows are always locked in one order.
pub async fn batches_in_opposite_order_do_not_deadlock<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let other = Inbox::new(subject.reopen().await);
    let mut all = Vec::new();
    for round in 0..20 {
        let forth: Vec<Message> = (0..20).map(|number| message(format!("{round}-{number:02}"))).collect();
        let back: Vec<Message> = forth.iter().rev().cloned().collect();
        let (one, two) = tokio::join!(inbox.receive(&forth), other.receive(&back));
        let answers = [one.unwrap(), two.unwrap()].concat();
        assert_eq!(answers.iter().filter(|answer| **answer == Received::New).count(), 20, "round {round}");
        all.extend(forth);
    }
    drain(&inbox).await;
    assert_once(&subject, &all, &["charge"]).await;
}

/// Nothing that came under a known id is dropped unseen.
pub async fn a_known_id_with_other_bytes_is_a_conflict_that_is_kept<T: Subject>(subject: T) {
    let write_payload = |mut tx: TxOf<T>, message: Message| async move {
        let note = String::from_utf8_lossy(&message.payload).into_owned();
        T::record(&mut tx, Effect { note, ..Effect::of("charge", &message) }).await
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", write_payload))).await;
    let with = |payload: &'static str| Message::new(KIND, payload).id("a").key("k").header("tenant", "acme");

    receive(&inbox, &[with("100 cents")]).await;
    let answers = inbox.receive(&[with("900 cents"), message("b")]).await.unwrap();
    assert_eq!(answers, [Received::Conflict, Received::New], "its neighbour is stored all the same");
    assert_eq!(inbox.receive(&[with("900 cents")]).await.unwrap(), [Received::Conflict]);
    assert_eq!(inbox.receive(&[with("100 cents")]).await.unwrap(), [Received::Duplicate]);
    drain(&inbox).await;

    assert_eq!(notes(&subject, "charge").await.iter().filter(|note| note.ends_with("cents")).count(), 1);
    assert!(notes(&subject, "charge").await.contains(&"100 cents".to_owned()), "the first one counts");
    let conflicts = inbox.store().conflicts(10).await.unwrap();
    assert_eq!(conflicts.len(), 1, "a copy of a conflict is the same conflict");
    assert_eq!(conflicts[0].message, with("900 cents").scope("default"));
}

/// Within one statement.
pub async fn a_conflict_within_one_call_is_told_from_a_copy<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let with = |payload: &'static str| Message::new(KIND, payload).id("a");

    let answers = inbox.receive(&[with("1"), with("2"), with("1"), with("3")]).await.unwrap();
    assert_eq!(answers, [Received::New, Received::Conflict, Received::Duplicate, Received::Conflict]);
    drain(&inbox).await;

    assert_once(&subject, &[with("1")], &["charge"]).await;
    assert_eq!(inbox.store().conflicts(10).await.unwrap().len(), 2);
}

/// What was answered is on disk: a new process finds it.
pub async fn what_was_received_is_there_for_the_next_process<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")));
    let first = registered(inbox(subject.store())).await;
    receive(&first, &numbered(10)).await;
    drop(first);

    let second = inbox(subject.reopen().await);
    assert_eq!(second.receive(&numbered(10)).await.unwrap(), [Received::Duplicate; 10]);
    drain(&second).await;
    assert_once(&subject, &numbered(10), &["charge"]).await;
}
