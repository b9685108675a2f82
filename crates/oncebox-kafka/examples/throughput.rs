//! How much the source and the sink cost beside the plain client:
//! `cargo run --release -p oncebox-kafka --example throughput -- BROKERS TOPIC MESSAGES`, with two topics that are there
//! and empty: TOPIC and TOPIC-out.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for people")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oncebox_core::{Counter, Error, Inbox, Incoming, Message, Settle, Sink, Source, run};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use oncebox_sqlite::SqliteStore;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};

const LOT: usize = 500;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |what: &str| arguments.next().unwrap_or_else(|| panic!("{what} is missing"));
    let (brokers, topic) = (argument("BROKERS"), argument("TOPIC"));
    let count: usize = argument("MESSAGES").parse().unwrap();
    let body = "x".repeat(200);
    let lots: Vec<Vec<Message>> = (0..count)
        .map(|number| Message::new("order.placed", body.clone()).id(format!("m-{number}")).key(number))
        .collect::<Vec<_>>()
        .chunks(LOT)
        .map(<[Message]>::to_vec)
        .collect();

    let started = Instant::now();
    plain_produce(&brokers, &format!("{topic}-out"), &lots).await;
    report("rdkafka alone, produces", count, started);

    let sink = KafkaSink::new(KafkaSinkConfig::new(&brokers, &topic).property("linger.ms", "0"))?;
    let started = Instant::now();
    for lot in &lots {
        assert!(sink.send(lot).await?.iter().all(Result::is_ok));
    }
    report("sink", count, started);

    let (first, started) = plain_consume(&brokers, &topic, count);
    report("rdkafka alone, consumes and commits", count - first, started);

    let mut source = KafkaSource::new("orders", KafkaSourceConfig::new(&brokers, &topic).group("source"))?;
    let mut taken = accept(&mut source).await;
    let (first, started) = (taken, Instant::now());
    while taken < count {
        taken += accept(&mut source).await;
    }
    report("source alone", count - first, started);
    drop(source);

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("inbox.db").display().to_string()).await?;
    store.migrate().await?;
    let inbox = Inbox::new(store);
    let source = KafkaSource::new("orders", KafkaSourceConfig::new(&brokers, &topic).group("inbox"))?;
    let seen = Arc::new(AtomicUsize::new(0));
    let running =
        tokio::spawn(run(inbox.clone()).consume(Counting { source, seen: seen.clone() }).into_future());
    while seen.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (first, started) = (seen.load(Ordering::Relaxed), Instant::now());
    while inbox.counters().get("", Counter::Received) < i64::try_from(count).unwrap() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    report("source into a SQLite inbox", count - first, started);
    running.abort();
    Ok(())
}

fn report(what: &str, count: usize, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!("{what:<40} {count:>8} messages {:>10.0}/s", count as f64 / seconds);
}

async fn plain_produce(brokers: &str, topic: &str, lots: &[Vec<Message>]) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("linger.ms", "0")
        .create()
        .unwrap();
    for lot in lots {
        let sent: Vec<_> = lot
            .iter()
            .map(|message| {
                let key = message.key.as_deref().unwrap_or_default();
                let record = FutureRecord::to(topic).key(key).payload(&message.payload[..]);
                producer.send_result(record).map_err(|(error, _)| error).unwrap()
            })
            .collect();
        for confirmed in sent {
            confirmed.await.unwrap().unwrap();
        }
    }
}

/// Commits after every lot; the clock starts when the first message is there.
fn plain_consume(brokers: &str, topic: &str, count: usize) -> (usize, Instant) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "plain")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let (mut taken, mut started) = (0, Instant::now());
    while taken < count {
        if let Some(Ok(message)) = consumer.poll(Duration::from_secs(1)) {
            let _owned = message.detach();
            taken += 1;
            if taken == 1 {
                started = Instant::now();
            }
            if taken % LOT == 0 {
                consumer.commit_consumer_state(CommitMode::Sync).unwrap();
            }
        }
    }
    (1, started)
}

async fn accept(source: &mut KafkaSource) -> usize {
    let Ok(next) = source.next(1000).await else { return 0 };
    let count = next.len();
    source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    count
}

struct Counting {
    source: KafkaSource,
    seen: Arc<AtomicUsize>,
}

impl Source for Counting {
    type Receipt = <KafkaSource as Source>::Receipt;

    fn name(&self) -> &str {
        self.source.name()
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<Self::Receipt>>, Error> {
        let next = self.source.next(most).await?;
        self.seen.fetch_add(next.len(), Ordering::Relaxed);
        Ok(next)
    }

    async fn settle(&mut self, settled: Vec<(Self::Receipt, Settle)>) -> Result<(), Error> {
        self.source.settle(settled).await
    }
}
