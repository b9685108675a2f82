//! Messages to topics.

use std::time::Duration;

use oncebox_core::{Error, Message, SendFailure, Sink};
use rumqttc::mqttbytes::v5::{ConnAck, PubAckReason, PubCompReason, PubRecReason};
use rumqttc::{
    AsyncClient, Event, Packet, Publish, PublishNotice, PublishNoticeError, PublishOptions, PublishResult,
    QoS,
};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::config::MqttSinkConfig;
use crate::delivery;
use crate::lot::{Answer, Lot};
use crate::server::Server;

/// Publishes with QoS 1 or 2 and takes a message as sent when the server has confirmed it; with QoS 2 that is the last
/// of its two confirmations.
///
/// As many messages are on their way at once as the server allows, but never two of one key. When the connection
/// breaks, what is not confirmed is sent again, one by one, so that a message which the server does not survive is
/// found. It connects when it is first used, and again after a failure.
#[derive(Debug)]
pub struct MqttSink {
    config: MqttSinkConfig,
    qos: QoS,
    server: Server,
    /// Calls take turns. The connection is taken out while it is used: a call that is given up closes it, and the next
    /// one begins anew.
    link: Mutex<Option<Link>>,
}

/// A connection and the task that serves it.
#[derive(Debug)]
pub(crate) struct Link {
    client: AsyncClient,
    /// The largest packet that the server takes.
    most_bytes: Option<u32>,
    task: JoinHandle<Error>,
    ended: Option<String>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    pub(crate) fn is_alive(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits until the connection is over, and says why.
    pub(crate) async fn ended(&mut self) -> String {
        if self.ended.is_none() {
            self.ended = Some(match (&mut self.task).await {
                Ok(error) => error.to_string(),
                Err(panic) => format!("the connection's task failed: {panic}"),
            });
        }
        self.ended.clone().unwrap_or_default()
    }
}

impl MqttSink {
    /// A sink with these settings. Fails on settings that cannot work. Connects later.
    pub fn new(config: MqttSinkConfig) -> Result<Self, Error> {
        let server = config.check()?;
        let qos = config.quality()?;
        Ok(Self { config, qos, server, link: Mutex::new(None) })
    }

    /// Whether the server takes messages as we send them.
    fn check_qos(&self, answer: &ConnAck) -> Result<(), Error> {
        let most = answer.properties.as_ref().and_then(|limits| limits.max_qos);
        match most.filter(|most| *most < self.config.qos) {
            Some(most) => {
                let text = format!("it takes messages with QoS {most} at most; set `qos` lower if that is 1");
                Err(self.server.error(&text))
            }
            None => Ok(()),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Link, Error> {
        let mut options = self.server.options(&self.config.client_id)?;
        options.set_clean_start(true);
        // Unbounded: what waits in it is bounded by the lot we were given.
        let (client, mut events) = AsyncClient::builder(options).unbounded().build();
        let answer = loop {
            let event = events.poll().await.map_err(|error| self.server.broken(error))?;
            if let Event::Incoming(Packet::ConnAck(answer)) = event {
                break answer;
            }
        };
        self.check_qos(&answer)?;
        let most_bytes = answer.properties.as_ref().and_then(|limits| limits.max_packet_size);
        let server = self.server.clone();
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = events.poll().await {
                    return server.broken(error);
                }
            }
        });
        Ok(Link { client, most_bytes, task, ended: None })
    }

    /// Puts a message on its way. Fails with its answer when it can never be sent, and with none when the connection is
    /// gone.
    pub(crate) fn publish(&self, link: &Link, message: &Message) -> Result<PublishNotice, Option<Answer>> {
        let never = |why| Some(Err(SendFailure::Permanent(why)));
        let topic = delivery::topic(&self.config.topic, message).map_err(never)?;
        let mut properties = delivery::properties(message).map_err(never)?;
        let expiry = self.config.message_expiry.map(|length| length.max(Duration::from_secs(1)).as_secs());
        properties.message_expiry_interval = expiry.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
        if let Some(most) = link.most_bytes {
            let payload = message.payload.clone();
            let packet = Publish::new(topic.as_str(), self.qos, payload, Some(properties.clone()));
            // The packet id of two bytes is not in it yet.
            let bytes = packet.size() + 2;
            if bytes > most as usize {
                return Err(never(format!(
                    "it needs {bytes} bytes and the MQTT server takes packets up to {most}"
                )));
            }
        }
        let options = PublishOptions::new(self.qos).retain(self.config.retain).properties(properties);
        let sent = link.client.try_publish_tracked(topic, message.payload.clone(), options);
        sent.map_err(|_| None)
    }

