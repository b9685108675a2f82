//! Messages to an exchange.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, ExchangeKind, PublisherConfirm};
use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};

use crate::config::{RabbitmqSinkConfig, RoutingKey};
use crate::envelope;
use crate::link::{Link, Settings};
use crate::source::{ask, reply_code};

const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
/// How many bytes are handed to the client before they have left it.
const AHEAD: usize = 8 * 1024 * 1024;
/// What a frame with properties needs beside names and values.
const FRAME_OVERHEAD: usize = 512;

/// An exchange, with publisher confirms.
///
/// Messages go out one after the other without waiting, and each counts as sent when RabbitMQ has confirmed it: on
/// disk, in every durable queue that took it. A message that no queue took counts as not sent.
///
/// ```no_run
/// # fn main() -> Result<(), oncebox_core::Error> {
/// use oncebox_rabbitmq::{RabbitmqSink, RabbitmqSinkConfig};
///
/// let events = RabbitmqSink::new(RabbitmqSinkConfig::new("amqp://localhost").exchange("events"))?;
/// # Ok(())
/// # }
/// ```
pub struct RabbitmqSink {
    config: RabbitmqSinkConfig,
    settings: Settings,
    /// Sessions that nobody uses. A call takes one out, so one that was dropped leaves none behind.
    idle: Mutex<Vec<Session>>,
}

impl RabbitmqSink {
    /// A sink; fails on settings that cannot work, naming the one at fault.
    pub fn new(config: RabbitmqSinkConfig) -> Result<Self, Error> {
        let settings = config.check()?;
        Ok(Self { config, settings, idle: Mutex::default() })
    }

    async fn session(&self) -> Result<Session, Error> {
        let idle = loop {
            let session = self.idle().pop();
            if session.as_ref().is_none_or(Session::is_usable) {
                break session;
            }
        };
        match idle {
            Some(session) => Ok(session),
            None => Session::open(&self.settings, &self.config.exchange).await,
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a message looks like on the way; fails when it can never be sent.
    fn prepare<'a>(&self, message: &'a Message, frame_max: usize) -> Result<Publish<'a>, SendFailure> {
        let failed = |why: String| {
            SendFailure::Permanent(format!("message `{}` cannot be sent: {why}", message.id.escape_debug()))
        };
        let routing_key = match &self.config.routing_key {
            RoutingKey::Kind => &message.kind,
            RoutingKey::Text(text) => text,
            RoutingKey::Key => message
                .key
                .as_ref()
                .ok_or_else(|| failed("it has no key, and the sink's `routing_key` is the key".to_owned()))?,
        };
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        let parts = message.id.len() + message.kind.len() + message.key.as_ref().map_or(0, String::len);
        if headers + parts + FRAME_OVERHEAD > frame_max {
            return Err(failed(format!("its headers do not fit into a frame of {frame_max} bytes")));
        }
        Ok(Publish {
            message,
            routing_key: envelope::short("routing key", routing_key).map_err(failed)?,
            properties: envelope::write(message).map_err(failed)?,
        })
    }

