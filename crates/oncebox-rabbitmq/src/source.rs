//! Messages from a queue.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use oncebox_core::{Error, ErrorKind, Incoming, Settle, Source};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::{QueueKind, RabbitmqSourceConfig};
use crate::envelope;
use crate::link::{Link, Settings};
use crate::settle::Tags;

const NOT_FOUND: u16 = 404;

/// The messages of a queue, acknowledged by hand.
///
/// It connects when it is first asked for messages, checks that the queue exists, and does both again after every
/// failure. What was not acknowledged then comes again from the queue, and is a duplicate if it was stored.
///
/// ```no_run
/// # fn main() -> Result<(), oncebox_core::Error> {
/// use oncebox_rabbitmq::{RabbitmqSource, RabbitmqSourceConfig};
///
/// // The name is the scope of message ids; keep it when the queue or the server changes.
/// let orders = RabbitmqSource::new("orders", RabbitmqSourceConfig::new("amqp://localhost", "orders.v2"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RabbitmqSource {
    name: String,
    config: RabbitmqSourceConfig,
    settings: Settings,
    state: State,
    /// Tells sessions apart, whose tags all begin with 1.
    session_number: u64,
}

/// What a [`RabbitmqSource`] needs to settle a message.
#[derive(Debug)]
pub struct RabbitmqReceipt {
    session_number: u64,
    tag: u64,
}

impl RabbitmqSource {
    /// A source of this name; fails on settings that cannot work, naming the one at fault.
    pub fn new(name: impl Into<String>, config: RabbitmqSourceConfig) -> Result<Self, Error> {
        let settings = config.check()?;
        Ok(Self { name: name.into(), config, settings, state: State::Apart, session_number: 0 })
    }

    /// Connects and finds the queue, unless that is done. May be dropped: connecting goes on meanwhile.
    async fn link(&mut self) -> Result<(), Error> {
        if let State::Apart = self.state {
            let (settings, config) = (self.settings.clone(), self.config.clone());
            self.state = State::Linking(Task::spawn(async move { Linked::open(&settings, &config).await }));
        }
        if let State::Linking(task) = &mut self.state {
            let linked = task.done().await;
            self.state = State::Apart;
            self.state = State::Linked(Box::new(linked?));
        }
        Ok(())
    }

    /// The open session; opens one when there is none. May be dropped: opening goes on meanwhile.
    async fn session(&mut self) -> Result<&mut Session, Error> {
        self.link().await?;
        self.state = match std::mem::replace(&mut self.state, State::Apart) {
            State::Linked(linked) => {
                self.session_number += 1;
                let (config, number) = (self.config.clone(), self.session_number);
                State::Opening(Task::spawn(async move { Session::open(*linked, &config, number).await }))
            }
            state => state,
        };
        if let State::Opening(task) = &mut self.state {
            let opened = task.done().await;
            self.state = State::Apart;
            self.state = State::Open(Box::new(opened?));
        }
        match &mut self.state {
            State::Open(session) => Ok(session),
            _ => Err(broken_off()),
        }
    }
}

impl Source for RabbitmqSource {
    type Receipt = RabbitmqReceipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<RabbitmqReceipt>>, Error> {
        let session = self.session().await?;
        let deliveries = match session.next(most).await {
            // The session stays: a new one would get the same messages again, and the queue may count that.
            Ok(deliveries) if deliveries.is_empty() => return Err(session.full()),
            Ok(deliveries) => deliveries,
            Err(error) => {
                self.state = State::Apart;
                return Err(error);
            }
        };
        let incoming = |delivery: Delivery| {
            let receipt = RabbitmqReceipt { session_number: self.session_number, tag: delivery.delivery_tag };
            Incoming::mapped(envelope::read(&self.config.mapping, delivery), receipt)
        };
        Ok(deliveries.into_iter().map(incoming).collect())
    }

