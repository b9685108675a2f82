//! Removing what is done and old, in bounded steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncebox_core::clock::micros;
use oncebox_core::store::{Purged, Retention};
use oncebox_core::{Error, ResponseStore};

use crate::error::classify;
use crate::rows::{count, get, limit};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::writer::Sync;

/// How long minutes of counters are kept.
const MINUTES: Duration = Duration::from_secs(2 * 24 * 3600);

/// How far the walks over `seen` and `attempt` have come.
///
/// Both begin again at the oldest row when they meet one that is too young. What must stay (an old dead letter's
/// id) is passed over, so that it never blocks the walk.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    seen: AtomicI64,
    attempts: AtomicI64,
}

impl SqliteStore {
    pub(crate) async fn purge_step(&self, retention: &Retention) -> Result<Purged, Error> {
        let mut purged = Purged::default();
        if retention.step == 0 {
            return Ok(purged);
        }
        let keep = micros(retention.keep);
        self.purge_log(retention, &mut purged).await?;

        let sql = &self.sql;
        // Discarded deliveries before ids and history, which stay as long as a delivery has its row.
        for (text, age) in [
            (&sql.purge_discarded, keep),
            (&sql.purge_conflicts, keep),
            (&sql.purge_counters, micros(MINUTES)),
        ] {
            let step = limit(retention.step);
            let removed =
                self.writer.run(Sync::Soft, || query(text).bind(self.shift()).bind(age).bind(step)).await?;
            purged.others += removed.len() as u64;
            purged.more |= removed.len() >= retention.step;
        }
        let responses = self.purge_responses(retention.step).await?;
        purged.others += responses;
        purged.more |= responses >= retention.step as u64;
        let (ids, more) = self
            .walk(&self.walks.seen, [&sql.purge_seen_window, &sql.purge_seen], keep, retention.step)
            .await?;
        purged.ids = ids;
        purged.more |= more;
        let (attempts, more) = self
            .walk(
                &self.walks.attempts,
                [&sql.purge_attempts_window, &sql.purge_attempts],
                keep,
                retention.step,
            )
            .await?;
        purged.others += attempts;
        purged.more |= more;
        Ok(purged)
    }

    pub(crate) async fn count_purgeable(&self, retention: &Retention) -> Result<Purged, Error> {
        let row = query(&self.sql.count_purgeable)
            .bind(self.shift())
            .bind(micros(retention.keep))
            .bind(micros(retention.payload))
            .bind(micros(MINUTES))
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
        let amount = |column| get(&row, column).map(count);
        Ok(Purged { ids: amount(0)?, messages: amount(1)?, others: amount(2)?, more: false })
    }

    async fn purge_log(&self, retention: &Retention, purged: &mut Purged) -> Result<(), Error> {
        let age = micros(retention.payload);
        let lanes = query(&self.sql.purge_log_lanes)
            .bind(self.shift())
            .bind(age)
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        let mut left = retention.step as u64;
        for row in &lanes {
            if left == 0 {
                break;
            }
            let (lane, position): (i64, i64) = (get(row, 0)?, get(row, 1)?);
            // Each lane by itself, so that receivers get in between. Losing a purge to power loss loses nothing.
            let removed = self
                .writer
                .run(Sync::Soft, || {
                    query(&self.sql.purge_log)
                        .bind(self.shift())
                        .bind(age)
                        .bind(lane)
                        .bind(position)
                        .bind(i64::try_from(left).unwrap_or(i64::MAX))
                })
                .await?
                .len() as u64;
            purged.messages += removed;
            left = left.saturating_sub(removed);
        }
        purged.more |= left == 0;
        Ok(())
    }

    /// Looks at the next rows of a walk and removes those of them that may go; true when there may be more.
    async fn walk(
        &self,
        walked: &AtomicI64,
        [window, delete]: [&Arc<str>; 2],
        age: i64,
        step: usize,
    ) -> Result<(u64, bool), Error> {
        let from = walked.load(Ordering::SeqCst);
        let row = query(window)
            .bind(self.shift())
            .bind(age)
            .bind(from)
            .bind(limit(step))
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
        let old: i64 = get(&row, 1)?;
        let Some(to) = get::<Option<i64>>(&row, 0)? else {
            walked.store(0, Ordering::SeqCst);
            return Ok((0, false));
        };
        let removed = self
            .writer
            .run(Sync::Soft, || query(delete).bind(self.shift()).bind(age).bind(from).bind(to))
            .await?;
        let more = old >= limit(step);
        walked.store(if more { to } else { 0 }, Ordering::SeqCst);
        Ok((removed.len() as u64, more))
    }
}
