//! What an operator reads and changes.

use std::collections::{BTreeSet, HashMap};

use oncebox_core::admin::{
    AttemptInfo, Conflict, DeliveryFilter, DeliveryInfo, DeliveryState, HandlerStatus, OutboxStatus,
};
use oncebox_core::store::{Count, DeliveryId};
use oncebox_core::{Error, LANES, lane_of};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use crate::deliveries::{state, storable};
use crate::error::Problem;
use crate::rows::{self, amount, attempts, limit, timestamp};
use crate::sql::Statement;
use crate::store::Inner;
use crate::tx::{autocommit, transaction};

/// How many log rows of a lane are counted before the rest is estimated.
const MOST_WAITING: i64 = 1000;
/// How many rows of a state or a sink are counted.
const MOST_COUNTED: i64 = 10_000;

impl Inner {
    pub(crate) async fn set_paused(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        autocommit!(self, |connection| {
            let done =
                self.sql.set_paused.query().bind(handler).bind(paused).execute(&mut *connection).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    pub(crate) async fn forget(&self, handler: &str) -> Result<bool, Error> {
        autocommit!(self, |connection| {
            let done = self.sql.forget.query().bind(handler).execute(&mut *connection).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    pub(crate) async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        autocommit!(self, |connection| {
            let (state, failed) = stored_state(filter.state);
            let most = limit(filter.limit.unwrap_or(100));
            let rows = filtered(&self.sql.deliveries, filter, state, failed, None, Some(most))
                .bind(filter.bytes.map(limit))
                .fetch_all(&mut *connection)
                .await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            let mut history: HashMap<i64, Vec<AttemptInfo>> = HashMap::new();
            if !ids.is_empty() {
                for row in self.sql.history.query().bind(ids).fetch_all(&mut *connection).await? {
                    history.entry(row.try_get(0)?).or_default().push(AttemptInfo {
                        attempt: attempts(&row, 1)?,
                        at: timestamp(row.try_get(2)?)?,
                        error: row.try_get(3)?,
                    });
                }
            }
            rows.iter()
                .map(|row| {
                    let mut info = delivery_info(row)?;
                    info.history = history.remove(&info.id.0).unwrap_or_default();
                    Ok(info)
                })
                .collect()
        })
    }

    pub(crate) async fn count_deliveries(&self, filter: &DeliveryFilter, most: u64) -> Result<u64, Error> {
        let (state, failed) = stored_state(filter.state);
        let most = most.min(filter.limit.map_or(u64::MAX, |limit| limit as u64));
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        autocommit!(self, |connection| {
            let count = filtered(&self.sql.count_deliveries, filter, state, failed, None, Some(most));
            amount(&count.fetch_one(&mut *connection).await?, 0)
        })
    }

    pub(crate) async fn replay(&self, filter: &DeliveryFilter) -> Result<u64, Error> {
        transaction!(self, |connection| {
            let found = self.matching(connection, filter, None).await?;
            self.replay_letters(connection, &found).await
        })
    }

    /// Makes these letters wait again, in order within each key.
    pub(crate) async fn replay_letters(
        &self,
        connection: &mut PgConnection,
        found: &[DeadLetter],
    ) -> Result<u64, Problem> {
        if found.is_empty() {
            return Ok(0);
        }
        let keys: BTreeSet<(&str, &str)> = found
            .iter()
            .filter(|letter| letter.ordered)
            .filter_map(|letter| Some((letter.handler.as_str(), letter.key.as_deref()?)))
            .collect();
        let (handlers, names): (Vec<&str>, Vec<&str>) = keys.iter().copied().unzip();
        if !keys.is_empty() {
            // A batch that runs now read its lane before these letters came back, and would overtake them.
            let lanes: BTreeSet<(&str, i16)> =
                keys.iter().map(|(handler, key)| (*handler, rows::stored_lane(lane_of(key)))).collect();
            let (of, lanes): (Vec<&str>, Vec<i16>) = lanes.into_iter().unzip();
            self.sql.lock_cursors.query().bind(of).bind(lanes).fetch_all(&mut *connection).await?;
        }
        let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
        let done = self.sql.replay.query().bind(self.shift()).bind(ids).execute(&mut *connection).await?;
        if !keys.is_empty() {
            self.sql
                .promote
                .query()
                .bind(self.shift())
                .bind(handlers)
                .bind(names)
                .execute(&mut *connection)
                .await?;
        }
        Ok(done.rows_affected())
    }

    pub(crate) async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        let note = format!("discarded: {}", storable(reason));
        transaction!(self, |connection| {
            let found = self.matching(connection, filter, None).await?;
            let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
            let row = self
                .sql
                .discard
                .query()
                .bind(self.shift())
                .bind(ids)
                .bind(&note)
                .fetch_one(&mut *connection)
                .await?;
            amount(&row, 0)
        })
    }

    /// The dead letters that a replay or discard means, up to this id.
    pub(crate) async fn matching(
        &self,
        connection: &mut PgConnection,
        filter: &DeliveryFilter,
        upto: Option<i64>,
    ) -> Result<Vec<DeadLetter>, Problem> {
        let most = filter.limit.map(limit);
        let rows = filtered(&self.sql.matching, filter, Some(state::DEAD), None, upto, most)
            .fetch_all(&mut *connection)
            .await?;
        rows.iter().map(DeadLetter::read).collect()
    }

    pub(crate) async fn conflicts(&self, most: usize) -> Result<Vec<Conflict>, Error> {
        autocommit!(self, |connection| {
            let rows = self.sql.conflicts.query().bind(limit(most)).fetch_all(&mut *connection).await?;
            rows.iter()
                .map(|row| {
                    let received_at = timestamp(row.try_get(0)?)?;
                    Ok(Conflict { message: rows::message(row, 1)?.0, received_at })
                })
                .collect()
        })
    }

    pub(crate) async fn handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        // Young tables have no statistics; the planner's guess would start a compiler for a few rows.
        transaction!(self, |connection| {
            self.sql.no_jit.query().execute(&mut *connection).await?;
            let rows = self
                .sql
                .handlers
                .query()
                .bind(self.shift())
                .bind(MOST_WAITING)
                .bind(MOST_COUNTED)
                .bind(i64::from(LANES))
                .fetch_all(&mut *connection)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(HandlerStatus {
                        name: row.try_get(0)?,
                        kinds: serde_json::from_str(row.try_get(1)?).unwrap_or_default(),
                        paused: row.try_get(2)?,
                        waiting: amount(row, 3)?,
                        waiting_is_exact: row.try_get(4)?,
                        lag: row.try_get::<Option<i64>, _>(5)?.map(rows::duration),
                        retrying: amount(row, 6)?,
                        held: amount(row, 7)?,
                        scheduled: amount(row, 8)?,
                        dead: amount(row, 9)?,
                    })
                })
                .collect()
        })
    }

    pub(crate) async fn wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        autocommit!(self, |connection| {
            let rows = self.sql.wanted_kinds.query().fetch_all(&mut *connection).await?;
            rows.iter().map(|row| Ok(serde_json::from_str(row.try_get(0)?).unwrap_or_default())).collect()
        })
    }

