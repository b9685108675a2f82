//! Id, kind and key from where the mapping says.

use std::sync::{Arc, Mutex};

use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_core::{Counter, Failure, Headers, Inbox, Message, run};

use super::fixtures::{FAST, assert_acknowledged, charging, until_effects};
use super::subject::{BrokerSubject, SOURCE};
use crate::fixtures::{KIND, start};
use crate::subject::{Subject, TxOf};
use crate::wait::until;

/// Runs deliveries through a source with this mapping and gives back what a handler of every kind got.
async fn picked<B: BrokerSubject, T: Subject>(
    broker: &B,
    store: &T,
    mapping: Mapping,
    deliveries: &[Delivered],
) -> Vec<Message> {
    let got: Arc<Mutex<Vec<Message>>> = Arc::default();
    let sees = got.clone();
    let look = move |_tx: TxOf<T>, message: Message| {
        sees.lock().unwrap().push(message);
        async { Ok::<(), Failure>(()) }
    };
    let inbox = Inbox::new(store.store()).on("*", oncebox_core::handler("look", look));
    let source = broker.source(broker.address(), Some(mapping));
    let running = start(run(inbox).consume(source).poll_every(FAST));
    broker.put(deliveries).await;
    until("all are seen", || async { got.lock().unwrap().len() >= deliveries.len() }).await;
    running.stop().await;
    let mut got = got.lock().unwrap().clone();
    got.sort_by(|one, other| one.id.cmp(&other.id));
    got
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in pairs {
        headers.push(*name, (*value).to_owned());
    }
    headers
}

/// `header:NAME`.
pub async fn parts_are_read_from_headers<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&["header:x-id"], &["header:x-kind"]).unwrap().key(&["header:x-key"]).unwrap();
    let headers = headers(&[("x-id", "h-1"), ("x-kind", "from.header"), ("x-key", "k")]);
    let delivery = Delivered { headers, payload: "x".into(), ..Delivered::default() };
    let got = picked(&broker, &store, mapping, &[delivery]).await;
    assert_eq!((got[0].id.as_str(), got[0].kind.as_str()), ("h-1", "from.header"));
    assert_eq!((got[0].key.as_deref(), got[0].scope.as_str()), (Some("k"), SOURCE));
}

/// `json:/POINTER`.
pub async fn parts_are_read_from_json<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&["json:/id"], &["json:/type"]).unwrap().key(&["json:/deep/key"]).unwrap();
    let payload = r#"{"id":17,"type":"from.json","deep":{"key":"k"}}"#;
    let delivery = Delivered { payload: payload.into(), ..Delivered::default() };
    let got = picked(&broker, &store, mapping, &[delivery]).await;
    assert_eq!((got[0].id.as_str(), got[0].kind.as_str()), ("17", "from.json"));
    assert_eq!((got[0].key.as_deref(), &got[0].payload[..]), (Some("k"), payload.as_bytes()));
}

/// `cloudevents`, attributes in headers and in the payload.
pub async fn parts_are_read_from_cloud_events<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&["cloudevents"], &["cloudevents"]).unwrap().key(&["cloudevents"]).unwrap();
    let name = |attribute: &str| format!("{}{attribute}", B::FACTS.cloud_events_prefix);
    let mut binary = Headers::new();
    for (attribute, value) in
        [("specversion", "1.0"), ("id", "1"), ("source", "/a"), ("type", "binary"), ("partitionkey", "k")]
    {
        binary.push(name(attribute), value);
    }
    let structured = r#"{"specversion":"1.0","id":"2","source":"/b","type":"structured","data":{"n":1}}"#;
    let deliveries = [
        Delivered { headers: binary, payload: "x".into(), ..Delivered::default() },
        Delivered { payload: structured.into(), ..Delivered::default() },
    ];
    let got = picked(&broker, &store, mapping, &deliveries).await;
    let parts: Vec<_> =
        got.iter().map(|got| (got.id.as_str(), got.kind.as_str(), got.key.as_deref())).collect();
    assert_eq!(parts, [("/a 1", "binary", Some("k")), ("/b 2", "structured", None)]);
}

/// The word the broker routes by, and the hash of the payload.
pub async fn parts_are_read_from_route_and_hash<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&["hash"], &["routing-key"]).unwrap();
    let delivery = |payload: &str| Delivered { payload: payload.to_owned().into(), ..Delivered::default() };
    let deliveries = [delivery("one"), delivery("two")];
    let got = picked(&broker, &store, mapping, &deliveries).await;
    assert_eq!(got.len(), 2);
    assert!(got.iter().all(|got| got.id.len() == 64 && got.kind == broker.route()), "{got:?}");
    assert_ne!(got[0].id, got[1].id);
}

/// By its hash a payload that comes twice is one message, whatever else differs.
pub async fn equal_payloads_have_one_hash<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let source = broker.source(broker.address(), Some(Mapping::new(&["hash"], &[KIND]).unwrap()));
    let inbox = charging(&store);
    let running = start(run(inbox.clone()).consume(source).poll_every(FAST));
    let same = |id: &str| B::delivery(&Message::new(KIND, "same"), Some(id.as_bytes()));
    let other = B::delivery(&Message::new(KIND, "other"), Some(b"1"));
    broker.put(&[same("1"), same("2"), other, same("1")]).await;
    until("all four have come", || async {
        let counters = inbox.counters();
        (counters.get("", Counter::Received), counters.get("", Counter::Duplicate)) == (2, 2)
    })
    .await;
    until_effects(&store, 2).await;
    running.stop().await;
    assert_eq!(store.effects().await.len(), 2);
    assert_acknowledged(&broker, &store).await;
}

/// The place of the broker's own.
pub async fn ids_are_read_from_the_brokers_own_place<B: BrokerSubject, T: Subject>(broker: B, store: T) {
    let mapping = Mapping::new(&[B::FACTS.id_place], &["fixed.kind"]).unwrap();
    let delivery = B::delivery(&Message::new("other.kind", "x"), Some(b"own-1"));
    let got = picked(&broker, &store, mapping, &[delivery]).await;
    assert_eq!((got[0].id.as_str(), got[0].kind.as_str()), ("own-1", "fixed.kind"));
}
