//! Messages for JetStream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, PublishError, PublishErrorKind, RequestErrorKind, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};
use serde::Deserialize;
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
    client: Client,
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
        let NatsSinkConfig { url, auth, tls, .. } = &self.config;
        let target = Target { url, auth, tls };
        // Room for the confirmations of one call: what does not fit would be thrown away.
        let (client, lost) = connect(target, AfterLoss::Reconnect, AT_ONCE).await?;
        let new = Connection { client, lost };
        *connection = Some(new.clone());
        Ok(new)
    }

    fn subject(&self, message: &Message) -> String {
        match &self.config.subject {
            Some(subject) => subject.clone(),
            None => envelope::subject_of(self.config.prefix.as_deref(), &message.kind),
        }
    }

    /// Hands messages to the client, in order, then waits for the confirmations until the connection is lost.
    ///
    /// The confirmations of one call come to a subject of its own, `INBOX.PLACE`. The client's own `publish` has a
    /// timer, a task's wake-up and several allocations for each message.
    async fn publish(&self, connection: &Connection, messages: &[Message]) -> Vec<Result<(), SendFailure>> {
        let Connection { client, mut lost } = connection.clone();
        lost.mark_unchanged();
        let mut answers = vec![None; messages.len()];
        let publishing = async {
            let inbox = client.new_inbox();
            let Ok(confirmations) = client.subscribe(format!("{inbox}.*")).await else { return };
            let mut open = 0;
            for (place, message) in messages.iter().enumerate() {
                let subject = self.subject(message);
                let headers = envelope::write(message, &subject, self.config.stream.as_deref());
                let (reply, payload) = (format!("{inbox}.{place}"), message.payload.clone());
                match client.publish_with_reply_and_headers(subject, reply, headers, payload).await {
                    Ok(()) => open += 1,
                    Err(error) => answers[place] = Some(Err(unsent(&error))),
                }
            }
            self.confirm(confirmations, open, &inbox, messages, &mut answers).await;
        };
        let missing = tokio::select! {
            ended = tokio::time::timeout(self.config.timeout, publishing) => match ended {
                // Unless everything is answered for.
                Ok(()) => "the connection to NATS was closed".to_owned(),
                Err(_) => format!("NATS did not confirm it within {:?}", self.config.timeout),
            },
            _ = lost.changed() => "the connection to NATS was lost".to_owned(),
        };
        let or_missing =
            |answer: Option<_>| answer.unwrap_or_else(|| Err(SendFailure::Retry(missing.clone())));
        answers.into_iter().map(or_missing).collect()
    }

    /// Notes what the server says until so many messages are answered for.
    async fn confirm(
        &self,
        mut confirmations: Subscriber,
        mut open: usize,
        inbox: &str,
        messages: &[Message],
        answers: &mut [Option<Result<(), SendFailure>>],
    ) {
        while open > 0 {
            let Some(confirmation) = confirmations.next().await else { return };
            let place = confirmation.subject.strip_prefix(inbox).and_then(|rest| rest.strip_prefix('.'));
            let place = place.and_then(|place| place.parse::<usize>().ok());
            let answered = place.and_then(|place| answers.get_mut(place).zip(messages.get(place)));
            if let Some((answer @ None, message)) = answered {
                *answer = Some(self.read(&confirmation, message));
                open -= 1;
            }
        }
    }

    /// Whether a stream has stored the message.
    fn read(&self, confirmation: &async_nats::Message, message: &Message) -> Result<(), SendFailure> {
        if confirmation.status == Some(StatusCode::NO_RESPONDERS) {
            let subject = self.subject(message);
            let text = format!("no stream takes the subject `{}`; create one", subject.escape_debug());
            return Err(SendFailure::Retry(text));
        }
        match serde_json::from_slice::<Confirmation>(&confirmation.payload) {
            Ok(Confirmation { error: None, seq: Some(_) }) => Ok(()),
            Ok(Confirmation { error: Some(error), .. }) => Err(refused(&error)),
            Ok(_) => Err(SendFailure::Retry("NATS did not say where it stored the message".to_owned())),
            Err(error) => Err(SendFailure::Retry(format!("NATS answered something unreadable: {error}"))),
        }
    }
}

/// What a stream answers.
#[derive(Debug, Deserialize)]
struct Confirmation {
    error: Option<jetstream::Error>,
    seq: Option<u64>,
}

impl Sink for NatsSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.connection().await?;
        let client = &connection.client;
        if client.connection_state() != State::Connected {
            return Err(away("the connection to NATS is lost; it is being made again"));
        }
        if self.given_up.swap(true, Ordering::SeqCst) && !answers(client).await {
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

/// The client did not take the message.
fn unsent(error: &PublishError) -> SendFailure {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => too_large(error),
        _ => SendFailure::Retry(format!("NATS did not take it: {error}")),
    }
}

/// The stream did not take the message.
fn refused(error: &jetstream::Error) -> SendFailure {
    match error.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => too_large(error),
        _ => SendFailure::Retry(format!("NATS did not confirm it: {error}")),
    }
}

fn too_large(error: &dyn std::error::Error) -> SendFailure {
    SendFailure::Permanent(format!("the message is too large for NATS: {error}"))
}
