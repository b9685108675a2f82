//! One connection to a durable consumer: a task of its own asks for messages, marks those that take long as in
//! progress, and notices when the server has gone.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use oncebox_core::mapping::{Mapped, Mapping};
use oncebox_core::{Error, ErrorKind};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::{Api, ApiError, CONSUMER_NOT_FOUND, STREAM_NOT_FOUND};
use crate::config::{NatsRetention, NatsSourceConfig};
use crate::held::Held;
use crate::link::{AfterLoss, Target, connect};
use crate::{envelope, unparsed};

/// How long the server keeps a request for messages open.
const ASK_FOR: Duration = Duration::from_secs(30);
/// How often it must say something meanwhile. After three times as long without a word it is taken as gone.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long to wait before asking again after a refusal.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// Subject, reply and bookkeeping, which the server counts too.
const BESIDE_PAYLOAD: usize = 64 * 1024;

const IN_PROGRESS: Bytes = Bytes::from_static(b"+WPI");
const RETURN: Bytes = Bytes::from_static(b"-NAK");

/// A session with its task; dropping it gives back what was not handed over.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) api: Api,
    pub(crate) held: Arc<Held>,
    /// The very stream and consumer: others of the same names begin to count anew.
    pub(crate) lineage: Arc<str>,
    phase: watch::Sender<Phase>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Stopping);
    }
}

/// What the task is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Asks for nothing: only questions were asked so far.
    Idle,
    Reading,
    Stopping,
}

impl Session {
    /// Connects, and checks that the stream and the consumer are there and fit.
    ///
    /// `after_loss` says that the session before this one was lost: perhaps a message did it that the client cannot
    /// read.
    pub(crate) async fn open(config: NatsSourceConfig, after_loss: bool) -> Result<Self, Error> {
        let target = Target { url: &config.url, auth: &config.auth, tls: &config.tls };
        let (client, lost) = connect(target, AfterLoss::End, config.prefetch * 2 + 1024).await?;
        let api = Api::new(client.clone(), config.domain.as_deref());
        let stream = stream(&api, &config).await?;
        let consumer = consumer(&api, &config).await?;
        let limits = Limits::read(&config, &consumer["config"])?;
        let created = |info: &Value| info["created"].as_str().unwrap_or_default().to_owned();
        let held = Arc::new(Held::default());
        if after_loss {
            held.add(unparsed::find(&api, &config, &consumer).await);
        }
        let inbox = client.new_inbox();
        let subscriber = client.subscribe(format!("{inbox}.*")).await.map_err(|error| {
            Error::caused(ErrorKind::Unavailable, "NATS did not take the subscription for messages", error)
        })?;
        let (phase, of_pump) = watch::channel(Phase::Idle);
        let pump = Pump {
            ask_at: api.subject(&format!("CONSUMER.MSG.NEXT.{}.{}", config.stream, config.consumer)),
            info_at: api.subject(&format!("CONSUMER.INFO.{}.{}", config.stream, config.consumer)),
            client: client.clone(),
            subscriber,
            inbox,
            held: Arc::clone(&held),
            limits,
            mapping: config.mapping,
            stream: config.stream,
            asked: Asked::default(),
            heard_at: Instant::now(),
            ask_after: Instant::now(),
            calmly: after_loss,
        };
        tokio::spawn(pump.run(lost, of_pump));
        let lineage = format!("{} {}", created(&stream), created(&consumer)).into();
        Ok(Self { client, api, held, lineage, phase })
    }

    /// Begins to ask for messages, if it has not.
    pub(crate) fn read(&self) {
        self.phase.send_if_modified(|phase| {
            let idle = *phase == Phase::Idle;
            if idle {
                *phase = Phase::Reading;
            }
            idle
        });
    }
}

