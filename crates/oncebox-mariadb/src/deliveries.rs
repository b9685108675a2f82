//! Deliveries with a row of their own: parking, leasing, settling, and who comes next in a key.

use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use oncebox_core::Error;
use oncebox_core::clock::micros;
use oncebox_core::store::{
    AskLease, DeliveryId, DoneLeases, LAPSED, Lease, Leased, LeasedDelivery, Outcome, Park, ParkState,
    Settlement, Token, is_suspect,
};
use serde_json::{Value, json};
use sqlx::{MySqlConnection, Row};

use crate::error::Problem;
use crate::rows::{
    self, hex, leases, limit, list, not_before, optional_text, sixteen, size, stored_attempts,
};
use crate::sql::query;
use crate::store::Inner;
use crate::tx::{fenced, reading, transaction};

/// How often held deliveries that nobody promotes are looked for while others are due.
const HEAL_EVERY: Duration = Duration::from_secs(1);

/// The values of the column `state`.
pub(crate) mod state {
    pub(crate) const READY: i8 = 0;
    pub(crate) const HELD: i8 = 1;
    pub(crate) const SCHEDULED: i8 = 2;
    pub(crate) const DEAD: i8 = 3;
    pub(crate) const DISCARDED: i8 = 4;
}

/// A failed attempt on its way into the history.
struct Failed {
    identity: [u8; 16],
    handler: String,
    attempt: u32,
    error: String,
}

impl Inner {
    /// Gives deliveries a row of their own; answers their ids in order.
    pub(crate) async fn park(
        &self,
        connection: &mut MySqlConnection,
        park: &[Park],
    ) -> Result<Vec<DeliveryId>, Problem> {
        if park.is_empty() {
            return Ok(Vec::new());
        }
        let identities: Vec<[u8; 16]> = park.iter().map(|one| one.message.identity()).collect();
        let seen = self.sql.known.query(self.shift()).bind(list(identities.iter().map(|one| hex(one))));
        let mut seen_at: HashMap<[u8; 16], i64> = HashMap::new();
        for row in seen.fetch_all(&mut *connection).await? {
            seen_at.insert(sixteen(&row, 0)?, row.try_get(2)?);
        }
        let rows: Vec<(&[u8; 16], &Park)> = identities.iter().zip(park).collect();
        let mut ids: Vec<i64> = Vec::with_capacity(park.len());
        let bytes =
            |(_, one): &(&[u8; 16], &Park)| size(&one.message) + one.error.as_ref().map_or(0, String::len);
        for (text, piece) in self.sql.insert_delivery.pieces(&rows, self.shift(), self.most_bytes(), bytes) {
            let mut insert = query(text);
            for (identity, one) in piece {
                let message = &one.message;
                let (state, due_at, delay, token) = match one.state {
                    ParkState::Ready(delay) => (state::READY, None, micros(delay), None),
                    ParkState::Held => (state::HELD, None, 0, None),
                    ParkState::Scheduled => (state::SCHEDULED, not_before(message), 0, None),
                    ParkState::Leased(token, lease_for) => {
                        (state::READY, None, micros(lease_for), Some(token.0))
                    }
                    ParkState::Dead => (state::DEAD, None, 0, None),
                };
                insert = insert
                    .bind(one.handler.as_bytes())
                    .bind(&identity[..])
                    .bind(message.scope.as_bytes())
                    .bind(message.id.as_bytes())
                    .bind(message.kind.as_bytes())
                    .bind(message.key.as_deref().map(str::as_bytes))
                    .bind(message.headers.to_stored().into_bytes())
                    .bind(&message.payload[..])
                    .bind(not_before(message))
                    .bind(seen_at.get(*identity).copied())
                    .bind(state)
                    .bind(stored_attempts(one.attempts))
                    .bind(due_at)
                    .bind(delay)
                    .bind(token)
                    .bind(one.error.as_deref().map(str::as_bytes));
            }
            for row in insert.fetch_all(&mut *connection).await? {
                ids.push(row.try_get(0)?);
            }
        }
        // Numbers grow in the order of the rows, and MariaDB does not promise to return them in it.
        ids.sort_unstable();
        let failed = rows.iter().filter_map(|(identity, one)| {
            let (handler, error) = (one.handler.clone(), one.error.clone()?);
            Some(Failed { identity: **identity, handler, attempt: one.attempts, error })
        });
        self.note_failures(connection, &failed.collect::<Vec<_>>()).await?;
        Ok(ids.into_iter().map(DeliveryId).collect())
    }

