//! The plain client, for what tests do behind the back of sources and sinks.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Info, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use futures_util::TryStreamExt;

/// A connection of the plain client, with JetStream.
#[derive(Debug, Clone)]
pub struct Plain {
    pub jetstream: Context,
}

impl Plain {
    pub async fn connect(url: &str) -> Self {
        Self::connect_with(url, ConnectOptions::new()).await
    }

    pub async fn connect_with(url: &str, options: ConnectOptions) -> Self {
        let client = options.connect(url).await.unwrap();
        Self { jetstream: jetstream::new(client) }
    }

    pub async fn create_stream(&self, name: &str, subjects: &str, retention: RetentionPolicy) {
        self.create_stream_with(name, subjects, Config { retention, ..Config::default() }).await;
    }

    /// Creates a stream with these settings.
    pub async fn create_stream_with(&self, name: &str, subjects: &str, settings: Config) {
        let config = Config { name: name.to_owned(), subjects: vec![subjects.to_owned()], ..settings };
        self.jetstream.create_stream(config).await.unwrap();
    }

    pub async fn create_consumer(&self, stream: &str, config: pull::Config) {
        self.jetstream.create_consumer_on_stream(config, stream).await.unwrap();
    }

    /// Publishes, and returns when a stream has stored it.
    pub async fn publish(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: bytes::Bytes,
    ) -> Result<(), async_nats::Error> {
        self.jetstream.publish_with_headers(subject, headers, payload).await?.await?;
        Ok(())
    }

    pub async fn consumer(&self, stream: &str, consumer: &str) -> Result<Info, async_nats::Error> {
        let stream = self.jetstream.get_stream(stream).await?;
        Ok(stream.consumer_info(consumer).await?)
    }

    /// Everything a stream holds, oldest first.
    pub async fn messages(&self, stream: &str) -> Result<Vec<jetstream::Message>, async_nats::Error> {
        let stream = self.jetstream.get_stream(stream).await?;
        let count = stream.cached_info().state.messages;
        if count == 0 {
            return Ok(Vec::new());
        }
        let config = pull::Config {
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(30),
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let most = usize::try_from(count)?;
        let messages = consumer.fetch().max_messages(most).messages().await?;
        messages.try_collect().await
    }
}
