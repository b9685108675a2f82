//! Messages to Kafka.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use tokio::sync::Notify;

use crate::config::{KafkaSinkConfig, refused};
use crate::look;
use crate::record;
use crate::trouble::Trouble;

/// How long to wait while the producer's own queue is full.
const FULL: Duration = Duration::from_millis(10);

/// A sink that writes every message to one topic, with an idempotent producer.
///
/// A message counts as sent when all in-sync replicas of its partition have it. The record's key is the message's key,
/// or none, and decides the partition as the Java client would; id and kind are headers.
///
/// ```no_run
/// use oncebox_kafka::{KafkaSink, KafkaSinkConfig};
///
/// let events = KafkaSink::new(KafkaSinkConfig::new("localhost:9092", "events"))?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
///
/// It does not promise order within one call ([`Sink::keeps_order`] is false), so the relay hands over one message of
/// each key at a time. The producer keeps the order of a partition as long as all goes well. But when the broker
/// refuses a batch for good, or a message waits too long, the producer goes on with the next batch, and that one may
/// hold a later message of the same key.
pub struct KafkaSink {
    topic: String,
    client: ClientConfig,
    producer: Mutex<Option<Arc<ThreadedProducer<Reports>>>>,
}

impl KafkaSink {
    /// A sink to the topic of these settings. Connects when it is first used.
    ///
    /// Fails on a setting that is missing or that librdkafka does not know.
    pub fn new(config: KafkaSinkConfig) -> Result<Self, Error> {
        Ok(Self { client: config.client()?, topic: config.topic, producer: Mutex::default() })
    }

    fn producer(&self) -> Result<Arc<ThreadedProducer<Reports>>, Error> {
        let mut slot = lock(&self.producer);
        if let Some(producer) = &*slot {
            return Ok(producer.clone());
        }
        let producer =
            ThreadedProducer::from_config_and_context(&self.client, Reports::default()).map_err(refused)?;
        Ok(slot.insert(Arc::new(producer)).clone())
    }

    /// After a fatal error the producer refuses everything; the next call gets a new one.
    fn replace(&self, broken: Arc<ThreadedProducer<Reports>>) {
        let mut slot = lock(&self.producer);
        let old = slot.take_if(|own| Arc::ptr_eq(own, &broken));
        close([Some(broken), old]);
    }

    async fn send_all(
        &self,
        producer: &ThreadedProducer<Reports>,
        messages: &[Message],
    ) -> Vec<Result<(), Refusal>> {
        let call = Arc::new(Call::new(messages.len()));
        for (place, message) in messages.iter().enumerate() {
            if let Err(refusal) = self.enqueue(producer, &call, place, message).await {
                call.answer(place, Err(refusal));
            }
        }
        call.answers().await
    }

    async fn enqueue(
        &self,
        producer: &ThreadedProducer<Reports>,
        call: &Arc<Call>,
        place: usize,
        message: &Message,
    ) -> Result<(), Refusal> {
        let key = message.key.as_deref().map(record::key_bytes);
        loop {
            let headers = record::write_headers(message).map_err(Refusal::Permanent)?;
            let record = BaseRecord {
                topic: &self.topic,
                partition: None,
                payload: record::payload(message),
                key: key.as_deref(),
                timestamp: None,
                headers: Some(headers),
                delivery_opaque: Box::new(Ticket { call: call.clone(), place }),
            };
            match producer.send(record).map_err(|(error, _)| error) {
                Ok(()) => return Ok(()),
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => {}
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge)) => {
                    return Err(Refusal::Permanent(format!(
                        "it has {} bytes, more than the property `message.max.bytes` of the sink allows; raise it there \
                         and at the broker, or send less",
                        message.payload.len()
                    )));
                }
                Err(error) => return Err(Refusal::of(&error)),
            }
            tokio::time::sleep(FULL).await;
        }
    }
}

impl Sink for KafkaSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let producer = self.producer()?;
        let mut answers = self.send_all(&producer, messages).await;
        if let Some((code, why)) = producer.client().fatal_error() {
            self.replace(producer);
            if answers.iter().all(Result::is_err) {
                let text = format!("Kafka refused the producer for good ({code}: {why}); a new one is made");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            return Ok(answers.into_iter().map(|answer| answer.map_err(Refusal::into_failure)).collect());
        }
        // The broker refuses whole batches: each message that was in one is tried alone before it is blamed.
        if messages.len() > 1 {
            for (message, answer) in messages.iter().zip(&mut answers) {
                if matches!(answer, Err(Refusal::Batch(_))) {
                    *answer = self.send_all(&producer, std::slice::from_ref(message)).await.remove(0);
                }
            }
        }
        if let Some(error) = self.whole(&answers, &producer.context().trouble) {
            return Err(error);
        }
        producer.context().trouble.is_over();
        Ok(answers.into_iter().map(|answer| answer.map_err(Refusal::into_failure)).collect())
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        look::for_sink(self.client.clone(), self.topic.clone()).await.map(Some)
    }
}

