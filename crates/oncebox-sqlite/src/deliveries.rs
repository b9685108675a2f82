//! Deliveries with a row of their own: parking, leasing, settling, and who comes next in a key.

use std::collections::{HashMap, HashSet};

use oncebox_core::Error;
use oncebox_core::clock::micros;
use oncebox_core::store::{
    AskLease, Connection, DeliveryId, DoneLeases, LAPSED, Lease, Leased, LeasedDelivery, Outcome, Park,
    ParkState, Settlement, Token, TxLimits, is_suspect,
};
use serde_json::Value;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use std::time::Duration;

use crate::error::classify;
use crate::rows::{duration, error_text, get, hex, lease_values, leases, limit, list, message};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::SqliteTransaction;
use crate::tx::writer::{Sync, Write, fenced};

pub(crate) const READY: i64 = 0;
pub(crate) const HELD: i64 = 1;
pub(crate) const SCHEDULED: i64 = 2;
pub(crate) const DEAD: i64 = 3;
pub(crate) const DISCARDED: i64 = 4;

impl SqliteStore {
    /// Gives deliveries a row of their own; answers their ids in order.
    pub(crate) async fn park(
        &self,
        connection: &mut SqliteConnection,
        park: &[Park],
    ) -> Result<Vec<DeliveryId>, Error> {
        if park.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now(connection).await?;
        let mut ids: Vec<i64> = Vec::with_capacity(park.len());
        for (text, piece) in self.sql.delivery.pieces(park) {
            let mut insert = query(text);
            for one in piece {
                let message = &one.message;
                let not_before = message.not_before.map(jiff::Timestamp::as_microsecond);
                let (state, due_at, token) = match one.state {
                    ParkState::Ready(delay) => (READY, now.saturating_add(micros(delay)), None),
                    ParkState::Held => (HELD, now, None),
                    ParkState::Scheduled => (SCHEDULED, not_before.unwrap_or(now), None),
                    ParkState::Leased(token, lease_for) => {
                        (READY, now.saturating_add(micros(lease_for)), Some(token.0))
                    }
                    ParkState::Dead => (DEAD, now, None),
                };
                insert = insert
                    .bind(one.handler.as_str())
                    .bind(message.identity().to_vec())
                    .bind(message.scope.as_str())
                    .bind(message.id.as_str())
                    .bind(message.kind.as_str())
                    .bind(message.key.as_deref())
                    .bind(message.headers.to_stored())
                    .bind(&message.payload[..])
                    .bind(not_before)
                    .bind(now)
                    .bind(state)
                    .bind(one.attempts)
                    .bind(due_at)
                    .bind(token)
                    .bind(one.error.as_deref().map(error_text));
            }
            for row in insert.fetch_all(&mut *connection).await.map_err(classify)? {
                ids.push(get(&row, 0)?);
            }
        }
        // Numbers grow in the order of the rows, and SQLite does not promise to return them in it.
        ids.sort_unstable();

        let history: Vec<Value> = park
            .iter()
            .filter_map(|one| {
                let error = error_text(one.error.as_deref()?);
                Some(serde_json::json!([hex(&one.message.identity()), one.handler, one.attempts, error]))
            })
            .collect();
        if !history.is_empty() {
            query(&self.sql.insert_attempt)
                .bind(self.shift())
                .bind(list(history))
                .execute(connection)
                .await
                .map_err(classify)?;
        }
        Ok(ids.into_iter().map(DeliveryId).collect())
    }

    /// Removes deliveries that are done; `Fenced` unless all of them are still ours.
    pub(crate) async fn finish_leases(
        &self,
        connection: &mut SqliteConnection,
        done: &DoneLeases,
    ) -> Result<(), Error> {
        let rows = self.delete_done(connection, &done.handler, &done.leases).await?;
        if rows.len() != done.leases.len() {
            return Err(fenced("a delivery of this transaction has been taken over by another runner"));
        }
        self.promote(connection, &done.handler, keys(&rows)?).await
    }

    async fn delete_done(
        &self,
        connection: &mut SqliteConnection,
        handler: &str,
        done: &[Lease],
    ) -> Result<Vec<SqliteRow>, Error> {
        if done.is_empty() {
            return Ok(Vec::new());
        }
        query(&self.sql.delete_done)
            .bind(handler)
            .bind(leases(done))
            .fetch_all(connection)
            .await
            .map_err(classify)
    }