    async fn settle(&mut self, settled: Vec<(RabbitmqReceipt, Settle)>) -> Result<(), Error> {
        let State::Open(session) = &mut self.state else { return Ok(()) };
        // The others went back to the queue with their session.
        let ours = settled.into_iter().filter(|(receipt, _)| receipt.session_number == session.number);
        session.settle(ours.map(|(receipt, settle)| (receipt.tag, settle)).collect()).await
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        if let State::Apart | State::Linking(_) = self.state {
            self.link().await?;
        }
        match &mut self.state {
            State::Open(session) => session.linked.lag().await.map(Some),
            State::Linked(linked) => {
                let lag = linked.lag().await;
                if lag.is_err() {
                    self.state = State::Apart;
                }
                lag.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        let queue = &self.config.queue;
        let link = self.settings.connect().await?;
        let channel = link.channel().await.map_err(|error| failed(queue, "cannot look for it", error))?;
        match ask(&channel, queue).await {
            Ok(waiting) => Ok(Some(format!("queue `{queue}`, {waiting} waiting"))),
            Err(error) if reply_code(&error) == Some(NOT_FOUND) => match self.config.declare {
                Some(_) => Ok(Some(format!("queue `{queue}` is not there yet and would be created"))),
                None => Err(no_queue(queue, error)),
            },
            Err(error) => Err(failed(queue, "cannot look for it", error)),
        }
    }
}

#[derive(Debug)]
enum State {
    Apart,
    Linking(Task<Linked>),
    /// Connected, but no messages are taken yet: somebody asked for the lag.
    Linked(Box<Linked>),
    Opening(Task<Session>),
    Open(Box<Session>),
}

/// Work that goes on while nobody waits for it, given up when dropped.
#[derive(Debug)]
struct Task<T>(JoinHandle<Result<T, Error>>);

impl<T: Send + 'static> Task<T> {
    fn spawn(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    async fn done(&mut self) -> Result<T, Error> {
        (&mut self.0).await.unwrap_or_else(|_| Err(broken_off()))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn broken_off() -> Error {
    Error::new(ErrorKind::Unavailable, "connecting to RabbitMQ was broken off")
}

/// A connection to a server that has the queue.
struct Linked {
    queue: String,
    /// For questions about the queue: a wrong one closes its channel.
    asking: Option<Channel>,
    // Last: it closes the channels above.
    link: Link,
}

impl Linked {
    async fn open(settings: &Settings, config: &RabbitmqSourceConfig) -> Result<Self, Error> {
        let link = settings.connect().await?;
        let asking = find_queue(&link, config).await?;
        Ok(Self { queue: config.queue.clone(), asking: Some(asking), link })
    }

    /// How many messages the queue has ready for anybody.
    async fn lag(&mut self) -> Result<u64, Error> {
        let failed = |error| failed(&self.queue, "cannot ask how much waits", error);
        // Taken out, so that a question that was dropped or refused leaves no channel behind.
        let channel = match self.asking.take() {
            Some(channel) => channel,
            None => self.link.channel().await.map_err(failed)?,
        };
        let waiting = ask(&channel, &self.queue).await.map_err(failed)?;
        self.asking = Some(channel);
        Ok(u64::from(waiting))
    }
}

impl fmt::Debug for Linked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Linked").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A channel on which the queue's messages arrive.
#[derive(Debug)]
struct Session {
    number: u64,
    prefetch: usize,
    may_reject: bool,
    return_after: Duration,
    channel: Channel,
    messages: Consumer,
    /// Why no more messages come, when that was found after some that had come.
    ended: Option<Error>,
    tags: Tags,
    /// Tags that go back to the queue, and when.
    returning: VecDeque<(Instant, u64)>,
    /// How many messages are held, because neither the store nor the queue can take them.
    held: usize,
    // Last: it closes the channel above.
    linked: Linked,
}

impl Session {
    async fn open(linked: Linked, config: &RabbitmqSourceConfig, number: u64) -> Result<Self, Error> {
        let queue = config.queue.as_str();
        let failed = |error| failed(queue, "cannot take messages from it", error);
        let channel = linked.link.channel().await.map_err(failed)?;
        channel.basic_qos(config.prefetch, BasicQosOptions { global: false }).await.map_err(failed)?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let messages =
            channel.basic_consume(queue.into(), "".into(), options, arguments).await.map_err(failed)?;
        tracing::info!(queue, "taking messages from RabbitMQ");
        Ok(Self {
            number,
            prefetch: usize::from(config.prefetch),
            may_reject: config.dead_letter_exchange,
            return_after: config.return_after,
            channel,
            messages,
            ended: None,
            tags: Tags::default(),
            returning: VecDeque::new(),
            held: 0,
            linked,
        })
    }

    /// Waits for a message, then takes what else is here; nothing when there is no room for any.
    async fn next(&mut self, most: usize) -> Result<Vec<Delivery>, Error> {
        loop {
            if let Some(error) = self.ended.take() {
                return Err(error);
            }
            self.give_back().await?;
            let next_return = self.returning.front().map(|(at, _)| *at);
            let first = if self.held < self.prefetch {
                tokio::select! {
                    first = self.messages.next() => first,
                    () = until(next_return) => continue,
                }
            } else {
                // Only the end of the session can come now.
                let Some(end) = self.messages.next().now_or_never() else { return Ok(Vec::new()) };
                end
            };
            let mut deliveries = vec![self.delivery(first)?];
            while deliveries.len() < most.max(1) {
                let Some(next) = self.messages.next().now_or_never() else { break };
                match self.delivery(next) {
                    Ok(delivery) => deliveries.push(delivery),
                    Err(error) => {
                        self.ended = Some(error);
                        break;
                    }
                }
            }
            return Ok(deliveries);
        }
    }

    fn delivery(&self, next: Option<Result<Delivery, lapin::Error>>) -> Result<Delivery, Error> {
        match next {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(error)) => Err(failed(&self.linked.queue, explain(&error), error)),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "queue `{}`: the server sends no more messages; the queue was removed or moved, or the \
                     connection was closed",
                    self.linked.queue
                ),
            )),
        }
    }

