//! How fast the source and the sink are beside the plain client, on a private server.
//!
//! `cargo run --release -p oncebox-nats --example measure_nats -- 50000`

// A program that prints.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::message::PublishMessage;
use futures_util::StreamExt;
use oncebox_core::{Counter, Inbox, Message, Settle, Sink, Source, run};
use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig};
use oncebox_sqlite::SqliteStore;
use xtask::nats::PrivateNats;

/// As many as a relay hands over at once.
const LOT: usize = 500;

fn said(what: &str, count: usize, since: Instant) {
    println!("{what:<48} {:>9.0}/s", count as f64 / since.elapsed().as_secs_f64());
}

#[tokio::main]
async fn main() {
    let count: usize = std::env::args().nth(1).map_or(50_000, |count| count.parse().unwrap());
    let server = PrivateNats::start().unwrap();
    let messages: Vec<Message> =
        (0..count).map(|number| Message::new("paid", vec![b'x'; 200]).id(format!("m-{number}"))).collect();
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = jetstream::new(client);
    for stream in ["plain", "ours"] {
        let subjects = vec![format!("{stream}.>")];
        let config = jetstream::stream::Config { name: stream.into(), subjects, ..Default::default() };
        let stream = jetstream.create_stream(config).await.unwrap();
        for name in ["alone", "source", "inbox"] {
            let durable_name = Some(name.to_owned());
            let config = pull::Config { durable_name, max_ack_pending: 4000, ..Default::default() };
            stream.create_consumer(config).await.unwrap();
        }
    }

    let since = Instant::now();
    for lot in messages.chunks(LOT) {
        let mut confirmations = Vec::with_capacity(LOT);
        for message in lot {
            let publish = PublishMessage::build().payload(message.payload.clone()).message_id(&message.id);
            confirmations.push(jetstream.send_publish("plain.paid", publish).await.unwrap());
        }
        for confirmation in confirmations {
            confirmation.await.unwrap();
        }
    }
    said("plain client publishes with confirms", count, since);

    let sink = NatsSink::new(NatsSinkConfig::new(server.url()).prefix("ours")).unwrap();
    let since = Instant::now();
    for lot in messages.chunks(LOT) {
        assert!(sink.send(lot).await.unwrap().iter().all(Result::is_ok));
    }
    said("the sink", count, since);

    let stream = jetstream.get_stream("ours").await.unwrap();
    let consumer = stream.get_consumer::<pull::Config>("alone").await.unwrap();
    let since = Instant::now();
    let mut taken = consumer.stream().max_messages_per_batch(1000).messages().await.unwrap().take(count);
    while let Some(message) = taken.next().await {
        message.unwrap().ack().await.unwrap();
    }
    said("plain client reads with acknowledgements", count, since);

    let mut source = NatsSource::new("s", NatsSourceConfig::new(server.url(), "ours", "source")).unwrap();
    let since = Instant::now();
    let mut left = count;
    while left > 0 {
        let taken = source.next(1000).await.unwrap();
        left -= taken.len();
        source.settle(taken.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
    said("the source alone", count, since);

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inbox.db").to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let inbox = Inbox::new(store);
    let source = NatsSource::new("s", NatsSourceConfig::new(server.url(), "ours", "inbox")).unwrap();
    let since = Instant::now();
    let running = tokio::spawn(IntoFuture::into_future(run(inbox.clone()).consume(source)));
    while inbox.counters().get("", Counter::Received) < i64::try_from(count).unwrap() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    said("the source into an inbox on SQLite", count, since);
    running.abort();
}