/// Looks for the stream and the consumer and creates nothing; fails where [`Session::open`] would.
pub(crate) async fn look(config: &NatsSourceConfig) -> Result<String, Error> {
    let target = Target { url: &config.url, auth: &config.auth, tls: &config.tls };
    let (client, _lost) = connect(target, AfterLoss::End, 16).await?;
    let api = Api::new(client, config.domain.as_deref());
    let (stream, name) = (&config.stream, &config.consumer);
    if find_stream(&api, config).await?.is_none() {
        return Ok(format!("stream `{stream}` is not there yet and would be created"));
    }
    let Some(consumer) = find_consumer(&api, config).await? else {
        return Ok(format!("stream `{stream}`, whose consumer `{name}` would be created"));
    };
    Limits::read(config, &consumer["config"])?;
    let waiting = consumer["num_pending"].as_u64().unwrap_or_default();
    Ok(format!("consumer `{name}` of stream `{stream}`, {waiting} waiting"))
}

/// `None` when it is not there and may be created.
async fn find_stream(api: &Api, config: &NatsSourceConfig) -> Result<Option<Value>, Error> {
    let name = &config.stream;
    match api.ask(&format!("STREAM.INFO.{name}"), &Value::Null).await {
        Err(ApiError::Refused { code: STREAM_NOT_FOUND, .. })
            if config.create && !config.subjects.is_empty() =>
        {
            Ok(None)
        }
        Err(ApiError::Refused { code: STREAM_NOT_FOUND, .. }) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("NATS has no stream `{name}`; create it, or set `create` and `subjects`"),
        )),
        answer => Ok(Some(answer?)),
    }
}

/// `None` when it is not there and may be created.
async fn find_consumer(api: &Api, config: &NatsSourceConfig) -> Result<Option<Value>, Error> {
    let (stream, name) = (&config.stream, &config.consumer);
    match api.ask(&format!("CONSUMER.INFO.{stream}.{name}"), &Value::Null).await {
        Err(ApiError::Refused { code: CONSUMER_NOT_FOUND, .. }) if config.create => Ok(None),
        Err(ApiError::Refused { code: CONSUMER_NOT_FOUND, .. }) => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "stream `{stream}` has no consumer `{name}`; create a durable pull consumer, or set `create`"
            ),
        )),
        answer => Ok(Some(answer?)),
    }
}

async fn stream(api: &Api, config: &NatsSourceConfig) -> Result<Value, Error> {
    let name = &config.stream;
    match find_stream(api, config).await? {
        Some(stream) => Ok(stream),
        None => {
            let retention = match config.retention {
                NatsRetention::Limits => "limits",
                NatsRetention::WorkQueue => "workqueue",
                NatsRetention::Interest => "interest",
            };
            let wanted = json!({
                "name": name, "subjects": config.subjects, "retention": retention, "storage": "file",
                "num_replicas": config.replicas, "discard": "old", "max_consumers": -1, "max_msgs": -1,
                "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1,
            });
            Ok(api.ask(&format!("STREAM.CREATE.{name}"), &wanted).await?)
        }
    }
}

async fn consumer(api: &Api, config: &NatsSourceConfig) -> Result<Value, Error> {
    let (stream, name) = (&config.stream, &config.consumer);
    match find_consumer(api, config).await? {
        Some(consumer) => Ok(consumer),
        None => {
            let pending =
                config.max_ack_pending.map_or(config.prefetch.saturating_mul(4), |most| most as usize);
            let mut wanted = json!({
                "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant",
                "ack_wait": nanos(config.ack_wait), "max_ack_pending": pending, "max_deliver": -1,
            });
            if let Some(filter) = &config.filter {
                wanted["filter_subject"] = json!(filter);
            }
            let wanted = json!({ "stream_name": stream, "config": wanted });
            Ok(api.ask(&format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), &wanted).await?)
        }
    }
}

/// What the consumer allows, and how much we want to hold.
#[derive(Debug)]
struct Limits {
    prefetch: usize,
    prefetch_bytes: usize,
    ack_wait: Duration,
    batch: usize,
    ask_for: Duration,
    max_bytes: Option<usize>,
}

