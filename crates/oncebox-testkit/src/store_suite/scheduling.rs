//! Messages that wait for a time of the database's clock.

use std::time::Duration;

use jiff::Timestamp;
use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Inbox, Message, Processed, run};

use crate::fixtures::{
    HOUR, KIND, assert_once, deliveries, drain, handler, ids, in_state, message, notes, receive,
    record_attempt, registered, start,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

fn in_an_hour(id: &str) -> Message {
    message(id).not_before(Timestamp::now() + HOUR)
}

/// Stored and inline, for each handler.
pub async fn a_scheduled_message_waits_for_its_time<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", recording::<T>("ship")));
    let inbox = registered(inbox).await;
    receive(&inbox, &[in_an_hour("stored"), message("now")]).await;
    assert_eq!(inbox.process(in_an_hour("inline")).await.unwrap(), Processed::Stored);
    drain(&inbox).await;
    assert_once(&subject, &[message("now")], &["charge", "ship"]).await;
    let mut scheduled = in_state(inbox.store(), "ship", DeliveryState::Scheduled).await;
    scheduled.sort_unstable();
    assert_eq!(scheduled, ["inline", "stored"]);

    subject.clock().advance(HOUR - Duration::from_secs(60));
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, ["now"], "a minute too early");
    subject.clock().advance(Duration::from_secs(61));
    drain(&inbox).await;
    let all = [message("now"), message("stored"), message("inline")];
    assert_once(&subject, &all, &["charge", "ship"]).await;
}

/// A time that has passed is no reason to wait.
pub async fn a_message_scheduled_for_the_past_runs_at_once<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &[message("a").not_before(Timestamp::now() - HOUR)]).await;
    let inline = message("b").not_before(Timestamp::UNIX_EPOCH);
    assert_eq!(inbox.process(inline).await.unwrap(), Processed::Done);
    drain(&inbox).await;
    assert_once(&subject, &[message("a"), message("b")], &["charge"]).await;
}

/// Waiting is not failing.
pub async fn the_first_run_of_a_scheduled_message_is_its_first_attempt<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        record_attempt::<T>(&mut tx, "charge", &message, attempt).await
    };
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge).max_attempts(1))).await;
    receive(&inbox, &[in_an_hour("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(2 * HOUR);
    drain(&inbox).await;
    assert_eq!(notes(&subject, "charge").await, ["1"]);
}

/// A time is a number of microseconds; nothing is rounded to seconds, and no time zone gets at it.
pub async fn times_are_kept_to_the_microsecond<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let second = Timestamp::now().as_second() + 7200;
    let times: Vec<Timestamp> = [0, 1_000, 999_999_000, 500_000_000]
        .into_iter()
        .map(|nanosecond| Timestamp::new(second, nanosecond).unwrap())
        .collect();
    let scheduled: Vec<Message> =
        times.iter().enumerate().map(|(n, at)| message(n.to_string()).not_before(*at)).collect();
    receive(&inbox, &scheduled).await;
    drain(&inbox).await;

    let rows = deliveries(inbox.store(), "charge").await;
    assert_eq!(rows.len(), times.len());
    for (number, at) in times.iter().enumerate() {
        let row = rows.iter().find(|row| row.message.id == number.to_string()).unwrap();
        assert_eq!((row.message.not_before, row.due_at), (Some(*at), *at));
    }
}

/// Without a poll and without a hint: the runner knows when the next one is due.
pub async fn a_runner_wakes_by_itself_when_something_is_due<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let running = start(run(inbox.clone()).poll_every(HOUR));
    receive(&inbox, &[message("a").not_before(Timestamp::now() + Duration::from_millis(700))]).await;
    until("the message has become due and was handled", || async { subject.effects().await.len() == 1 })
        .await;
    running.stop().await;
    assert_eq!(subject.effects().await, [Effect::of("charge", &message("a"))]);
}
