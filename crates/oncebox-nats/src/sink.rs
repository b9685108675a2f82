//! Messages for JetStream.

use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use futures_util::future::join_all;
use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};
use tokio::sync::Mutex;

use crate::config::NatsSinkConfig;
use crate::connect::{AfterLoss, Target, connect};
use crate::wire;

/// More than a relay ever hands over at once.
const AT_ONCE: usize = 20_000;

/// Publishes to the subjects of JetStream streams; a message is sent when a stream has stored it.
///
/// The id goes as `Nats-Msg-Id`, so a stream drops a second copy that comes within its duplicate window. The messages of
/// one call are sent one after the other without waiting in between. A later one may be stored when an earlier one was
/// not, so the relay hands over one message of each key at a time.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsSinkConfig,
    /// Connected when the first message is sent; the client reconnects by itself.
    context: Mutex<Option<Context>>,
}

impl NatsSink {
    /// A sink; fails on settings that can never work. Connects with the first message.
    pub fn new(config: NatsSinkConfig) -> Result<Self, Error> {
        config.check()?;
        Ok(Self { config, context: Mutex::new(None) })
    }

    async fn context(&self) -> Result<Context, Error> {
        let mut context = self.context.lock().await;
        if let Some(context) = &*context {
            return Ok(context.clone());
        }
        let NatsSinkConfig { url, auth, tls, timeout, .. } = &self.config;
        let target = Target { url, auth, tls: tls.as_ref() };
        let (client, _) = connect(target, AfterLoss::Reconnect, 1024).await?;
        let new = ContextBuilder::new()
            .timeout(*timeout)
            .ack_timeout(*timeout)
            .max_ack_inflight(AT_ONCE)
            .build(client);
        *context = Some(new.clone());
        Ok(new)
    }

    fn subject(&self, message: &Message) -> String {
        match &self.config.subject {
            Some(subject) => subject.clone(),
            None => wire::subject_of(self.config.prefix.as_deref(), &message.kind),
        }
    }
}

impl Sink for NatsSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        let context = self.context().await?;
        if context.client().connection_state() != State::Connected {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the connection to NATS is lost; it is being made again",
            ));
        }
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            let subject = self.subject(message);
            let headers = wire::write(message, &subject, self.config.stream.as_deref());
            let publish = PublishMessage::build().headers(headers).payload(message.payload.clone());
            sent.push((context.send_publish(subject.clone(), publish).await, subject));
        }
        let answers = sent.into_iter().map(async |(sent, subject)| match sent {
            Ok(confirmed) => confirmed.await.map(drop).map_err(|error| failure(&error, &subject)),
            Err(error) => Err(failure(&error, &subject)),
        });
        Ok(join_all(answers).await)
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
