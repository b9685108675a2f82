//! Handlers: what they take, which messages they get, and what is remembered of each.

use std::sync::Arc;

use oncebox_core::admin::DeliveryState;
use oncebox_core::{
    Attempt, Batch, Call, Counter, Extract, Failure, Inbox, Json, Message, Received, State, Store,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::fixtures::{
    HOUR, KIND, assert_once, deliveries, drain, failing, handler, ids, message, notes, numbered, receive,
    registered,
};
use crate::ledger::{Effect, Verdict};
use crate::subject::{Subject, TxOf, recording};

#[derive(Debug, serde::Deserialize)]
struct Order {
    order: String,
}

/// Every argument there is, in two orders.
pub async fn arguments_come_in_any_order<T: Subject>(subject: T) {
    let one = |State(shop): State<Arc<str>>,
               mut tx: TxOf<T>,
               Json(order): Json<Order>,
               Attempt(n): Attempt,
               m: Message| async move {
        let note = format!("{shop} {} {n}", order.order);
        T::record(&mut tx, Effect { note, ..Effect::of("one", &m) }).await
    };
    let two = |m: Message,
               Attempt(n): Attempt,
               Json(order): Json<Order>,
               mut tx: TxOf<T>,
               State(shop): State<Arc<str>>| async move {
        let note = format!("{shop} {} {n}", order.order);
        T::record(&mut tx, Effect { note, ..Effect::of("two", &m) }).await
    };
    let inbox = Inbox::with_state(subject.store(), Arc::<str>::from("shop"))
        .on(KIND, handler("one", one))
        .on(KIND, handler("two", two));
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;

    assert_eq!(notes(&subject, "one").await, ["shop a 1"]);
    assert_eq!(notes(&subject, "two").await, ["shop a 1"]);
}

/// An argument of one's own that is made of two others, as the last one that reads the message.
struct Signed(Message, Order);

impl<St: Store, S> Extract<St, S> for Signed {
    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        let message = <Message as Extract<St, S>>::extract(call)?;
        let Json(order) = <Json<Order> as Extract<St, S>>::extract(call)?;
        assert_eq!(call.message().id, message.id);
        Ok(Self(message, order))
    }
}

/// Whoever writes one may ask others, in any order, wherever the argument stands.
pub async fn an_argument_may_be_made_of_others<T: Subject>(subject: T) {
    let sign = |mut tx: TxOf<T>, Signed(m, order): Signed| async move {
        T::record(&mut tx, Effect { note: order.order, ..Effect::of("sign", &m) }).await
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("sign", sign))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    assert_eq!(notes(&subject, "sign").await, ["a"]);
}

/// Inline they share a transaction, and each has every message whole, whoever had it before.
pub async fn handlers_beside_each_other_get_the_same_messages<T: Subject>(subject: T) {
    let whole = |message: &Message| format!("{} {}", message.kind, message.payload.len());
    let single = |name: &'static str| {
        handler(name, move |m: Message, mut tx: TxOf<T>| async move {
            T::record(&mut tx, Effect { note: whole(&m), ..Effect::of(name, &m) }).await
        })
    };
    let batched = |name: &'static str| {
        handler(name, move |mut tx: TxOf<T>, Batch(messages): Batch<Message>| async move {
            for m in &messages {
                T::record(&mut tx, Effect { note: whole(m), ..Effect::of(name, m) }).await?;
            }
            Ok::<(), Failure>(())
        })
    };
    let inbox = Inbox::new(subject.store())
        .on(KIND, batched("first"))
        .on(KIND, single("second"))
        .on(KIND, batched("third"))
        .on(KIND, single("fourth"))
        .on("no.batch", single("fifth"))
        .on("no.batch", single("sixth"));
    let inbox = registered(inbox).await;
    let messages = numbered(3);
    inbox.process_all(messages.clone()).await.unwrap();
    let expected: Vec<String> = messages.iter().map(whole).collect();
    for name in ["first", "second", "third", "fourth"] {
        assert_eq!(notes(&subject, name).await, expected, "of {name}");
    }
    let alone = Message::new("no.batch", "x").id("alone");
    inbox.process(alone.clone()).await.unwrap();
    for name in ["fifth", "sixth"] {
        assert_eq!(notes(&subject, name).await, [whole(&alone)], "of {name}");
    }
}

