//! Messages of one key, in order, also when one of them fails.

use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Counter, Failure, Inbox, Message, Processed, run};

use crate::fixtures::{
    HOUR, KIND, assert_once, drain, failing, handler, ids, ids_of_key, in_state, keyed, message, receive,
    registered, start,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("{number:02}")).collect()
}

/// Messages `00`, `01`, … spread over these keys in turn.
fn in_turn(count: usize, keys: &[&str]) -> Vec<Message> {
    (0..count).map(|number| keyed(format!("{number:02}"), keys[number % keys.len()])).collect()
}

/// Waiting for a retry must not let the next one pass.
pub async fn messages_behind_a_failing_one_of_their_key_are_held<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "01" && attempt < 3;
    let charge = handler("charge", failing::<T>("charge", fails)).ordered();
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &in_turn(4, &["k"])).await;
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, ["00"]);
    assert_eq!(in_state(inbox.store(), "charge", DeliveryState::Held).await, ["02", "03"]);
    assert_eq!(inbox.counters().get("charge", Counter::Held), 2);

    // What comes while the head waits goes to the end of the line, also from another process.
    receive(&inbox, &[keyed("04", "k")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, ["00"], "the second attempt failed too");
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, numbers(0..5));
}

/// A new version of a service may drop `.ordered()`; what was held must not wait for ever.
pub async fn held_messages_go_on_when_their_handler_gives_up_its_order<T: Subject>(subject: T) {
    let fails = |message: &Message, _| message.id == "00";
    let charge = || handler("charge", failing::<T>("charge", fails));
    let ordered = registered(Inbox::new(subject.store()).on(KIND, charge().ordered())).await;
    receive(&ordered, &in_turn(3, &["k"])).await;
    drain(&ordered).await;
    assert_eq!(in_state(ordered.store(), "charge", DeliveryState::Held).await, ["01", "02"]);

    let unordered = Inbox::new(subject.reopen().await).on(KIND, charge());
    drain(&unordered).await;
    assert_eq!(ids(&subject, "charge").await, ["01", "02"]);
}

/// A line is per key; who has no key stands in none.
pub async fn other_keys_and_messages_without_a_key_go_on<T: Subject>(subject: T) {
    let fails = |message: &Message, _| message.id == "00";
    let charge = handler("charge", failing::<T>("charge", fails)).ordered();
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &in_turn(30, &["k", "l", "m"])).await;
    receive(&inbox, &[message("free-1"), message("free-2")]).await;
    drain(&inbox).await;

    let expected =
        |key: usize| (0..30).filter(|n| n % 3 == key).map(|n| format!("{n:02}")).collect::<Vec<_>>();
    assert_eq!(ids_of_key(&subject, "charge", "k").await, Vec::<String>::new());
    assert_eq!(ids_of_key(&subject, "charge", "l").await, expected(1));
    assert_eq!(ids_of_key(&subject, "charge", "m").await, expected(2));
    assert_eq!(ids_of_key(&subject, "charge", "").await.len(), 2);
}

/// Only who asked for order waits for it.
pub async fn a_handler_that_is_not_ordered_holds_nothing<T: Subject>(subject: T) {
    let fails = |message: &Message, _| message.id == "00";
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("ordered", failing::<T>("ordered", fails)).ordered())
        .on(KIND, handler("free", failing::<T>("free", fails)));
    let inbox = registered(inbox).await;
    receive(&inbox, &in_turn(5, &["k"])).await;
    drain(&inbox).await;
    assert_eq!(ids(&subject, "ordered").await, Vec::<String>::new());
    assert_eq!(ids(&subject, "free").await, numbers(1..5));
}

/// A dead letter waits for a person; its key does not.
pub async fn a_dead_letter_lets_its_key_go_on<T: Subject>(subject: T) {
    let fails = |message: &Message, _| message.id == "00";
    let charge = handler("charge", failing::<T>("charge", fails)).ordered().max_attempts(2);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &in_turn(5, &["k"])).await;
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, Vec::<String>::new());
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, numbers(1..5));
    assert_eq!(in_state(inbox.store(), "charge", DeliveryState::Dead).await, ["00"]);
}

