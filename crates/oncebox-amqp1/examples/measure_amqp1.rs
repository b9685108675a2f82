//! How fast the source and the sink are beside the plain client.
//!
//! `cargo run --release -p oncebox-amqp1 --example measure_amqp1 [MESSAGES]` starts a private RabbitMQ and a store in a SQLite
//! file, and prints messages per second.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::messaging::{
    Body, Data, Header, Message as AmqpMessage, MessageId, Outcome, Properties, Target, TerminusDurability,
};
use fe2o3_amqp_types::primitives::{Binary, Value};
use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig};
use oncebox_core::{Counter, Inbox, Message, Sink, run};
use oncebox_sqlite::SqliteStore;
use xtask::rabbitmq::PrivateRabbitmq;

const BATCH: usize = 500;
const ADDRESS: &str = "/amq/queue/measure";

#[tokio::main]
async fn main() {
    let count: usize = std::env::args().nth(1).map_or(20_000, |count| count.parse().unwrap());
    let server = tokio::task::block_in_place(PrivateRabbitmq::start).unwrap();
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

    send_alone(&server.url(), &messages("client")).await;
    receive_alone(&server.url(), count).await;

    let sink = Amqp1Sink::new(Amqp1SinkConfig::new(server.url(), ADDRESS)).unwrap();
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

    let config = Amqp1SourceConfig::new(server.url(), ADDRESS).prefetch(1000);
    let source = Amqp1Source::new("orders", config).unwrap();
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

fn plain(message: &Message) -> AmqpMessage<Data> {
    let id = Some(MessageId::String(message.id.clone()));
    AmqpMessage {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(Properties { message_id: id, ..Properties::default() }),
        application_properties: None,
        body: Data(Binary::from(message.payload.to_vec())),
        footer: None,
    }
}

async fn send_alone(url: &str, messages: &[Message]) {
    let mut connection = Connection::open("measure", url).await.unwrap();
    let mut session = Session::begin(&mut connection).await.unwrap();
    // Makes a durable queue.
    let target =
        Target::builder().address("/queue/measure").durable(TerminusDurability::UnsettledState).build();
    let mut sender = Sender::builder().name("measure").target(target).attach(&mut session).await.unwrap();
    let began = Instant::now();
    for lot in messages.chunks(BATCH) {
        let mut outcomes = Vec::with_capacity(BATCH);
        for message in lot {
            outcomes.push(sender.send_batchable(plain(message)).await.unwrap());
        }
        for outcome in outcomes {
            assert!(matches!(outcome.await.unwrap(), Outcome::Accepted(_)));
        }
    }
    report("client alone, sending with outcomes", messages.len(), began);
}

async fn receive_alone(url: &str, count: usize) {
    let mut connection = Connection::open("measure", url).await.unwrap();
    let mut session = Session::begin(&mut connection).await.unwrap();
    let attaching = Receiver::builder().name("measure").source(ADDRESS).credit_mode(CreditMode::Auto(1000));
    let mut receiver = attaching.attach(&mut session).await.unwrap();
    let began = Instant::now();
    let mut unsettled = Vec::new();
    for number in 1..=count {
        let delivery: Delivery<Body<Value>> = receiver.recv().await.unwrap();
        unsettled.push(delivery.into_parts().0);
        if number % 250 == 0 || number == count {
            receiver.accept_all(std::mem::take(&mut unsettled)).await.unwrap();
        }
    }
    report("client alone, receiving with settlement", count, began);
}