/// One transaction, one call, many messages.
pub async fn a_batch_handler_gets_many_messages_in_one_call<T: Subject>(subject: T) {
    let count = |mut tx: TxOf<T>, Batch(orders): Batch<Order>| async move {
        for order in &orders {
            let (id, note) = (order.order.clone(), orders.len().to_string());
            T::record(&mut tx, Effect { id, note, handler: "count".to_owned() }).await?;
        }
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("count", count).batch(10))).await;
    receive(&inbox, &numbered(35)).await;
    drain(&inbox).await;

    assert_once(&subject, &numbered(35), &["count"]).await;
    let sizes: Vec<usize> = notes(&subject, "count").await.iter().map(|note| note.parse().unwrap()).collect();
    assert!(sizes.iter().all(|size| *size <= 10) && sizes.contains(&10), "{sizes:?}");
}

/// One of two handlers fails; only that one runs again.
pub async fn each_handler_of_a_message_is_remembered_on_its_own<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", failing::<T>("ship", |_, attempt| attempt < 3)));
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    for _ in 0..3 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    assert_once(&subject, &[message("a")], &["charge", "ship"]).await;
}

/// By whole name, by beginning, by list, and all.
pub async fn a_handler_gets_the_kinds_it_asked_for<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on("order.placed", handler("exact", recording::<T>("exact")))
        .on("order.*", handler("prefix", recording::<T>("prefix")))
        .on(["order.paid", "page.*"], handler("list", recording::<T>("list")))
        .on("*", handler("all", recording::<T>("all")));
    let inbox = registered(inbox).await;
    let kinds = ["order.placed", "order.paid", "order.", "order", "Order.placed", "order_placed", "page.%"];
    let messages: Vec<Message> = kinds.iter().map(|kind| Message::new(*kind, "x").id(*kind)).collect();
    receive(&inbox, &messages).await;
    drain(&inbox).await;

    let sorted = |mut ids: Vec<String>| {
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(&subject, "exact").await, ["order.placed"]);
    assert_eq!(sorted(ids(&subject, "prefix").await), ["order.", "order.paid", "order.placed"]);
    assert_eq!(sorted(ids(&subject, "list").await), ["order.paid", "page.%"]);
    assert_eq!(ids(&subject, "all").await.len(), kinds.len());
}

/// A new handler is no reason to do last year's work.
pub async fn a_handler_added_later_starts_at_the_end<T: Subject>(subject: T) {
    let first = Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")));
    let first = registered(first).await;
    receive(&first, &[message("old-1")]).await;
    drain(&first).await;
    receive(&first, &[message("old-2")]).await;

    let both = Inbox::new(subject.reopen().await)
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("report", recording::<T>("report")));
    let both = registered(both).await;
    receive(&both, &[message("new")]).await;
    drain(&both).await;

    assert_eq!(ids(&subject, "report").await, ["new"]);
    let all = [message("old-1"), message("old-2"), message("new")];
    let effects = subject.effects().await;
    let charged: Vec<Effect> = effects.into_iter().filter(|effect| effect.handler == "charge").collect();
    Verdict::of(&charged, all.iter().map(|message| message.id.as_str()), &["charge"]).assert_clean();
}

/// Unless it asks for it.
pub async fn a_handler_added_from_the_start_gets_the_whole_log<T: Subject>(subject: T) {
    let first =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&first, &numbered(40)).await;
    drain(&first).await;

    let report = handler("report", recording::<T>("report")).from_start();
    let second = registered(Inbox::new(subject.store()).on(KIND, report)).await;
    receive(&second, &[message("new")]).await;
    drain(&second).await;

    let mut expected = numbered(40);
    expected.push(message("new"));
    let effects = subject.effects().await;
    let reported: Vec<Effect> = effects.into_iter().filter(|effect| effect.handler == "report").collect();
    Verdict::of(&reported, expected.iter().map(|message| message.id.as_str()), &["report"]).assert_clean();
}

