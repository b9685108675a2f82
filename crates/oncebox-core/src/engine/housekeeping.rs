//! What a runner does beside handling: counters, retention, hints from other processes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::inbox::Inbox;
use crate::store::Store;

/// How often counters go to the store.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// How often retention runs.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// The pause between two bounded steps of retention, so that receiving is not in its way.
const PURGE_PAUSE: Duration = Duration::from_millis(50);
/// How long until listening for hints is tried again after it failed.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);

/// Flushes counters until `stop`, and once more at the end.
pub(crate) async fn flush_counters<St: Store, S>(inbox: &Inbox<St, S>, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(FLUSH_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let stopping = tokio::select! {
            _ = tick.tick() => false,
            _ = stop.wait_for(|stopping| *stopping) => true,
        };
        if let Err(error) = inbox.shared.counters.flush(&inbox.store).await {
            tracing::debug!(%error, "counters could not be flushed; they are added to the next time");
        }
        if stopping {
            return;
        }
    }
}

/// Removes what is done and old enough, a bounded step at a time.
pub(crate) async fn purge<St: Store, S>(inbox: &Inbox<St, S>, mut stop: watch::Receiver<bool>) {
    loop {
        let wait = match inbox.store.purge(&inbox.settings.retention).await {
            Ok(purged) => {
                if purged.ids + purged.messages + purged.others > 0 {
                    tracing::debug!(
                        ids = purged.ids,
                        messages = purged.messages,
                        others = purged.others,
                        "purged"
                    );
                }
                if purged.more { PURGE_PAUSE } else { PURGE_EVERY }
            }
            Err(error) => {
                tracing::warn!(%error, "retention could not run; it is tried again");
                PURGE_EVERY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// Listens for hints of other processes; without them, polling does.
pub(crate) async fn listen<St: Store, S>(inbox: &Inbox<St, S>) {
    loop {
        let started = Instant::now();
        if let Err(error) = inbox.store.listen(inbox.shared.wake.clone()).await {
            tracing::warn!(%error, "hints from other processes cannot be heard; polling goes on without them");
        }
        // Hints may have been missed meanwhile.
        inbox.shared.wake.ring();
        tokio::time::sleep(LISTEN_AGAIN.saturating_sub(started.elapsed())).await;
    }
}
