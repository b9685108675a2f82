//! The plain client, for what tests do behind the back of sources and sinks.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, RedisError, Value};
use tokio::sync::Mutex;

/// The plain client; connects again after a failure.
#[derive(Debug)]
pub struct Plain {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// Fields of an entry.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

impl Plain {
    pub fn new(url: &str) -> Self {
        Self { client: Client::open(url).unwrap(), connection: Mutex::new(None) }
    }

    pub async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut slot = self.connection.lock().await;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.client.get_multiplexed_async_connection().await?,
        };
        let answer = connection.req_packed_command(command).await?;
        *slot = Some(connection);
        match answer {
            Value::ServerError(error) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    /// A command of words.
    pub async fn say(&self, words: &[&str]) -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        self.ask(&command).await.unwrap()
    }

    pub async fn add(&self, stream: &str, fields: &[(&[u8], &[u8])]) -> Result<Value, RedisError> {
        let mut command = redis::cmd("XADD");
        command.arg(stream).arg("*");
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        self.ask(&command).await
    }

    /// Everything in a stream.
    pub async fn entries(&self, stream: &str) -> Result<Vec<Fields>, RedisError> {
        let answer = self.ask(redis::cmd("XRANGE").arg(stream).arg("-").arg("+")).await?;
        let entries: Vec<(String, Fields)> = redis::from_redis_value(answer).unwrap();
        Ok(entries.into_iter().map(|(_, fields)| fields).collect())
    }

    /// A number about a group.
    pub async fn of_group(&self, stream: &str, group: &str, what: &str) -> u64 {
        let answer = self.ask(redis::cmd("XINFO").arg("GROUPS").arg(stream)).await.unwrap();
        let groups: Vec<Vec<Value>> = redis::from_redis_value(answer).unwrap();
        for fields in groups {
            let pairs: Vec<(String, Value)> = fields
                .chunks(2)
                .map(|pair| (redis::from_redis_value(pair[0].clone()).unwrap(), pair[1].clone()))
                .collect();
            let field = |name: &str| pairs.iter().find(|(own, _)| own == name).unwrap().1.clone();
            if redis::from_redis_value::<String>(field("name")).unwrap() == group {
                return redis::from_redis_value(field(what)).unwrap();
            }
        }
        panic!("there is no group {group}")
    }
}
