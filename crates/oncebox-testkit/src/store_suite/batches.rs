//! Many messages in one transaction: one that fails is found and leaves the others alone.

use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::{Attempt, Batch, Failure, Inbox, Message};

use crate::fixtures::{
    HOUR, KIND, assert_nothing_lost, assert_once, drain, ending, failing, handler, in_state, message,
    numbered, receive, registered,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};

const BAD: [&str; 3] = ["m-000", "m-017", "m-039"];

fn is_bad(message: &Message) -> bool {
    BAD.contains(&message.id.as_str())
}

fn good() -> Vec<Message> {
    numbered(40).into_iter().filter(|message| !is_bad(message)).collect()
}

async fn assert_only_the_bad_ones_wait<T: Subject>(subject: &T, inbox: &Inbox<T::Store>, name: &'static str) {
    assert_once(subject, &good(), &[name]).await;
    let mut waiting = in_state(inbox.store(), name, DeliveryState::Retrying).await;
    waiting.sort_unstable();
    assert_eq!(waiting, BAD);

    subject.clock().advance(HOUR);
    drain(inbox).await;
    assert_once(subject, &numbered(40), &[name]).await;
}

/// The neighbours are rolled back with it, run again, and count once.
pub async fn a_failing_message_leaves_its_neighbours_unharmed<T: Subject>(subject: T) {
    let charge =
        handler("charge", failing::<T>("charge", |message, attempt| attempt == 1 && is_bad(message)));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &numbered(40)).await;
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "charge").await;
}

/// When the database refuses only at commit, nobody knows whose fault it was until each has been alone.
pub async fn a_message_that_spoils_the_commit_is_found<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("charge", &message)).await?;
        if attempt == 1 && is_bad(&message) {
            T::fail_at_commit(&mut tx).await?;
        }
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &numbered(40)).await;
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "charge").await;
}

/// Among others in the same batch, which are done all the same.
pub async fn a_message_that_ends_the_transaction_is_found<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        if attempt == 1 && is_bad(&message) {
            T::fail(&mut tx).await.map_err(|_| "refused")?;
        }
        T::record(&mut tx, Effect::of("charge", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &numbered(40)).await;
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "charge").await;
}

/// What others wrote in that transaction is neither kept without their done marks nor lost.
pub async fn a_message_that_commits_the_transaction_doubles_nothing<T: Subject>(subject: T) {
    ended(subject, true).await;
}

/// The same when the handler does not say what the database answered.
pub async fn a_message_that_hides_the_end_of_the_transaction_loses_nothing<T: Subject>(subject: T) {
    ended(subject, false).await;
}

async fn ended<T: Subject>(subject: T, tells: bool) {
    let charge = handler("charge", ending::<T>("charge", tells));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    // In one lane, so that they run in this order.
    let messages: Vec<Message> = numbered(7).into_iter().map(|message| message.key("one lane")).collect();
    receive(&inbox, &messages).await;
    drain(&inbox).await;
    assert_nothing_lost(&subject, &inbox, "charge", &messages, tells).await;
}

/// One call for many: it is split until the bad one is alone.
pub async fn a_batch_with_a_bad_message_is_split_until_it_is_alone<T: Subject>(subject: T) {
    let count = |mut tx: TxOf<T>, Batch(messages): Batch<Message>, Attempt(attempt): Attempt| async move {
        for message in &messages {
            T::record(&mut tx, Effect::of("count", message)).await?;
        }
        if attempt == 1 && messages.iter().any(is_bad) {
            return Err(Failure::from("there is a bad one among them"));
        }
        Ok(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("count", count).batch(40))).await;
    receive(&inbox, &numbered(40)).await;
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "count").await;
}

/// The first attempts of rows share a transaction too.
pub async fn a_failing_message_among_rows_of_their_own_leaves_the_others_unharmed<T: Subject>(subject: T) {
    let charge =
        handler("charge", failing::<T>("charge", |message, attempt| attempt == 1 && is_bad(message)));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    let at = jiff::Timestamp::now() + HOUR;
    let scheduled: Vec<Message> = numbered(40).into_iter().map(|message| message.not_before(at)).collect();
    receive(&inbox, &scheduled).await;
    drain(&inbox).await;
    assert_eq!(subject.effects().await, []);
    subject.clock().advance(2 * HOUR);
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "charge").await;
}

/// More messages than one batch takes, in one lane.
pub async fn a_long_lane_is_run_batch_by_batch<T: Subject>(subject: T) {
    let charge =
        handler("charge", failing::<T>("charge", |message, attempt| attempt == 1 && is_bad(message)));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge.batch(7))).await;
    let messages: Vec<Message> = numbered(40).into_iter().map(|message| message.key("one lane")).collect();
    receive(&inbox, &messages).await;
    drain(&inbox).await;
    assert_only_the_bad_ones_wait(&subject, &inbox, "charge").await;
    assert_eq!(inbox.receive(&[message("m-000").key("one lane")]).await.unwrap().len(), 1);
}

/// A transaction does not go on for ever: it is committed after a while, and what is left starts the next one.
pub async fn a_slow_batch_is_committed_in_pieces<T: Subject>(subject: T) {
    let slow = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::work_for(&mut tx, Duration::from_millis(120)).await?;
        T::record(&mut tx, Effect::of("slow", &message)).await?;
        if message.id == "m-004" && attempt == 1 { Err(Failure::from("bad")) } else { Ok(()) }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("slow", slow))).await;
    receive(&inbox, &numbered(7)).await;
    drain(&inbox).await;
    assert_eq!(in_state(inbox.store(), "slow", DeliveryState::Retrying).await, ["m-004"]);
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &numbered(7), &["slow"]).await;
}
