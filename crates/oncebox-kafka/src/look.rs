//! Questions to the brokers: who is there, and which topics.

use std::time::{Duration, Instant};

use oncebox_core::{Error, ErrorKind};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext};

use crate::config::refused;
use crate::trouble::Trouble;

/// How long the brokers may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// How long the client is asked what it has to complain about.
const COMPLAIN_WITHIN: Duration = Duration::from_millis(50);

/// Looks for the topics of a source; joins no group.
pub(crate) async fn for_source(client: ClientConfig, topics: Vec<String>) -> Result<String, Error> {
    look(client, topics, |client| {
        let consumer: BaseConsumer<Noted> = BaseConsumer::from_config_and_context(client, Noted::default())?;
        Ok(consumer.fetch_metadata(None, ANSWER_WITHIN).map_err(|error| {
            // It calls back only from here, and stops after each complaint.
            let asked_at = Instant::now();
            while asked_at.elapsed() < COMPLAIN_WITHIN {
                let _ = consumer.poll(COMPLAIN_WITHIN);
            }
            consumer.context().0.explain(&error.to_string())
        }))
    })
    .await
}

/// Looks for the topic of a sink; sends nothing.
pub(crate) async fn for_sink(client: ClientConfig, topic: String) -> Result<String, Error> {
    look(client, vec![topic], |client| {
        let producer: BaseProducer<Noted> = BaseProducer::from_config_and_context(client, Noted::default())?;
        Ok(producer.client().fetch_metadata(None, ANSWER_WITHIN).map_err(|error| {
            producer.poll(COMPLAIN_WITHIN);
            producer.context().0.explain(&error.to_string())
        }))
    })
    .await
}

/// Which topics there are, or why nobody says; or the settings are none.
type Asked = Result<Result<Metadata, String>, KafkaError>;

/// Asks for all topics: a question about one of them might create it.
async fn look(
    client: ClientConfig,
    topics: Vec<String>,
    ask: impl FnOnce(&ClientConfig) -> Asked + Send + 'static,
) -> Result<String, Error> {
    let brokers = client.get("bootstrap.servers").unwrap_or_default().to_owned();
    let asking = tokio::task::spawn_blocking(move || ask(&client)).await;
    let asked =
        asking.map_err(|error| Error::caused(ErrorKind::Unavailable, "the brokers were not asked", error))?;
    let found = asked.map_err(refused)?.map_err(|why| {
        let text = format!(
            "no broker answers at {brokers} (is it running? check `brokers`, and what `properties` say of \
             security): {why}"
        );
        Error::new(ErrorKind::Unavailable, text)
    })?;
    let there =
        |topic: &String| found.topics().iter().any(|one| one.name() == topic && one.error().is_none());
    // One that begins so is a pattern, of topics that may come later.
    match topics.iter().find(|topic| !topic.starts_with('^') && !there(topic)) {
        Some(topic) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("topic `{topic}` is not at {brokers}, or not for this user; create it, or mend `topic`"),
        )),
        None => Ok(format!("topic `{}`, {} brokers", topics.join("`, `"), found.brokers().len())),
    }
}

/// Notes what goes wrong.
#[derive(Default)]
struct Noted(Trouble);

impl ClientContext for Noted {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        crate::log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.note(&error, reason);
    }
}

impl ConsumerContext for Noted {}

impl ProducerContext for Noted {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &rdkafka::message::DeliveryResult<'_>, (): ()) {}
}