impl KafkaSink {
    /// The error when nothing was sent for a reason that no message has to do with.
    fn whole(&self, answers: &[Result<(), Refusal>], trouble: &Trouble) -> Option<Error> {
        let mut first = None;
        for answer in answers {
            match answer {
                Err(Refusal::Away(why)) => {
                    let text = || trouble.explain(&format!("no broker has confirmed anything: {why}"));
                    first = first.or_else(|| Some(text()));
                }
                Err(Refusal::Topic(why)) => {
                    let topic = &self.topic;
                    first = Some(format!(
                        "topic `{topic}` cannot be written: {why}; create it, or let this user write to it"
                    ));
                }
                _ => return None,
            }
        }
        first.map(|text| Error::new(ErrorKind::Unavailable, text))
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        close([lock(&self.producer).take()]);
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KafkaSink").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    /// The brokers cannot be reached, or did not answer in time.
    Away(String),
    /// The topic is not there, or not ours to write.
    Topic(String),
    /// The broker refuses the batch it was in: because of this message, or of another one in it.
    Batch(String),
    /// It can never be sent.
    Permanent(String),
    /// Anything else.
    Other(String),
}

impl Refusal {
    fn of(error: &KafkaError) -> Self {
        use RDKafkaErrorCode as Code;
        let why = error.to_string();
        match error.rdkafka_error_code() {
            Some(
                Code::MessageTimedOut
                | Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::PurgeQueue
                | Code::PurgeInflight
                | Code::Fatal,
            ) => Self::Away(why),
            Some(
                Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::UnknownPartition
                | Code::InvalidTopic
                | Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed,
            ) => Self::Topic(why),
            Some(
                Code::MessageSizeTooLarge
                | Code::InvalidMessage
                | Code::InvalidMessageSize
                | Code::InvalidRecord,
            ) => Self::Batch(why),
            _ => Self::Other(why),
        }
    }

    fn into_failure(self) -> SendFailure {
        match self {
            Self::Away(why) | Self::Topic(why) | Self::Other(why) => SendFailure::Retry(why),
            // It was alone.
            Self::Batch(why) => SendFailure::Permanent(format!("the broker refuses it: {why}")),
            Self::Permanent(why) => SendFailure::Permanent(why),
        }
    }
}

/// One call of `send`: reports of an earlier call have a call of their own to go to.
struct Call {
    open: Mutex<Open>,
    done: Notify,
}

#[derive(Debug)]
struct Open {
    /// How many have no answer yet.
    waiting: usize,
    answers: Vec<Option<Result<(), Refusal>>>,
}

/// What a record carries through the producer.
struct Ticket {
    call: Arc<Call>,
    place: usize,
}

impl Call {
    fn new(messages: usize) -> Self {
        let open = Open { waiting: messages, answers: vec![None; messages] };
        Self { open: Mutex::new(open), done: Notify::new() }
    }

    fn answer(&self, place: usize, answer: Result<(), Refusal>) {
        let mut open = lock(&self.open);
        if open.answers[place].replace(answer).is_none() {
            open.waiting -= 1;
        }
        if open.waiting == 0 {
            self.done.notify_one();
        }
    }

    async fn answers(&self) -> Vec<Result<(), Refusal>> {
        while lock(&self.open).waiting > 0 {
            self.done.notified().await;
        }
        let answers = std::mem::take(&mut lock(&self.open).answers);
        let unknown = || Err(Refusal::Other("the producer did not say what became of it".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect()
    }
}

/// What librdkafka calls, on the producer's thread.
#[derive(Default)]
struct Reports {
    trouble: Trouble,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        crate::log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.trouble.note(&error, reason);
        tracing::debug!(%error, reason, "the producer reports");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let answer = result.as_ref().map(|_| ()).map_err(|(error, _)| Refusal::of(error));
        ticket.call.answer(ticket.place, answer);
    }
}

/// Closing a producer waits for its thread, so it is done on another one.
fn close<const N: usize>(producers: [Option<Arc<ThreadedProducer<Reports>>>; N]) {
    if producers.iter().any(Option::is_some) {
        std::thread::spawn(move || drop(producers));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
