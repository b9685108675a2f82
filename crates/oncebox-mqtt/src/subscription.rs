//! One connection of a source: it connects, subscribes, hands over what comes and writes acknowledgements.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox_core::Error;
use rumqttc::mqttbytes::v5::{ConnAck, RetainForwardRule, SubAck, SubscribeReasonCode};
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, Event, EventLoop, MqttOptions, Outgoing, Packet,
    PersistedAckMode, PersistedSession, Publish, SessionStore, SessionStoreError, SessionStoreKey,
    SubscribeFilterInput,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::config::MqttSourceConfig;
use crate::server::{Server, is_taken_over};

/// How long a connection that is not needed any more is kept at most, twice.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// What the connection hands to the source.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of them are messages")]
pub(crate) enum Arrived {
    /// Once, before any message: whether the server has kept our session.
    Session {
        resumed: bool,
    },
    Message(Publish),
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) error: Error,
    /// Another connection has our client id now.
    pub(crate) taken_over: bool,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self { error, taken_over: false }
    }
}

pub(crate) struct Subscription {
    config: Arc<MqttSourceConfig>,
    server: Server,
    client: AsyncClient,
    events: EventLoop,
    arrivals: mpsc::Sender<Arrived>,
    /// How many acknowledgements were written.
    written: watch::Sender<u64>,
    /// Set once the server has confirmed the subscription.
    subscribed: Arc<AtomicBool>,
}

impl Subscription {
    pub(crate) fn new(
        config: Arc<MqttSourceConfig>,
        server: Server,
        arrivals: mpsc::Sender<Arrived>,
        written: watch::Sender<u64>,
        subscribed: Arc<AtomicBool>,
    ) -> Result<(Self, AsyncClient), Error> {
        let options = options(&config, &server)?;
        // Unbounded: what waits in it is bounded by `prefetch`, and settling must not wait for room.
        let (client, events) = AsyncClient::builder(options).unbounded().build();
        Ok((Self { config, server, client: client.clone(), events, arrivals, written, subscribed }, client))
    }

    /// Serves the connection until it breaks or the source is gone.
    pub(crate) async fn serve(mut self, pause: Duration) -> Ended {
        let arrivals = self.arrivals.clone();
        let connection = async {
            tokio::time::sleep(pause).await;
            match self.subscribe().await {
                Ok(()) => {
                    self.subscribed.store(true, Ordering::Relaxed);
                    self.deliver().await
                }
                Err(ended) => ended,
            }
        };
        tokio::select! {
            ended = connection => return ended,
            () = arrivals.closed() => {}
        }
        self.leave().await
    }

    /// Says goodbye, and stays for a moment: the server throws away what it has not read of a connection that is gone,
    /// acknowledgements too.
    async fn leave(&mut self) -> Ended {
        // Does not connect to say it when there is no connection yet.
        if self.client.try_disconnect_now().is_ok() {
            let goodbye = async { while self.poll().await.is_ok() {} };
            let _ = tokio::time::timeout(LEAVE_WITHIN, goodbye).await;
            tokio::time::sleep(LEAVE_WITHIN).await;
        }
        self.server.error("the source is gone").into()
    }

    async fn subscribe(&mut self) -> Result<(), Ended> {
        let deadline = Instant::now() + 2 * self.server.connect_timeout();
        loop {
            let event = tokio::time::timeout_at(deadline, self.poll()).await;
            match event.map_err(|_| self.server.error("it did not confirm the subscription in time"))?? {
                Event::Incoming(Packet::ConnAck(answer)) => self.connected(&answer).await?,
                Event::Incoming(Packet::SubAck(answer)) => return Ok(self.check(&answer)?),
                other => self.take(other).await?,
            }
        }
    }

    async fn connected(&mut self, answer: &ConnAck) -> Result<(), Ended> {
        // It has served its purpose; from here on it would be written to with every packet.
        self.events.options.clear_session_store();
        let asked = self.config.session_expiry_seconds();
        let given = answer.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
        if let Some(given) = given.filter(|given| *given < asked) {
            tracing::warn!(
                client_id = self.config.client_id,
                given,
                asked,
                "the MQTT server keeps our session for fewer seconds than asked for; what comes later is lost"
            );
        }
        self.hand_over(Arrived::Session { resumed: answer.session_present }).await?;
        let qos = self.config.quality()?;
        // Kept messages come with a new subscription only; we subscribe on each connection.
        let filter = |filter: &String| {
            SubscribeFilterInput::new(filter, qos).retain_forward_rule(RetainForwardRule::OnNewSubscribe)
        };
        let filters: Vec<_> = self.config.topic.iter().map(filter).collect();
        self.client
            .try_subscribe_many(filters)
            .map_err(|error| self.server.error(&format!("cannot subscribe: {error}")).into())
    }

