//! Dead letters: everything is kept, and a person decides.

use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::store::Retention;
use oncebox_core::{Attempt, Failure, Inbox, Message, Received, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixtures::{
    HOUR, KIND, assert_once, deliveries, delivery, drain, failing, handler, ids, in_state, keyed, message,
    notes, numbered, receive, record_attempt, registered,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};

/// Fails every message for good until it is mended.
fn broken<T: Subject>(subject: &T) -> (Inbox<T::Store>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let switch = mended.clone();
    let charge = move |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| {
        let mended = switch.load(Ordering::SeqCst);
        async move {
            record_attempt::<T>(&mut tx, "charge", &message, attempt).await?;
            if mended { Ok(()) } else { Err(Failure::permanent(format!("no stock for {}", message.kind))) }
        }
    };
    (Inbox::new(subject.store()).on("*", handler("charge", charge).ordered()), mended)
}

/// Bytes, headers and every error are there for whoever looks.
pub async fn after_its_last_attempt_a_delivery_is_dead_with_all_it_came_with<T: Subject>(subject: T) {
    let charge = handler("charge", failing::<T>("charge", |_, _| true)).max_attempts(3);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    let original =
        Message::new(KIND, &b"\0payload\xff"[..]).id("a").scope("shop").key("k").header("tenant", "acme");
    receive(&inbox, std::slice::from_ref(&original)).await;
    for _ in 0..6 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    let dead = delivery(inbox.store(), "charge").await;
    assert_eq!((dead.state, dead.attempts), (DeliveryState::Dead, 3));
    assert_eq!(dead.message, original);
    let numbers: Vec<u32> = dead.history.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(dead.history.is_sorted_by_key(|attempt| attempt.at), "{:?}", dead.history);
    assert!(dead.history[0].at >= dead.received_at, "{dead:?}");
    assert!(dead.history[2].error.ends_with("attempt 3"), "{:?}", dead.history);
    assert_eq!(subject.effects().await, []);
    assert_eq!(inbox.receive(&[original]).await.unwrap(), [Received::Duplicate], "a copy changes nothing");
}

/// Under the same id, attempts from one again, and only once.
pub async fn a_replayed_dead_letter_runs_again_from_the_first_attempt<T: Subject>(subject: T) {
    let (inbox, mended) = broken(&subject);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    mended.store(true, Ordering::SeqCst);
    drain(&inbox).await;
    assert_eq!(subject.effects().await, [], "nothing happens by itself");

    assert_eq!(inbox.store().replay(&DeliveryFilter::dead("charge")).await.unwrap(), 1);
    assert_eq!(
        inbox.store().replay(&DeliveryFilter::dead("charge")).await.unwrap(),
        0,
        "it is not dead any more"
    );
    drain(&inbox).await;
    assert_eq!(notes(&subject, "charge").await, ["1"]);
    assert_once(&subject, &[message("a")], &["charge"]).await;
    assert_eq!(deliveries(inbox.store(), "charge").await.len(), 0);
}

/// A replay that fails again is a dead letter again, with both stories.
pub async fn a_replay_that_fails_again_is_dead_again<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    inbox.store().replay(&DeliveryFilter::all()).await.unwrap();
    drain(&inbox).await;

    let dead = delivery(inbox.store(), "charge").await;
    assert_eq!((dead.state, dead.attempts, dead.history.len()), (DeliveryState::Dead, 1, 2));
}

/// Every field of the filter, one after the other.
pub async fn a_replay_touches_only_what_its_filter_matches<T: Subject>(subject: T) {
    let (inbox, mended) = broken(&subject);
    let inbox = registered(inbox).await;
    let odd = Message::new("odd.kind", "x").id("odd").scope("other").key("odd-key");
    receive(&inbox, &numbered(3)).await;
    receive(&inbox, std::slice::from_ref(&odd)).await;
    drain(&inbox).await;
    let store = inbox.store();
    let only = |change: fn(&mut DeliveryFilter)| {
        let mut filter = DeliveryFilter::all();
        change(&mut filter);
        filter
    };
    let filters = [
        only(|filter| filter.scope = Some("other".to_owned())),
        only(|filter| filter.message_id = Some("odd".to_owned())),
        only(|filter| filter.kind = Some("odd.kind".to_owned())),
        only(|filter| filter.key = Some("odd-key".to_owned())),
        only(|filter| filter.error = Some("for odd".to_owned())),
    ];
    for filter in &filters {
        let found = store.deliveries(filter).await.unwrap();
        assert_eq!(
            found.iter().map(|info| info.message.id.as_str()).collect::<Vec<_>>(),
            ["odd"],
            "{filter:?}"
        );
        assert_eq!(store.replay(filter).await.unwrap(), 1, "{filter:?}");
        drain(&inbox).await;
    }
    let nobody = [
        only(|filter| filter.handler = Some("nobody".to_owned())),
        only(|filter| filter.error = Some("%".to_owned())),
        only(|filter| filter.error = Some("no_stock".to_owned())),
        only(|filter| filter.since = Some(jiff::Timestamp::now() + HOUR)),
    ];
    for filter in &nobody {
        assert_eq!(store.deliveries(filter).await.unwrap().len(), 0, "{filter:?}");
        assert_eq!(store.replay(filter).await.unwrap(), 0, "{filter:?}");
    }
    mended.store(true, Ordering::SeqCst);
    let mut by_row = DeliveryFilter::all();
    by_row.deliveries = deliveries(store, "charge").await.iter().take(2).map(|info| info.id).collect();
    assert_eq!(store.replay(&by_row).await.unwrap(), 2);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await.len(), 2);
}