    /// Publishes all of them, in order, and waits for what becomes of each.
    async fn publish(&self, channel: &Channel, lot: &[Publish<'_>]) -> Vec<Result<(), Fault>> {
        let mut confirms = Vec::with_capacity(lot.len());
        let mut rest = lot;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(window(rest));
            rest = later;
            // The first poll hands the frames over; only then is it waited for, so that nobody waits in between.
            let mut publishing: Vec<_> =
                now.iter().map(|publish| Box::pin(self.publish_one(channel, publish))).collect();
            let mut begun = Vec::with_capacity(publishing.len());
            for publish in &mut publishing {
                begun.push(futures_util::poll!(publish.as_mut()));
            }
            for (publish, begun) in publishing.into_iter().zip(begun) {
                confirms.push(match begun {
                    std::task::Poll::Ready(confirm) => confirm,
                    std::task::Poll::Pending => publish.await,
                });
            }
        }
        let mut answers = Vec::with_capacity(lot.len());
        let mut returned = HashSet::new();
        for confirm in confirms {
            let confirmed = match confirm {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            answers.push(match confirmed {
                Ok(Confirmation::Ack(message)) => {
                    returned.extend(message.map(identity));
                    Ok(())
                }
                Ok(Confirmation::Nack(message)) => {
                    returned.extend(message.map(identity));
                    Err(Fault::Refused)
                }
                Ok(Confirmation::NotRequested) => Err(Fault::Refused),
                Err(error) => Err(Fault::Channel(error)),
            });
        }
        // The client hands a returned message over with the confirm of any other one, so it is looked for by what it
        // is. Messages that cannot be told apart went the same way.
        if !returned.is_empty() {
            for (publish, answer) in lot.iter().zip(&mut answers) {
                if answer.is_ok() && returned.contains(&publish.identity()) {
                    *answer = Err(Fault::Unroutable);
                }
            }
        }
        answers
    }

    /// Finds out over which of the messages without a confirm the server closed the channel: it does not say.
    async fn publish_singly(
        &self,
        mut session: Session,
        lot: &[Publish<'_>],
        outcomes: &mut [Result<(), Fault>],
    ) -> Session {
        let mut is_away = false;
        for (publish, outcome) in lot.iter().zip(outcomes) {
            if !is_channel_error(outcome) {
                continue;
            }
            if !is_away && !session.is_usable() {
                match Session::open(&self.settings, &self.config.exchange).await {
                    Ok(opened) => session = opened,
                    Err(_) => is_away = true,
                }
            }
            if is_away {
                *outcome = Err(Fault::Unknown);
                continue;
            }
            let alone = self.publish(&session.channel, std::slice::from_ref(publish)).await;
            *outcome = alone.into_iter().next().unwrap_or(Err(Fault::Unknown));
        }
        session
    }

    fn lost(&self, error: lapin::Error) -> Error {
        if reply_code(&error) == Some(NOT_FOUND) {
            return no_exchange(&self.config.exchange, error);
        }
        Error::caused(ErrorKind::Unavailable, "the connection to RabbitMQ was lost", error)
    }

    async fn publish_one(
        &self,
        channel: &Channel,
        publish: &Publish<'_>,
    ) -> Result<PublisherConfirm, lapin::Error> {
        let options = BasicPublishOptions { mandatory: self.config.mandatory, immediate: false };
        let exchange = ShortString::from(self.config.exchange.as_str());
        let (payload, properties) = (&publish.message.payload, publish.properties.clone());
        channel.basic_publish(exchange, publish.routing_key.clone(), options, payload, properties).await
    }

    fn answer(&self, publish: &Publish<'_>, fault: &Fault) -> SendFailure {
        let exchange = &self.config.exchange;
        let routing_key = publish.routing_key.as_str();
        match fault {
            Fault::Refused => SendFailure::Retry(
                "RabbitMQ did not take it; a queue may be full (x-max-length) or its server away".to_owned(),
            ),
            Fault::Unroutable if exchange.is_empty() => SendFailure::Retry(format!(
                "there is no queue `{routing_key}`; create it, or set `exchange` or `routing_key` of the sink"
            )),
            Fault::Unroutable => SendFailure::Retry(format!(
                "no queue is bound to exchange `{exchange}` for routing key `{routing_key}`; bind one"
            )),
            Fault::Channel(error) if reply_code(error) == Some(PRECONDITION_FAILED) => {
                SendFailure::Permanent(format!("RabbitMQ refuses the message: {error}"))
            }
            Fault::Channel(error) => SendFailure::Retry(format!("RabbitMQ did not confirm it: {error}")),
            Fault::Unknown => SendFailure::Retry("RabbitMQ did not confirm it".to_owned()),
        }
    }
}

impl Sink for RabbitmqSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.session().await?;
        let frame_max = session.link.frame_max();
        let mut answers: Vec<Result<(), SendFailure>> = vec![Ok(()); messages.len()];
        let (mut places, mut lot) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        for (place, message) in messages.iter().enumerate() {
            match self.prepare(message, frame_max) {
                Ok(publish) => {
                    places.push(place);
                    lot.push(publish);
                }
                Err(failure) => answers[place] = Err(failure),
            }
        }
        let mut outcomes = self.publish(&session.channel, &lot).await;
        if let Some(error) = channel_error(&outcomes).cloned() {
            let is_refusal = error.is_amqp_soft_error() && reply_code(&error) != Some(NOT_FOUND);
            if is_refusal && lot.len() > 1 {
                session = self.publish_singly(session, &lot, &mut outcomes).await;
            } else if !is_refusal && outcomes.iter().all(is_channel_error) {
                return Err(self.lost(error));
            }
        }
        for ((place, publish), outcome) in places.into_iter().zip(&lot).zip(outcomes) {
            answers[place] = outcome.map_err(|fault| self.answer(publish, &fault));
        }
        if session.is_usable() {
            self.idle().push(session);
        }
        Ok(answers)
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        let exchange = &self.config.exchange;
        let session = Session::open(&self.settings, exchange).await?;
        match &self.config.routing_key {
            RoutingKey::Text(queue) if exchange.is_empty() => match ask(&session.channel, queue).await {
                Ok(_) => Ok(Some(format!("queue `{queue}`"))),
                Err(error) => {
                    let text = format!("queue `{queue}` is not there; create it, or mend `routing_key`");
                    Err(Error::caused(ErrorKind::Unavailable, text, error))
                }
            },
            // Which queues there must be only the messages know.
            _ if exchange.is_empty() => Ok(Some("the default exchange".to_owned())),
            _ => Ok(Some(format!("exchange `{exchange}`"))),
        }
    }
}

