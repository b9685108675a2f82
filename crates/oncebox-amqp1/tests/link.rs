//! What only AMQP 1.0 can get wrong: outcomes, connections, kinds of body and id, who is let in, and settings.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::time::Duration;

use fe2o3_amqp_types::messaging::{
    AmqpSequence, AmqpValue, Body, Data, Message as AmqpMessage, MessageId, Properties,
};
use fe2o3_amqp_types::primitives::{Binary, OrderedMap, Uuid, Value};
use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig, TlsConfig};
use oncebox_core::{Message, Settle, Sink, Source};
use oncebox_testkit::{DEADLINE, Proxy};
use support::taking::{config, put, settle, source, take};
use support::{fresh_name, plain};
use xtask::rabbitmq::PrivateRabbitmq;

/// The port of the shared server; the test is skipped where there is none.
macro_rules! port {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server.port(),
            None => return,
        }
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_comes_again_after_a_pause_and_what_is_rejected_does_not() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    put(port, &queue, &["returned", "rejected"]).await;
    let mut one = source(config(port, &queue));
    let lot = take(&mut one, &["returned", "rejected"]).await;
    let began = tokio::time::Instant::now();
    let how = |id: &str| if id == "rejected" { Settle::Reject } else { Settle::Return };
    let settled =
        lot.into_iter().map(|one| (how(&one.message.id), one.receipt)).map(|(how, receipt)| (receipt, how));
    one.settle(settled.collect()).await.unwrap();
    let lot = take(&mut one, &["returned"]).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "no hot loop");
    assert_eq!(lot.len(), 1);
    settle(&mut one, lot, Settle::Accept).await;
    put(port, &queue, &["marker"]).await;
    let lot = take(&mut one, &["marker"]).await;
    assert_eq!(lot.len(), 1, "neither the accepted nor the rejected one comes again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_on_which_nothing_comes_says_whether_it_is_connected() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let mut one = source(config(port, &queue));
    assert_eq!(one.connected(), Some(false));
    let waiting = async {
        while one.connected() != Some(true) {
            let _ = tokio::time::timeout(Duration::from_millis(50), one.next(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("it connects");
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_an_old_connection_settle_nothing() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let proxy = Proxy::start((std::net::Ipv4Addr::LOCALHOST, port).into()).await;
    let mut through = config(port, &queue);
    through.url = format!("amqp://guest:guest@{}", proxy.address());
    let mut one = source(through.clone());
    put(port, &queue, &["a", "b"]).await;
    let old = take(&mut one, &["a", "b"]).await;
    proxy.cut();
    let again = take(&mut one, &["a", "b"]).await;
    settle(&mut one, old, Settle::Accept).await;
    drop((again, one));
    let mut two = source(through);
    let lot = take(&mut two, &["a", "b"]).await;
    settle(&mut two, lot, Settle::Accept).await;
}

fn message(id: MessageId, body: Body<Value>) -> AmqpMessage<Body<Value>> {
    let properties =
        Properties { message_id: Some(id), subject: Some("k".to_owned()), ..Properties::default() };
    AmqpMessage {
        header: None,
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: None,
        body,
        footer: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_body_and_id_is_read() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let data = |bytes: &[u8]| Data(Binary::from(bytes.to_vec()));
    let value = |value: Value| Body::Value(AmqpValue(value));
    let mut map = OrderedMap::new();
    map.insert(Value::String("order".to_owned()), Value::Long(7));
    let nothing = Value::List(vec![Value::Binary(Binary::from(vec![255]))]);
    let cases = [
        (MessageId::String("text".to_owned()), Body::Data(vec![data(b"one")].into()), "text", "one"),
        (MessageId::Ulong(7), Body::Data(vec![data(b"seven")].into()), "7", "seven"),
        (
            MessageId::Uuid(Uuid::from([0x11; 16])),
            value(Value::String("hello".to_owned())),
            "11111111-1111-1111-1111-111111111111",
            "hello",
        ),
        (MessageId::Binary(Binary::from(b"raw".to_vec())), value(Value::Map(map)), "raw", r#"{"order":7}"#),
        (
            MessageId::String("sequence".to_owned()),
            Body::Sequence(vec![AmqpSequence(vec![Value::Int(1), Value::Bool(true)])].into()),
            "sequence",
            "[1,true]",
        ),
    ];
    let mut sent: Vec<_> = cases.iter().map(|(id, body, ..)| message(id.clone(), body.clone())).collect();
    sent.push(message(MessageId::String("strange".to_owned()), value(nothing)));
    plain::send(port, &format!("/amq/queue/{queue}"), &sent).await.unwrap();
    let mut one = source(config(port, &queue));
    let lot = take(&mut one, &["strange"]).await;
    for (_, _, id, payload) in &cases {
        let got = lot.iter().find(|got| got.message.id == *id).unwrap_or_else(|| panic!("no {id}"));
        assert_eq!(got.message.payload, *payload, "{id}");
        assert_eq!(got.fault, None, "{id}");
    }
    let strange = lot.iter().find(|got| got.message.id == "strange").unwrap();
    assert!(strange.fault.as_ref().unwrap().contains("no form in text or JSON"), "{strange:?}");
    assert!(!strange.message.payload.is_empty(), "its bytes are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_there_is_named() {
    let (port, queue) = (port!(), fresh_name());
    let error = source(config(port, &queue)).next(1).await.unwrap_err().to_string();
    assert!(error.contains(&queue), "{error}");
    let url = format!("amqp://guest:guest@127.0.0.1:{port}");
    let sink = Amqp1Sink::new(Amqp1SinkConfig::new(url, format!("/exchange/{queue}/x"))).unwrap();
    let error = sink.send(&[Message::new("k", "x")]).await.unwrap_err().to_string();
    assert!(error.contains(&queue), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_knows_the_password_is_let_in() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let url = format!("amqp://127.0.0.1:{port}");
    let config = Amqp1SinkConfig::new(&url, format!("/amq/queue/{queue}"));
    let good = Amqp1Sink::new(config.clone().credentials("guest", "guest")).unwrap();
    assert_eq!(good.send(&[Message::new("k", "x")]).await.unwrap(), [Ok(())]);
    let config_of_source = Amqp1SourceConfig::new(&url, format!("/amq/queue/{queue}"));
    source(config_of_source.clone().credentials("guest", "guest")).check().await.unwrap();
    assert!(source(config_of_source.credentials("guest", "wrong-secret")).check().await.is_err());
    let bad = Amqp1Sink::new(config.credentials("guest", "wrong-secret")).unwrap();
    let error = bad.send(&[Message::new("k", "x")]).await.unwrap_err().to_string();
    assert!(!error.contains("wrong-secret"), "{error}");
    assert!(error.contains("`username` and `password`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_must_prove_who_it_is() {
    if xtask::rabbitmq::programs_folder().is_err() {
        return;
    }
    let server = tokio::task::spawn_blocking(|| PrivateRabbitmq::start_tls().unwrap()).await.unwrap();
    let queue = fresh_name();
    plain::create_queue(server.port(), &queue).await;
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let config = Amqp1SinkConfig::new(&url, format!("/amq/queue/{queue}"));
    let trust = |file: &Path| TlsConfig { ca: Some(file.to_owned()), ..TlsConfig::default() };
    let good = Amqp1Sink::new(config.clone().tls(trust(&files.authority))).unwrap();
    assert_eq!(good.send(&[Message::new("k", "x").id("1")]).await.unwrap(), [Ok(())]);
    let error =
        Amqp1Sink::new(config).unwrap().send(&[Message::new("k", "x")]).await.unwrap_err().to_string();
    assert!(error.contains("TLS") || error.contains("tls.ca"), "{error}");
    let config = Amqp1SourceConfig::new(&url, format!("/amq/queue/{queue}")).tls(trust(&files.authority));
    take(&mut source(config), &["1"]).await;
}

#[test]
fn settings_are_read_as_people_write_them() {
    let source: Amqp1SourceConfig = toml::from_str(
        r#"
        url = "amqps://shop.servicebus.windows.net"
        address = "orders/Subscriptions/billing"
        prefetch = 100
        idle_timeout = "60s"
        username = "listen-policy"
        password = "top-secret"
        "#,
    )
    .unwrap();
    assert_eq!((source.prefetch, source.idle_timeout), (100, Duration::from_secs(60)));
    assert!(!format!("{source:?}").contains("top-secret"));
    assert!(!format!("{:?}", Amqp1Source::new("orders", source).unwrap()).contains("top-secret"));
    let error = toml::from_str::<Amqp1SinkConfig>("queue = 'a'").unwrap_err().to_string();
    assert!(error.contains("unknown field `queue`"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_refused_with_the_remedy() {
    let good = || Amqp1SourceConfig::new("amqp://localhost", "orders");
    assert!(Amqp1Source::new("orders", good()).is_ok());
    for (config, words) in [
        (Amqp1SourceConfig { address: String::new(), ..good() }, "`address` is empty"),
        (good().prefetch(0), "`prefetch` is 0"),
        (good().idle_timeout(Duration::ZERO), "`idle_timeout`"),
        (Amqp1SourceConfig { url: "http://localhost".to_owned(), ..good() }, "amqp:// or amqps://"),
        (Amqp1SourceConfig { url: "amqp://localhost/vhost".to_owned(), ..good() }, "nothing more"),
        (good().tls(TlsConfig { ca: Some("ca.pem".into()), ..TlsConfig::default() }), "write amqps://"),
        (good().tls(TlsConfig { key: Some("key.pem".into()), ..TlsConfig::default() }), "belong together"),
        (Amqp1SourceConfig { password: Some("secret".to_owned()), ..good() }, "no `username`"),
    ] {
        let error = Amqp1Source::new("orders", config).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("secret"), "{words}: {error}");
    }
}