/// A hundred at a time unless asked otherwise, and no row twice.
pub async fn deliveries_are_listed_page_by_page<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject);
    let inbox = registered(inbox).await;
    receive(&inbox, &numbered(120)).await;
    drain(&inbox).await;

    let mut filter = DeliveryFilter::dead("charge");
    assert_eq!(inbox.store().deliveries(&filter).await.unwrap().len(), 100);
    filter.limit = Some(50);
    let mut seen = Vec::new();
    loop {
        let page = inbox.store().deliveries(&filter).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.after = Some(last.id);
        seen.extend(page.into_iter().map(|info| info.message.id));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 120);
}

/// Also when the one in the middle is replayed on its own first.
pub async fn a_replay_keeps_the_order_of_a_key<T: Subject>(subject: T) {
    let (inbox, mended) = broken(&subject);
    let inbox = registered(inbox).await;
    let messages: Vec<Message> = (0..12).map(|number| keyed(format!("{number:02}"), "k")).collect();
    receive(&inbox, &messages).await;
    drain(&inbox).await;
    assert_eq!(
        in_state(inbox.store(), "charge", DeliveryState::Dead).await.len(),
        12,
        "the dead hold nobody"
    );
    mended.store(true, Ordering::SeqCst);

    assert_eq!(inbox.store().replay(&DeliveryFilter::dead("charge")).await.unwrap(), 12);
    drain(&inbox).await;
    let expected: Vec<String> = messages.iter().map(|message| message.id.clone()).collect();
    assert_eq!(ids(&subject, "charge").await, expected);
}

/// What a person discards is out of the way, and the reason is written down.
pub async fn a_discarded_dead_letter_is_given_up_with_its_reason<T: Subject>(subject: T) {
    let (inbox, mended) = broken(&subject);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a"), message("b")]).await;
    drain(&inbox).await;
    let mut filter = DeliveryFilter::dead("charge");
    filter.message_id = Some("a".to_owned());
    assert_eq!(inbox.store().discard(&filter, "a test order").await.unwrap(), 1);

    let all = deliveries(inbox.store(), "charge").await;
    let discarded = all.iter().find(|info| info.message.id == "a").unwrap();
    assert_eq!(discarded.state, DeliveryState::Discarded);
    assert!(discarded.history.last().unwrap().error.contains("a test order"), "{:?}", discarded.history);

    mended.store(true, Ordering::SeqCst);
    assert_eq!(inbox.store().replay(&DeliveryFilter::all()).await.unwrap(), 1, "only the other one");
    drain(&inbox).await;
    assert_once(&subject, &[message("b")], &["charge"]).await;
}

/// The id is remembered as long as the discarded row is, or the second copy would stumble over it.
pub async fn a_discarded_dead_letter_that_comes_again_is_a_duplicate<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR * 5 / 6);
    assert_eq!(inbox.store().discard(&DeliveryFilter::dead("charge"), "a test order").await.unwrap(), 1);

    subject.clock().advance(HOUR / 3);
    let retention = Retention { keep: HOUR, payload: HOUR, step: 1000 };
    while inbox.store().purge(&retention).await.unwrap().more {}
    assert_eq!(inbox.receive(&[message("a")]).await.unwrap(), [Received::Duplicate]);
    drain(&inbox).await;
    assert_eq!(deliveries(inbox.store(), "charge").await.len(), 1);
}

/// Replay and discard are for the dead only, whatever the filter says.
pub async fn what_is_alive_is_neither_replayed_nor_discarded<T: Subject>(subject: T) {
    let charge = |mut tx: TxOf<T>, message: Message, Attempt(attempt): Attempt| async move {
        T::record(&mut tx, Effect::of("charge", &message)).await?;
        if attempt == 1 { Err(Failure::from("once")) } else { Ok(()) }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    let mut filter = DeliveryFilter::all();
    filter.state = Some(DeliveryState::Retrying);
    assert_eq!(inbox.store().replay(&filter).await.unwrap(), 0);
    assert_eq!(inbox.store().discard(&filter, "no").await.unwrap(), 0);
    assert_eq!(delivery(inbox.store(), "charge").await.attempts, 1);

    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}
