//! Kafka with its own client.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use oncebox::Message;
use oncebox::mapping::{ID_HEADER, KIND_HEADER};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

const PARTITIONS: i32 = 3;
/// The most that the source hands over at once before it commits.
const AT_ONCE: usize = 1000;
/// How long one answer of the broker may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the next thousand messages may take, joining the group included.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Kafka {
    brokers: String,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
}

impl Broker for Kafka {
    const NAME: &'static str = "kafka";

    type Source = KafkaSource;
    type Sink = KafkaSink;

    async fn open(url: &str) -> Result<Self, String> {
        let brokers = place_in(url).trim_end_matches('/').to_owned();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers);
        let admin = config.create().map_err(text)?;
        // As the sink sets them.
        let producer: FutureProducer = config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .create()
            .map_err(text)?;
        let asking = producer.clone();
        let answer =
            tokio::task::spawn_blocking(move || asking.client().fetch_metadata(None, ANSWER).map(drop));
        let answer = answer.await.map_err(text)?;
        answer.map_err(|error| format!("Kafka cannot be reached at {brokers}: {error}"))?;
        Ok(Self { brokers, admin, producer })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let topic = NewTopic::new(queue, PARTITIONS, TopicReplication::Fixed(1));
        let answers = self.admin.create_topics([&topic], &AdminOptions::new()).await.map_err(text)?;
        answered(answers)
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        let answers = self.admin.delete_topics(&[queue], &AdminOptions::new()).await.map_err(text)?;
        answered(answers)
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let mut confirms = Vec::with_capacity(batch.len());
        for message in batch {
            let headers = OwnedHeaders::new_with_capacity(2)
                .insert(Header { key: ID_HEADER, value: Some(message.id.as_bytes()) })
                .insert(Header { key: KIND_HEADER, value: Some(message.kind.as_bytes()) });
            let record: FutureRecord<'_, [u8], [u8]> =
                FutureRecord::to(queue).payload(&message.payload[..]).headers(headers);
            confirms.push(self.producer.send_result(record).map_err(|(error, _)| text(error))?);
        }
        for confirm in try_join_all(confirms).await.map_err(text)? {
            confirm.map_err(|(error, _)| text(error))?;
        }
        Ok(())
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let defaults = KafkaSourceConfig::default();
        // As the source sets them.
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", format!("{queue}_client"))
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("queued.min.messages", defaults.prefetch.to_string())
            .set("queued.max.messages.kbytes", (defaults.prefetch_bytes / 1024).to_string())
            .set("fetch.queue.backoff.ms", "10")
            .create()
            .map_err(text)?;
        consumer.subscribe(&[queue]).map_err(text)?;
        tokio::task::spawn_blocking(move || poll(&consumer, count)).await.map_err(text)?
    }

    fn source(&self, queue: &str) -> Result<KafkaSource, String> {
        let config = KafkaSourceConfig::new(&self.brokers, queue).group(format!("{queue}_oncebox"));
        KafkaSource::new(queue, config).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<KafkaSink, String> {
        KafkaSink::new(KafkaSinkConfig::new(&self.brokers, queue)).map_err(text)
    }
}

fn poll(consumer: &BaseConsumer, count: usize) -> Result<Duration, String> {
    let (mut first_at, mut taken, mut bytes) = (None, 0, 0);
    let mut heard_at = Instant::now();
    while taken < count {
        // Nothing also comes when something else has happened, such as a rebalance.
        let Some(record) = consumer.poll(Duration::from_millis(100)) else {
            if heard_at.elapsed() > PATIENCE {
                return Err(format!("{taken} of {count} messages came, then none for {PATIENCE:?}"));
            }
            continue;
        };
        first_at.get_or_insert_with(Instant::now);
        bytes += record.map_err(text)?.payload().map_or(0, <[u8]>::len);
        taken += 1;
        if taken % AT_ONCE == 0 || taken == count {
            heard_at = Instant::now();
            consumer.commit_consumer_state(CommitMode::Async).map_err(text)?;
        }
    }
    std::hint::black_box(bytes);
    Ok(first_at.map(|at: Instant| at.elapsed()).unwrap_or_default())
}

fn answered<E: std::fmt::Display>(answers: Vec<Result<String, (String, E)>>) -> Result<(), String> {
    match answers.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some((topic, error)) => Err(format!("topic `{topic}`: {error}")),
    }
}
