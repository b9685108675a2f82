//! Messages for JetStream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, RequestErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use crate::api::{Api, ApiError, STREAM_NOT_FOUND};
use crate::config::NatsSinkConfig;
use crate::envelope;
use crate::link::{AfterLoss, Target, connect};

/// More than a relay ever hands over at once.
const AT_ONCE: usize = 20_000;

/// How long a connection of which nobody knows whether it still stands may take to answer.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Publishes to the subjects of JetStream streams; a message is sent when a stream has stored it.
///
/// The id goes as `Nats-Msg-Id`, so a stream drops a second copy that comes within its duplicate window. The messages of
/// one call are sent one after the other without waiting in between. A later one may be stored when an earlier one was
/// not, so the relay hands over one message of each key at a time.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsSinkConfig,
    /// Connected when the first message is sent; the client reconnects by itself.
    connection: Mutex<Option<Connection>>,
    /// A call was given up, or nothing of it was confirmed: the connection may be dead without our knowing.
    given_up: AtomicBool,
}

#[derive(Debug, Clone)]
struct Connection {
    context: Context,
    /// How often it was lost.
    lost: watch::Receiver<u64>,
}

impl NatsSink {
    /// A sink; fails on settings that can never work. Connects with the first message.
    pub fn new(config: NatsSinkConfig) -> Result<Self, Error> {
        config.check()?;
        Ok(Self { config, connection: Mutex::new(None), given_up: AtomicBool::new(false) })
    }

    async fn connection(&self) -> Result<Connection, Error> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let NatsSinkConfig { url, auth, tls, timeout, .. } = &self.config;
        let target = Target { url, auth, tls };
        let (client, lost) = connect(target, AfterLoss::Reconnect, 1024).await?;
        let context = ContextBuilder::new().timeout(*timeout).max_ack_inflight(AT_ONCE).build(client);
        let new = Connection { context, lost };
        *connection = Some(new.clone());
        Ok(new)
    }

    fn subject(&self, message: &Message) -> String {
        match &self.config.subject {
            Some(subject) => subject.clone(),
            None => envelope::subject_of(self.config.prefix.as_deref(), &message.kind),
        }
    }

    /// Hands all messages to the client, in order, then waits for the confirmations until the connection is lost.
    async fn publish(&self, connection: &Connection, messages: &[Message]) -> Vec<Result<(), SendFailure>> {
        let Connection { context, mut lost } = connection.clone();
        lost.mark_unchanged();
        let mut answers =
            vec![Err(SendFailure::Retry("the connection to NATS was lost".to_owned())); messages.len()];
        let mut confirmations = FuturesUnordered::new();
        for (place, message) in messages.iter().enumerate() {
            let subject = self.subject(message);
            let headers = envelope::write(message, &subject, self.config.stream.as_deref());
            let publish = PublishMessage::build().headers(headers).payload(message.payload.clone());
            match context.send_publish(subject.clone(), publish).await {
                Ok(confirmation) => confirmations.push(async move { (place, subject, confirmation.await) }),
                Err(error) => answers[place] = Err(failure(&error, &subject)),
            }
        }
        loop {
            tokio::select! {
                confirmed = confirmations.next() => match confirmed {
                    Some((place, subject, confirmed)) => {
                        answers[place] = confirmed.map(drop).map_err(|error| failure(&error, &subject));
                    }
                    None => return answers,
                },
                _ = lost.changed() => return answers,
            }
        }
    }
}

impl Sink for NatsSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.connection().await?;
        let client = connection.context.client();
        if client.connection_state() != State::Connected {
            return Err(away("the connection to NATS is lost; it is being made again"));
        }
        if self.given_up.swap(true, Ordering::SeqCst) && !answers(&client).await {
            if client.force_reconnect().await.is_err() {
                // The client has ended; a new one is made.
                *self.connection.lock().await = None;
            }
            return Err(away("NATS does not answer; the connection is made again"));
        }
        let answers = self.publish(&connection, messages).await;
        let none_confirmed = answers.iter().all(Result::is_err);
        self.given_up.store(none_confirmed, Ordering::SeqCst);
        Ok(answers)
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        let NatsSinkConfig { url, auth, tls, subject, prefix, stream, .. } = &self.config;
        let (client, _lost) = connect(Target { url, auth, tls }, AfterLoss::End, 16).await?;
        let api = Api::new(client, None);
        if let Some(name) = stream {
            return match api.ask(&format!("STREAM.INFO.{name}"), &Value::Null).await {
                Err(ApiError::Refused { code: STREAM_NOT_FOUND, .. }) => {
                    Err(away(&format!("NATS has no stream `{name}`; create it, or mend `stream`")))
                }
                answer => answer.map(|_| Some(format!("stream `{name}`"))).map_err(Error::from),
            };
        }
        // Without either, the subject of a message is its kind, and nobody knows which will come.
        let wanted = subject.clone().or_else(|| Some(format!("{}.>", prefix.as_ref()?)));
        let question = wanted.as_ref().map_or(Value::Null, |subject| json!({ "subject": subject }));
        let found = api.ask("STREAM.NAMES", &question).await?;
        let names: Vec<&str> =
            found["streams"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match wanted {
            Some(subject) if names.is_empty() => {
                Err(away(&format!("no stream takes the subject `{subject}`; create one")))
            }
            Some(subject) => Ok(Some(format!("subject `{subject}` of stream `{}`", names.join("`, `")))),
            None => Ok(Some(format!("{} streams", found["total"]))),
        }
    }
}

fn away(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

/// Whether the server is still at the other end: it says at once that nobody listens on a subject.
async fn answers(client: &Client) -> bool {
    let probe = client.request(client.new_inbox(), Bytes::new());
    match tokio::time::timeout(PROBE_WITHIN, probe).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.kind() == RequestErrorKind::NoResponders,
        Err(_) => false,
    }
}

fn failure(error: &PublishError, subject: &str) -> SendFailure {
    let refused = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>());
    let too_large = error.kind() == PublishErrorKind::MaxPayloadExceeded
        || refused.is_some_and(|refused| refused.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM);
    match error.kind() {
        PublishErrorKind::StreamNotFound => SendFailure::Retry(format!(
            "no stream takes the subject `{}`; create one",
            subject.escape_debug()
        )),
        _ if too_large => SendFailure::Permanent(format!("the message is too large for NATS: {error}")),
        _ => SendFailure::Retry(format!("NATS did not confirm it: {error}")),
    }
}
