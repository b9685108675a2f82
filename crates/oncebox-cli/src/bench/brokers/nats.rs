//! NATS JetStream with its own client.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use oncebox::Message;
use oncebox::mapping::KIND_HEADER;
use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig};
use serde_json::{Value, json};

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

const ACCEPT: Bytes = Bytes::from_static(b"+ACK");

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
        let nats = Self { url: url.to_owned(), context: jetstream::new(client) };
        // A server without JetStream says so here.
        nats.ask("INFO", &Value::Null).await.map_err(failed)?;
        Ok(nats)
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let stream = json!({ "name": queue, "subjects": [queue], "storage": "file", "num_replicas": 1 });
        self.ask(&format!("STREAM.CREATE.{queue}"), &stream).await
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        self.ask(&format!("STREAM.DELETE.{queue}"), &Value::Null).await
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
        let prefetch = NatsSourceConfig::default().prefetch;
        let consumer = json!({ "stream_name": queue, "config": {
            "durable_name": "client", "ack_policy": "explicit", "deliver_policy": "all",
            "max_ack_pending": prefetch * 4,
        } });
        self.ask(&format!("CONSUMER.DURABLE.CREATE.{queue}.client"), &consumer).await?;
        let client = self.context.client();
        let inbox = client.new_inbox();
        let mut messages = client.subscribe(inbox.clone()).await.map_err(text)?;
        // Two lots at a time, as the source has them: one arrives while the other is acknowledged.
        self.ask_for(prefetch / 2, queue, &inbox).await?;
        self.ask_for(prefetch / 2, queue, &inbox).await?;
        let (mut first_at, mut taken) = (None, 0);
        while taken < count {
            let message = messages.next().await.ok_or("the server sends no more messages")?;
            let Some(reply) = message.reply.filter(|_| message.status.is_none()) else { continue };
            first_at.get_or_insert_with(Instant::now);
            client.publish(reply, ACCEPT).await.map_err(text)?;
            taken += 1;
            if taken % (prefetch / 2) == 0 {
                self.ask_for(prefetch / 2, queue, &inbox).await?;
            }
        }
        client.flush().await.map_err(text)?;
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

impl Nats {
    /// One request to JetStream itself, as plain JSON: the client's own types want a newer server.
    async fn ask(&self, what: &str, request: &Value) -> Result<(), String> {
        let payload = if request.is_null() { Bytes::new() } else { request.to_string().into() };
        let answer = self.context.client().request(format!("$JS.API.{what}"), payload).await.map_err(text)?;
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(text)?;
        match answer["error"]["description"].as_str() {
            None => Ok(()),
            Some(error) => Err(format!("JetStream refuses {what}: {error}")),
        }
    }

    /// Has so many messages sent to this subject, now or when they come.
    async fn ask_for(&self, batch: usize, queue: &str, to: &str) -> Result<(), String> {
        let request = json!({ "batch": batch, "expires": 30_000_000_000_u64 }).to_string();
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{queue}.client");
        let client = self.context.client();
        client.publish_with_reply(next, to.to_owned(), request.into()).await.map_err(text)
    }
}