    fn check(&self, answer: &SubAck) -> Result<(), Error> {
        for (filter, code) in self.config.topic.iter().zip(&answer.return_codes) {
            match code {
                SubscribeReasonCode::Success(granted) if (*granted as u8) < self.config.qos => {
                    return Err(self.server.error(&format!(
                        "it grants topic `{filter}` with QoS {} only; set `qos` lower if 1 or more is granted",
                        *granted as u8
                    )));
                }
                SubscribeReasonCode::Success(_) => {}
                SubscribeReasonCode::NotAuthorized => {
                    return Err(self.server.error(&format!("we may not subscribe to topic `{filter}`")));
                }
                other => {
                    return Err(self.server.error(&format!("it refuses topic `{filter}`: {other:?}")));
                }
            }
        }
        Ok(())
    }

    async fn deliver(&mut self) -> Ended {
        loop {
            let taken = match self.poll().await {
                Ok(event) => self.take(event).await,
                Err(ended) => return ended,
            };
            if let Err(ended) = taken {
                return ended;
            }
        }
    }

    async fn poll(&mut self) -> Result<Event, Ended> {
        self.events.poll().await.map_err(|error| {
            let taken_over = is_taken_over(&error);
            Ended { error: self.server.broken(error), taken_over }
        })
    }

    async fn take(&mut self, event: Event) -> Result<(), Ended> {
        match event {
            Event::Incoming(Packet::Publish(publish)) => self.hand_over(Arrived::Message(publish)).await,
            Event::Outgoing(Outgoing::PubAck(_) | Outgoing::PubRec(_)) => {
                self.written.send_modify(|written| *written += 1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits for room only when the server floods us with QoS 0: of all else at most `prefetch` is on its way.
    async fn hand_over(&self, arrived: Arrived) -> Result<(), Ended> {
        let sent = self.arrivals.send(arrived).await;
        sent.map_err(|_| self.server.error("the source is gone").into())
    }
}

fn options(config: &MqttSourceConfig, server: &Server) -> Result<MqttOptions, Error> {
    let mut options = server.options(&config.client_id)?;
    options
        .set_clean_start(false)
        .set_ack_mode(AckMode::Manual)
        .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
        .set_session_expiry_interval(Some(config.session_expiry_seconds()))
        .set_receive_maximum(Some(config.prefetch))
        .set_session_store(NothingInFlight)
        // The limit is 10 kB otherwise. Telling the server a limit would make it drop what is larger. After the
        // others, because setting them takes it back.
        .set_unlimited_incoming_packet_size();
    Ok(options)
}

/// Tells the client that nothing of ours is in flight, which is so: a source publishes nothing.
///
/// Without it the client takes a session that only the server remembers for one in which packet ids of ours may still
/// be in use, and then lets us not subscribe.
#[derive(Debug)]
struct NothingInFlight;

type SessionStoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for NothingInFlight {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> SessionStoreFuture<'a, Option<PersistedSession>> {
        let session = PersistedSession {
            format_version: 1,
            client_id: key.client_id().to_owned(),
            clean_start: false,
            session_expiry_interval: None,
            outgoing_inflight_upper_limit: None,
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        };
        Box::pin(async { Ok(Some(session)) })
    }

    fn save<'a>(
        &'a self,
        _key: &'a SessionStoreKey,
        _session: &'a PersistedSession,
    ) -> SessionStoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn clear<'a>(&'a self, _key: &'a SessionStoreKey) -> SessionStoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_told_how_long_to_keep_the_session_and_how_much_to_send_ahead() {
        let config = MqttSourceConfig::new("mqtt://localhost", "c")
            .topic("t")
            .session_expiry(Duration::from_secs(77))
            .prefetch(7)
            .keep_alive(Duration::from_secs(9));
        let options = options(&config, &config.check().unwrap()).unwrap();
        assert_eq!((options.session_expiry_interval(), options.receive_maximum()), (Some(77), Some(7)));
        assert_eq!(options.keep_alive(), Duration::from_secs(9));
        let forever = MqttSourceConfig { session_expiry: Duration::from_secs(1 << 40), ..config };
        assert_eq!(forever.session_expiry_seconds(), u32::MAX);
    }
}
