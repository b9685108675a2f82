//! Deliveries with a row of their own: parking, leasing, settling.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use oncebox_core::Error;
use oncebox_core::clock::micros;
use oncebox_core::store::{
    AskLease, DeliveryId, DoneLeases, LAPSED, Lease, Leased, LeasedDelivery, Outcome, Park, ParkState,
    Settlement, is_suspect,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::error::Problem;
use crate::rows::{self, Columns, LeaseColumns, limit, stored_attempts, uuids};
use crate::store::Inner;
use crate::tx::{PgTransaction, autocommit};

/// How often held deliveries that nobody promotes are looked for while others are due.
const HEAL_EVERY: Duration = Duration::from_secs(1);

/// The values of the column `state`.
pub(crate) mod state {
    pub(crate) const READY: i16 = 0;
    pub(crate) const HELD: i16 = 1;
    pub(crate) const SCHEDULED: i16 = 2;
    pub(crate) const DEAD: i16 = 3;
    pub(crate) const DISCARDED: i16 = 4;
}

impl Inner {
    pub(crate) async fn park(
        &self,
        tx: &mut PgTransaction,
        park: &[Park],
        marker: &str,
    ) -> Result<Vec<DeliveryId>, Problem> {
        let columns: Columns<'_> = park.iter().map(|one| &one.message).collect();
        let identities: Vec<[u8; 16]> = park.iter().map(|one| one.message.identity()).collect();
        let (mut states, mut delays, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for one in park {
            let (state, delay, token) = match one.state {
                ParkState::Ready(delay) => (state::READY, micros(delay), None),
                ParkState::Held => (state::HELD, 0, None),
                ParkState::Scheduled => (state::SCHEDULED, 0, None),
                ParkState::Leased(token, lease_for) => (state::READY, micros(lease_for), Some(token.0)),
                ParkState::Dead => (state::DEAD, 0, None),
            };
            states.push(state);
            delays.push(delay);
            tokens.push(token);
        }
        let rows = self
            .sql
            .park
            .query()
            .bind(self.shift())
            .bind(park.iter().map(|one| one.handler.as_str()).collect::<Vec<&str>>())
            .bind(uuids(&identities))
            .bind(columns.scopes)
            .bind(columns.ids)
            .bind(columns.kinds)
            .bind(columns.keys)
            .bind(columns.headers)
            .bind(columns.payloads)
            .bind(columns.not_before)
            .bind(states)
            .bind(park.iter().map(|one| stored_attempts(one.attempts)).collect::<Vec<i32>>())
            .bind(delays)
            .bind(tokens)
            .bind(park.iter().map(|one| one.error.as_deref().map(storable)).collect::<Vec<Option<String>>>())
            .bind(marker)
            .fetch_all(&mut **tx)
            .await?;
        rows.iter().map(|row| Ok(DeliveryId(row.try_get(0)?))).collect()
    }

    pub(crate) async fn remove_done(
        &self,
        tx: &mut PgTransaction,
        done: &DoneLeases,
        marker: &str,
    ) -> Result<u64, Problem> {
        let columns: LeaseColumns = done.leases.iter().collect();
        let row = self
            .sql
            .commit_done
            .query()
            .bind(self.shift())
            .bind(&done.handler)
            .bind(columns.ids)
            .bind(columns.tokens)
            .bind(columns.attempts)
            .bind(marker)
            .fetch_one(&mut **tx)
            .await?;
        rows::amount(&row, 0)
    }

    pub(crate) async fn lease(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        autocommit!(self, |connection| {
            // Also under constant load, when there is always something due.
            if ask.ordered && self.is_time_to_heal(ask.handler) {
                self.heal(connection, ask.handler).await?;
            }
            let leased = self.lease_due(connection, ask).await?;
            if !ask.ordered || !leased.deliveries.is_empty() || self.heal(connection, ask.handler).await? == 0
            {
                return Ok(leased);
            }
            self.lease_due(connection, ask).await
        })
    }

    fn is_time_to_heal(&self, handler: &str) -> bool {
        let mut healed_at = self.healed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if healed_at.get(handler).is_some_and(|at| at.elapsed() < HEAL_EVERY) {
            return false;
        }
        healed_at.insert(handler.to_owned(), Instant::now());
        true
    }

    async fn lease_due(&self, connection: &mut PgConnection, ask: &AskLease<'_>) -> Result<Leased, Problem> {
        let rows = self
            .sql
            .lease
            .query()
            .bind(self.shift())
            .bind(ask.handler)
            .bind(ask.token.0)
            .bind(limit(ask.limit))
            .bind(micros(ask.lease_for))
            .bind(ask.ordered)
            .bind(LAPSED)
            .fetch_all(&mut *connection)
            .await?;
        let mut leased = Leased::default();
        for row in &rows {
            let Some(id) = row.try_get::<Option<i64>, _>(1)? else {
                leased.next_due = row.try_get::<Option<i64>, _>(0)?.map(rows::duration);
                continue;
            };
            let lease =
                Lease { delivery: DeliveryId(id), token: ask.token, attempt: rows::attempts(row, 2)? };
            let suspect = is_suspect(row.try_get(10)?);
            let (message, unreadable) = rows::message(row, 3)?;
            leased.deliveries.push(LeasedDelivery { lease, message, suspect, unreadable });
        }
        Ok(leased)
    }

    /// Makes held messages ready that have nothing active before them in their key.
    async fn heal(&self, connection: &mut PgConnection, handler: &str) -> Result<u64, Problem> {
        let done = self.sql.heal.query().bind(self.shift()).bind(handler).execute(&mut *connection).await?;
        Ok(done.rows_affected())
    }

    pub(crate) async fn renew(
        &self,
        handler: &str,
        leases: &[Lease],
        lease_for: Duration,
    ) -> Result<Vec<bool>, Error> {
        autocommit!(self, |connection| {
            let columns: LeaseColumns = leases.iter().collect();
            let rows = self
                .sql
                .renew
                .query()
                .bind(self.shift())
                .bind(handler)
                .bind(columns.ids)
                .bind(columns.tokens)
                .bind(columns.attempts)
                .bind(micros(lease_for))
                .fetch_all(&mut *connection)
                .await?;
            still_ours(&rows, leases.iter())
        })
    }

    pub(crate) async fn settle(&self, handler: &str, settlements: &[Settlement]) -> Result<Vec<bool>, Error> {
        autocommit!(self, |connection| {
            let columns: LeaseColumns = settlements.iter().map(|one| &one.lease).collect();
            let (mut outcomes, mut delays, mut errors) = (Vec::new(), Vec::new(), Vec::new());
            for one in settlements {
                let (outcome, delay, error) = match &one.outcome {
                    Outcome::Done => (0_i16, 0, None),
                    Outcome::Retry(delay, error) => (1, micros(*delay), Some(storable(error))),
                    Outcome::Dead(error) => (2, 0, Some(storable(error))),
                    Outcome::Returned => (3, 0, None),
                };
                outcomes.push(outcome);
                delays.push(delay);
                errors.push(error);
            }
            let rows = self
                .sql
                .settle
                .query()
                .bind(self.shift())
                .bind(handler)
                .bind(columns.ids)
                .bind(columns.tokens)
                .bind(columns.attempts)
                .bind(outcomes)
                .bind(delays)
                .bind(errors)
                .fetch_all(&mut *connection)
                .await?;
            still_ours(&rows, settlements.iter().map(|one| &one.lease))
        })
    }
}

fn still_ours<'a>(rows: &[PgRow], leases: impl Iterator<Item = &'a Lease>) -> Result<Vec<bool>, Problem> {
    let mut ours = HashSet::with_capacity(rows.len());
    for row in rows {
        ours.insert((row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?, rows::attempts(row, 2)?));
    }
    Ok(leases.map(|lease| ours.contains(&(lease.delivery.0, lease.token.0, lease.attempt))).collect())
}

/// Error texts come from anywhere; Postgres keeps no NUL in text.
pub(crate) fn storable(text: impl AsRef<str>) -> String {
    text.as_ref().replace('\0', "\u{fffd}")
}
