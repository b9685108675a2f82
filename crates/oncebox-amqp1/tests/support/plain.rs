//! The plain client, as somebody without Oncebox would use it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::messaging::{
    ApplicationProperties, Body, Data, Header, Message as AmqpMessage, MessageId, Outcome, Properties,
    Target, TerminusDurability,
};
use fe2o3_amqp_types::primitives::{Binary, SimpleValue, Value};
use oncebox_core::mapping::Delivered;
use oncebox_core::{Headers, Message};
use tokio::task::JoinHandle;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PAUSE: Duration = Duration::from_millis(50);

/// A connection with a session.
pub(crate) async fn open(port: u16) -> Result<(ConnectionHandle<()>, SessionHandle<()>), Failure> {
    let url = format!("amqp://guest:guest@127.0.0.1:{port}");
    let mut connection = Connection::open("plain", url.as_str()).await?;
    let session = Session::begin(&mut connection).await?;
    Ok((connection, session))
}

/// Makes a durable queue, as RabbitMQ does for who attaches to `/queue/NAME`.
pub(crate) async fn create_queue(port: u16, name: &str) {
    let (_connection, mut session) = open(port).await.unwrap();
    let target = Target::builder()
        .address(format!("/queue/{name}"))
        .durable(TerminusDurability::UnsettledState)
        .build();
    Sender::builder().name("create").target(target).attach(&mut session).await.unwrap();
}

/// Sends in order and returns when all are accepted.
pub(crate) async fn send(
    port: u16,
    address: &str,
    messages: &[AmqpMessage<Body<Value>>],
) -> Result<(), Failure> {
    let (_connection, mut session) = open(port).await?;
    let mut sender = Sender::attach(&mut session, "plain", address).await?;
    let mut outcomes = Vec::new();
    for message in messages {
        outcomes.push(sender.send_batchable(message.clone()).await?);
    }
    for outcome in outcomes {
        match outcome.await? {
            Outcome::Accepted(_) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}

/// A receiver that remembers everything it gets, also across restarts of the server.
pub(crate) struct Observer {
    got: Arc<Mutex<Vec<AmqpMessage<Body<Value>>>>>,
    task: JoinHandle<()>,
}

impl Observer {
    pub(crate) fn start(port: u16, address: String) -> Self {
        let got = Arc::new(Mutex::new(Vec::new()));
        let sees = got.clone();
        let task = tokio::spawn(async move {
            loop {
                let _: Result<(), Failure> = observe(port, &address, &sees).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { got, task }
    }

    pub(crate) fn got(&self) -> Vec<AmqpMessage<Body<Value>>> {
        self.got.lock().unwrap().clone()
    }
}

async fn observe(
    port: u16,
    address: &str,
    got: &Mutex<Vec<AmqpMessage<Body<Value>>>>,
) -> Result<(), Failure> {
    let (_connection, mut session) = open(port).await?;
    let mut receiver = Receiver::attach(&mut session, "observer", address).await?;
    loop {
        let delivery: Delivery<Body<Value>> = receiver.recv().await?;
        receiver.accept(&delivery).await?;
        got.lock().unwrap().push(delivery.into_message());
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A message in the layout of the default mapping.
pub(crate) fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
    let mut properties = vec![("subject", message.kind.clone().into())];
    if let Some(id) = id {
        properties.push(("message-id", id.to_vec().into()));
    }
    if let Some(key) = &message.key {
        properties.push(("group-id", key.clone().into()));
    }
    Delivered {
        properties,
        headers: message.headers.clone(),
        payload: message.payload.clone(),
        ..Delivered::default()
    }
}

/// What a plain sender makes of a delivery.
pub(crate) fn message_for(delivered: &Delivered) -> AmqpMessage<Body<Value>> {
    let own =
        |wanted: &str| delivered.properties.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    let text = |wanted: &str| own(wanted).map(|value| String::from_utf8(value.to_vec()).unwrap());
    let id = own("message-id").map(|id| match std::str::from_utf8(id) {
        Ok(text) => MessageId::String(text.to_owned()),
        Err(_) => MessageId::Binary(Binary::from(id.to_vec())),
    });
    let properties = Properties {
        message_id: id,
        subject: text("subject"),
        group_id: text("group-id"),
        ..Properties::default()
    };
    let mut headers = ApplicationProperties::default();
    for (name, value) in delivered.headers.iter() {
        let value = match std::str::from_utf8(value) {
            Ok(text) => SimpleValue::String(text.to_owned()),
            Err(_) => SimpleValue::Binary(Binary::from(value.to_vec())),
        };
        headers.0.insert(name.to_owned(), value);
    }
    AmqpMessage {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: (!delivered.headers.is_empty()).then_some(headers),
        body: Body::Data(vec![Data(Binary::from(delivered.payload.to_vec()))].into()),
        footer: None,
    }
}

/// The payload of a message with a data section.
pub(crate) fn payload(message: &AmqpMessage<Body<Value>>) -> Vec<u8> {
    match &message.body {
        Body::Data(sections) => sections.iter().flat_map(|section| section.0.to_vec()).collect(),
        _ => Vec::new(),
    }
}

/// What a plain receiver makes of a message.
pub(crate) fn message_of(received: &AmqpMessage<Body<Value>>) -> Message {
    let properties = received.properties.clone().unwrap_or_default();
    let id = match properties.message_id {
        Some(MessageId::String(id)) => id,
        other => panic!("{other:?}"),
    };
    let mut message = Message::with_id(id, properties.subject.unwrap_or_default(), payload(received));
    message.key = properties.group_id;
    message.headers = Headers::new();
    for (name, value) in received.application_properties.clone().map(|own| own.0).unwrap_or_default() {
        let value = match value {
            SimpleValue::String(text) => text.into_bytes(),
            SimpleValue::Binary(bytes) => bytes.into_vec(),
            other => panic!("{other:?}"),
        };
        message.headers.push(name, value);
    }
    message
}
