//! RabbitMQ with its own client.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use oncebox::Message;
use oncebox_rabbitmq::{RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig, RoutingKey};

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

/// Written to disk before it is confirmed.
const PERSISTENT: u8 = 2;
/// The most that the source hands over at once and acknowledges with one frame.
const AT_ONCE: usize = 1000;

pub(crate) struct Rabbitmq {
    url: String,
    connection: Connection,
    channel: Channel,
}

impl Broker for Rabbitmq {
    const NAME: &'static str = "rabbitmq";

    type Source = RabbitmqSource;
    type Sink = RabbitmqSink;

    async fn open(url: &str) -> Result<Self, String> {
        let failed = |error| format!("RabbitMQ cannot be reached at {}: {error}", place_in(url));
        let connection = Connection::connect(url, ConnectionProperties::default()).await.map_err(failed)?;
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(Self { url: url.to_owned(), connection, channel })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.map_err(text)?;
        Ok(())
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.map_err(text)?;
        Ok(())
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let publish = |message: &Message| {
            let properties = BasicProperties::default()
                .with_delivery_mode(PERSISTENT)
                .with_message_id(message.id.as_str().into())
                .with_type(message.kind.as_str().into());
            let (channel, payload) = (&self.channel, message.payload.clone());
            async move {
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                channel.basic_publish("".into(), queue.into(), options, &payload, properties).await
            }
        };
        for confirm in try_join_all(batch.iter().map(publish)).await.map_err(text)? {
            match confirm.await.map_err(text)? {
                Confirmation::Ack(None) => {}
                other => return Err(format!("the server did not take a message: {other:?}")),
            }
        }
        Ok(())
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let channel = self.connection.create_channel().await.map_err(text)?;
        let prefetch = RabbitmqSourceConfig::default().prefetch;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(text)?;
        let options = BasicConsumeOptions::default();
        let consuming = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let mut deliveries = consuming.await.map_err(text)?;
        let (mut first_at, mut taken) = (None, 0);
        while taken < count {
            let first = deliveries.next().await.ok_or("the server sends no more messages")?.map_err(text)?;
            first_at.get_or_insert_with(Instant::now);
            let (mut last, mut lot) = (first.delivery_tag, 1);
            while lot < AT_ONCE {
                let Some(Some(delivery)) = deliveries.next().now_or_never() else { break };
                last = delivery.map_err(text)?.delivery_tag;
                lot += 1;
            }
            channel.basic_ack(last, BasicAckOptions { multiple: true }).await.map_err(text)?;
            taken += lot;
        }
        let took = first_at.map(|at| at.elapsed()).unwrap_or_default();
        let tag = deliveries.tag();
        channel.basic_cancel(tag, BasicCancelOptions::default()).await.map_err(text)?;
        channel.close(200, "done".into()).await.map_err(text)?;
        Ok(took)
    }

    fn source(&self, queue: &str) -> Result<RabbitmqSource, String> {
        RabbitmqSource::new(queue, RabbitmqSourceConfig::new(&self.url, queue)).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<RabbitmqSink, String> {
        let config = RabbitmqSinkConfig::new(&self.url).routing_key(RoutingKey::Text(queue.to_owned()));
        RabbitmqSink::new(config).map_err(text)
    }
}