    /// Makes the first held delivery of each key ready, where nothing of the key is active any more.
    pub(crate) async fn promote(
        &self,
        connection: &mut SqliteConnection,
        handler: &str,
        keys: HashSet<String>,
    ) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        query(&self.sql.promote)
            .bind(self.shift())
            .bind(handler)
            .bind(list(keys))
            .execute(connection)
            .await
            .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn begin_leases(
        &self,
        handler: &str,
        held: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<SqliteTransaction>, Error> {
        let mut transaction = self.begin(limits).await?;
        let verified = self.verify(&mut transaction, handler, held).await;
        match verified {
            Ok(ours) if ours.len() == held.len() => Ok(Some(transaction)),
            Ok(_) => {
                transaction.rollback().await;
                Ok(None)
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// The places in the list of those leases that are still held.
    async fn verify(
        &self,
        connection: &mut SqliteConnection,
        handler: &str,
        held: &[Lease],
    ) -> Result<HashSet<usize>, Error> {
        let rows = query(&self.sql.verify_leases)
            .bind(handler)
            .bind(leases(held))
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        rows.iter().map(|row| Ok(get::<u32>(row, 0)? as usize)).collect()
    }

    pub(crate) async fn lease_due(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        // Most of the time nothing is due; that takes no write lock.
        let row = query(&self.sql.lease_peek)
            .bind(self.shift())
            .bind(ask.handler)
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
        if get(&row, 0)? {
            return Ok(Leased::default());
        }
        let due = get::<Option<bool>>(&row, 1)?.unwrap_or(false);
        let next_due = get::<Option<i64>>(&row, 2)?.map(duration);
        let mut deliveries = if due { self.lease_now(ask).await? } else { Vec::new() };
        if deliveries.is_empty() && ask.ordered && get(&row, 3)? {
            let stuck = || query(&self.sql.promote_stuck).bind(self.shift()).bind(ask.handler);
            if !self.writer.run(Sync::Durable, stuck).await?.is_empty() {
                deliveries = self.lease_now(ask).await?;
            }
        }
        let next_due = if deliveries.is_empty() { next_due } else { None };
        Ok(Leased { deliveries, next_due })
    }

    async fn lease_now(&self, ask: &AskLease<'_>) -> Result<Vec<LeasedDelivery>, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let deliveries = self.lease_candidates(&mut write, ask).await?;
        write.commit().await?;
        Ok(deliveries)
    }

    async fn lease_candidates(
        &self,
        write: &mut Write,
        ask: &AskLease<'_>,
    ) -> Result<Vec<LeasedDelivery>, Error> {
        let connection = write.connection();
        let candidates = query(&self.sql.lease_candidates)
            .bind(self.shift())
            .bind(ask.handler)
            .bind(limit(ask.limit))
            .bind(ask.ordered)
            .fetch_all(&mut *connection)
            .await
            .map_err(classify)?;
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let mut place = HashMap::new();
        let mut lapsed = false;
        for (number, row) in candidates.iter().enumerate() {
            place.insert(get::<i64>(row, 0)?, number);
            lapsed |= get::<bool>(row, 1)?;
        }
        let ids = list(place.keys().copied());
        if lapsed {
            query(&self.sql.lapsed_history)
                .bind(self.shift())
                .bind(ids.as_str())
                .bind(LAPSED)
                .execute(&mut *connection)
                .await
                .map_err(classify)?;
        }
        let rows = query(&self.sql.lease)
            .bind(self.shift())
            .bind(ids)
            .bind(ask.token.0)
            .bind(micros(ask.lease_for))
            .bind(LAPSED)
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        let mut leased = Vec::with_capacity(rows.len());
        for row in &rows {
            let lease = Lease { delivery: DeliveryId(get(row, 0)?), token: ask.token, attempt: get(row, 1)? };
            let suspect = is_suspect(get(row, 9)?);
            let (message, unreadable) = message(row, 2)?;
            leased.push(LeasedDelivery { lease, message, suspect, unreadable });
        }
        leased.sort_by_key(|leased| place.get(&leased.lease.delivery.0).copied());
        Ok(leased)
    }

    pub(crate) async fn renew_leases(
        &self,
        handler: &str,
        held: &[Lease],
        lease_for: Duration,
    ) -> Result<Vec<bool>, Error> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let list = leases(held);
        let rows = self
            .writer
            .run(Sync::Soft, || {
                query(&self.sql.renew)
                    .bind(self.shift())
                    .bind(handler)
                    .bind(list.as_str())
                    .bind(micros(lease_for))
            })
            .await?;
        let mut renewed: Vec<Lease> = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, token) = (get(row, 0)?, get(row, 1)?);
            renewed.push(Lease { delivery: DeliveryId(id), token: Token(token), attempt: get(row, 2)? });
        }
        Ok(held.iter().map(|lease| renewed.contains(lease)).collect())
    }

    pub(crate) async fn settle_leases(
        &self,
        handler: &str,
        settlements: &[Settlement],
    ) -> Result<Vec<bool>, Error> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let held: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        let ours = self.verify(connection, handler, &held).await?;

        let mut done = Vec::new();
        let mut others = Vec::new();
        let mut failed = false;
        for (_, Settlement { lease, outcome }) in
            settlements.iter().enumerate().filter(|(place, _)| ours.contains(place))
        {
            // State, delay, error, and how many attempts do not count.
            let (state, delay, error, uncounted) = match outcome {
                Outcome::Done => {
                    done.push(*lease);
                    continue;
                }
                Outcome::Retry(delay, error) => (READY, micros(*delay), Some(error_text(error)), 0),
                Outcome::Dead(error) => (DEAD, 0, Some(error_text(error)), 0),
                Outcome::Returned => (READY, 0, None, 1),
            };
            failed |= error.is_some();
            let rest: [Value; 4] = [state.into(), delay.into(), error.into(), uncounted.into()];
            others.push(Value::from_iter(lease_values(lease).into_iter().chain(rest)));
        }
        let mut freed = keys(&self.delete_done(connection, handler, &done).await?)?;
        if !others.is_empty() {
            let others = list(others);
            if failed {
                let history =
                    query(&self.sql.settle_history).bind(self.shift()).bind(handler).bind(others.as_str());
                history.execute(&mut *connection).await.map_err(classify)?;
            }
            let settle = query(&self.sql.settle).bind(self.shift()).bind(handler).bind(others);
            for row in settle.fetch_all(&mut *connection).await.map_err(classify)? {
                if let (Some(key), DEAD) = (get(&row, 0)?, get(&row, 1)?) {
                    freed.insert(key);
                }
            }
        }
        self.promote(connection, handler, freed).await?;
        write.commit().await?;
        Ok((0..settlements.len()).map(|place| ours.contains(&place)).collect())
    }
}

/// The keys in column 0, where there are any.
fn keys(rows: &[SqliteRow]) -> Result<HashSet<String>, Error> {
    let keys: Vec<Option<String>> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Error>>()?;
    Ok(keys.into_iter().flatten().collect())
}
