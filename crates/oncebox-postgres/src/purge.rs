//! Retention: removes what is done and old enough, a bounded step at a time.

use oncebox_core::Error;
use oncebox_core::clock::micros;
use oncebox_core::store::{Purged, Retention};
use sqlx::{PgConnection, Row};

use crate::error::Problem;
use crate::rows::{amount, limit};
use crate::sql::Statement;
use crate::store::Inner;
use crate::tx::{autocommit, transaction};

/// How many pages of `seen` one call looks at: 8 MiB. A table of a million ids has about ten times as many, so
/// ten calls go round it once; an id is kept that much longer than it must be, and receiving pays for no index.
const PAGES: i64 = 1024;

/// How many rows of a table that is walked by id one call looks at, in steps.
const LOOK: i64 = 10;

impl Inner {
    pub(crate) async fn purge(&self, retention: &Retention) -> Result<Purged, Error> {
        let step = limit(retention.step.max(1));
        let full = step.unsigned_abs();
        let (keep, payload) = (micros(retention.keep), micros(retention.payload));
        let messages = autocommit!(self, |connection| {
            let query = self.sql.purge_log.query().bind(self.shift()).bind(payload).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })?;
        // Discarded deliveries before ids and history, which stay as long as a delivery has its row.
        let discarded = transaction!(self, |connection| {
            self.walk(connection, "delivery", &self.sql.purge_delivery, keep, step).await
        })?;
        let ids = transaction!(self, |connection| self.sweep_seen(connection, keep, step).await)?;
        let attempts = transaction!(self, |connection| {
            self.walk(connection, "attempt", &self.sql.purge_attempt, keep, step).await
        })?;
        let conflicts = autocommit!(self, |connection| {
            let query = self.sql.purge_conflict.query().bind(self.shift()).bind(keep).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })?;
        let counters = autocommit!(self, |connection| {
            let query = self.sql.purge_counter.query().bind(self.shift()).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })?;
        let responses = self.purge_responses(step).await?;
        let counted = self.fold_tally(step).await?;
        Ok(Purged {
            ids,
            messages,
            others: discarded + attempts + conflicts + counters + responses,
            more: [ids, messages, discarded, attempts, conflicts, counters, responses, counted]
                .iter()
                .any(|count| *count >= full),
        })
    }

    pub(crate) async fn purgeable(&self, retention: &Retention) -> Result<Purged, Error> {
        let (keep, payload) = (micros(retention.keep), micros(retention.payload));
        autocommit!(self, |connection| {
            let query = self.sql.count_purgeable.query().bind(self.shift()).bind(keep).bind(payload);
            let row = query.fetch_one(&mut *connection).await?;
            Ok(Purged {
                ids: amount(&row, 0)?,
                messages: amount(&row, 1)?,
                others: amount(&row, 2)?,
                more: false,
            })
        })
    }

    /// Adds up what the function `receive` has counted.
    async fn fold_tally(&self, step: i64) -> Result<u64, Error> {
        autocommit!(self, |connection| {
            let row = self.sql.fold_tally.query().bind(step).fetch_one(&mut *connection).await?;
            amount(&row, 0)
        })
    }

    /// Looks at the next pages of `seen`, going round; a small table is looked at as a whole.
    async fn sweep_seen(&self, connection: &mut PgConnection, keep: i64, step: i64) -> Result<u64, Problem> {
        let Some((position, pages)) = self.sweep_position(connection, "seen").await? else { return Ok(0) };
        let start = if position < pages { position } else { 0 };
        let first = start..pages.min(start + PAGES);
        let second = 0..start.min(PAGES - (first.end - first.start));
        let (mut removed, mut next) = (0, start);
        for range in [first, second] {
            let left = step - i64::try_from(removed).unwrap_or(step);
            if range.is_empty() || left == 0 {
                continue;
            }
            let row = self
                .sql
                .purge_seen
                .query()
                .bind(self.shift())
                .bind(keep)
                .bind(range.start)
                .bind(range.end)
                .bind(left)
                .fetch_one(&mut *connection)
                .await?;
            let gone = amount(&row, 0)?;
            removed += gone;
            // A full step may have left rows on the page of the last one.
            let last_page: Option<i64> = row.try_get(1)?;
            let is_full = gone >= left.unsigned_abs();
            next = last_page.filter(|_| is_full).unwrap_or(range.end);
        }
        self.sweep_to(connection, "seen", next).await?;
        Ok(removed)
    }

    /// Looks at the next rows by id, going round.
    async fn walk(
        &self,
        connection: &mut PgConnection,
        table: &str,
        statement: &Statement,
        keep: i64,
        step: i64,
    ) -> Result<u64, Problem> {
        let Some((mut position, _)) = self.sweep_position(connection, table).await? else { return Ok(0) };
        let look = step.saturating_mul(LOOK);
        let (mut removed, mut looked) = (0, 0);
        // From where the last call stopped to the end, and then from the beginning.
        for _ in 0..2 {
            let left = step - i64::try_from(removed).unwrap_or(step);
            if left == 0 || looked >= look {
                break;
            }
            let row = statement
                .query()
                .bind(self.shift())
                .bind(keep)
                .bind(position)
                .bind(look - looked)
                .bind(left)
                .fetch_one(&mut *connection)
                .await?;
            let gone = amount(&row, 0)?;
            removed += gone;
            let (last_removed, last_looked): (Option<i64>, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
            let seen: i64 = row.try_get(3)?;
            let at_end = seen < look - looked;
            looked += seen;
            if gone >= left.unsigned_abs() {
                position = last_removed.unwrap_or(position);
                break;
            }
            if !at_end {
                position = last_looked.unwrap_or(position);
                break;
            }
            if position == 0 {
                break;
            }
            position = 0;
        }
        self.sweep_to(connection, table, position).await?;
        Ok(removed)
    }

    /// Where to go on, and how many pages `seen` has; nothing while another purge is at it.
    async fn sweep_position(
        &self,
        connection: &mut PgConnection,
        table: &str,
    ) -> Result<Option<(i64, i64)>, Problem> {
        let row = self.sql.sweep_lock.query().bind(table).fetch_optional(&mut *connection).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    async fn sweep_to(
        &self,
        connection: &mut PgConnection,
        table: &str,
        position: i64,
    ) -> Result<(), Problem> {
        self.sql.sweep_move.query().bind(table).bind(position).execute(&mut *connection).await?;
        Ok(())
    }
}
