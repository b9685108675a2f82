//! Deliveries that are not as they should be: kept and visible, never a crash loop, never acknowledged away.

use oncebox_core::admin::{AdminStore, DeliveryFilter, DeliveryInfo};
use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_core::{Counter, Message, Store, UNREADABLE, run};

use super::fixtures::{FAST, assert_acknowledged, charging, consuming, put, until_effects};
use super::subject::{BrokerSubject, SOURCE};
use crate::fixtures::{KIND, assert_once, message, start};
use crate::subject::Subject;
use crate::wait::until;

async fn kept<T: Subject>(store: &T) -> Vec<DeliveryInfo> {
    store.store().deliveries(&DeliveryFilter::all().handler(UNREADABLE)).await.unwrap()
}

/// None, an empty one, one that is too long, one that is not text.
pub async fn a_message_with_an_impossible_id_is_kept<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let strange = |payload: &str| Message::new(KIND, payload.to_owned());
    let mut deliveries = vec![
        B::delivery(&strange("no id"), None),
        B::delivery(&message("good-1"), Some(b"good-1")),
        B::delivery(&strange("empty id"), Some(b"")),
    ];
    deliveries.push(B::delivery(&strange("long id"), Some("x".repeat(600).as_bytes())));
    if B::FACTS.binary_ids {
        deliveries.push(B::delivery(&strange("binary id"), Some(b"\xff\xfe\x00")));
    }
    deliveries.push(B::delivery(&message("good-2"), Some(b"good-2")));
    let inbox = charging(&store);
    let running = consuming(&broker, &inbox);
    broker.put(&deliveries).await;
    // Once more: the same bytes are the same unreadable message.
    broker.put(&deliveries).await;
    until_effects(&store, 2).await;
    until("all are kept", || async { kept(&store).await.len() == deliveries.len() - 2 }).await;
    // A source that is stopped earlier leaves some at the broker.
    let delivered = || inbox.sources().first().map_or(0, |source| source.delivered);
    until("the copies have come too", || async { delivered() >= 2 * deliveries.len() as u64 }).await;
    running.stop().await;
    assert_once(&store, &[message("good-1"), message("good-2")], &["charge"]).await;
    for payload in ["no id", "empty id"] {
        let kept = kept(&store).await;
        let letter = kept.iter().find(|letter| letter.message.payload == payload);
        let letter = letter.unwrap_or_else(|| panic!("`{payload}` is not among {kept:?}"));
        assert!(letter.history[0].error.contains("it has no id"), "{letter:?}");
    }
    assert_acknowledged(&broker, &store).await;
}

/// The id is to be read from JSON, and the payload is none.
pub async fn a_body_that_cannot_be_decoded_is_kept<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&["json:/order"], &[KIND]).unwrap();
    let raw = |payload: &[u8]| Delivered { payload: payload.to_vec().into(), ..Delivered::default() };
    let deliveries = [raw(b"{\"order\":"), raw(b"{\"order\":\"good\"}"), raw(b"\xff\x00"), raw(b"{}")];
    let source = broker.source(broker.address(), Some(mapping));
    let running = start(run(charging(&store)).consume(source).poll_every(FAST));
    broker.put(&deliveries).await;
    until_effects(&store, 1).await;
    until("all are kept", || async { kept(&store).await.len() == 3 }).await;
    running.stop().await;
    for delivery in [&deliveries[0], &deliveries[2], &deliveries[3]] {
        assert!(kept(&store).await.iter().any(|letter| letter.message.payload == delivery.payload));
    }
    assert_acknowledged(&broker, &store).await;
}

/// Nobody wants it yet: stored, counted, and there for a handler that comes later.
pub async fn a_kind_that_nobody_wants_is_stored<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let inbox = charging(&store);
    let running = consuming(&broker, &inbox);
    let stranger = Message::new("nobody.wants.this", "x").id("stranger");
    put(&broker, &[stranger, message("good")]).await;
    until_effects(&store, 1).await;
    until("it is counted", || async { inbox.counters().get("", Counter::Unrouted) == 1 }).await;
    running.stop().await;
    assert_eq!(inbox.counters().get("", Counter::Received), 2);
    let stored = store.store().message(SOURCE, "stranger").await.unwrap().and_then(|found| found.message);
    let stored = stored.expect("it is in the log");
    assert_eq!((stored.kind.as_str(), &stored.payload[..]), ("nobody.wants.this", &b"x"[..]));
    assert_acknowledged(&broker, &store).await;
}
