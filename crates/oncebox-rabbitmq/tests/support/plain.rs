//! The plain client, for what tests do behind the back of sources and sinks.

use std::collections::BTreeMap;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Queue};
use oncebox_core::mapping::Delivered;

/// A connection and a channel of the plain client.
pub struct Plain {
    pub channel: Channel,
    // Closed when dropped.
    _connection: Connection,
}

impl Plain {
    pub async fn connect(url: &str) -> lapin::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, _connection: connection })
    }

    /// Creates a durable queue with these settings of its own.
    pub async fn create_queue(&self, queue: &str, arguments: &[(&str, AMQPValue)]) {
        let pairs = arguments.iter().map(|(name, value)| (ShortString::from(*name), value.clone()));
        let arguments = FieldTable::from(pairs.collect::<BTreeMap<_, _>>());
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, arguments).await.unwrap();
    }

    /// Binds a queue for a routing key.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let options = QueueBindOptions::default();
        let bind = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            options,
            FieldTable::default(),
        );
        bind.await.unwrap();
    }

    /// How many messages are ready in a queue.
    pub async fn ready(&self, queue: &str) -> u32 {
        self.find(queue).await.message_count()
    }

    /// How many take messages from a queue.
    pub async fn users(&self, queue: &str) -> u32 {
        self.find(queue).await.consumer_count()
    }

    async fn find(&self, queue: &str) -> Queue {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap()
    }

    /// Sends one message as it is, and returns when it is confirmed.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        payload: &[u8],
    ) -> lapin::Result<()> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let properties = properties.with_delivery_mode(2);
        let publish =
            self.channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties);
        let confirmation = publish.await?.await?;
        assert!(confirmation.is_ack(), "{confirmation:?}");
        assert!(confirmation.take_message().is_none(), "no queue took it");
        Ok(())
    }

    /// Takes the next message out of a queue, if there is one.
    pub async fn take(&self, queue: &str) -> lapin::Result<Option<lapin::message::Delivery>> {
        let message = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?;
        Ok(message.map(|message| message.delivery))
    }
}

/// The properties and headers of a delivery, as text and bytes.
pub fn properties(delivered: &Delivered) -> BasicProperties {
    let mut table: BTreeMap<ShortString, Vec<AMQPValue>> = BTreeMap::new();
    for (name, value) in delivered.headers.iter() {
        let value = AMQPValue::LongString(LongString::from(&value[..]));
        table.entry(name.into()).or_default().push(value);
    }
    let headers = table.into_iter().map(|(name, mut values)| match values.len() {
        1 => (name, values.remove(0)),
        _ => (name, AMQPValue::FieldArray(values.into())),
    });
    let mut properties = BasicProperties::default();
    for (name, value) in &delivered.properties {
        let text = ShortString::from(std::str::from_utf8(value).unwrap());
        properties = match *name {
            "message-id" => properties.with_message_id(text),
            "type" => properties.with_type(text),
            other => panic!("the suite sets no property `{other}`"),
        };
    }
    properties.with_headers(FieldTable::from(headers.collect::<BTreeMap<_, _>>()))
}