    fn full(&self) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "queue `{}`: {} messages that the store refuses are held and fill `prefetch`; give the queue a \
                 dead-letter exchange and set `dead_letter_exchange`, or raise the limit that they break",
                self.linked.queue, self.held
            ),
        )
    }

    /// Returns to the queue what has waited long enough. May be dropped: what was begun is written.
    async fn give_back(&mut self) -> Result<(), Error> {
        while let Some((_, tag)) = self.returning.pop_front_if(|(at, _)| *at <= Instant::now()) {
            self.tags.settled(tag);
            let options = BasicNackOptions { multiple: false, requeue: true };
            let given = self.channel.basic_nack(tag, options).await;
            given.map_err(|error| failed(&self.linked.queue, "cannot give a message back", error))?;
        }
        Ok(())
    }

    async fn settle(&mut self, settled: Vec<(u64, Settle)>) -> Result<(), Error> {
        let mut accepted = Vec::with_capacity(settled.len());
        let mut rejected = Vec::new();
        let return_at = Instant::now() + self.return_after;
        for (tag, settle) in settled {
            match settle {
                Settle::Accept => accepted.push(tag),
                Settle::Return => self.returning.push_back((return_at, tag)),
                Settle::Reject if self.may_reject => rejected.push(tag),
                Settle::Reject => self.hold(tag),
            }
        }
        let failed = |error| failed(&self.linked.queue, "cannot acknowledge", error);
        let acks = self.tags.accept(accepted);
        if let Some(tag) = acks.up_to {
            self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await.map_err(failed)?;
        }
        let single = |tag| self.channel.basic_ack(tag, BasicAckOptions { multiple: false });
        try_join_all(acks.single.into_iter().map(single)).await.map_err(failed)?;
        for tag in rejected {
            self.tags.settled(tag);
            self.channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Keeps a message unacknowledged: rejected it would be gone, returned it would come again at once and for ever.
    fn hold(&mut self, tag: u64) {
        self.held += 1;
        tracing::error!(
            queue = self.linked.queue,
            tag,
            held = self.held,
            "the store refuses a message and the queue has no dead-letter exchange that we know of; it is held \
             unacknowledged"
        );
    }
}

/// Checks that the queue exists, creates it when told to, and hands over a channel for further questions.
async fn find_queue(link: &Link, config: &RabbitmqSourceConfig) -> Result<Channel, Error> {
    let queue = &config.queue;
    let failed = |error| failed(queue, "cannot look for it", error);
    let channel = link.channel().await.map_err(failed)?;
    let error = match ask(&channel, queue).await {
        Ok(_) => return Ok(channel),
        Err(error) if reply_code(&error) == Some(NOT_FOUND) => error,
        Err(error) => return Err(failed(error)),
    };
    let Some(kind) = config.declare else { return Err(no_queue(queue, error)) };
    let kind = match kind {
        QueueKind::Quorum => "quorum",
        QueueKind::Classic => "classic",
    };
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    // The server has closed the other one.
    let channel = link.channel().await.map_err(failed)?;
    channel.queue_declare(queue.as_str().into(), options, arguments).await.map_err(failed)?;
    tracing::info!(queue, kind, "created a queue");
    Ok(channel)
}

fn no_queue(queue: &str, error: lapin::Error) -> Error {
    let text = format!(
        "queue `{queue}` is not there; create it, or set `declare` to `quorum` or `classic` to have it created"
    );
    Error::caused(ErrorKind::Unavailable, text, error)
}

/// How many messages are ready in a queue; fails when there is none of this name, and the channel is closed then.
pub(crate) async fn ask(channel: &Channel, queue: &str) -> Result<u32, lapin::Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(found.message_count())
}

/// The number under which the server refused something.
pub(crate) fn reply_code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

fn explain(error: &lapin::Error) -> &'static str {
    match error.kind() {
        lapin::ErrorKind::ParsingError(_) => {
            "the client cannot read what the server sent; if it is a message in the queue, take it out by other means"
        }
        _ => "the server sends no more messages",
    }
}

fn failed(queue: &str, what: &str, error: lapin::Error) -> Error {
    Error::caused(ErrorKind::Unavailable, format!("queue `{queue}`: {what}"), error)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
