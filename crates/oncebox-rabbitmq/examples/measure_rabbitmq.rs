//! How fast the source and the sink are beside the plain client and the store alone.
//!
//! `cargo run --release -p oncebox-rabbitmq --example measure_rabbitmq [MESSAGES]` starts a private RabbitMQ and Postgres and
//! prints messages per second.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use oncebox_core::{Counter, Error, Inbox, Message, Relay, SendFailure, Sink, Store, run};
use oncebox_postgres::PgStore;
use oncebox_rabbitmq::{RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig, RoutingKey};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use xtask::postgres::PrivatePostgres;
use xtask::rabbitmq::PrivateRabbitmq;

const BATCH: usize = 500;
const QUEUE: &str = "measure";

#[tokio::main]
async fn main() {
    let count = std::env::args().nth(1).map_or(50_000, |count| count.parse().unwrap());
    let server = tokio::task::block_in_place(PrivateRabbitmq::start).unwrap();
    let postgres = tokio::task::block_in_place(PrivatePostgres::start).unwrap();
    let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, FieldTable::default()).await.unwrap();
    let pool = PgPoolOptions::new().max_connections(8).connect(&postgres.url()).await.unwrap();
    let store = PgStore::new(pool.clone());
    store.migrate().await.unwrap();

    for round in 0..2 {
        println!("round {round}: {count} messages of 210 bytes, batches of {BATCH}, messages per second");
        let messages = |name: &str| -> Vec<Message> {
            let message =
                |number| Message::new("order.placed", vec![b'x'; 210]).id(format!("{name}-{round}-{number}"));
            (0..count).map(message).collect()
        };
        let ingested = messages("ingest");
        let began = Instant::now();
        let inbox = Inbox::new(store.clone());
        for lot in ingested.chunks(1000) {
            inbox.receive(lot).await.unwrap();
        }
        report("store alone, receive in batches of 1,000", count, began);

        publish_alone(&connection, &messages("client")).await;
        consume_alone(&connection, count).await;

        let config = RabbitmqSinkConfig::new(server.url()).routing_key(RoutingKey::Text(QUEUE.to_owned()));
        let sink = RabbitmqSink::new(config.clone()).unwrap();
        let sent = messages("sink");
        let began = Instant::now();
        for lot in sent.chunks(BATCH) {
            assert!(sink.send(lot).await.unwrap().iter().all(Result::is_ok));
        }
        report("sink alone", count, began);

        let source = RabbitmqSource::new("orders", RabbitmqSourceConfig::new(server.url(), QUEUE)).unwrap();
        let inbox = Inbox::new(store.clone());
        let (began, seen) = (Instant::now(), inbox.clone());
        let done = async move {
            while seen.counters().get("", Counter::Received) < i64::try_from(count).unwrap() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            report("source to stored", count, began);
        };
        run(inbox).consume(source).with_graceful_shutdown(done).await.unwrap();

        fill_outbox(&pool, &store, &messages("nothing")).await;
        relay(&store, Relay::new(Nothing).batch(BATCH), "outbox to a sink that does nothing", count).await;
        for batch in [BATCH, 2 * BATCH] {
            fill_outbox(&pool, &store, &messages(&format!("outbox-{batch}"))).await;
            let sink = Relay::new(RabbitmqSink::new(config.clone()).unwrap()).batch(batch);
            relay(&store, sink, &format!("outbox to confirmed, batches of {batch}"), count).await;
            consume_alone(&connection, count).await;
        }
    }
}

/// Shows what the relay and the store cost by themselves.
struct Nothing;

impl Sink for Nothing {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        Ok(vec![Ok(()); messages.len()])
    }
}

async fn fill_outbox(pool: &PgPool, store: &PgStore, messages: &[Message]) {
    for lot in messages.chunks(1000) {
        let mut own = pool.begin().await.unwrap();
        store.publish(&mut own, lot).await.unwrap();
        own.commit().await.unwrap();
    }
}

async fn relay<K: Sink>(store: &PgStore, relay: Relay<K>, what: &str, count: usize) {
    let inbox = Inbox::new(store.clone());
    let (began, seen, what) = (Instant::now(), inbox.clone(), what.to_owned());
    let done = async move {
        while seen.counters().get("", Counter::Sent) < i64::try_from(count).unwrap() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        report(&what, count, began);
    };
    run(inbox).relay(relay).with_graceful_shutdown(done).await.unwrap();
}

fn report(what: &str, count: usize, began: Instant) {
    println!("{:>10.0}  {what}", count as f64 / began.elapsed().as_secs_f64());
}

async fn publish_alone(connection: &Connection, messages: &[Message]) {
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let began = Instant::now();
    for lot in messages.chunks(BATCH) {
        let publishing = lot.iter().map(|message| publish(&channel, message));
        for confirm in futures_util::future::join_all(publishing).await {
            assert!(confirm.unwrap().await.unwrap().is_ack());
        }
    }
    report("client alone, publishing with confirms", messages.len(), began);
}

async fn publish(channel: &Channel, message: &Message) -> lapin::Result<lapin::PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(message.id.as_str().into())
        .with_type(message.kind.as_str().into());
    channel.basic_publish("".into(), QUEUE.into(), options, &message.payload, properties).await
}

async fn consume_alone(connection: &Connection, count: usize) {
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(2000, BasicQosOptions::default()).await.unwrap();
    let began = Instant::now();
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut messages = channel.basic_consume(QUEUE.into(), "".into(), options, arguments).await.unwrap();
    for number in 1..=count {
        let delivery = messages.next().await.unwrap().unwrap();
        if number % BATCH == 0 || number == count {
            delivery.ack(BasicAckOptions { multiple: true }).await.unwrap();
        }
    }
    report("client alone, consuming with acknowledgements", count, began);
}