/// Many runners, many failures, several handles: each key is in order.
pub async fn order_is_kept_by_concurrent_runners<T: Subject>(subject: T) {
    let keys = ["a", "b", "c", "d", "e"];
    let inbox = |store| {
        let shaky = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            if attempt == 1 && message.payload.len().is_multiple_of(2) && message.id.ends_with('3') {
                return Err(Failure::retry_in(Duration::from_millis(20), "shaky"));
            }
            Ok(())
        };
        Inbox::new(store).on(KIND, handler("charge", shaky).ordered().batch(8))
    };
    let first = registered(inbox(subject.store())).await;
    let second = inbox(subject.reopen().await);
    let fast = Duration::from_millis(20);
    let one = start(run(first.clone()).concurrency(3).poll_every(fast));
    let two = start(run(second).concurrency(3).poll_every(fast));
    let messages: Vec<Message> = (0..200).map(|n| keyed(format!("{n:03}"), keys[n % keys.len()])).collect();
    for lot in messages.chunks(25) {
        receive(&first, lot).await;
    }
    until("everything is charged", || async { subject.effects().await.len() >= messages.len() }).await;
    one.stop().await;
    two.stop().await;

    assert_once(&subject, &messages, &["charge"]).await;
    for (place, key) in keys.iter().enumerate() {
        let expected: Vec<String> = (place..200).step_by(5).map(|n| format!("{n:03}")).collect();
        assert_eq!(ids_of_key(&subject, "charge", key).await, expected, "key {key}");
    }
}

/// A handler that works outside the database keeps order too.
pub async fn order_is_kept_outside_the_database<T: Subject>(subject: T) {
    let keys = ["a", "b", "c"];
    let subject = std::sync::Arc::new(subject);
    let outside = subject.clone();
    let call = move |message: Message, Attempt(attempt): Attempt| {
        let subject = outside.clone();
        async move {
            if attempt == 1 && message.id.ends_with('4') {
                return Err(Failure::from("the other side is busy"));
            }
            let mut own = subject.begin().await;
            T::record(&mut own, Effect::of("call", &message)).await?;
            T::commit(own).await;
            Ok(())
        }
    };
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("call", call).ordered().concurrency(8)))
            .await;
    let messages = in_turn(30, &keys);
    receive(&inbox, &messages).await;
    for _ in 0..8 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    assert_once(&*subject, &messages, &["call"]).await;
    for (place, key) in keys.iter().enumerate() {
        let expected: Vec<String> = (place..30).step_by(3).map(|n| format!("{n:02}")).collect();
        assert_eq!(ids_of_key(&*subject, "call", key).await, expected, "key {key}");
    }
}

/// Inline messages stand in the same line.
pub async fn an_inline_message_waits_behind_its_key<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "00" && attempt == 1;
    let charge = handler("charge", failing::<T>("charge", fails)).ordered();
    let inbox = Inbox::new(subject.store()).on(KIND, charge).on(KIND, handler("log", recording::<T>("log")));
    let inbox = registered(inbox).await;

    assert_eq!(inbox.process(keyed("00", "k")).await.unwrap(), Processed::Stored);
    assert_eq!(inbox.process(keyed("01", "k")).await.unwrap(), Processed::Stored);
    assert_eq!(inbox.process(keyed("02", "l")).await.unwrap(), Processed::Done);
    let both = inbox.process_all(vec![keyed("03", "k"), keyed("04", "l")]).await.unwrap();
    assert_eq!(both, [Processed::Stored, Processed::Done]);
    drain(&inbox).await;
    assert_eq!(ids_of_key(&subject, "charge", "k").await, Vec::<String>::new());

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(ids_of_key(&subject, "charge", "k").await, ["00", "01", "03"]);
    assert_eq!(ids_of_key(&subject, "charge", "l").await, ["02", "04"]);
    assert_eq!(ids(&subject, "log").await.len(), 5, "the other handler never waited");
}
