//! A source that has left its group when it is dropped.

use oncebox_core::{Error, Incoming, Settle, Source};
use oncebox_kafka::{KafkaSource, Receipt};
use tokio::runtime::Handle;

/// Waits where a [`KafkaSource`] that is dropped leaves in the background.
///
/// Tansu loses a leave that meets the join of another member: who has left stays the group's leader for ever, and nobody
/// gets a partition any more. On the mock cluster leaves and joins meet as they like.
pub(crate) struct LeftWhenDropped(KafkaSource);

impl From<KafkaSource> for LeftWhenDropped {
    fn from(source: KafkaSource) -> Self {
        Self(source)
    }
}

impl Drop for LeftWhenDropped {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| Handle::current().block_on(self.0.close()));
    }
}

impl Source for LeftWhenDropped {
    type Receipt = Receipt;

    fn name(&self) -> &str {
        self.0.name()
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<Receipt>>, Error> {
        self.0.next(most).await
    }

    async fn settle(&mut self, settled: Vec<(Receipt, Settle)>) -> Result<(), Error> {
        self.0.settle(settled).await
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        self.0.lag().await
    }

    async fn close(&mut self) {
        self.0.close().await;
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        self.0.check().await
    }
}
