//! NATS JetStream with its own client.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use oncebox::Message;
use oncebox::mapping::KIND_HEADER;
use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig};

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

pub(crate) struct Nats {
    url: String,
    context: Context,
}

impl Broker for Nats {
    const NAME: &'static str = "nats";

    type Source = NatsSource;
    type Sink = NatsSink;

    async fn open(url: &str) -> Result<Self, String> {
        let failed = |error: String| format!("NATS cannot be reached at {}: {error}", place_in(url));
        let client = async_nats::connect(url).await.map_err(|error| failed(text(error)))?;
        let context = jetstream::new(client);
        // A server without JetStream says so here.
        context.query_account().await.map_err(|error| failed(text(error)))?;
        Ok(Self { url: url.to_owned(), context })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let config = stream::Config {
            name: queue.to_owned(),
            subjects: vec![queue.to_owned()],
            storage: stream::StorageType::File,
            ..stream::Config::default()
        };
        self.context.create_stream(config).await.map_err(text)?;
        Ok(())
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        self.context.delete_stream(queue).await.map_err(text)?;
        Ok(())
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let mut confirms = Vec::with_capacity(batch.len());
        for message in batch {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", message.id.as_str());
            headers.insert(KIND_HEADER, message.kind.as_str());
            let payload = message.payload.clone();
            let sent = self.context.publish_with_headers(queue.to_owned(), headers, payload);
            confirms.push(sent.await.map_err(text)?);
        }
        try_join_all(confirms.into_iter().map(IntoFuture::into_future)).await.map_err(text)?;
        Ok(())
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let defaults = NatsSourceConfig::default();
        let config = pull::Config {
            durable_name: Some("client".to_owned()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: i64::try_from(defaults.prefetch * 4).map_err(text)?,
            ..pull::Config::default()
        };
        let consumer = self.context.create_consumer_on_stream(config, queue).await.map_err(text)?;
        let stream = consumer.stream().max_messages_per_batch(defaults.prefetch);
        let mut messages = stream.messages().await.map_err(text)?;
        let mut first_at = None;
        for _ in 0..count {
            let message = messages.next().await.ok_or("the server sends no more messages")?.map_err(text)?;
            first_at.get_or_insert_with(Instant::now);
            message.ack().await.map_err(text)?;
        }
        self.context.client().flush().await.map_err(text)?;
        Ok(first_at.map(|at| at.elapsed()).unwrap_or_default())
    }

    fn source(&self, queue: &str) -> Result<NatsSource, String> {
        let config = NatsSourceConfig::new(&self.url, queue, "oncebox").create([queue]);
        NatsSource::new(queue, config).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<NatsSink, String> {
        NatsSink::new(NatsSinkConfig::new(&self.url).subject(queue)).map_err(text)
    }
}