impl Limits {
    /// Fails on a consumer with which messages would be lost or never come.
    fn read(config: &NatsSourceConfig, consumer: &Value) -> Result<Self, Error> {
        let name = &config.consumer;
        let wrong = |what: &str| Err(Error::new(ErrorKind::Unavailable, format!("consumer `{name}` {what}")));
        if consumer["deliver_subject"].is_string() {
            return wrong("is a push consumer; create a durable pull consumer");
        }
        if consumer["ack_policy"] != "explicit" {
            return wrong("does not ask for each acknowledgement; create it with ack policy `explicit`");
        }
        if consumer["headers_only"] == true {
            return wrong("delivers headers only; create it without `headers_only`");
        }
        let most_deliveries = consumer["max_deliver"].as_i64().unwrap_or(-1);
        if most_deliveries > 0 {
            tracing::warn!(
                consumer = name,
                max_deliver = most_deliveries,
                "the server gives a message up after so many deliveries, stored or not; set max_deliver to -1"
            );
        }
        let positive = |field: &str| consumer[field].as_u64().filter(|value| *value > 0);
        let most = |field: &str| positive(field).and_then(|value| usize::try_from(value).ok());
        // With a backoff list the server waits for its times instead.
        let backoff = consumer["backoff"].as_array().into_iter().flatten().filter_map(Value::as_u64).min();
        let ack_wait = backoff.or_else(|| positive("ack_wait")).map_or(config.ack_wait, Duration::from_nanos);
        Ok(Self {
            prefetch: most("max_ack_pending").unwrap_or(usize::MAX).min(config.prefetch),
            prefetch_bytes: config.prefetch_bytes,
            ack_wait,
            batch: most("max_batch").unwrap_or(usize::MAX).min(config.prefetch),
            ask_for: positive("max_expires").map_or(ASK_FOR, Duration::from_nanos).min(ASK_FOR),
            max_bytes: most("max_bytes"),
        })
    }
}

/// Requests for messages that are open at the server.
#[derive(Debug, Default)]
struct Asked {
    last: u64,
    open: Vec<(u64, usize)>,
    /// How many messages may still come for all of them.
    left: usize,
    /// Whether any message came since the last request.
    any: bool,
    /// The next message is larger than the server's own limit says: ask for it alone, without a limit.
    alone: bool,
}

impl Asked {
    fn came(&mut self) {
        self.any = true;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.open.clear();
        }
    }

    /// The server has ended this request; `unused` is how many it did not deliver, where it says so.
    fn ended(&mut self, number: u64, unused: Option<usize>) {
        self.open.retain(|(open, _)| *open != number);
        let others = self.open.iter().map(|(_, batch)| batch).sum();
        self.left = unused.map_or(others, |unused| self.left.saturating_sub(unused)).min(others);
        if self.left == 0 {
            self.open.clear();
        }
    }
}

/// The task of a session.
#[derive(Debug)]
struct Pump {
    ask_at: String,
    info_at: String,
    client: Client,
    subscriber: Subscriber,
    inbox: String,
    held: Arc<Held>,
    limits: Limits,
    mapping: Mapping,
    stream: String,
    asked: Asked,
    heard_at: Instant,
    ask_after: Instant,
    /// Asks for nothing before all that is held has been settled.
    calmly: bool,
}

impl Pump {
    async fn run(mut self, mut lost: watch::Receiver<u64>, mut phase: watch::Receiver<Phase>) {
        let every = (self.limits.ack_wait / 6).clamp(Duration::from_millis(50), HEARTBEAT / 5);
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let why = loop {
            let is_reading = *phase.borrow_and_update() == Phase::Reading;
            let step = tokio::select! {
                step = self.step(&mut tick, is_reading) => step,
                _ = lost.wait_for(|times| *times > 0) => Err("the connection to NATS was lost".to_owned()),
                changed = phase.changed() => match (*phase.borrow(), changed) {
                    (Phase::Stopping, _) | (_, Err(_)) => break "the source was stopped".to_owned(),
                    _ => Ok(()),
                },
            };
            if let Err(why) = step {
                break why;
            }
        };
        let mut returned = self.held.end(why);
        if *phase.borrow() == Phase::Stopping && *lost.borrow() == 0 {
            // First no more requests of ours: else the server would give us back what we return.
            if self.subscriber.unsubscribe().await.is_err() {
                return;
            }
            while let Some(message) = self.subscriber.next().await {
                returned.extend(message.reply.filter(|_| message.status.is_none()));
            }
            let given_back = tokio::time::timeout(HEARTBEAT, self.give_back(returned)).await;
            if !matches!(given_back, Ok(Ok(()))) {
                tracing::debug!(
                    "NATS was not told what the source gives back; it comes again after the wait"
                );
            }
        }
    }

