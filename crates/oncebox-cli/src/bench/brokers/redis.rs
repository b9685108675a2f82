//! Redis Streams with its own client.

use std::time::{Duration, Instant};

use oncebox::Message;
use oncebox_redis::{RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Client};

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

/// The most that the source reads with one command.
const AT_ONCE: usize = 500;
/// How long one answer may take, waiting for the next message included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one read waits for messages.
const BLOCK: Duration = Duration::from_secs(30);

pub(crate) struct Redis {
    url: String,
    connection: MultiplexedConnection,
}

impl Broker for Redis {
    const NAME: &'static str = "redis";

    type Source = RedisSource;
    type Sink = RedisSink;

    async fn open(url: &str) -> Result<Self, String> {
        // Of an error only its kind: the whole of one about an address may contain the address.
        let failed = |error: redis::RedisError| {
            let why = error.detail().unwrap_or_else(|| error.category());
            format!("Redis cannot be reached at {}: {why}", place_in(url))
        };
        let client = Client::open(url).map_err(failed)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Self { url: url.to_owned(), connection: connection.map_err(failed)? })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(queue).arg("client").arg("0").arg("MKSTREAM");
        create.query_async(&mut self.connection.clone()).await.map_err(text)
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        redis::cmd("DEL").arg(queue).exec_async(&mut self.connection.clone()).await.map_err(text)
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for message in batch {
            let add = pipeline.cmd("XADD").arg(queue).arg("*");
            add.arg("id").arg(&message.id).arg("kind").arg(&message.kind);
            add.arg("payload").arg(&message.payload[..]);
        }
        let entries: Vec<String> = pipeline.query_async(&mut self.connection.clone()).await.map_err(text)?;
        match entries.len() == batch.len() {
            true => Ok(()),
            false => Err(format!("Redis has {} of {} messages", entries.len(), batch.len())),
        }
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let mut connection = self.connection.clone();
        let (mut first_at, mut taken, mut bytes) = (None, 0, 0);
        let mut held: Vec<String> = Vec::new();
        while taken < count {
            // What came last is acknowledged on the way to the next.
            let mut pipeline = redis::pipe();
            if !held.is_empty() {
                pipeline.cmd("XACK").arg(queue).arg("client").arg(&held).ignore();
            }
            let read = pipeline.cmd("XREADGROUP").arg("GROUP").arg("client").arg("client");
            read.arg("COUNT").arg(AT_ONCE).arg("BLOCK").arg(BLOCK.as_secs() * 1000);
            read.arg("STREAMS").arg(queue).arg(">");
            let (reply,): (StreamReadReply,) = pipeline.query_async(&mut connection).await.map_err(text)?;
            first_at.get_or_insert_with(Instant::now);
            held.clear();
            for entry in reply.keys.into_iter().flat_map(|stream| stream.ids) {
                bytes += entry.get::<Vec<u8>>("payload").map_or(0, |payload| payload.len());
                held.push(entry.id);
            }
            if held.is_empty() {
                return Err(format!("{taken} of {count} messages came, then none for {BLOCK:?}"));
            }
            taken += held.len();
        }
        let mut acknowledge = redis::cmd("XACK");
        acknowledge.arg(queue).arg("client").arg(&held);
        acknowledge.exec_async(&mut connection).await.map_err(text)?;
        std::hint::black_box(bytes);
        Ok(first_at.map(|at: Instant| at.elapsed()).unwrap_or_default())
    }

    fn source(&self, queue: &str) -> Result<RedisSource, String> {
        let config = RedisSourceConfig::new(&self.url, queue, "oncebox").create();
        RedisSource::new(queue, config).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<RedisSink, String> {
        RedisSink::new(RedisSinkConfig::new(&self.url, queue)).map_err(text)
    }
}
