//! Retention: removes what is done and old enough, a bounded step at a time.

use oncebox_core::Error;
use oncebox_core::clock::micros;
use oncebox_core::store::{Purged, Retention};
use sqlx::{MySqlConnection, Row};

use crate::error::Problem;
use crate::rows::{amount, hex, limit, list, sixteen};
use crate::sql::Statement;
use crate::store::Inner;
use crate::tx::{reading, transaction};

/// How many rows of a table that is walked one call looks at, in steps. Ids are not indexed by time, so that receiving
/// pays for no second index; an id is kept so much longer as it takes to come round to it.
const LOOK: i64 = 10;

impl Inner {
    pub(crate) async fn purge(&self, retention: &Retention) -> Result<Purged, Error> {
        let step = limit(retention.step.max(1));
        let full = step.unsigned_abs();
        let (keep, payload) = (micros(retention.keep), micros(retention.payload));
        let messages = self.purge_log(payload, step).await?;
        // Discarded deliveries before ids and history, which stay as long as a delivery has its row.
        let delivery = [&self.sql.sweep_delivery, &self.sql.purge_delivery];
        let discarded = transaction!(self, |connection| {
            self.walk(connection, "delivery", delivery, keep, step).await
        })?;
        let ids = transaction!(self, |connection| self.sweep_seen(connection, keep, step).await)?;
        let attempt = [&self.sql.sweep_attempt, &self.sql.purge_attempt];
        let attempts =
            transaction!(self, |connection| self.walk(connection, "attempt", attempt, keep, step).await)?;
        let conflicts = transaction!(self, |connection| {
            let query = self.sql.purge_conflict.query(self.shift()).bind(keep).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })?;
        let counters = transaction!(self, |connection| {
            let query = self.sql.purge_counter.query(self.shift()).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })?;
        let responses = self.purge_responses(step).await?;
        let counted = transaction!(self, |connection| self.fold_tally(connection, step).await)?;
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
        reading!(self, |connection| {
            let query = self.sql.count_purgeable.query(self.shift()).bind(keep).bind(payload);
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
    async fn fold_tally(&self, connection: &mut MySqlConnection, step: i64) -> Result<u64, Problem> {
        let rows = self.sql.take_tally.query(self.shift()).bind(step).fetch_all(&mut *connection).await?;
        let taken: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if taken.is_empty() {
            return Ok(0);
        }
        let count = taken.len() as u64;
        let taken = list(taken);
        self.sql.fold_tally.query(self.shift()).bind(&taken).execute(&mut *connection).await?;
        self.sql.delete_tally.query(self.shift()).bind(&taken).execute(&mut *connection).await?;
        Ok(count)
    }

    /// A lane whose first message is young or wanted costs one look.
    async fn purge_log(&self, age: i64, step: i64) -> Result<u64, Error> {
        let lanes: Vec<(i16, i64)> = reading!(self, |connection| {
            let rows =
                self.sql.purge_log_lanes.query(self.shift()).bind(age).fetch_all(&mut *connection).await?;
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Problem>>()
        })?;
        let mut left = step;
        for (lane, position) in lanes {
            if left <= 0 {
                break;
            }
            // Each lane by itself, so that its locks are soon gone.
            let removed = transaction!(self, |connection| {
                let window = self.sql.purge_log_window.query(self.shift());
                let row =
                    window.bind(lane).bind(position).bind(left).bind(age).fetch_one(&mut *connection).await?;
                let Some(last) = row.try_get::<Option<i64>, _>(0)? else { return Ok(0) };
                let delete = self.sql.purge_log.query(self.shift()).bind(lane).bind(last).bind(age);
                Ok(delete.execute(&mut *connection).await?.rows_affected())
            })?;
            left -= i64::try_from(removed).unwrap_or(left);
        }
        Ok((step - left).unsigned_abs())
    }

    /// Looks at the next ids, going round; a small table is looked at as a whole.
    async fn sweep_seen(
        &self,
        connection: &mut MySqlConnection,
        keep: i64,
        step: i64,
    ) -> Result<u64, Problem> {
        let lock = self.sql.sweep_lock.query(self.shift()).bind(&b"seen"[..]);
        // Another purge is at it.
        let Some(row) = lock.fetch_optional(&mut *connection).await? else { return Ok(0) };
        let mut place = sixteen(&row, 1)?;
        let look = step.saturating_mul(LOOK);
        let (mut removed, mut looked) = (0_i64, 0_i64);
        // From where the last call stopped to the end, and then from the beginning.
        for _ in 0..2 {
            let (left, wanted) = (step - removed, look - looked);
            if left <= 0 || wanted <= 0 {
                break;
            }
            let sweep = self.sql.sweep_seen.query(self.shift());
            let rows = sweep.bind(keep).bind(&place[..]).bind(wanted).fetch_all(&mut *connection).await?;
            let mut old = Vec::new();
            let mut last = place;
            for row in &rows {
                last = sixteen(row, 0)?;
                if row.try_get(1)? {
                    old.push(hex(&last));
                    if limit(old.len()) == left {
                        break;
                    }
                }
            }
            let is_full = limit(old.len()) == left;
            looked += limit(rows.len());
            if !old.is_empty() {
                let purge = self.sql.purge_seen.query(self.shift()).bind(list(old)).bind(keep);
                removed += i64::try_from(purge.execute(&mut *connection).await?.rows_affected()).unwrap_or(0);
            }
            let at_end = limit(rows.len()) < wanted && !is_full;
            let from_start = place == [0; 16];
            place = if at_end { [0; 16] } else { last };
            if !at_end || from_start {
                break;
            }
        }
        self.sweep_to(connection, "seen", 0, &place).await?;
        Ok(removed.unsigned_abs())
    }

    /// Looks at the next rows by id, going round.
    async fn walk(
        &self,
        connection: &mut MySqlConnection,
        table: &str,
        [look_at, remove]: [&Statement; 2],
        keep: i64,
        step: i64,
    ) -> Result<u64, Problem> {
        let lock = self.sql.sweep_lock.query(self.shift()).bind(table.as_bytes());
        let Some(row) = lock.fetch_optional(&mut *connection).await? else { return Ok(0) };
        let mut position: i64 = row.try_get(0)?;
        let look = step.saturating_mul(LOOK);
        let (mut removed, mut looked) = (0_i64, 0_i64);
        for _ in 0..2 {
            let (left, wanted) = (step - removed, look - looked);
            if left <= 0 || wanted <= 0 {
                break;
            }
            let rows = look_at
                .query(self.shift())
                .bind(keep)
                .bind(position)
                .bind(wanted)
                .fetch_all(&mut *connection)
                .await?;
            let mut old: Vec<i64> = Vec::new();
            let mut last = position;
            for row in &rows {
                last = row.try_get(0)?;
                if row.try_get(1)? {
                    old.push(last);
                    if limit(old.len()) == left {
                        break;
                    }
                }
            }
            let is_full = limit(old.len()) == left;
            looked += limit(rows.len());
            if !old.is_empty() {
                let purge = remove.query(self.shift()).bind(list(old)).execute(&mut *connection).await?;
                removed += i64::try_from(purge.rows_affected()).unwrap_or(0);
            }
            let at_end = limit(rows.len()) < wanted && !is_full;
            let from_start = position == 0;
            position = if at_end { 0 } else { last };
            if !at_end || from_start {
                break;
            }
        }
        self.sweep_to(connection, table, position, &[0; 16]).await?;
        Ok(removed.unsigned_abs())
    }

    async fn sweep_to(
        &self,
        connection: &mut MySqlConnection,
        table: &str,
        position: i64,
        place: &[u8; 16],
    ) -> Result<(), Problem> {
        self.sql
            .sweep_move
            .query(self.shift())
            .bind(position)
            .bind(&place[..])
            .bind(table.as_bytes())
            .execute(&mut *connection)
            .await?;
        Ok(())
    }
}
