//! A source that notes when its first message came and how many are settled.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oncebox::{Error, Incoming, Settle, Source};
use tokio::sync::watch;

/// Passes everything on to the source inside.
pub(crate) struct Watched<R> {
    source: R,
    progress: Arc<Progress>,
}

/// How far a [`Watched`] source is.
#[derive(Debug)]
pub(crate) struct Progress {
    first_at: OnceLock<Instant>,
    accepted: watch::Sender<usize>,
}

impl<R: Source> Watched<R> {
    pub(crate) fn new(source: R) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress { first_at: OnceLock::new(), accepted: watch::Sender::new(0) });
        (Self { source, progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Waits until so many are acknowledged.
    pub(crate) async fn all_accepted(&self, count: usize) {
        let mut accepted = self.accepted.subscribe();
        // Cannot fail: the sender is ours.
        let _ = accepted.wait_for(|accepted| *accepted >= count).await;
    }

    pub(crate) fn accepted(&self) -> usize {
        *self.accepted.borrow()
    }

    /// The time since the first message came.
    pub(crate) fn since_first(&self) -> Duration {
        self.first_at.get().map(Instant::elapsed).unwrap_or_default()
    }
}

impl<R: Source> Source for Watched<R> {
    type Receipt = R::Receipt;

    fn name(&self) -> &str {
        self.source.name()
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<R::Receipt>>, Error> {
        let incoming = self.source.next(most).await?;
        self.progress.first_at.get_or_init(Instant::now);
        Ok(incoming)
    }

    async fn settle(&mut self, settled: Vec<(R::Receipt, Settle)>) -> Result<(), Error> {
        let accepted = settled.iter().filter(|(_, settle)| *settle == Settle::Accept).count();
        self.source.settle(settled).await?;
        self.progress.accepted.send_modify(|all| *all += accepted);
        Ok(())
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        self.source.lag().await
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}