    /// Whoever else reads from the consumer gets these at once instead of after the wait for acknowledgement.
    async fn give_back(&self, replies: Vec<Subject>) -> Result<(), async_nats::Error> {
        // Asked about its consumer, the server drops our open requests, which nobody listens for any more. Otherwise
        // nats-server 2.9 spends the first message that comes back on each of them.
        self.client.request(self.info_at.clone(), Bytes::new()).await?;
        for reply in replies {
            self.client.publish(reply, RETURN).await?;
        }
        Ok(self.client.flush().await?)
    }

    /// Waits for one thing to happen and deals with it. Nothing that has arrived is lost when it is dropped.
    async fn step(&mut self, tick: &mut tokio::time::Interval, is_reading: bool) -> Result<(), String> {
        if is_reading {
            self.ask().await?;
        }
        tokio::select! {
            message = self.subscriber.next() => {
                let message = message.ok_or("the connection to NATS was closed")?;
                self.heard_at = Instant::now();
                self.arrived(message)
            }
            () = self.held.settled.notified() => Ok(()),
            _ = tick.tick() => self.mark().await,
        }
    }

    /// Takes in a message and all others that have arrived with it.
    fn arrived(&mut self, first: Message) -> Result<(), String> {
        let mut next = Some(first);
        let mut taken = Vec::new();
        let mut result = Ok(());
        while let Some(message) = next {
            if message.status.is_some() {
                result = self.status(&message);
            } else if let Some(one) = self.read(message) {
                taken.push(one);
            }
            if result.is_err() || taken.len() >= self.limits.prefetch {
                break;
            }
            next = self.subscriber.next().now_or_never().flatten();
        }
        if !taken.is_empty() {
            self.held.add(taken);
        }
        result
    }

    fn read(&mut self, message: Message) -> Option<(Subject, usize, Mapped)> {
        self.asked.came();
        // Without one it is no delivery of a consumer: there is nothing to acknowledge.
        let reply = message.reply?;
        let bytes = message.length;
        let position = match stream_sequence(&reply) {
            Some(sequence) => format!("{}-{sequence}", self.stream),
            None => String::new(),
        };
        let headers = envelope::listed(message.headers);
        Some((
            reply,
            bytes,
            envelope::read(&self.mapping, &message.subject, headers, message.payload, position),
        ))
    }

    fn status(&mut self, message: &Message) -> Result<(), String> {
        let code = message.status.map_or(0, |status| status.as_u16());
        let text = message.description.as_deref().unwrap_or_default();
        if code == 100 {
            return Ok(());
        }
        let header = |name: &str| message.headers.as_ref().and_then(|headers| headers.get(name));
        let unused = header("Nats-Pending-Messages").and_then(|value| value.as_str().parse().ok());
        let number =
            message.subject.strip_prefix(self.inbox.as_str()).and_then(|rest| rest.strip_prefix('.'));
        self.asked.ended(number.and_then(|number| number.parse().ok()).unwrap_or_default(), unused);
        match code {
            404 | 408 => Ok(()),
            503 => Err("JetStream is not there, or the consumer was deleted".to_owned()),
            409 if text.contains("Consumer Deleted") || text.contains("push based") => {
                Err(format!("the server ended the consumer: {text}"))
            }
            409 if text.contains("MaxBytes") => {
                self.asked.alone = !self.asked.any;
                Ok(())
            }
            _ => {
                tracing::debug!(code, text, "the server ended a request for messages; it is repeated");
                self.ask_after = Instant::now() + AFTER_REFUSAL;
                Ok(())
            }
        }
    }

