//! Retention: only what is done, only when it is old enough by the database's clock, a bounded step at a time.

use std::time::Duration;

use oncebox_core::admin::{AdminStore, DeliveryFilter, DeliveryState};
use oncebox_core::store::{Purged, Retention};
use oncebox_core::{Failure, Inbox, Message, Received, Store};

use crate::fixtures::{
    HOUR, KIND, assert_once, deliveries, drain, failing, handler, ids, message, numbered, receive, registered,
};
use crate::ledger::Verdict;
use crate::subject::{Subject, TxOf, recording};

const SECOND: Duration = Duration::from_secs(1);
const KEEP: Retention = Retention { keep: HOUR, payload: HOUR, step: 1000 };

/// Purges until nothing is left to do. What was foretold is what goes.
async fn purge<St: AdminStore>(store: &St, retention: Retention) -> Purged {
    let mut all = Purged::default();
    let foretold = store.purgeable(&retention).await.unwrap();
    loop {
        let step = store.purge(&retention).await.unwrap();
        all.ids += step.ids;
        all.messages += step.messages;
        all.others += step.others;
        if !step.more {
            assert_eq!(all, foretold);
            return all;
        }
    }
}

/// By the database's clock, and not a moment less.
pub async fn an_id_blocks_duplicates_until_its_time_is_over<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &[message("stored")]).await;
    inbox.process(message("inline")).await.unwrap();
    drain(&inbox).await;
    let again = [message("stored"), message("inline")];

    subject.clock().advance(HOUR - 30 * SECOND);
    assert_eq!(purge(inbox.store(), KEEP).await.ids, 0);
    assert_eq!(inbox.receive(&again).await.unwrap(), [Received::Duplicate; 2], "still within its time");
    subject.clock().advance(31 * SECOND);
    assert_eq!(purge(inbox.store(), KEEP).await.ids, 2);
    assert_eq!(inbox.receive(&again).await.unwrap(), [Received::New; 2], "its time is over");
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await.len(), 4);
}

/// Two times, two settings.
pub async fn payloads_and_ids_are_kept_for_times_of_their_own<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &numbered(5)).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    let short_payload = Retention { keep: 3 * HOUR, payload: HOUR / 2, step: 1000 };
    let purged = purge(inbox.store(), short_payload).await;
    assert_eq!((purged.ids, purged.messages), (0, 5));
    assert_eq!(inbox.receive(&numbered(5)).await.unwrap(), [Received::Duplicate; 5]);
    let late = handler("late", recording::<T>("late")).from_start();
    drain(&Inbox::new(subject.store()).on(KIND, late)).await;
    assert_eq!(ids(&subject, "late").await.len(), 0, "the payloads are gone");
}

/// A handler that is behind keeps what it still needs.
pub async fn what_a_handler_still_wants_is_never_removed<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("slow", recording::<T>("slow")));
    let inbox = registered(inbox).await;
    inbox.store().set_paused("slow", true).await.unwrap();
    receive(&inbox, &numbered(10)).await;
    drain(&inbox).await;
    subject.clock().advance(1000 * HOUR);
    let purged = purge(inbox.store(), KEEP).await;
    assert_eq!((purged.ids, purged.messages), (0, 0));

    inbox.store().set_paused("slow", false).await.unwrap();
    drain(&inbox).await;
    assert_once(&subject, &numbered(10), &["charge", "slow"]).await;
    let purged = purge(inbox.store(), KEEP).await;
    assert_eq!((purged.ids, purged.messages), (10, 10));
}

/// Dead, retrying, held and scheduled deliveries are somebody's unfinished business.
pub async fn unfinished_deliveries_outlive_every_retention<T: Subject>(subject: T) {
    let charge = |_: TxOf<T>, message: Message| async move {
        match message.id.as_str() {
            "dead" => Err(Failure::permanent("no")),
            "retrying" => Err(Failure::retry_in(10_000 * HOUR, "later")),
            _ => Ok::<(), Failure>(()),
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge).ordered())).await;
    let later = message("scheduled").not_before(jiff::Timestamp::now() + 5000 * HOUR);
    let messages =
        [message("dead"), message("retrying").key("k"), message("held").key("k"), later, message("done")];
    receive(&inbox, &messages).await;
    drain(&inbox).await;
    subject.clock().advance(1000 * HOUR);
    let purged = purge(inbox.store(), KEEP).await;
    assert_eq!(purged.ids, 1, "only the one that is done");

    let left = deliveries(inbox.store(), "charge").await;
    for message in &messages[..4] {
        let info = left.iter().find(|info| info.message.id == message.id).unwrap();
        assert_eq!(info.message.payload, message.payload);
    }
    assert!(left.iter().any(|info| info.state == DeliveryState::Dead && info.history.len() == 1));
    let answers = inbox.receive(&messages).await.unwrap();
    let (dup, new) = (Received::Duplicate, Received::New);
    assert_eq!(answers, [dup, dup, dup, dup, new], "a copy of a dead letter is still a copy");
    assert_eq!(inbox.store().replay(&DeliveryFilter::dead("charge")).await.unwrap(), 1);
}

