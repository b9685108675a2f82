//! Messages from Kafka.

use std::fmt;
use std::sync::Arc;

use oncebox_core::{Error, ErrorKind, Incoming, Settle, Source};

use crate::config::KafkaSourceConfig;
use crate::look;
use crate::member::Member;
use crate::partitions::Receipt;

/// A source that reads topics as a member of a consumer group.
///
/// Offsets are committed when messages are durably stored, in each partition only up to the first one that is not. A
/// member that dies or is thrown out loses nothing: what it had not committed goes to another member.
///
/// ```no_run
/// use oncebox_kafka::{KafkaSource, KafkaSourceConfig};
///
/// let config = KafkaSourceConfig::new("localhost:9092", "orders").group("shop");
/// let orders = KafkaSource::new("orders", config)?;
/// # Ok::<(), oncebox_core::Error>(())
/// ```
pub struct KafkaSource {
    name: String,
    config: KafkaSourceConfig,
    /// Joined when it is first asked for something.
    member: Option<Arc<Member>>,
}

impl KafkaSource {
    /// A source of this name, which is the scope of its messages' ids. Connects when it is first asked for messages.
    ///
    /// Fails on a setting that is missing or that librdkafka does not know.
    pub fn new(name: impl Into<String>, config: KafkaSourceConfig) -> Result<Self, Error> {
        let name = name.into();
        config.client().map_err(|error| {
            Error::caused(ErrorKind::Invalid, format!("source `{name}` cannot be set up"), error)
        })?;
        Ok(Self { name, config, member: None })
    }

    fn member(&mut self) -> Result<Arc<Member>, Error> {
        if self.member.as_ref().is_some_and(|member| member.has_ended()) {
            self.member = None;
        }
        if let Some(member) = &self.member {
            return Ok(member.clone());
        }
        let member = Arc::new(Member::join(&self.name, &self.config)?);
        self.member = Some(member.clone());
        Ok(member)
    }
}

impl Source for KafkaSource {
    type Receipt = Receipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<Receipt>>, Error> {
        let arrived = self.member()?.next(most.max(1)).await?;
        Ok(arrived.into_iter().map(|one| Incoming::mapped(one.mapped, one.receipt)).collect())
    }

    async fn settle(&mut self, settled: Vec<(Receipt, Settle)>) -> Result<(), Error> {
        if let Some(member) = &self.member {
            member.settle(&settled);
        }
        Ok(())
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        let member = self.member()?;
        let asking = tokio::task::spawn_blocking(move || member.lag());
        asking.await.map_err(|error| {
            Error::caused(ErrorKind::Unavailable, format!("source `{}` was not asked", self.name), error)
        })?
    }

    async fn close(&mut self) {
        if let Some(member) = self.member.take() {
            member.stop();
            member.left().await;
        }
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        look::for_source(self.config.client()?, self.config.topics.clone()).await.map(Some)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if let Some(member) = &self.member {
            member.stop();
        }
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KafkaSource").field("name", &self.name).field("config", &self.config).finish()
    }
}