    /// Asks for as many messages as there is room for, in large lots.
    async fn ask(&mut self) -> Result<(), String> {
        let (held, bytes) = self.held.size();
        self.calmly &= held > 0;
        let room = self.limits.prefetch.saturating_sub(held + self.asked.left);
        let worth_it = room >= self.limits.prefetch.div_ceil(2) || (self.asked.left == 0 && room > 0);
        let full = bytes >= self.limits.prefetch_bytes;
        if self.calmly || !worth_it || full || Instant::now() < self.ask_after {
            return Ok(());
        }
        let batch = if self.asked.alone { 1 } else { room.min(self.limits.batch) };
        let mut request = json!({ "batch": batch, "expires": nanos(self.limits.ask_for) });
        if self.limits.ask_for >= HEARTBEAT * 2 {
            request["idle_heartbeat"] = json!(nanos(HEARTBEAT));
        }
        if !self.asked.alone {
            // Room for any one message the server takes, else a large one would never come.
            let one = self.client.max_payload() + BESIDE_PAYLOAD;
            let most = (self.limits.prefetch_bytes - bytes).max(one);
            request["max_bytes"] = json!(self.limits.max_bytes.map_or(most, |allowed| most.min(allowed)));
        }
        self.asked.last += 1;
        let reply = format!("{}.{}", self.inbox, self.asked.last);
        if self.asked.open.is_empty() {
            self.heard_at = Instant::now();
        }
        self.asked.open.push((self.asked.last, batch));
        self.asked.left += batch;
        self.asked.any = false;
        self.asked.alone = false;
        let asked =
            self.client.publish_with_reply(self.ask_at.clone(), reply, request.to_string().into()).await;
        asked.map_err(|error| format!("NATS could not be asked for messages: {error}"))
    }

    /// Tells the server about messages that take long, and checks that it is still there.
    async fn mark(&mut self) -> Result<(), String> {
        for reply in self.held.to_mark(self.limits.ack_wait / 3) {
            let marked = self.client.publish(reply, IN_PROGRESS).await;
            marked.map_err(|error| format!("messages could not be marked as in progress: {error}"))?;
        }
        let silent = self.heard_at.elapsed();
        if !self.asked.open.is_empty() && silent > self.limits.ask_for.min(HEARTBEAT) * 3 {
            return Err(format!("NATS has said nothing for {silent:?}"));
        }
        Ok(())
    }
}

/// The place of the message in its stream, from the subject for acknowledgements.
pub(crate) fn stream_sequence(reply: &str) -> Option<u64> {
    // $JS.ACK.stream.consumer.deliveries.SEQUENCE.… or, newer, $JS.ACK.domain.account.stream.consumer.deliveries.SEQUENCE.…
    let place = match reply.split('.').count() {
        9 => 5,
        11.. => 7,
        _ => return None,
    };
    reply.split('.').nth(place)?.parse().ok()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_found_in_old_and_new_subjects() {
        assert_eq!(stream_sequence("$JS.ACK.S.c.1.42.7.1700000000000000000.3"), Some(42));
        assert_eq!(stream_sequence("$JS.ACK._.hash.S.c.1.42.7.1700000000000000000.3.random"), Some(42));
        assert_eq!(stream_sequence("_INBOX.x"), None);
    }

    #[test]
    fn what_may_still_come_is_known_however_requests_end() {
        let asked = |open: &[(u64, usize)]| Asked {
            open: open.to_vec(),
            left: open.iter().map(|(_, batch)| batch).sum(),
            ..Asked::default()
        };
        let mut one = asked(&[(1, 10)]);
        (0..4).for_each(|_| one.came());
        one.ended(1, Some(6));
        assert_eq!((one.left, one.open.len()), (0, 0));
        let mut two = asked(&[(1, 10), (2, 5)]);
        (0..10).for_each(|_| two.came());
        two.ended(2, Some(5));
        assert_eq!((two.left, two.open.len()), (0, 0), "the first was used up without a word");
        let mut two = asked(&[(1, 10), (2, 5)]);
        two.ended(1, None);
        assert_eq!((two.left, two.open.len()), (5, 1));
    }
}