/// Cursors, retries and dead letters move with the name.
pub async fn a_renamed_handler_goes_on_where_it_was<T: Subject>(subject: T) {
    let old = handler("charge", failing::<T>("work", |message, _| message.id != "done"));
    let old = registered(Inbox::new(subject.store()).on(KIND, old)).await;
    receive(&old, &[message("done"), message("failed")]).await;
    drain(&old).await;
    receive(&old, &[message("waiting")]).await;

    let new = handler("charge-card", recording::<T>("work")).formerly("charge");
    let new = Inbox::new(subject.reopen().await).on(KIND, new);
    drain(&new).await;
    subject.clock().advance(HOUR);
    drain(&new).await;

    assert_once(&subject, &[message("done"), message("failed"), message("waiting")], &["work"]).await;
    let names: Vec<String> =
        new.store().handlers().await.unwrap().into_iter().map(|known| known.name).collect();
    assert_eq!(names, ["charge-card"]);
}

/// Kept, counted, and there for a handler that comes later.
pub async fn a_kind_nobody_wants_is_stored_and_counted<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let stray = Message::new("nobody.cares", "x").id("stray");
    receive(&inbox, &[stray.clone(), message("a")]).await;
    assert_eq!(inbox.receive(std::slice::from_ref(&stray)).await.unwrap(), [Received::Duplicate]);
    drain(&inbox).await;
    assert_eq!(inbox.counters().get("", Counter::Unrouted), 1);
    assert_once(&subject, &[message("a")], &["charge"]).await;

    let late = handler("late", recording::<T>("late")).from_start();
    drain(&Inbox::new(subject.store()).on("nobody.*", late)).await;
    assert_eq!(ids(&subject, "late").await, ["stray"]);
}

/// As many processes do when they start together.
pub async fn registering_from_many_processes_at_once_is_safe<T: Subject>(subject: T) {
    let barrier = Arc::new(Barrier::new(6));
    let mut starts = JoinSet::new();
    for _ in 0..6 {
        let (store, barrier) = (subject.reopen().await, barrier.clone());
        starts.spawn(async move {
            let inbox = Inbox::new(store)
                .on(KIND, handler("charge", recording::<T>("charge")))
                .on(KIND, handler("ship", recording::<T>("ship")).formerly("send"));
            barrier.wait().await;
            drain(&inbox).await;
            inbox
        });
    }
    let inboxes = starts.join_all().await;
    receive(&inboxes[0], &numbered(5)).await;
    drain(&inboxes[5]).await;
    assert_once(&subject, &numbered(5), &["charge", "ship"]).await;
}

/// A name the code no longer has.
pub async fn a_forgotten_handler_leaves_nothing<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("old", failing::<T>("old", |_, _| true)));
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    assert_eq!(deliveries(inbox.store(), "old").await[0].state, DeliveryState::Retrying);

    assert!(inbox.store().forget("old").await.unwrap());
    assert!(!inbox.store().forget("old").await.unwrap(), "it is not known any more");
    assert_eq!(deliveries(inbox.store(), "old").await.len(), 0);
    let known = inbox.store().handlers().await.unwrap();
    assert_eq!(known.iter().map(|known| known.name.as_str()).collect::<Vec<_>>(), ["charge"]);
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// Counted without reading the log, and right all the same while the numbers are small.
pub async fn the_status_of_a_handler_says_what_waits<T: Subject>(subject: T) {
    let charge = handler("charge", failing::<T>("charge", |message, _| message.id == "m-000"));
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge.max_attempts(2))).await;
    receive(&inbox, &numbered(7)).await;
    let status = inbox.store().handlers().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.waiting_is_exact), (7, true));
    assert!(status.lag.is_some());
    assert_eq!(status.kinds, [KIND]);
    assert_eq!(inbox.store().wanted_kinds().await.unwrap(), [[KIND]]);

    drain(&inbox).await;
    let status = inbox.store().handlers().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.lag, status.retrying, status.dead), (0, None, 1, 0));
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    let status = inbox.store().handlers().await.unwrap().remove(0);
    assert_eq!((status.retrying, status.dead), (0, 1));
}
