//! What operators leave behind: paused sources, the audit log, tokens; and counting what matches a filter.

use jiff::Timestamp;
use oncebox_core::admin::{AdminStore, Audit, DeliveryFilter, DeliveryState, Role, TokenInfo};
use oncebox_core::{Failure, Inbox, Message, Store};

use crate::fixtures::{HOUR, deliveries, drain, handler, message, numbered, receive, registered};
use crate::subject::{Subject, TxOf};

/// For every process, whether or not anybody knows the source, and as often as one likes.
pub async fn a_paused_source_is_remembered_by_the_store<T: Subject>(subject: T) {
    let store = subject.store();
    assert_eq!(store.paused_sources().await.unwrap(), [""; 0]);
    for source in ["orders", "b", "Orders", "orders "] {
        store.set_source_paused(source, true).await.unwrap();
        store.set_source_paused(source, true).await.unwrap();
    }
    store.set_source_paused("never", false).await.unwrap();
    let other = subject.reopen().await;
    assert_eq!(other.paused_sources().await.unwrap(), ["Orders", "b", "orders", "orders "]);
    other.set_source_paused("orders", false).await.unwrap();
    assert_eq!(store.paused_sources().await.unwrap(), ["Orders", "b", "orders "]);
    for wrong in ["", "a\0b", &"x".repeat(256)] {
        assert!(store.set_source_paused(wrong, true).await.is_err(), "{wrong:?}");
    }
}

