//! What only a source on MQTT can get wrong: sessions, packet ids, QoS 2, shared subscriptions, kept messages.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Error, Incoming, Message, Settle, Source};
use oncebox_mqtt::{MqttReceipt, MqttSource, MqttSourceConfig};
use oncebox_testkit::{BrokerSubject, DEADLINE, Proxy};
use rumqttc::{PublishOptions, QoS};
use support::{MosquittoSubject, Plain, fresh_name, plain};
use tracing::field::{Field, Visit};
use xtask::mosquitto::PrivateMosquitto;
use xtask::server::StopMode;

type Lot = Vec<Incoming<MqttReceipt>>;

/// The port of the shared server; the test is skipped where there is none.
macro_rules! port {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server.port(),
            None => return,
        }
    };
}

fn config(port: u16, name: &str) -> MqttSourceConfig {
    MqttSourceConfig::new(format!("mqtt://127.0.0.1:{port}"), name)
        .topic(format!("{name}/#"))
        .keep_alive(Duration::from_secs(2))
        .return_after(Duration::from_millis(300))
}

fn source(config: MqttSourceConfig) -> MqttSource {
    MqttSource::new("orders", config).unwrap()
}

async fn put(port: u16, topic: &str, ids: &[&str], options: PublishOptions) {
    let packet = |id: &&str| {
        let message = Message::with_id(*id, "order.placed", "x");
        (topic.to_owned(), plain::delivery(&message, Some(id.as_bytes())))
    };
    let packets: Vec<(String, Delivered)> = ids.iter().map(packet).collect();
    let mut publisher = Plain::connect(plain::options(&fresh_name(), port));
    assert!(publisher.publish(&packets, &options).await);
}

fn at_least_once() -> PublishOptions {
    PublishOptions::new(QoS::AtLeastOnce)
}

/// Connects, so that the session is there.
async fn begin(source: &mut MqttSource, port: u16, topic: &str) {
    put_until_seen(source, port, topic).await;
}

/// Publishes until something comes: then the subscription stands.
async fn put_until_seen(source: &mut MqttSource, port: u16, topic: &str) {
    loop {
        put(port, topic, &["begin"], at_least_once()).await;
        if let Ok(lot) = tokio::time::timeout(Duration::from_millis(200), source.next(1000)).await {
            let seen = lot.unwrap();
            settle(source, seen, Settle::Accept).await;
            break;
        }
    }
    // More copies may be on their way.
    while let Ok(lot) = tokio::time::timeout(Duration::from_millis(200), source.next(1000)).await {
        settle(source, lot.unwrap(), Settle::Accept).await;
    }
}