    async fn note_failures(
        &self,
        connection: &mut MySqlConnection,
        failed: &[Failed],
    ) -> Result<(), Problem> {
        let bytes = |one: &Failed| one.error.len() + 100;
        for (text, piece) in self.sql.insert_attempt.pieces(failed, self.shift(), self.most_bytes(), bytes) {
            let mut insert = query(text);
            for one in piece {
                insert = insert
                    .bind(&one.identity[..])
                    .bind(one.handler.as_bytes())
                    .bind(stored_attempts(one.attempt))
                    .bind(one.error.as_bytes());
            }
            insert.execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// Removes deliveries that are done; `Fenced` unless all of them are still ours.
    pub(crate) async fn remove_done(
        &self,
        connection: &mut MySqlConnection,
        done: &DoneLeases,
    ) -> Result<(), Problem> {
        let mine = self.still_ours(connection, &done.handler, &done.leases).await?;
        if mine.len() != done.leases.len() {
            return Err(fenced("a leased delivery is no longer ours; nothing is kept").into());
        }
        let ids: Vec<i64> = done.leases.iter().map(|lease| lease.delivery.0).collect();
        self.sql.delete_done.query(self.shift()).bind(list(ids)).execute(&mut *connection).await?;
        let keys = mine.into_values().filter_map(|row| row.key).map(|key| (done.handler.clone(), key));
        self.promote(connection, keys.collect()).await
    }

    /// Locks those of the leased rows that are still ours, by id, waiting for whoever has them.
    async fn still_ours(
        &self,
        connection: &mut MySqlConnection,
        handler: &str,
        held: &[Lease],
    ) -> Result<HashMap<Key, Mine>, Problem> {
        let mut held: Vec<Lease> = held.to_vec();
        held.sort_unstable_by_key(|lease| lease.delivery);
        let rows = self
            .sql
            .still_ours
            .query(self.shift())
            .bind(leases(&held))
            .bind(handler.as_bytes())
            .fetch_all(&mut *connection)
            .await?;
        rows.iter()
            .map(|row| {
                let mine = Mine { identity: sixteen(row, 1)?, key: optional_text(row, 2)? };
                let lease = Lease {
                    delivery: DeliveryId(row.try_get(0)?),
                    token: Token(row.try_get(3)?),
                    attempt: rows::attempts(row, 4)?,
                };
                Ok((key(&lease), mine))
            })
            .collect()
    }

    /// Makes the first held delivery of each (handler, key) ready, where the handler is ordered and nothing of the key
    /// is active any more.
    pub(crate) async fn promote(
        &self,
        connection: &mut MySqlConnection,
        keys: BTreeSet<(String, String)>,
    ) -> Result<(), Problem> {
        if keys.is_empty() {
            return Ok(());
        }
        let keys = keys.iter().map(|(handler, key)| json!([hex(handler.as_bytes()), hex(key.as_bytes())]));
        self.sql.promote.query(self.shift()).bind(list(keys)).execute(&mut *connection).await?;
        Ok(())
    }

    pub(crate) async fn lease(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        // Also under constant load, when there is always something due.
        let healing = ask.ordered && self.is_time_to_heal(ask.handler);
        if healing {
            self.heal(ask.handler).await?;
        }
        let leased = self.lease_due(ask).await?;
        if !ask.ordered || !leased.deliveries.is_empty() || self.heal(ask.handler).await? == 0 {
            return Ok(leased);
        }
        self.lease_due(ask).await
    }

    fn is_time_to_heal(&self, handler: &str) -> bool {
        let mut healed_at = self.healed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if healed_at.get(handler).is_some_and(|at| at.elapsed() < HEAL_EVERY) {
            return false;
        }
        healed_at.insert(handler.to_owned(), Instant::now());
        true
    }

    /// Most of the time nothing is due; that takes no lock and no commit.
    async fn lease_due(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        let row = reading!(self, |connection| {
            let peek = self.sql.lease_peek.query(self.shift());
            let handler = ask.handler.as_bytes();
            Ok(peek.bind(handler).bind(handler).bind(handler).fetch_one(&mut *connection).await?)
        })?;
        let read = |column| row.try_get::<Option<i64>, _>(column).map_err(crate::error::classify);
        if read(0)? == Some(1) {
            return Ok(Leased::default());
        }
        let next_due = read(2)?.map(rows::duration);
        if read(1)? != Some(1) {
            return Ok(Leased { deliveries: Vec::new(), next_due });
        }
        let deliveries = transaction!(self, |connection| self.lease_now(connection, ask).await)?;
        let next_due = if deliveries.is_empty() { next_due } else { None };
        Ok(Leased { deliveries, next_due })
    }

    async fn lease_now(
        &self,
        connection: &mut MySqlConnection,
        ask: &AskLease<'_>,
    ) -> Result<Vec<LeasedDelivery>, Problem> {
        let handler = ask.handler.as_bytes();
        let rows = self
            .sql
            .lease_due
            .query(self.shift())
            .bind(handler)
            .bind(handler)
            .bind(ask.ordered)
            .bind(handler)
            .bind(limit(ask.limit))
            .fetch_all(&mut *connection)
            .await?;
        let mut lapsed = Vec::new();
        let mut leased = Vec::with_capacity(rows.len());
        for row in &rows {
            let delivery = DeliveryId(row.try_get(0)?);
            let attempts = rows::attempts(row, 1)?;
            let has_lapsed: bool = row.try_get(2)?;
            if has_lapsed {
                lapsed.push(Failed {
                    identity: sixteen(row, 3)?,
                    handler: ask.handler.to_owned(),
                    attempt: attempts,
                    error: LAPSED.to_owned(),
                });
            }
            let suspect = has_lapsed || is_suspect(optional_text(row, 11)?.as_deref());
            let lease = Lease { delivery, token: ask.token, attempt: attempts.saturating_add(1) };
            let (message, unreadable) = rows::message(row, 4)?;
            leased.push(LeasedDelivery { lease, message, suspect, unreadable });
        }
        if leased.is_empty() {
            return Ok(leased);
        }
        self.note_failures(connection, &lapsed).await?;
        let ids: Vec<i64> = leased.iter().map(|one| one.lease.delivery.0).collect();
        self.sql
            .lease
            .query(self.shift())
            .bind(list(ids))
            .bind(LAPSED.as_bytes())
            .bind(ask.token.0)
            .bind(micros(ask.lease_for))
            .execute(&mut *connection)
            .await?;
        Ok(leased)
    }

    /// Makes held messages ready that have nothing active before them in their key; answers how many keys.
    async fn heal(&self, handler: &str) -> Result<usize, Error> {
        let keys: BTreeSet<(String, String)> = reading!(self, |connection| {
            let name = handler.as_bytes();
            let orphans = self.sql.orphans.query(self.shift());
            let orphans = orphans.bind(name).bind(name).bind(name).bind(name).bind(name);
            let rows = orphans.fetch_all(&mut *connection).await?;
            rows.iter().map(|row| Ok((handler.to_owned(), rows::text(row, 0)?))).collect::<Result<_, _>>()
        })?;
        if keys.is_empty() {
            return Ok(0);
        }
        transaction!(self, |connection| self.promote(connection, keys.clone()).await)?;
        Ok(keys.len())
    }

    pub(crate) async fn renew(
        &self,
        handler: &str,
        held: &[Lease],
        lease_for: Duration,
    ) -> Result<Vec<bool>, Error> {
        transaction!(self, |connection| {
            let mine = self.still_ours(connection, handler, held).await?;
            let ids: Vec<i64> = mine.keys().map(|(id, ..)| *id).collect();
            if !ids.is_empty() {
                let renew = self.sql.renew.query(self.shift()).bind(list(ids)).bind(micros(lease_for));
                renew.execute(&mut *connection).await?;
            }
            Ok(held.iter().map(|lease| mine.contains_key(&key(lease))).collect())
        })
    }

    pub(crate) async fn settle(&self, handler: &str, settlements: &[Settlement]) -> Result<Vec<bool>, Error> {
        let held: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
        transaction!(self, |connection| {
            let mine = self.still_ours(connection, handler, &held).await?;
            self.end_leases(connection, handler, settlements, &mine).await?;
            Ok(held.iter().map(|lease| mine.contains_key(&key(lease))).collect())
        })
    }

    async fn end_leases(
        &self,
        connection: &mut MySqlConnection,
        handler: &str,
        settlements: &[Settlement],
        mine: &HashMap<Key, Mine>,
    ) -> Result<(), Problem> {
        let (mut done, mut failed, mut freed) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut others: Vec<(Value, Option<&str>)> = Vec::new();
        for Settlement { lease, outcome } in settlements {
            let Some(row) = mine.get(&key(lease)) else { continue };
            let id = lease.delivery.0;
            // Id, state, delay, and how many attempts do not count.
            let (values, error) = match outcome {
                Outcome::Done => {
                    done.push(id);
                    (None, None)
                }
                Outcome::Retry(delay, error) => {
                    (Some(json!([id, state::READY, micros(*delay), 0])), Some(error))
                }
                Outcome::Dead(error) => (Some(json!([id, state::DEAD, 0, 0])), Some(error)),
                Outcome::Returned => (Some(json!([id, state::READY, 0, 1])), None),
            };
            if let Some(error) = error {
                failed.push(Failed {
                    identity: row.identity,
                    handler: handler.to_owned(),
                    attempt: lease.attempt,
                    error: error.clone(),
                });
            }
            others.extend(values.map(|values| (values, error.map(String::as_str))));
            if let (Outcome::Done | Outcome::Dead(_), Some(key)) = (outcome, &row.key) {
                freed.insert((handler.to_owned(), key.clone()));
            }
        }
        if !done.is_empty() {
            self.sql.delete_done.query(self.shift()).bind(list(done)).execute(&mut *connection).await?;
        }
        self.note_failures(connection, &failed).await?;
        // Errors of the same text share a statement, because a text goes in as bytes and not in a list.
        let mut by_error: HashMap<Option<&str>, Vec<Value>> = HashMap::new();
        for (values, error) in others {
            by_error.entry(error).or_default().push(values);
        }
        for (error, values) in by_error {
            let settle = self.sql.settle.query(self.shift()).bind(list(values));
            settle.bind(error.map(str::as_bytes)).execute(&mut *connection).await?;
        }
        self.promote(connection, freed).await
    }
}

/// A lease by its parts: row, token, attempt.
type Key = (i64, i64, u32);

fn key(lease: &Lease) -> Key {
    (lease.delivery.0, lease.token.0, lease.attempt)
}

/// What must be known of a leased row to end its lease.
struct Mine {
    identity: [u8; 16],
    key: Option<String>,
}
