//! How fast the source and the sink are beside the plain client.
//!
//! `cargo run --release -p oncebox-mqtt --example measure_mqtt [MESSAGES]` starts a private Mosquitto and a store in a SQLite
//! file, and prints messages per second.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use oncebox_core::{Counter, Inbox, Message, Sink, run};
use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig};
use oncebox_sqlite::SqliteStore;
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, Event, MqttOptions, Packet, PublishOptions, QoS,
};
use xtask::mosquitto::PrivateMosquitto;

const BATCH: usize = 500;
const TOPIC: &str = "measure";
const CLIENT: &str = "measure-source";

#[tokio::main]
async fn main() {
    let count: usize = std::env::args().nth(1).map_or(20_000, |count| count.parse().unwrap());
    let settings = "max_inflight_messages 1000\n";
    let server = tokio::task::block_in_place(|| PrivateMosquitto::start_with(settings)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.db").display().to_string()).await.unwrap();
    store.migrate().await.unwrap();
    println!("{count} messages of 210 bytes, batches of {BATCH}, messages per second");
    let messages = |name: &str| -> Vec<Message> {
        (0..count).map(|number| Message::new("k", vec![b'x'; 210]).id(format!("{name}-{number}"))).collect()
    };
    let inbox = Inbox::new(store.clone());
    let began = Instant::now();
    for lot in messages("store").chunks(1000) {
        inbox.receive(lot).await.unwrap();
    }
    report("store alone, receive in batches of 1,000", count, began);

    consume_alone(server.port(), 0).await;
    publish_alone(server.port(), &messages("client")).await;
    consume_alone(server.port(), count).await;

    let sink = MqttSink::new(MqttSinkConfig::new(server.url()).topic(TOPIC)).unwrap();
    for (name, keys) in [("sink, no keys", 0), ("sink, 50 keys", 50), ("sink, one key", 1)] {
        let mut sent = messages(name);
        for (number, message) in sent.iter_mut().enumerate().filter(|_| keys > 0) {
            message.key = Some((number % keys).to_string());
        }
        let began = Instant::now();
        for lot in sent.chunks(BATCH) {
            assert!(sink.send(lot).await.unwrap().iter().all(Result::is_ok));
        }
        report(name, count, began);
    }

    let config = MqttSourceConfig::new(server.url(), CLIENT).topic(TOPIC);
    let source = MqttSource::new("orders", config).unwrap();
    let inbox = Inbox::new(store.clone());
    let (began, seen, all) = (Instant::now(), inbox.clone(), 3 * count);
    let done = async move {
        while seen.counters().get("", Counter::Received) < i64::try_from(all).unwrap() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        report("source to stored", all, began);
    };
    run(inbox).consume(source).with_graceful_shutdown(done).await.unwrap();
}

fn report(what: &str, count: usize, began: Instant) {
    println!("{:>10.0}  {what}", count as f64 / began.elapsed().as_secs_f64());
}

fn options(id: &str, port: u16) -> MqttOptions {
    let mut options = MqttOptions::new(id, ("127.0.0.1", port));
    options.set_max_request_batch(256);
    options
}

async fn publish_alone(port: u16, messages: &[Message]) {
    let (client, mut events) = AsyncClient::builder(options("measure-publisher", port)).unbounded().build();
    tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let began = Instant::now();
    for lot in messages.chunks(BATCH) {
        let mut notices = Vec::with_capacity(BATCH);
        for message in lot {
            let user_properties = vec![("message-id".to_owned(), message.id.clone())];
            let properties = PublishProperties { user_properties, ..PublishProperties::default() };
            let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
            notices.push(client.try_publish_tracked(TOPIC, message.payload.clone(), options).unwrap());
        }
        for notice in notices {
            notice.wait_async().await.unwrap();
        }
    }
    report("client alone, publishing with confirms", messages.len(), began);
}

/// Takes this many in the session of the source; none means to make the session.
async fn consume_alone(port: u16, count: usize) {
    let mut options = options(CLIENT, port);
    options
        .set_clean_start(false)
        .set_ack_mode(AckMode::Manual)
        .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
        .set_session_expiry_interval(Some(3600))
        .set_receive_maximum(Some(1000));
    let (client, mut events) = AsyncClient::builder(options).unbounded().build();
    if count == 0 {
        client.try_subscribe(TOPIC, QoS::AtLeastOnce).unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    }
    let (began, mut seen) = (Instant::now(), 0);
    while seen < count {
        if let Event::Incoming(Packet::Publish(publish)) = events.poll().await.unwrap() {
            client.try_ack(&publish).unwrap();
            seen += 1;
        }
    }
    if count > 0 {
        report("client alone, consuming with acknowledgements", count, began);
    }
    client.try_disconnect().unwrap();
    while events.poll().await.is_ok() {}
}
