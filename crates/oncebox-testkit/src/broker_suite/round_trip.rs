//! From the outbox through the broker into an inbox: nothing about a message changes.

use std::sync::{Arc, Mutex};

use oncebox_core::{Failure, Inbox, Message, Store, TraceContext, run};

use super::fixtures::FAST;
use super::subject::{BrokerSubject, SOURCE};
use crate::fixtures::{KIND, message, start};
use crate::subject::{Subject, TxOf};
use crate::wait::until;

/// Publishes messages in a transaction of the user's own.
pub(super) async fn publish<T: Subject>(store: &T, messages: &[Message]) {
    let mut own = store.begin().await;
    store.store().publish(&mut own, messages).await.unwrap();
    T::commit(own).await;
}

fn strange_messages<B: BrokerSubject>() -> Vec<Message> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut messages = vec![
        Message::new(KIND, "plain").id("plain").key("a key"),
        Message::new(KIND, every_byte).id("every byte"),
        Message::new(KIND, "").id("empty payload"),
        Message::new(KIND, "line\nline\r\n\ttab").id("lines").header("empty", ""),
        Message::new("kind.with-dash_and.dots", "ü€😀").id("unicode ü€😀").key("ключ").header("näme", "wért"),
        Message::new(KIND, vec![b'x'; B::FACTS.largest_payload.min(300_000)]).id("large"),
        Message::new(KIND, "x").id("x".repeat(B::FACTS.longest_id.min(500))),
        Message::new(KIND, "{}").id("typed").header("content-type", "application/json"),
    ];
    if B::FACTS.binary_headers {
        messages.push(Message::new(KIND, "x").id("binary header").header("bin", vec![0, 255, 1, 254]));
    }
    if B::FACTS.repeated_headers {
        messages.push(Message::new(KIND, "x").id("repeated").header("same", "1").header("same", "2"));
    }
    messages
}

/// Id, kind, key, headers and payload, byte by byte.
pub async fn a_message_arrives_as_it_was_published<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let got: Arc<Mutex<Vec<Message>>> = Arc::default();
    let sees = got.clone();
    let look = move |_tx: TxOf<T>, message: Message| {
        sees.lock().unwrap().push(message);
        async { Ok::<(), Failure>(()) }
    };
    let inbox = Inbox::new(store.store()).on("*", oncebox_core::handler("look", look));
    let messages = strange_messages::<B>();
    let at = broker.address();
    let running =
        start(run(inbox).consume(broker.source(at, None)).relay(broker.sink_to_queue(at)).poll_every(FAST));
    publish(&store, &messages).await;
    until("all have arrived", || async { got.lock().unwrap().len() >= messages.len() }).await;
    running.stop().await;
    let got = got.lock().unwrap();
    for sent in &messages {
        let arrived: Vec<_> = got.iter().filter(|got| got.id == sent.id).collect();
        assert_eq!(arrived.len(), 1, "`{}` arrived {} times", sent.id, arrived.len());
        let arrived = arrived[0];
        assert_eq!((&arrived.kind, &arrived.key), (&sent.kind, &sent.key), "of `{}`", sent.id);
        assert_eq!(arrived.payload, sent.payload, "payload of `{}`", sent.id);
        assert_eq!(arrived.scope, SOURCE);
        let names: Vec<&str> = sent.headers.iter().map(|(name, _)| name).collect();
        let mut headers = arrived.headers.clone();
        headers.retain(|name, _| names.contains(&name));
        assert_eq!(headers, sent.headers, "headers of `{}`", sent.id);
    }
}

/// The trace that a delivery came with goes on in what its handler publishes.
pub async fn the_trace_goes_in_and_out<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let publishes = |mut tx: TxOf<T>, _message: Message| async move {
        tx.publish(Message::new("order.paid", "x").id("paid")).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(store.store()).on(KIND, oncebox_core::handler("pay", publishes));
    let at = broker.address();
    let running = start(run(inbox).consume(broker.source(at, None)).relay(broker.sink(at)).poll_every(FAST));
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let order = message("order").header("traceparent", traceparent);
    super::fixtures::put(&broker, &[order]).await;
    until("it is published", || async { !broker.taken().await.is_empty() }).await;
    running.stop().await;
    let paid = broker.taken().await;
    let trace = TraceContext::extract(&paid[0].headers).unwrap();
    assert_eq!((paid[0].id.as_str(), trace.trace_id()), ("paid", "0af7651916cd43dd8448eb211c80319c"));
}
