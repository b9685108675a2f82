//! What can be seen from outside: traces that go through, and counters that need no table scan.

use oncebox_core::store::Count;
use oncebox_core::{Counter, Failure, Inbox, Message, Store, TraceContext, run};

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{HOUR, KIND, drain, failing, handler, keyed, message, numbered, receive, registered};
use crate::subject::{Subject, TxOf, recording};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// W3C trace context: the same trace, another span, the state untouched; and never over the handler's own.
pub async fn the_trace_of_a_message_goes_on_in_what_it_causes<T: Subject>(subject: T) {
    let own = "00-11111111111111111111111111111111-2222222222222222-00";
    let pay = move |mut tx: TxOf<T>, message: Message| async move {
        tx.publish(Message::new("order.paid", "x").id(format!("{}-paid", message.id))).await?;
        tx.publish(Message::new("own", "x").id(format!("{}-own", message.id)).header("traceparent", own))
            .await?;
        Ok::<(), Failure>(())
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("pay", pay))).await;
    let traced = |id: &str| message(id).header("traceparent", PARENT).header("tracestate", "vendor=1");
    receive(&inbox, &[traced("stored"), message("untraced")]).await;
    inbox.process(traced("inline")).await.unwrap();
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox).relay(broker.clone()).drain().await.unwrap();

    let sent = broker.sent();
    let of = |id: &str| sent.iter().find(|message| message.id == id).unwrap();
    for id in ["stored-paid", "inline-paid"] {
        let trace = TraceContext::extract(&of(id).headers).unwrap();
        assert_eq!(trace.trace_id(), "0af7651916cd43dd8448eb211c80319c", "{id}");
        assert_ne!(trace.span_id(), "b7ad6b7169203331", "{id}");
        assert_eq!(of(id).headers.text("tracestate"), Some("vendor=1"), "{id}");
    }
    assert_eq!(of("stored-own").headers.text("traceparent"), Some(own));
    assert!(of("untraced-paid").headers.get("traceparent").is_none());
}

/// One number per fact, in the process and, after a flush, in the store.
pub async fn counters_say_what_happened<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "dead" || message.id == "retried" && attempt == 1;
    let charge = handler("charge", failing::<T>("charge", fails)).max_attempts(2).ordered();
    let inbox = registered(Inbox::new(subject.store()).on(KIND, charge)).await;
    receive(&inbox, &numbered(5)).await;
    receive(&inbox, &[message("dead"), keyed("retried", "k"), keyed("held", "k")]).await;
    inbox.receive(&[message("m-000"), Message::new(KIND, "other").id("m-001")]).await.unwrap();
    receive(&inbox, &[Message::new("nobody.cares", "x")]).await;
    inbox.process(message("inline")).await.unwrap();
    inbox.process(message("inline")).await.unwrap();
    for _ in 0..3 {
        drain(&inbox).await;
        subject.clock().advance(HOUR);
    }
    let expected = [
        ("", Counter::Received, 10),
        ("", Counter::Duplicate, 2),
        ("", Counter::Conflict, 1),
        ("", Counter::Unrouted, 1),
        ("charge", Counter::Done, 8),
        ("charge", Counter::Failed, 3),
        ("charge", Counter::Retried, 2),
        ("charge", Counter::Dead, 1),
        ("charge", Counter::Held, 1),
    ];
    let stored = inbox.store().counts().await.unwrap();
    for (name, counter, value) in expected {
        assert_eq!(inbox.counters().get(name, counter), value, "{name} {counter:?} in the process");
        let count = Count { handler: name.to_owned(), name: counter.as_str().to_owned(), value };
        assert!(stored.contains(&count), "{count:?} in the store, which has {stored:?}");
    }
}

/// Many processes add to the same numbers.
pub async fn counts_of_several_processes_add_up<T: Subject>(subject: T) {
    let count = |value| Count { handler: "charge".to_owned(), name: "done".to_owned(), value };
    let (one, two) = (subject.store(), subject.reopen().await);
    for _ in 0..10 {
        let (first, second) = ([count(3)], [count(4)]);
        let (first, second) = tokio::join!(one.add_counts(&first), two.add_counts(&second));
        first.unwrap();
        second.unwrap();
    }
    assert_eq!(one.counts().await.unwrap(), [count(70)]);
}

/// The lag is the age of the oldest message behind, by the database's clock, and none when nothing is.
pub async fn the_lag_of_a_handler_is_the_age_of_its_oldest_message<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &[message("old")]).await;
    subject.clock().advance(HOUR);
    receive(&inbox, &[message("young")]).await;
    let lag = inbox.store().handlers().await.unwrap()[0].lag.unwrap();
    assert!(lag >= HOUR && lag < 2 * HOUR, "{lag:?}");
    drain(&inbox).await;
    assert_eq!(inbox.store().handlers().await.unwrap()[0].lag, None);
}
