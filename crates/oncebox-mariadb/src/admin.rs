//! What an operator reads and changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oncebox_core::admin::{
    AttemptInfo, Conflict, DeliveryFilter, DeliveryInfo, DeliveryState, HandlerStatus, OutboxStatus,
};
use oncebox_core::store::{Count, DeliveryId};
use oncebox_core::{Error, LANES, lane_of};
use serde_json::json;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{MySql, MySqlConnection, Row};

use crate::deliveries::state;
use crate::error::Problem;
use crate::rows::{self, amount, attempts, hex, limit, list, optional_text, text, timestamp};
use crate::sql::{self, Standing, Statement, query};
use crate::store::Inner;
use crate::tx::{reading, run_text, transaction};

/// How many log rows of a lane are counted before the rest is estimated.
const MOST_WAITING: i64 = 1000;
/// How many rows of a state or a sink are counted.
const MOST_COUNTED: i64 = 10_000;

impl Inner {
    pub(crate) async fn set_paused(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        transaction!(self, |connection| {
            let set = self.sql.set_paused.query(self.shift()).bind(paused).bind(handler.as_bytes());
            Ok(set.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    pub(crate) async fn forget(&self, handler: &str) -> Result<bool, Error> {
        transaction!(self, |connection| {
            let sql = &self.sql;
            for statement in [&sql.forget_cursors, &sql.forget_deliveries] {
                statement.query(self.shift()).bind(handler.as_bytes()).execute(&mut *connection).await?;
            }
            let forget = sql.forget_handler.query(self.shift()).bind(handler.as_bytes());
            Ok(forget.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    pub(crate) async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        reading!(self, |connection| {
            let (state, failed) = stored_state(filter.state);
            let most = limit(filter.limit.unwrap_or(100));
            let bytes = filter.bytes.map(limit);
            let rows = filtered(&self.sql.deliveries, self.shift(), filter, state, failed, None, most)
                .bind(bytes)
                .bind(bytes)
                .fetch_all(&mut *connection)
                .await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            let mut history: HashMap<i64, Vec<AttemptInfo>> = HashMap::new();
            if !ids.is_empty() {
                let rows = self.sql.history.query(self.shift()).bind(list(ids));
                for row in rows.fetch_all(&mut *connection).await? {
                    history.entry(row.try_get(0)?).or_default().push(AttemptInfo {
                        attempt: attempts(&row, 1)?,
                        at: timestamp(row.try_get(2)?)?,
                        error: text(&row, 3)?,
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
        reading!(self, |connection| {
            let statement = &self.sql.count_deliveries;
            let count = filtered(statement, self.shift(), filter, state, failed, None, most);
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
        connection: &mut MySqlConnection,
        found: &[DeadLetter],
    ) -> Result<u64, Problem> {
        if found.is_empty() {
            return Ok(0);
        }
        let keys: BTreeSet<(String, String)> = found
            .iter()
            .filter(|letter| letter.ordered)
            .filter_map(|letter| Some((letter.handler.clone(), letter.key.clone()?)))
            .collect();
        if !keys.is_empty() {
            // A batch that runs now read its lane before these letters came back, and would overtake them.
            let lanes: BTreeSet<(&str, u16)> =
                keys.iter().map(|(handler, key)| (handler.as_str(), lane_of(key))).collect();
            let lanes = lanes.into_iter().map(|(handler, lane)| json!([hex(handler.as_bytes()), lane]));
            let lock = self.sql.lock_cursors.query(self.shift()).bind(list(lanes));
            lock.fetch_all(&mut *connection).await?;
        }
        let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
        let replay = self.sql.replay.query(self.shift()).bind(list(ids));
        let done = replay.execute(&mut *connection).await?;
        self.promote(connection, keys).await?;
        Ok(done.rows_affected())
    }

    pub(crate) async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        let note = format!("discarded: {reason}");
        transaction!(self, |connection| {
            let found = self.matching(connection, filter, None).await?;
            for letter in &found {
                self.sql
                    .note_discarded
                    .query(self.shift())
                    .bind(note.as_bytes())
                    .bind(letter.id)
                    .execute(&mut *connection)
                    .await?;
            }
            let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
            let discard = self.sql.discard.query(self.shift()).bind(list(ids));
            Ok(discard.execute(&mut *connection).await?.rows_affected())
        })
    }

    /// The dead letters that a replay or discard means, up to this id.
    pub(crate) async fn matching(
        &self,
        connection: &mut MySqlConnection,
        filter: &DeliveryFilter,
        upto: Option<i64>,
    ) -> Result<Vec<DeadLetter>, Problem> {
        let most = filter.limit.map_or(i64::MAX, limit);
        let rows = filtered(&self.sql.matching, self.shift(), filter, Some(state::DEAD), None, upto, most)
            .fetch_all(&mut *connection)
            .await?;
        rows.iter().map(DeadLetter::read).collect()
    }

    pub(crate) async fn conflicts(&self, most: usize) -> Result<Vec<Conflict>, Error> {
        reading!(self, |connection| {
            let rows =
                self.sql.conflicts.query(self.shift()).bind(limit(most)).fetch_all(&mut *connection).await?;
            rows.iter()
                .map(|row| {
                    let received_at = timestamp(row.try_get(0)?)?;
                    Ok(Conflict { message: rows::message(row, 1)?.0, received_at })
                })
                .collect()
        })
    }

    pub(crate) async fn wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        reading!(self, |connection| {
            let rows = self.sql.wanted_kinds.query(self.shift()).fetch_all(&mut *connection).await?;
            rows.iter().map(|row| Ok(serde_json::from_str(&text(row, 0)?).unwrap_or_default())).collect()
        })
    }

    pub(crate) async fn handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        reading!(self, |connection| {
            let mut standing: BTreeMap<String, Vec<Standing>> = BTreeMap::new();
            for row in self.sql.cursors.query(self.shift()).fetch_all(&mut *connection).await? {
                let at = Standing { lane: rows::lane(&row, 1)?, position: row.try_get(2)? };
                standing.entry(text(&row, 0)?).or_default().push(at);
            }
            let mut all = Vec::new();
            for row in self.sql.handlers.query(self.shift()).fetch_all(&mut *connection).await? {
                let name = text(&row, 0)?;
                let kinds = serde_json::from_str(&text(&row, 1)?).unwrap_or_default();
                let mut status = HandlerStatus {
                    kinds,
                    paused: row.try_get(2)?,
                    waiting: 0,
                    waiting_is_exact: true,
                    lag: None,
                    retrying: 0,
                    held: 0,
                    scheduled: 0,
                    dead: 0,
                    name,
                };
                let head: i64 = row.try_get(3)?;
                let lanes = standing.remove(&status.name).unwrap_or_default();
                self.count_waiting(connection, &mut status, &lanes, head).await?;
                all.push(status);
            }
            Ok(all)
        })
    }

    async fn count_waiting(
        &self,
        connection: &mut MySqlConnection,
        status: &mut HandlerStatus,
        lanes: &[Standing],
        head: i64,
    ) -> Result<(), Problem> {
        let most = [MOST_WAITING, MOST_COUNTED];
        let text = sql::count_waiting(&self.options.schema, &status.name, lanes, most, self.shift());
        let answers = run_text(connection, text).await?;
        let mut rows = answers.iter().filter_map(|answer| answer.rows.first());
        if let Some(row) = rows.next() {
            status.retrying = amount(row, 0)?;
            status.held = amount(row, 1)?;
            status.scheduled = amount(row, 2)?;
            status.dead = amount(row, 3)?;
        }
        for (row, at) in rows.zip(lanes) {
            let waiting = amount(row, 0)?;
            if waiting >= MOST_WAITING.unsigned_abs() {
                let behind = u64::try_from(head - at.position).unwrap_or(0) / u64::from(LANES);
                status.waiting += waiting.max(behind);
                status.waiting_is_exact = false;
            } else {
                status.waiting += waiting;
            }
            status.lag = status.lag.max(row.try_get::<Option<i64>, _>(1)?.map(rows::duration));
        }
        Ok(())
    }

    pub(crate) async fn outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        reading!(self, |connection| {
            let mut all = Vec::new();
            for row in self.sql.outbox_sinks.query(self.shift()).fetch_all(&mut *connection).await? {
                let sink = text(&row, 0)?;
                let mut status = self.sql.outbox_status.query(self.shift());
                for _ in 0..3 {
                    status = status.bind(sink.as_bytes()).bind(MOST_COUNTED);
                }
                let row =
                    status.bind(sink.as_bytes()).bind(sink.as_bytes()).fetch_one(&mut *connection).await?;
                let retrying = amount(&row, 1)?;
                all.push(OutboxStatus {
                    waiting: amount(&row, 0)? + retrying,
                    retrying,
                    dead: amount(&row, 2)?,
                    lag: row.try_get::<Option<i64>, _>(3)?.map(rows::duration),
                    sink,
                });
            }
            Ok(all)
        })
    }

    pub(crate) async fn add_counts(&self, counts: &[Count]) -> Result<(), Error> {
        if counts.is_empty() {
            return Ok(());
        }
        // Summed up and sorted: two processes that add the same counters must lock them in the same order.
        let mut sums: BTreeMap<(&str, &str, bool), i64> = BTreeMap::new();
        for count in counts {
            for this_minute in [false, true] {
                *sums.entry((&count.handler, &count.name, this_minute)).or_default() += count.value;
            }
        }
        let sums: Vec<_> = sums.into_iter().collect();
        transaction!(self, |connection| {
            for (text, piece) in self.sql.add_counts.pieces(&sums, self.shift(), self.most_bytes(), |_| 300) {
                let mut insert = query(text);
                for ((handler, name, this_minute), value) in piece {
                    insert =
                        insert.bind(handler.as_bytes()).bind(name.as_bytes()).bind(*this_minute).bind(*value);
                }
                insert.execute(&mut *connection).await?;
            }
            Ok(())
        })
    }

    pub(crate) async fn counts(&self) -> Result<Vec<Count>, Error> {
        reading!(self, |connection| {
            let rows = self.sql.counts.query(self.shift()).fetch_all(&mut *connection).await?;
            rows.iter()
                .map(|row| Ok(Count { handler: text(row, 0)?, name: text(row, 1)?, value: row.try_get(2)? }))
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
    fn read(row: &MySqlRow) -> Result<Self, Problem> {
        Ok(Self {
            id: row.try_get(0)?,
            handler: text(row, 1)?,
            key: optional_text(row, 2)?,
            ordered: row.try_get(3)?,
        })
    }
}

/// A row of `deliveries.sql` or `deliveries_of.sql`, without its history.
pub(crate) fn delivery_info(row: &MySqlRow) -> Result<DeliveryInfo, Problem> {
    Ok(DeliveryInfo::new(
        DeliveryId(row.try_get(0)?),
        text(row, 1)?,
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
    shift: i64,
    filter: &'q DeliveryFilter,
    state: Option<i8>,
    failed: Option<bool>,
    upto: Option<i64>,
    most: i64,
) -> Query<'q, MySql, MySqlArguments> {
    let ids = (!filter.deliveries.is_empty()).then(|| list(filter.deliveries.iter().map(|id| id.0)));
    let bytes = |text: &'q Option<String>| text.as_deref().map(str::as_bytes);
    let since = filter.since.map(|since| since.as_microsecond());
    let until = filter.until.map(|until| until.as_microsecond());
    let after = filter.after.map(|id| id.0);
    // Parameters have no numbers here, so each is bound as often as it is asked for.
    let mut query = statement.query(shift).bind(ids.clone()).bind(ids);
    for text in [&filter.handler, &filter.scope, &filter.message_id, &filter.kind, &filter.key, &filter.error]
    {
        query = query.bind(bytes(text)).bind(bytes(text));
    }
    query
        .bind(state)
        .bind(state)
        .bind(failed)
        .bind(failed)
        .bind(since)
        .bind(since)
        .bind(until)
        .bind(until)
        .bind(after)
        .bind(after)
        .bind(upto)
        .bind(upto)
        .bind(most)
}

/// The stored state, and whether a last error must be there or not.
fn stored_state(wanted: Option<DeliveryState>) -> (Option<i8>, Option<bool>) {
    match wanted {
        None => (None, None),
        Some(DeliveryState::Waiting) => (Some(state::READY), Some(false)),
        Some(DeliveryState::Retrying) => (Some(state::READY), Some(true)),
        Some(DeliveryState::Held) => (Some(state::HELD), None),
        Some(DeliveryState::Scheduled) => (Some(state::SCHEDULED), None),
        Some(DeliveryState::Dead) => (Some(state::DEAD), None),
        Some(DeliveryState::Discarded) => (Some(state::DISCARDED), None),
        // A state this version does not know has no rows.
        Some(_) => (Some(i8::MAX), None),
    }
}

fn delivery_state(stored: i8, failed: bool) -> DeliveryState {
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