    pub(crate) async fn outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        // Young tables have no statistics; the planner's guess would start a compiler for a few rows.
        transaction!(self, |connection| {
            self.sql.no_jit.query().execute(&mut *connection).await?;
            let rows = self
                .sql
                .outbox_status
                .query()
                .bind(self.shift())
                .bind(MOST_COUNTED)
                .bind(i32::from(LANES))
                .fetch_all(&mut *connection)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(OutboxStatus {
                        sink: row.try_get(0)?,
                        waiting: amount(row, 1)?,
                        retrying: amount(row, 2)?,
                        dead: amount(row, 3)?,
                        lag: row.try_get::<Option<i64>, _>(4)?.map(rows::duration),
                    })
                })
                .collect()
        })
    }

    pub(crate) async fn add_counts(&self, counts: &[Count]) -> Result<(), Error> {
        if counts.is_empty() {
            return Ok(());
        }
        autocommit!(self, |connection| {
            self.sql
                .add_counts
                .query()
                .bind(self.shift())
                .bind(counts.iter().map(|count| count.handler.as_str()).collect::<Vec<&str>>())
                .bind(counts.iter().map(|count| count.name.as_str()).collect::<Vec<&str>>())
                .bind(counts.iter().map(|count| count.value).collect::<Vec<i64>>())
                .execute(&mut *connection)
                .await?;
            Ok(())
        })
    }

    pub(crate) async fn counts(&self) -> Result<Vec<Count>, Error> {
        autocommit!(self, |connection| {
            let rows = self.sql.counts.query().fetch_all(&mut *connection).await?;
            rows.iter()
                .map(|row| {
                    Ok(Count { handler: row.try_get(0)?, name: row.try_get(1)?, value: row.try_get(2)? })
                })
                .collect()
        })
    }
}