    /// What became of a message; `None` when the connection broke, so that nobody knows.
    pub(crate) fn answer(&self, result: Result<PublishResult, PublishNoticeError>) -> Option<Answer> {
        match result {
            Ok(PublishResult::Qos1(ack)) => {
                let told = ack.properties.and_then(|properties| properties.reason_string);
                Some(self.judge(ack.reason, told))
            }
            Ok(PublishResult::Qos2PubRecRejected(refusal)) => {
                let told = refusal.properties.and_then(|properties| properties.reason_string);
                Some(self.judge(same_reason(refusal.reason), told))
            }
            Ok(PublishResult::Qos2Completed(end)) if end.reason == PubCompReason::Success => Some(Ok(())),
            // Sent again it may come twice; taken as sent it may never come.
            Ok(PublishResult::Qos2Completed(_)) => Some(Err(SendFailure::Retry(
                "the MQTT server does not know of it any more at the end of QoS 2".to_owned(),
            ))),
            Err(PublishNoticeError::RetainNotSupported) => Some(Err(SendFailure::Permanent(
                "the MQTT server keeps no messages for later subscribers; set `retain` to false".to_owned(),
            ))),
            Ok(_) | Err(_) => None,
        }
    }

    fn judge(&self, reason: PubAckReason, told: Option<String>) -> Answer {
        let why = |text: &str| match &told {
            Some(told) => format!("{text} ({told})"),
            None => text.to_owned(),
        };
        match reason {
            PubAckReason::Success => Ok(()),
            // A message that is kept for later subscribers is not forgotten.
            PubAckReason::NoMatchingSubscribers if !self.config.require_subscribers || self.config.retain => {
                Ok(())
            }
            PubAckReason::NoMatchingSubscribers => Err(SendFailure::Retry(why(
                "nobody has subscribed to its topic, so the MQTT server forgot it; set `require_subscribers` to false \
                 if that is all right",
            ))),
            PubAckReason::NotAuthorized => Err(SendFailure::Retry(why("we may not publish to its topic"))),
            PubAckReason::QuotaExceeded => {
                Err(SendFailure::Retry(why("a quota of the MQTT server is used up")))
            }
            PubAckReason::TopicNameInvalid => {
                Err(SendFailure::Permanent(why("the MQTT server does not accept its topic")))
            }
            PubAckReason::PayloadFormatInvalid => {
                Err(SendFailure::Permanent(why("the MQTT server does not accept its payload")))
            }
            other => Err(SendFailure::Retry(why(&format!("the MQTT server refused it: {other:?}")))),
        }
    }
}

impl Sink for MqttSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Answer>, Error> {
        let mut turn = self.link.lock().await;
        let link = turn.take().filter(Link::is_alive);
        let mut link = match link {
            Some(link) => link,
            None => self.connect().await?,
        };
        let mut lot = Lot::new(messages);
        lot.send_together(self, &mut link).await;
        *turn = if lot.is_answered() { Some(link) } else { lot.send_singly(self).await? };
        Ok(lot.into_answers())
    }

    fn keeps_order(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        self.check_qos(&self.server.look(&self.config.client_id).await?)?;
        Ok(Some(format!("a server that lets us in; topic `{}` is not looked for", self.config.topic)))
    }
}

/// Both packets have the same reasons; the client has a type for each.
fn same_reason(reason: PubRecReason) -> PubAckReason {
    match reason {
        PubRecReason::Success => PubAckReason::Success,
        PubRecReason::NoMatchingSubscribers => PubAckReason::NoMatchingSubscribers,
        PubRecReason::UnspecifiedError => PubAckReason::UnspecifiedError,
        PubRecReason::ImplementationSpecificError => PubAckReason::ImplementationSpecificError,
        PubRecReason::NotAuthorized => PubAckReason::NotAuthorized,
        PubRecReason::TopicNameInvalid => PubAckReason::TopicNameInvalid,
        PubRecReason::PacketIdentifierInUse => PubAckReason::PacketIdentifierInUse,
        PubRecReason::QuotaExceeded => PubAckReason::QuotaExceeded,
        PubRecReason::PayloadFormatInvalid => PubAckReason::PayloadFormatInvalid,
    }
}
