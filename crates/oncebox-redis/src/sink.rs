//! Messages for a stream.

use oncebox_core::{Error, ErrorKind, Message, SendFailure, Sink};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{RedisError, Value};
use tokio::sync::Mutex;

use crate::config::RedisSinkConfig;
use crate::envelope;
use crate::link::{ask, connect, failed, list, text};

/// More than this Redis takes in no field, whatever its settings.
const LARGEST: usize = 512 * 1024 * 1024;

/// Adds messages to a stream; a message is sent when the server has answered with the id of its entry.
///
/// The messages of one call go in one transaction of the server: all of them are added, in order, or none.
#[derive(Debug)]
pub struct RedisSink {
    config: RedisSinkConfig,
    /// Connected when the first message is sent, and again after every failure.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisSink {
    /// A sink; fails on settings that can never work. Connects with the first message.
    pub fn new(config: RedisSinkConfig) -> Result<Self, Error> {
        config.check()?;
        Ok(Self { config, connection: Mutex::new(None) })
    }

    async fn add(
        &self,
        connection: &mut MultiplexedConnection,
        messages: &[&Message],
    ) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for message in messages {
            pipeline.add_command(envelope::write(&self.config, message));
        }
        // MULTI and each command are answered before EXEC, which has all answers in one.
        let answers = connection.req_packed_commands(&pipeline, messages.len() + 1, 1).await?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(error.into()),
            Some(answer) => Ok(list(answer)),
            None => Ok(Vec::new()),
        }
    }
}

impl Sink for RedisSink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        let fit: Vec<&Message> = messages.iter().filter(|message| fits(message)).collect();
        let mut answers = Vec::new().into_iter();
        if !fit.is_empty() {
            let mut slot = self.connection.lock().await;
            // Taken out while in use: a call that is dropped or fails leaves none behind, and the next begins anew.
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => connect(&self.config.url, &self.config.tls, self.config.timeout).await?,
            };
            let added = self.add(&mut connection, &fit).await;
            // An answer with a code is the server's: the connection is well.
            if added.as_ref().err().is_none_or(|error| error.code().is_some()) {
                *slot = Some(connection);
            }
            let text = format!("stream `{}` took nothing", self.config.stream);
            answers = added.map_err(|error| failed(&text, &error))?.into_iter();
        }
        let answer = |message| match fits(message) {
            true => answer(&self.config, answers.next()),
            false => Err(SendFailure::Permanent(format!("Redis takes no payload over {LARGEST} bytes"))),
        };
        Ok(messages.iter().map(answer).collect())
    }

    /// One transaction of the server: nothing is added after something was not.
    fn keeps_order(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        let RedisSinkConfig { url, tls, stream, timeout, .. } = &self.config;
        let mut connection = connect(url, tls, *timeout).await?;
        let kind = ask(&mut connection, redis::cmd("TYPE").arg(stream)).await;
        let kind =
            text(kind.map_err(|error| failed(&format!("stream `{stream}` cannot be looked at"), &error))?);
        match kind.as_str() {
            "stream" => Ok(Some(format!("stream `{stream}`"))),
            "none" if self.config.create => {
                Ok(Some(format!("stream `{stream}` is not there yet and would be created")))
            }
            "none" => Err(Error::new(
                ErrorKind::Unavailable,
                format!("there is no stream `{stream}`; create it, or set `create`"),
            )),
            other => Err(Error::new(
                ErrorKind::Unavailable,
                format!("`{stream}` is a {other}, not a stream; name another one in `stream`"),
            )),
        }
    }
}

fn fits(message: &Message) -> bool {
    message.payload.len() <= LARGEST
}

fn answer(config: &RedisSinkConfig, answer: Option<Value>) -> Result<(), SendFailure> {
    match answer {
        Some(Value::BulkString(_) | Value::SimpleString(_)) => Ok(()),
        Some(Value::Nil) => Err(SendFailure::Retry(format!(
            "there is no stream `{}`; create it, or set `create`",
            config.stream
        ))),
        Some(Value::ServerError(error)) => {
            let error = failed("Redis refused it", &RedisError::from(error));
            Err(SendFailure::Retry(error.to_string()))
        }
        _ => Err(SendFailure::Retry("Redis did not say whether it has the message".to_owned())),
    }
}
