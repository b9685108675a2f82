//! The plain client.

use std::sync::Mutex;
use std::time::Duration;

use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, ID_HEADER, KIND_HEADER};
use oncebox_testkit::until;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const ANSWER: Duration = Duration::from_secs(10);

/// Puts records on one topic and reads what another one has.
pub(crate) struct Plain {
    servers: String,
    producer: FutureProducer,
    taken: Mutex<Option<(BaseConsumer, Vec<Message>)>>,
}

impl Plain {
    pub(crate) fn new(servers: &str) -> Self {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "5000")
            .set("socket.timeout.ms", "2000")
            .set("linger.ms", "0")
            .create()
            .unwrap();
        Self { servers: servers.to_owned(), producer, taken: Mutex::default() }
    }

    /// Puts deliveries on a topic and returns when all are confirmed; tries again while the server is away.
    pub(crate) async fn put(&self, topic: &str, partition: Option<i32>, deliveries: &[Delivered]) {
        for lot in deliveries.chunks(1000) {
            let sent: Vec<_> =
                lot.iter().map(|delivery| (delivery, self.send(topic, partition, delivery))).collect();
            for (delivery, confirmed) in sent {
                if confirmed.await.unwrap().is_err() {
                    until("the broker takes a record", || async {
                        self.send(topic, partition, delivery).await.unwrap().is_ok()
                    })
                    .await;
                }
            }
        }
    }

    fn send(
        &self,
        topic: &str,
        partition: Option<i32>,
        delivery: &Delivered,
    ) -> rdkafka::producer::future_producer::DeliveryFuture {
        let mut headers = OwnedHeaders::new();
        for (name, value) in delivery.headers.iter() {
            headers = headers.insert(Header { key: name, value: Some(&value[..]) });
        }
        let key = delivery.properties.iter().find(|(name, _)| *name == "key").map(|(_, key)| &key[..]);
        let record = FutureRecord {
            topic,
            partition,
            payload: Some(&delivery.payload[..]),
            key,
            timestamp: None,
            headers: Some(headers),
        };
        self.producer.send_result(record).map_err(|(error, _)| error).unwrap()
    }

    /// Everything that partition 0 of a topic has, in order. Always the same topic.
    pub(crate) fn taken(&self, topic: &str) -> Vec<Message> {
        tokio::task::block_in_place(|| {
            let mut taken = self.taken.lock().unwrap();
            let (consumer, messages) = taken.get_or_insert_with(|| (self.reader(topic), Vec::new()));
            let Ok((_, high)) = consumer.fetch_watermarks(topic, 0, ANSWER) else { return messages.clone() };
            while (messages.len() as i64) < high {
                match consumer.poll(ANSWER) {
                    Some(Ok(record)) => messages.push(message(&record)),
                    // The server is away; the test asks again.
                    _ => break,
                }
            }
            messages.clone()
        })
    }

    fn reader(&self, topic: &str) -> BaseConsumer {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("group.id", "reader")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10")
            .set("reconnect.backoff.max.ms", "500")
            .set("socket.timeout.ms", "2000")
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        consumer
    }

    /// The offset that the group has committed for each partition, and the end of the partition.
    pub(crate) fn offsets(
        &self,
        group: &str,
        topic: &str,
        partitions: i32,
    ) -> Option<Vec<(Option<i64>, i64)>> {
        tokio::task::block_in_place(|| {
            let consumer: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", &self.servers)
                .set("group.id", group)
                .create()
                .unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_range(topic, 0, partitions - 1);
            let committed = consumer.committed_offsets(list, ANSWER).ok()?;
            let each = (0..partitions).map(|partition| {
                let (_, high) = consumer.fetch_watermarks(topic, partition, ANSWER).ok()?;
                let offset = match committed.find_partition(topic, partition)?.offset() {
                    Offset::Offset(offset) => Some(offset),
                    _ => None,
                };
                Some((offset, high))
            });
            each.collect()
        })
    }

    /// Sets the offset of a group that has no members; answers what the broker says to it.
    pub(crate) fn commit(&self, group: &str, topic: &str, partition: i32, offset: i64) -> KafkaResult<()> {
        tokio::task::block_in_place(|| {
            let consumer: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", &self.servers)
                .set("group.id", group)
                .create()
                .unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
            consumer.commit(&list, CommitMode::Sync)
        })
    }

    /// The keys of the first records of partition 0.
    pub(crate) fn keys(&self, topic: &str, count: usize) -> Vec<Option<Vec<u8>>> {
        tokio::task::block_in_place(|| {
            let consumer = self.reader(topic);
            let next = || consumer.poll(ANSWER).expect("there is one more").unwrap();
            (0..count).map(|_| next().key().map(<[u8]>::to_vec)).collect()
        })
    }

    /// How many records of a topic the group has not committed; all partitions begin at offset 0.
    pub(crate) fn pending(&self, group: &str, topic: &str, partitions: i32) -> Option<u64> {
        let offsets = self.offsets(group, topic, partitions)?;
        Some(offsets.iter().map(|(committed, end)| (end - committed.unwrap_or(0)) as u64).sum())
    }
}

/// A message in the layout that the default mapping reads.
pub(crate) fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
    let mut delivered = Delivered { payload: message.payload.clone(), ..Delivered::default() };
    if let Some(id) = id {
        delivered.headers.push(ID_HEADER, id.to_vec());
    }
    delivered.headers.push(KIND_HEADER, message.kind.clone());
    for (name, value) in message.headers.iter() {
        delivered.headers.push(name, value.clone());
    }
    if let Some(key) = &message.key {
        delivered.properties.push(("key", key.clone().into()));
    }
    delivered
}

fn message(record: &impl rdkafka::Message) -> Message {
    let mut message = Message::new("", record.payload().unwrap_or_default().to_vec());
    message.key = record.key().map(|key| String::from_utf8(key.to_vec()).unwrap());
    for header in record.headers().into_iter().flat_map(rdkafka::message::Headers::iter) {
        let value = header.value.unwrap_or_default();
        match header.key {
            ID_HEADER => message.id = String::from_utf8(value.to_vec()).unwrap(),
            KIND_HEADER => message.kind = String::from_utf8(value.to_vec()).unwrap(),
            name => message.headers.push(name, value.to_vec()),
        }
    }
    message
}