/// Newest first, page by page, each with the time of the database.
pub async fn every_change_is_written_down_in_order<T: Subject>(subject: T) {
    let store = subject.store();
    let change = |number: usize| Audit {
        actor: format!("ann-{number}"),
        action: "replay".to_owned(),
        target: "charge-card ü".to_owned(),
        details: if number == 2 { String::new() } else { r#"{"reason":"a \"test\""}"#.to_owned() },
    };
    let mut written = Vec::new();
    for number in 0..5 {
        written.push(store.add_audit(&change(number)).await.unwrap());
        subject.clock().advance(HOUR);
    }
    assert!(written.is_sorted_by(|a, b| a.number < b.number && a.at + HOUR <= b.at), "{written:?}");
    assert_eq!(written[3].change, change(3));
    written.reverse();
    assert_eq!(subject.reopen().await.audit(None, 100).await.unwrap(), written);
    assert_eq!(store.audit(None, 2).await.unwrap(), written[..2]);
    assert_eq!(store.audit(Some(written[1].number), 2).await.unwrap(), written[2..4]);
    assert_eq!(store.audit(Some(written[4].number), 2).await.unwrap(), []);
}

/// A hash and what it allows, and never two of one name, also when two processes add it at the same time.
pub async fn a_token_is_kept_under_its_name_until_it_is_removed<T: Subject>(subject: T) {
    let store = subject.store();
    let now = Timestamp::now();
    let token = |name: &str, role, expires_at| TokenInfo {
        name: name.to_owned(),
        hash: format!("{:064x}", name.len()),
        role,
        created_at: Timestamp::UNIX_EPOCH,
        expires_at,
    };
    let expires_at = Timestamp::from_microsecond(now.as_microsecond() + 1).unwrap();
    let (ann, bob) = (token("ann", Role::Admin, None), token("bob", Role::Ingest, Some(expires_at)));
    assert!(store.add_token(&bob).await.unwrap());
    let other = subject.reopen().await;
    let (one, two) = tokio::join!(store.add_token(&ann), other.add_token(&ann));
    assert_ne!(one.unwrap(), two.unwrap(), "one of them");
    assert!(!store.add_token(&token("ann", Role::Read, None)).await.unwrap());
    let found = store.tokens().await.unwrap();
    let without_time: Vec<TokenInfo> =
        found.iter().map(|token| TokenInfo { created_at: Timestamp::UNIX_EPOCH, ..token.clone() }).collect();
    assert_eq!(without_time, [ann, bob]);
    assert!(found[0].created_at > Timestamp::UNIX_EPOCH, "the database's clock was asked");
    assert!(store.remove_token("ann").await.unwrap());
    assert!(!store.remove_token("ann").await.unwrap());
    assert_eq!(other.tokens().await.unwrap().len(), 1);
}

/// With every filter, up to a bound; `until` is a bound of its own kind.
pub async fn deliveries_are_counted_and_bounded_in_time<T: Subject>(subject: T) {
    let broken = |_: TxOf<T>, message: Message| async move {
        Err::<(), _>(Failure::permanent(format!("no stock for {}", message.kind)))
    };
    let inbox = registered(Inbox::new(subject.store()).on("*", handler("charge", broken))).await;
    let store = inbox.store();
    receive(&inbox, &numbered(7)).await;
    subject.clock().advance(HOUR);
    receive(&inbox, &[message("late").key("k")]).await;
    drain(&inbox).await;

    let late = deliveries(store, "charge").await.into_iter().find(|info| info.message.id == "late").unwrap();
    let mut early = DeliveryFilter::dead("charge");
    early.until = Some(late.received_at);
    let mut from = DeliveryFilter::all();
    from.since = Some(late.received_at);
    assert_eq!(store.count_deliveries(&early, 100).await.unwrap(), 7);
    assert_eq!(store.count_deliveries(&early, 3).await.unwrap(), 3);
    assert_eq!(store.count_deliveries(&early.clone().limit(2), 3).await.unwrap(), 2);
    assert_eq!(store.count_deliveries(&from, 100).await.unwrap(), 1);
    assert_eq!(store.count_deliveries(&DeliveryFilter::all().key("k"), 100).await.unwrap(), 1);
    let retrying = DeliveryFilter::all().state(DeliveryState::Retrying);
    assert_eq!(store.count_deliveries(&retrying, 100).await.unwrap(), 0);

    assert_eq!(store.deliveries(&early).await.unwrap().len(), 7);
    assert_eq!(store.replay(&early.clone().limit(3)).await.unwrap(), 3);
    assert_eq!(store.discard(&early, "old").await.unwrap(), 4);
    assert_eq!(
        store.count_deliveries(&DeliveryFilter::dead("charge"), 100).await.unwrap(),
        1,
        "the late one"
    );
}

/// By which tokens expire.
pub async fn the_clock_of_the_database_is_told<T: Subject>(subject: T) {
    let store = subject.store();
    let before = store.clock().await.unwrap();
    assert!(before.duration_since(Timestamp::now()).unsigned_abs() < HOUR, "{before}");
    subject.clock().advance(HOUR);
    assert!(store.clock().await.unwrap() >= before + HOUR);
}

/// A newer version may know more of them; none of the others is hidden by it.
pub async fn a_delivery_in_a_state_of_the_future_is_listed_with_the_others<T: Subject>(subject: T) {
    let broken = |_: TxOf<T>, _: Message| async move { Err::<(), _>(Failure::permanent("no")) };
    let inbox = registered(Inbox::new(subject.store()).on("*", handler("charge", broken))).await;
    receive(&inbox, &[message("a"), message("b")]).await;
    drain(&inbox).await;
    subject.write_as_newer(0, "a").await;
    let found = inbox.store().deliveries(&DeliveryFilter::all()).await.unwrap();
    let mut states: Vec<_> = found.iter().map(|info| (info.message.id.as_str(), info.state)).collect();
    states.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(states, [("a", DeliveryState::Unreadable), ("b", DeliveryState::Dead)]);
    let shown = inbox.store().message(oncebox_core::DEFAULT_SCOPE, "a").await.unwrap().unwrap();
    assert_eq!(shown.handlers.len(), 1);
    assert_eq!(inbox.store().replay(&DeliveryFilter::all()).await.unwrap(), 1, "it is left alone");
}