/// What comes next; errors are passed over, as the engine does.
async fn next(source: &mut MqttSource) -> Lot {
    let answered = async {
        loop {
            match source.next(1000).await {
                Ok(lot) => return lot,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("something comes")
}

/// Takes until all of these have come, and gives back every receipt.
async fn take(source: &mut MqttSource, ids: &[&str]) -> Lot {
    let mut all: Lot = Vec::new();
    while ids.iter().any(|id| all.iter().all(|one| one.message.id != *id)) {
        all.extend(next(source).await);
    }
    all
}

async fn settle(source: &mut MqttSource, lot: Lot, how: Settle) {
    let settled = lot.into_iter().map(|one| (one.receipt, how)).collect();
    source.settle(settled).await.unwrap();
}

async fn settle_all(source: &mut MqttSource, ids: &[&str]) {
    let lot = take(source, ids).await;
    settle(source, lot, Settle::Accept).await;
}

fn ids(lot: &Lot) -> BTreeSet<&str> {
    lot.iter().map(|one| one.message.id.as_str()).collect()
}

async fn error_of(source: &mut MqttSource) -> Error {
    let failed = async {
        loop {
            if let Err(error) = source.next(10).await {
                return error;
            }
        }
    };
    tokio::time::timeout(DEADLINE, failed).await.expect("it fails")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_while_the_process_is_away_is_kept() {
    let (port, name) = (port!(), fresh_name());
    let mut first = source(config(port, &name));
    begin(&mut first, port, &format!("{name}/a")).await;
    drop(first);
    put(port, &format!("{name}/a"), &["1", "2", "3"], at_least_once()).await;
    let mut second = source(config(port, &name));
    let lot = take(&mut second, &["1", "2", "3"]).await;
    assert_eq!(lot.iter().map(|one| one.message.id.as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_on_which_nothing_comes_says_whether_it_is_connected() {
    let (port, name) = (port!(), fresh_name());
    let mut one = source(config(port, &name));
    assert_eq!(one.connected(), Some(false));
    let waiting = async {
        while one.connected() != Some(true) {
            let _ = tokio::time::timeout(Duration::from_millis(50), one.next(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("it connects");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_group_share_messages() {
    let (port, name) = (port!(), fresh_name());
    let member = |number: u32| {
        let mut config = config(port, &format!("{name}-{number}"));
        config.topic = vec![format!("$share/{name}/{name}/orders")];
        source(config)
    };
    let (mut one, mut two) = (member(1), member(2));
    let topic = format!("{name}/orders");
    let (mut of_one, mut of_two) = (BTreeSet::new(), BTreeSet::new());
    // Both are there when both have got something.
    let mut put_so_far = 0;
    while of_one.is_empty() || of_two.is_empty() {
        put(port, &topic, &[&format!("begin-{put_so_far}")], at_least_once()).await;
        put_so_far += 1;
        for (member, got) in [(&mut one, &mut of_one), (&mut two, &mut of_two)] {
            if let Ok(lot) = tokio::time::timeout(Duration::from_millis(100), member.next(1000)).await {
                let lot = lot.unwrap();
                got.extend(lot.iter().map(|one| one.message.id.clone()));
                settle(member, lot, Settle::Accept).await;
            }
        }
    }
    let wanted: Vec<String> = (0..100).map(|number| format!("m-{number}")).collect();
    put(port, &topic, &wanted.iter().map(String::as_str).collect::<Vec<_>>(), at_least_once()).await;
    while !wanted.iter().all(|id| of_one.contains(id) || of_two.contains(id)) {
        for (member, got) in [(&mut one, &mut of_one), (&mut two, &mut of_two)] {
            if let Ok(lot) = tokio::time::timeout(Duration::from_millis(100), member.next(1000)).await {
                let lot = lot.unwrap();
                got.extend(lot.iter().map(|one| one.message.id.clone()));
                settle(member, lot, Settle::Accept).await;
            }
        }
    }
    assert!(of_one.intersection(&of_two).next().is_none(), "each goes to one of them");
    assert!(wanted.iter().any(|id| of_one.contains(id)) && wanted.iter().any(|id| of_two.contains(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_qos_2_nothing_is_lost_before_and_doubled_after_the_acknowledgement() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/a");
    let options = PublishOptions::new(QoS::ExactlyOnce);
    let mut first = source(config(port, &name).qos(2));
    begin(&mut first, port, &topic).await;
    drop(first);
    for round in 0..10 {
        let (early, late) = (format!("early-{round}"), format!("late-{round}"));
        put(port, &topic, &[&early, &late], options.clone()).await;
        // Taken, and the process is gone before anything is committed.
        let mut gone = source(config(port, &name).qos(2));
        assert!(ids(&take(&mut gone, &[&early, &late]).await).contains(late.as_str()));
        drop(gone);
        let mut back = source(config(port, &name).qos(2));
        settle_all(&mut back, &[&early, &late]).await;
    }
    put(port, &topic, &["marker"], options).await;
    let mut last = source(config(port, &name).qos(2));
    let lot = take(&mut last, &["marker"]).await;
    assert_eq!(ids(&lot), BTreeSet::from(["marker"]), "what was acknowledged does not come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_an_old_connection_acknowledge_nothing() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/a");
    let proxy = Proxy::start((std::net::Ipv4Addr::LOCALHOST, port).into()).await;
    let through = |at: std::net::SocketAddr| {
        let mut config = config(port, &name);
        config.url = format!("mqtt://{at}");
        source(config)
    };
    let mut one = through(proxy.address());
    begin(&mut one, port, &topic).await;
    put(port, &topic, &["a", "b"], at_least_once()).await;
    let old = take(&mut one, &["a", "b"]).await;
    proxy.cut();
    // They come again, under packet ids that mean something on the new connection only.
    let again = take(&mut one, &["a", "b"]).await;
    drop(again);
    put(port, &topic, &["c", "d"], at_least_once()).await;
    let newer = take(&mut one, &["c", "d"]).await;
    settle(&mut one, old, Settle::Accept).await;
    drop((newer, one));
    let mut two = through(proxy.address());
    take(&mut two, &["a", "b", "c", "d"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_comes_again_after_a_pause_and_what_is_rejected_is_not_lost() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/a");
    for qos in [1, 2] {
        let mut one = source(config(port, &name).qos(qos));
        begin(&mut one, port, &topic).await;
        let options = PublishOptions::new(if qos == 1 { QoS::AtLeastOnce } else { QoS::ExactlyOnce });
        put(port, &topic, &["returned", "rejected"], options.clone()).await;
        for _ in 0..3 {
            let lot = take(&mut one, &["returned"]).await;
            let before = tokio::time::Instant::now();
            let how = |id: &str| if id == "rejected" { Settle::Reject } else { Settle::Return };
            let settled =
                lot.into_iter().map(|one| (how(&one.message.id), one)).map(|(how, one)| (one.receipt, how));
            one.settle(settled.collect()).await.unwrap();
            // Others are not held up.
            put(port, &topic, &["other"], options.clone()).await;
            // The returned one may be there again before it.
            let lot = take(&mut one, &["other"]).await;
            let how = |id: &str| if id == "other" { Settle::Accept } else { Settle::Return };
            let settled =
                lot.into_iter().map(|one| (how(&one.message.id), one)).map(|(how, one)| (one.receipt, how));
            one.settle(settled.collect()).await.unwrap();
            let lot = take(&mut one, &["returned"]).await;
            assert!(before.elapsed() >= Duration::from_millis(300), "no hot loop");
            assert_eq!(ids(&lot), BTreeSet::from(["returned"]));
            settle(&mut one, lot, Settle::Return).await;
        }
        // Nothing was acknowledged: the next process gets it, too.
        drop(one);
        let mut two = source(config(port, &name).qos(qos));
        let lot = take(&mut two, &["returned", "rejected"]).await;
        assert_eq!(ids(&lot), BTreeSet::from(["returned", "rejected"]));
        settle(&mut two, lot, Settle::Accept).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_messages_are_marked_and_come_with_a_new_subscription_only() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/a");
    put(port, &topic, &["kept"], at_least_once().retained()).await;
    let mut one = source(config(port, &name));
    let lot = take(&mut one, &["kept"]).await;
    assert_eq!(lot[0].message.headers.text("mqtt-retained"), Some("true"));
    settle(&mut one, lot, Settle::Accept).await;
    drop(one);
    put(port, &topic, &["live"], at_least_once()).await;
    let mut two = source(config(port, &name));
    let lot = take(&mut two, &["live"]).await;
    assert_eq!(ids(&lot), BTreeSet::from(["live"]));
    assert_eq!(lot[0].message.headers.get("mqtt-retained"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_of_the_packet_are_headers() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/sensors/17");
    let mut one = source(config(port, &name).topic_header("mqtt-topic"));
    begin(&mut one, port, &topic).await;
    let properties = [("content-type", "text/csv"), ("response-topic", "answers"), ("correlation-data", "7")];
    let mut delivered = plain::delivery(&Message::with_id("1", "k", "a,b"), Some(b"1"));
    delivered.properties = properties.map(|(name, value)| (name, value.into())).to_vec();
    let mut publisher = Plain::connect(plain::options(&fresh_name(), port));
    assert!(publisher.publish(&[(topic.clone(), delivered)], &at_least_once()).await);
    let lot = take(&mut one, &["1"]).await;
    for (name, value) in properties {
        assert_eq!(lot[0].message.headers.text(name), Some(value));
    }
    assert_eq!(lot[0].message.headers.text("mqtt-topic"), Some(topic.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_qos_0_does_not_stop_acknowledgements() {
    let (port, name) = (port!(), fresh_name());
    let topic = format!("{name}/a");
    let mut one = source(config(port, &name).prefetch(10));
    begin(&mut one, port, &topic).await;
    put(port, &topic, &["safe"], at_least_once()).await;
    let lot = take(&mut one, &["safe"]).await;
    let flood: Vec<String> = (0..5000).map(|number| format!("flood-{number}")).collect();
    let flood: Vec<&str> = flood.iter().map(String::as_str).collect();
    put(port, &topic, &flood, PublishOptions::new(QoS::AtMostOnce)).await;
    settle(&mut one, lot, Settle::Accept).await;
    put(port, &topic, &["after"], at_least_once()).await;
    let all = take(&mut one, &["after"]).await;
    assert!(all.iter().all(|one| one.message.id != "safe"));
    settle(&mut one, all, Settle::Accept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_our_client_id_is_named_as_the_reason() {
    let (port, name) = (port!(), fresh_name());
    let mut one = source(config(port, &name));
    begin(&mut one, port, &format!("{name}/a")).await;
    let mut two = source(config(port, &name));
    let two = tokio::spawn(async move { two.next(1).await.map(|_| ()) });
    let error = error_of(&mut one).await.to_string();
    assert!(error.contains("our `client_id`"), "{error}");
    two.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_with_less_than_we_ask_for_is_an_error() {
    let Some(_) = tokio::task::spawn_blocking(support::server).await.unwrap() else { return };
    let server = tokio::task::spawn_blocking(|| PrivateMosquitto::start_with("max_qos 1\n").unwrap());
    let server = server.await.unwrap();
    let config = config(server.port(), "less").qos(2);
    let error = error_of(&mut source(config)).await.to_string();
    assert!(error.contains("grants topic `less/#` with QoS 1 only"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_told_loudly_and_the_source_goes_on() {
    let Some(_) = tokio::task::spawn_blocking(support::server).await.unwrap() else { return };
    let errors = Errors::default();
    tracing::subscriber::set_global_default(errors.clone()).unwrap();
    let server = tokio::task::spawn_blocking(|| PrivateMosquitto::start_with("").unwrap());
    let mut server = server.await.unwrap();
    let (port, name) = (server.port(), fresh_name());
    let mut one = source(config(port, &name));
    begin(&mut one, port, &format!("{name}/a")).await;
    let told =
        |errors: &Errors| errors.0.lock().unwrap().iter().any(|text| text.contains("has lost our session"));
    assert!(!told(&errors));
    // A server that keeps nothing on disk.
    std::fs::remove_dir_all(server.folder().join("data")).unwrap();
    std::fs::create_dir(server.folder().join("data")).unwrap();
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart(StopMode::Immediate).unwrap();
        server
    });
    let _server = restarted.await.unwrap();
    let error = error_of(&mut one).await;
    assert!(error.is_transient(), "{error}");
    put_until_seen(&mut one, port, &format!("{name}/a")).await;
    assert!(told(&errors));
}

/// Remembers what was logged as an error.
#[derive(Debug, Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, _field: &Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

/// The broker suite has no other place for it: the subject must be able to read its own layout.
#[test]
fn the_layout_of_the_tests_is_the_default_one() {
    let delivered = <MosquittoSubject>::delivery(&Message::with_id("1", "k", "x").key("y"), Some(b"1"));
    let mapped = MqttSourceConfig::default().mapping.read(delivered);
    assert_eq!((mapped.message.id.as_str(), mapped.message.kind.as_str(), mapped.fault), ("1", "k", None));
}