impl fmt::Debug for RabbitmqSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RabbitmqSink").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A message ready to be sent.
struct Publish<'a> {
    message: &'a Message,
    routing_key: ShortString,
    properties: BasicProperties,
}

impl Publish<'_> {
    fn identity(&self) -> Identity {
        (self.routing_key.clone(), self.properties.message_id().clone(), self.message.payload.len())
    }
}

/// What a returned message is found by.
type Identity = (ShortString, Option<ShortString>, usize);

fn identity(returned: BasicReturnMessage) -> Identity {
    let message = returned.delivery;
    (message.routing_key, message.properties.message_id().clone(), message.data.len())
}

/// Why a message does not count as sent.
#[derive(Debug)]
enum Fault {
    /// The server said no.
    Refused,
    /// No queue took it.
    Unroutable,
    /// The channel was closed before the server had said anything.
    Channel(lapin::Error),
    /// The same, over another message perhaps.
    Unknown,
}

fn is_channel_error(outcome: &Result<(), Fault>) -> bool {
    matches!(outcome, Err(Fault::Channel(_)))
}

/// The first error of the channel; one in which the server says why, if there is one.
fn channel_error(outcomes: &[Result<(), Fault>]) -> Option<&lapin::Error> {
    let errors = outcomes.iter().filter_map(|outcome| match outcome {
        Err(Fault::Channel(error)) => Some(error),
        _ => None,
    });
    errors.clone().find(|error| reply_code(error).is_some()).or_else(|| errors.clone().next())
}

/// How many messages may be handed over at once; at least one.
fn window(rest: &[Publish<'_>]) -> usize {
    let mut bytes = 0;
    let fits = rest.iter().take_while(|publish| {
        bytes += publish.message.payload.len();
        bytes <= AHEAD
    });
    fits.count().max(1)
}

/// A channel with confirms, used by one call at a time.
struct Session {
    channel: Channel,
    link: Link,
}

impl Session {
    async fn open(settings: &Settings, exchange: &str) -> Result<Self, Error> {
        let link = settings.connect().await?;
        let failed = |error| Error::caused(ErrorKind::Unavailable, "cannot send to RabbitMQ", error);
        let channel = link.channel().await.map_err(failed)?;
        // The default exchange is always there, and may not be asked for.
        if !exchange.is_empty() {
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let found = channel
                .exchange_declare(exchange.into(), ExchangeKind::Direct, options, FieldTable::default())
                .await;
            found.map_err(|error| match reply_code(&error) {
                Some(NOT_FOUND) => no_exchange(exchange, error),
                _ => failed(error),
            })?;
        }
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(Self { channel, link })
    }

    fn is_usable(&self) -> bool {
        self.channel.status().connected()
    }
}

fn no_exchange(exchange: &str, error: lapin::Error) -> Error {
    let text =
        format!("exchange `{exchange}` is not there; create it, and bind the queues that want its messages");
    Error::caused(ErrorKind::Unavailable, text, error)
}
