//! MQTT 5 with its own client.
//!
//! A server keeps messages for sessions only, so a queue is a topic together with a session that has subscribed to it,
//! both of the queue's name.

use std::time::{Duration, Instant};

use oncebox::Message;
use oncebox::mapping::{ID_HEADER, KIND_HEADER};
use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig};
use percent_encoding::percent_decode_str;
use rumqttc::mqttbytes::v5::{PubAckReason, PublishProperties};
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, Event, EventLoop, MqttOptions, Outgoing, Packet,
    PublishOptions, PublishResult, QoS, Transport,
};
use tokio::task::JoinHandle;
use url::Url;

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

/// How long a session outlives a bench that was killed, in seconds.
const SESSION: u32 = 3600;
/// How long the next event may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Mqtt {
    url: String,
    address: Url,
    client: AsyncClient,
    task: JoinHandle<()>,
}

impl Broker for Mqtt {
    const NAME: &'static str = "mqtt";

    type Source = MqttSource;
    type Sink = MqttSink;

    async fn open(url: &str) -> Result<Self, String> {
        let failed = |error: String| format!("MQTT server cannot be reached at {}: {error}", place_in(url));
        let address = Url::parse(url).map_err(|error| failed(text(error)))?;
        let (client, mut events) = connect(options(&address, "")?);
        expect(&mut events, |event| matches!(event, Event::Incoming(Packet::ConnAck(_))))
            .await
            .map_err(failed)?;
        let task = tokio::spawn(async move { while events.poll().await.is_ok() {} });
        Ok(Self { url: url.to_owned(), address, client, task })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let (client, mut events) = connect(self.session(queue)?);
        client.try_subscribe(queue, QoS::AtLeastOnce).map_err(text)?;
        expect(&mut events, |event| matches!(event, Event::Incoming(Packet::SubAck(_)))).await?;
        leave(&client, &mut events).await
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        // A session that begins anew and is kept for no time takes the old one with it.
        let mut options = options(&self.address, queue)?;
        options.set_clean_start(true).set_session_expiry_interval(Some(0));
        let (client, mut events) = connect(options);
        expect(&mut events, |event| matches!(event, Event::Incoming(Packet::ConnAck(_)))).await?;
        leave(&client, &mut events).await
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let mut notices = Vec::with_capacity(batch.len());
        for message in batch {
            let own = [(ID_HEADER, &message.id), (KIND_HEADER, &message.kind)];
            let user_properties = own.map(|(name, value)| (name.to_owned(), value.clone())).to_vec();
            let properties = PublishProperties { user_properties, ..PublishProperties::default() };
            let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
            let sent = self.client.try_publish_tracked(queue, message.payload.clone(), options);
            notices.push(sent.map_err(text)?);
        }
        for notice in notices {
            match within(notice.wait_async()).await?.map_err(text)? {
                PublishResult::Qos1(answer) if answer.reason == PubAckReason::Success => {}
                other => return Err(format!("the server did not take a message: {other:?}")),
            }
        }
        Ok(())
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let mut options = self.session(queue)?;
        options
            .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
            .set_receive_maximum(Some(MqttSourceConfig::default().prefetch))
            .set_unlimited_incoming_packet_size();
        let (client, mut events) = connect(options);
        let (mut first_at, mut written) = (None, 0);
        while written < count {
            let event = within(events.poll()).await.map_err(|error| {
                format!(
                    "{written} of {count} messages came ({error}); Mosquitto needs `max_queued_messages 0`"
                )
            })?;
            match event.map_err(text)? {
                Event::Incoming(Packet::Publish(publish)) => {
                    first_at.get_or_insert_with(Instant::now);
                    let acknowledgement = client.prepare_ack(&publish).ok_or("a message came with QoS 0")?;
                    client.try_manual_ack(acknowledgement).map_err(text)?;
                }
                Event::Outgoing(Outgoing::PubAck(_)) => written += 1,
                _ => {}
            }
        }
        let took = first_at.map(|at: Instant| at.elapsed()).unwrap_or_default();
        leave(&client, &mut events).await?;
        Ok(took)
    }

    fn source(&self, queue: &str) -> Result<MqttSource, String> {
        MqttSource::new(queue, MqttSourceConfig::new(&self.url, queue).topic(queue)).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<MqttSink, String> {
        MqttSink::new(MqttSinkConfig::new(&self.url).topic(queue)).map_err(text)
    }
}

impl Mqtt {
    /// Options for the session that stands behind a queue.
    fn session(&self, queue: &str) -> Result<MqttOptions, String> {
        let mut options = options(&self.address, queue)?;
        options
            .set_clean_start(false)
            .set_session_expiry_interval(Some(SESSION))
            .set_ack_mode(AckMode::Manual);
        Ok(options)
    }
}

impl Drop for Mqtt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// As the source and the sink set them.
fn options(address: &Url, client_id: &str) -> Result<MqttOptions, String> {
    let encrypted = address.scheme() == "mqtts";
    let host = address.host_str().unwrap_or("localhost");
    let port = address.port().unwrap_or(if encrypted { 8883 } else { 1883 });
    let mut options = MqttOptions::new(client_id, (host.trim_start_matches('[').trim_end_matches(']'), port));
    options.set_keep_alive(30).set_connect_timeout(Duration::from_secs(10)).set_max_request_batch(256);
    let mut network = options.network_options();
    network.set_tcp_nodelay(true);
    options.set_network_options(network);
    if !address.username().is_empty() {
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let password = decoded(address.password().unwrap_or_default());
        options.set_credentials(decoded(address.username()), password.into_bytes());
    }
    if encrypted {
        options.set_transport(Transport::try_tls_with_default_config().map_err(text)?);
    }
    Ok(options)
}

fn connect(options: MqttOptions) -> (AsyncClient, EventLoop) {
    AsyncClient::builder(options).unbounded().build()
}

async fn expect(events: &mut EventLoop, wanted: impl Fn(&Event) -> bool) -> Result<(), String> {
    while !wanted(&within(events.poll()).await?.map_err(text)?) {}
    Ok(())
}

/// Says goodbye, and returns when that is written.
async fn leave(client: &AsyncClient, events: &mut EventLoop) -> Result<(), String> {
    client.try_disconnect().map_err(text)?;
    within(async { while events.poll().await.is_ok() {} }).await
}

async fn within<R>(work: impl Future<Output = R>) -> Result<R, String> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| format!("nothing came for {PATIENCE:?}"))
}