/// A dead letter as far as a replay must know it.
pub(crate) struct DeadLetter {
    pub(crate) id: i64,
    handler: String,
    key: Option<String>,
    ordered: bool,
}

impl DeadLetter {
    fn read(row: &PgRow) -> Result<Self, Problem> {
        Ok(Self {
            id: row.try_get(0)?,
            handler: row.try_get(1)?,
            key: row.try_get(2)?,
            ordered: row.try_get(3)?,
        })
    }
}

/// A row of `deliveries.sql` or `deliveries_of.sql`, without its history.
pub(crate) fn delivery_info(row: &PgRow) -> Result<DeliveryInfo, Problem> {
    Ok(DeliveryInfo::new(
        DeliveryId(row.try_get(0)?),
        row.try_get(1)?,
        delivery_state(row.try_get(2)?, row.try_get(6)?),
        attempts(row, 3)?,
        timestamp(row.try_get(4)?)?,
        timestamp(row.try_get(5)?)?,
        rows::message(row, 7)?.0,
        Vec::new(),
    ))
}

fn filtered<'q>(
    statement: &Statement,
    filter: &'q DeliveryFilter,
    state: Option<i16>,
    failed: Option<bool>,
    upto: Option<i64>,
    most: Option<i64>,
) -> Query<'q, Postgres, PgArguments> {
    statement
        .query()
        .bind(filter.deliveries.iter().map(|id| id.0).collect::<Vec<i64>>())
        .bind(&filter.handler)
        .bind(state)
        .bind(failed)
        .bind(&filter.scope)
        .bind(&filter.message_id)
        .bind(&filter.kind)
        .bind(&filter.key)
        .bind(&filter.error)
        .bind(filter.since.map(|since| since.as_microsecond()))
        .bind(filter.until.map(|until| until.as_microsecond()))
        .bind(filter.after.map(|id| id.0))
        .bind(upto)
        .bind(most)
}

/// The stored state, and whether a last error must be there or not.
fn stored_state(wanted: Option<DeliveryState>) -> (Option<i16>, Option<bool>) {
    match wanted {
        None => (None, None),
        Some(DeliveryState::Waiting) => (Some(state::READY), Some(false)),
        Some(DeliveryState::Retrying) => (Some(state::READY), Some(true)),
        Some(DeliveryState::Held) => (Some(state::HELD), None),
        Some(DeliveryState::Scheduled) => (Some(state::SCHEDULED), None),
        Some(DeliveryState::Dead) => (Some(state::DEAD), None),
        Some(DeliveryState::Discarded) => (Some(state::DISCARDED), None),
        // A state this version does not know has no rows.
        Some(_) => (Some(i16::MAX), None),
    }
}

fn delivery_state(stored: i16, failed: bool) -> DeliveryState {
    match stored {
        state::HELD => DeliveryState::Held,
        state::SCHEDULED => DeliveryState::Scheduled,
        state::DEAD => DeliveryState::Dead,
        state::DISCARDED => DeliveryState::Discarded,
        state::READY if failed => DeliveryState::Retrying,
        state::READY => DeliveryState::Waiting,
        _ => DeliveryState::Unreadable,
    }
}