/// So that receiving is never in the way of cleaning up.
pub async fn a_purge_is_done_in_bounded_steps<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &numbered(95)).await;
    drain(&inbox).await;
    subject.clock().advance(2 * HOUR);
    let mut sum = (0, 0);
    let mut steps = 0;
    loop {
        let step = inbox.store().purge(&Retention { step: 20, ..KEEP }).await.unwrap();
        assert!(step.ids <= 20 && step.messages <= 20 && step.others <= 4 * 20, "{step:?}");
        sum = (sum.0 + step.ids, sum.1 + step.messages);
        steps += 1;
        if !step.more {
            break;
        }
        assert!(steps < 100, "it never ends");
    }
    assert_eq!(sum, (95, 95));
    assert!(steps >= 5, "{steps}");
}

/// Cleaning up at the same time never lets a copy through early.
pub async fn a_purge_during_redelivery_lets_no_copy_through<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let old: Vec<Message> = (0..100).map(|number| message(format!("old-{number}"))).collect();
    receive(&inbox, &old).await;
    drain(&inbox).await;
    subject.clock().advance(2 * HOUR);
    let young = numbered(100);
    receive(&inbox, &young).await;
    drain(&inbox).await;

    let purging = async {
        let mut removed = 0;
        for _ in 0..25 {
            removed += inbox.store().purge(&Retention { step: 5, ..KEEP }).await.unwrap().ids;
        }
        removed
    };
    let redelivering = async {
        for lot in young.chunks(10) {
            let answers = inbox.receive(lot).await.unwrap();
            assert_eq!(answers, vec![Received::Duplicate; lot.len()]);
        }
    };
    let (removed, ()) = tokio::join!(purging, redelivering);
    assert_eq!(removed, 100);
    drain(&inbox).await;
    let all = old.iter().chain(&young).map(|message| message.id.as_str());
    Verdict::of(&subject.effects().await, all, &["charge"]).assert_clean();
}

/// A number that was given once is never given again.
pub async fn messages_that_come_after_everything_was_purged_are_handled<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    for round in 0..3 {
        let messages: Vec<Message> = (0..5).map(|number| message(format!("{round}-{number}"))).collect();
        receive(&inbox, &messages).await;
        drain(&inbox).await;
        assert_eq!(ids(&subject, "charge").await.len(), 5 * (round + 1));
        subject.clock().advance(2 * HOUR);
        assert_eq!(purge(inbox.store(), KEEP).await.messages, 5);
    }
}

/// The history of a delivery goes when the delivery is long done, and the counters' buckets too.
pub async fn histories_conflicts_and_discarded_letters_are_removed_in_the_end<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "discarded" || attempt == 1;
    let charge = handler("charge", failing::<T>("charge", fails)).max_attempts(2);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &[message("retried"), message("discarded")]).await;
    inbox.receive(&[Message::new(KIND, "other").id("retried")]).await.unwrap();
    for _ in 0..2 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    assert_eq!(inbox.store().discard(&DeliveryFilter::all(), "no").await.unwrap(), 1);
    subject.clock().advance(HOUR);
    purge(inbox.store(), Retention { keep: 100 * HOUR, ..KEEP }).await;
    assert_eq!(inbox.store().conflicts(10).await.unwrap().len(), 1, "as long as its id");

    subject.clock().advance(1000 * HOUR);
    purge(inbox.store(), KEEP).await;
    assert_eq!(inbox.store().conflicts(10).await.unwrap().len(), 0);
    assert_eq!(deliveries(inbox.store(), "charge").await.len(), 0);
    assert_eq!(inbox.receive(&[message("discarded")]).await.unwrap(), [Received::New]);
}
