//! The plain client, as somebody without Oncebox would use it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncebox_core::mapping::{Delivered, ID_HEADER, KEY_HEADER, KIND_HEADER};
use oncebox_core::{Headers, Message};
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::{
    AckMode, AsyncClient, Event, EventLoop, MqttOptions, Packet, Publish, PublishNotice, PublishOptions, QoS,
};
use tokio::task::JoinHandle;

const PAUSE: Duration = Duration::from_millis(50);

/// Options that the tests have in common.
pub(crate) fn options(id: &str, port: u16) -> MqttOptions {
    let mut options = MqttOptions::new(id, ("127.0.0.1", port));
    options.set_keep_alive(30).set_unlimited_incoming_packet_size().set_max_request_batch(256);
    options
}

/// A connection that publishes; it ends with its owner.
pub(crate) struct Plain {
    client: AsyncClient,
    task: JoinHandle<()>,
}

impl Plain {
    pub(crate) fn connect(options: MqttOptions) -> Self {
        let (client, mut events) = AsyncClient::builder(options).unbounded().build();
        let task = tokio::spawn(async move { while events.poll().await.is_ok() {} });
        Self { client, task }
    }

    /// Publishes in order and answers whether all were confirmed before the connection broke.
    pub(crate) async fn publish(
        &mut self,
        packets: &[(String, Delivered)],
        options: &PublishOptions,
    ) -> bool {
        let publish = |(topic, delivered): &(String, Delivered)| {
            let options = options.clone().properties(properties(delivered));
            self.client.try_publish_tracked(topic.clone(), delivered.payload.clone(), options)
        };
        let Ok(notices) = packets.iter().map(publish).collect::<Result<Vec<PublishNotice>, _>>() else {
            return false;
        };
        for notice in notices {
            tokio::select! {
                confirmed = notice.wait_async() => if confirmed.is_err() { return false },
                _ = &mut self.task => return false,
            }
        }
        true
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Makes a session with a subscription and leaves it at the server, as the first start of a source does.
pub(crate) async fn leave_session(id: &str, port: u16, filter: &str, qos: QoS) {
    let mut options = options(id, port);
    options.set_clean_start(false).set_session_expiry_interval(Some(3600)).set_ack_mode(AckMode::Manual);
    let (client, mut events) = AsyncClient::builder(options).unbounded().build();
    client.try_subscribe(filter, qos).unwrap();
    while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    client.try_disconnect().unwrap();
    while events.poll().await.is_ok() {}
}

/// A subscriber that remembers everything it gets, also across restarts of the server.
pub(crate) struct Observer {
    got: Arc<Mutex<Vec<Publish>>>,
    task: JoinHandle<()>,
}

impl Observer {
    /// What comes has this QoS at most.
    pub(crate) async fn subscribe(id: &str, port: u16, filter: &str, qos: QoS) -> Self {
        let mut options = options(id, port);
        options.set_clean_start(false).set_session_expiry_interval(Some(3600));
        let (client, mut events) = AsyncClient::builder(options).unbounded().build();
        client.try_subscribe(filter, qos).unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
        let got = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(observe(client, events, (filter.to_owned(), qos), got.clone()));
        Self { got, task }
    }

    pub(crate) fn got(&self) -> Vec<Publish> {
        self.got.lock().unwrap().clone()
    }
}

async fn observe(
    client: AsyncClient,
    mut events: EventLoop,
    (filter, qos): (String, QoS),
    got: Arc<Mutex<Vec<Publish>>>,
) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::Publish(publish))) => got.lock().unwrap().push(publish),
            Ok(Event::Incoming(Packet::ConnAck(answer))) if !answer.session_present => {
                client.try_subscribe(filter.as_str(), qos).unwrap();
            }
            Ok(_) => {}
            // It connects again at the next poll.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a text may be in a user property.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| !text.contains(char::is_control))
}

fn properties(delivered: &Delivered) -> PublishProperties {
    let pair = |(name, value): (&str, &bytes::Bytes)| match text(value) {
        Some(text) => (name.to_owned(), text.to_owned()),
        None => (format!("{name};base64"), STANDARD.encode(value)),
    };
    let own = |wanted: &str| {
        let found = delivered.properties.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| String::from_utf8(value.to_vec()).unwrap())
    };
    PublishProperties {
        user_properties: delivered.headers.iter().map(pair).collect(),
        content_type: own("content-type"),
        response_topic: own("response-topic"),
        correlation_data: own("correlation-data").map(bytes::Bytes::from),
        ..PublishProperties::default()
    }
}

/// A message in the layout of the default mapping.
pub(crate) fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
    let mut headers = Headers::new();
    if let Some(id) = id {
        headers.push(ID_HEADER, id.to_vec());
    }
    headers.push(KIND_HEADER, message.kind.clone());
    if let Some(key) = &message.key {
        headers.push(KEY_HEADER, key.clone());
    }
    for (name, value) in message.headers.iter() {
        headers.push(name, value.clone());
    }
    Delivered { headers, payload: message.payload.clone(), ..Delivered::default() }
}

/// What a plain subscriber makes of a packet.
pub(crate) fn message_of(publish: &Publish) -> Message {
    let mut headers = Headers::new();
    for (name, value) in &publish.properties.clone().unwrap_or_default().user_properties {
        headers.push(name.clone(), value.clone());
    }
    let own = |name: &str| headers.text(name).map(str::to_owned);
    let (id, kind) = (own(ID_HEADER).unwrap_or_default(), own(KIND_HEADER).unwrap_or_default());
    let mut message = Message::with_id(id, kind, publish.payload.clone());
    message.key = own(KEY_HEADER);
    message.headers = headers;
    message
}
