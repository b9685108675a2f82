//! What an operator reads and changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use oncebox_core::admin::{
    AttemptInfo, Conflict, DeliveryFilter, DeliveryInfo, DeliveryState, HandlerStatus, OutboxStatus,
};
use oncebox_core::store::{Count, DeliveryId};
use oncebox_core::{Error, ErrorKind, LANES};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use std::sync::Arc;

use crate::deliveries::{DEAD, DISCARDED, HELD, READY, SCHEDULED};
use crate::error::classify;
use crate::rows::{count, duration, error_text, get, limit, list, message, timestamp};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::writer::{SqliteQuery, Sync};

/// Up to how many messages of one lane are counted before the rest is estimated.
const COUNTED: i64 = 1000;

impl SqliteStore {
    pub(crate) async fn pause(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        let rows =
            self.writer.run(Sync::Durable, || query(&self.sql.set_paused).bind(handler).bind(paused)).await?;
        Ok(!rows.is_empty())
    }

    pub(crate) async fn forget_handler(&self, handler: &str) -> Result<bool, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let mut known = 0;
        for text in [&self.sql.forget_cursors, &self.sql.forget_deliveries, &self.sql.forget_handler] {
            let deleted = query(text).bind(handler).execute(write.connection()).await.map_err(classify)?;
            known = deleted.rows_affected();
        }
        write.commit().await?;
        Ok(known > 0)
    }

    pub(crate) async fn list_deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        let (state, failed) = stored_state(filter.state)?;
        let rows = bind_filter(&self.sql.deliveries, filter, None)
            .bind(state)
            .bind(failed)
            .bind(filter.bytes.map(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        let ids: Vec<i64> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Error>>()?;
        let mut history: HashMap<i64, Vec<AttemptInfo>> = HashMap::new();
        if !ids.is_empty() {
            let attempts =
                query(&self.sql.history).bind(list(ids)).fetch_all(&self.pool).await.map_err(classify)?;
            for row in &attempts {
                history.entry(get(row, 0)?).or_default().push(AttemptInfo {
                    attempt: get(row, 1)?,
                    at: timestamp(get(row, 2)?)?,
                    error: get(row, 3)?,
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
    }

    pub(crate) async fn count_matching(&self, filter: &DeliveryFilter, most: u64) -> Result<u64, Error> {
        let (state, failed) = stored_state(filter.state)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let most = filter.limit.map_or(most, |limit| limit.min(most));
        let bounded = filter.clone().limit(most);
        let count_rows = bind_filter(&self.sql.count_deliveries, &bounded, None).bind(state).bind(failed);
        let row = count_rows.fetch_one(&self.pool).await.map_err(classify)?;
        Ok(count(get(&row, 0)?))
    }

    pub(crate) async fn replay_dead(&self, filter: &DeliveryFilter) -> Result<u64, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        let ids = self.dead(connection, filter, None).await?;
        let replayed = self.replay_letters(connection, ids).await?;
        write.commit().await?;
        Ok(replayed)
    }

    /// Makes these letters wait again, in order within each key.
    pub(crate) async fn replay_letters(
        &self,
        connection: &mut SqliteConnection,
        ids: Vec<i64>,
    ) -> Result<u64, Error> {
        let rows = query(&self.sql.replay)
            .bind(self.shift())
            .bind(list(ids))
            .fetch_all(&mut *connection)
            .await
            .map_err(classify)?;
        let mut held: BTreeMap<String, HashSet<String>> = BTreeMap::new();
        for row in &rows {
            if let (Some(key), HELD) = (get(row, 1)?, get(row, 2)?) {
                held.entry(get(row, 0)?).or_default().insert(key);
            }
        }
        for (handler, keys) in held {
            self.promote(connection, &handler, keys).await?;
        }
        Ok(rows.len() as u64)
    }

    pub(crate) async fn discard_dead(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        let ids = list(self.dead(connection, filter, None).await?);
        query(&self.sql.discard_history)
            .bind(self.shift())
            .bind(ids.as_str())
            .bind(format!("discarded: {}", error_text(reason)))
            .execute(&mut *connection)
            .await
            .map_err(classify)?;
        let discarded = query(&self.sql.discard)
            .bind(self.shift())
            .bind(ids)
            .execute(connection)
            .await
            .map_err(classify)?;
        write.commit().await?;
        Ok(discarded.rows_affected())
    }

    /// The dead letters that a replay or discard means, up to this id.
    pub(crate) async fn dead(
        &self,
        connection: &mut SqliteConnection,
        filter: &DeliveryFilter,
        upto: Option<i64>,
    ) -> Result<Vec<i64>, Error> {
        let rows = bind_filter(&self.sql.replay_candidates, filter, upto)
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    pub(crate) async fn list_conflicts(&self, most: usize) -> Result<Vec<Conflict>, Error> {
        let rows =
            query(&self.sql.conflicts).bind(limit(most)).fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter()
            .map(|row| Ok(Conflict { received_at: timestamp(get(row, 0)?)?, message: message(row, 1)?.0 }))
            .collect()
    }

    pub(crate) async fn list_wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        let rows = query(&self.sql.wanted_kinds).fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter().map(|row| Ok(json(get(row, 0)?).unwrap_or_default())).collect()
    }

    pub(crate) async fn list_handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        let rows =
            query(&self.sql.handlers).bind(self.shift()).fetch_all(&self.pool).await.map_err(classify)?;
        let mut handlers: Vec<HandlerStatus> = Vec::new();
        for row in &rows {
            let name: String = get(row, 0)?;
            if handlers.last().is_none_or(|last| last.name != name) {
                handlers.push(HandlerStatus {
                    name,
                    // What another version wrote otherwise must not hide all handlers.
                    kinds: json(get(row, 1)?).unwrap_or_default(),
                    paused: get(row, 2)?,
                    waiting: 0,
                    waiting_is_exact: true,
                    lag: None,
                    retrying: 0,
                    held: 0,
                    scheduled: 0,
                    dead: 0,
                });
            }
            let Some(handler) = handlers.last_mut() else { continue };
            let waiting: i64 = get(row, 3)?;
            if waiting > COUNTED {
                let behind: i64 = get(row, 4)?;
                handler.waiting += count(waiting.max(behind / i64::from(LANES)));
                handler.waiting_is_exact = false;
            } else {
                handler.waiting += count(waiting);
            }
            handler.lag = handler.lag.max(get::<Option<i64>>(row, 5)?.map(duration));
            if let Some(counts) = get::<Option<&str>>(row, 6)? {
                [handler.retrying, handler.held, handler.scheduled, handler.dead] = json(counts)?;
            }
        }
        Ok(handlers)
    }

    pub(crate) async fn list_outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        let rows = query(&self.sql.outbox_status)
            .bind(self.shift())
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter()
            .map(|row| {
                Ok(OutboxStatus {
                    sink: get(row, 0)?,
                    waiting: count(get(row, 1)?),
                    retrying: count(get(row, 2)?),
                    dead: count(get(row, 3)?),
                    lag: get::<Option<i64>>(row, 4)?.map(duration),
                })
            })
            .collect()
    }

    pub(crate) async fn add_to_counts(&self, counts: &[Count]) -> Result<(), Error> {
        if counts.is_empty() {
            return Ok(());
        }
        let counts =
            list(counts.iter().map(|count| serde_json::json!([count.handler, count.name, count.value])));
        self.writer
            .run(Sync::Soft, || query(&self.sql.add_counts).bind(self.shift()).bind(counts.as_str()))
            .await?;
        Ok(())
    }

    pub(crate) async fn list_counts(&self) -> Result<Vec<Count>, Error> {
        let rows = query(&self.sql.counts).fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter()
            .map(|row| Ok(Count { handler: get(row, 0)?, name: get(row, 1)?, value: get(row, 2)? }))
            .collect()
    }
}

/// A row of `deliveries.sql` or `deliveries_of.sql`, without its history.
pub(crate) fn delivery_info(row: &SqliteRow) -> Result<DeliveryInfo, Error> {
    Ok(DeliveryInfo::new(
        DeliveryId(get(row, 0)?),
        get(row, 1)?,
        delivery_state(get(row, 2)?, get(row, 6)?),
        get(row, 3)?,
        timestamp(get(row, 4)?)?,
        timestamp(get(row, 5)?)?,
        message(row, 7)?.0,
        Vec::new(),
    ))
}

/// Binds what all statements with a filter have in common: `?1` to `?12`.
fn bind_filter<'a>(text: &Arc<str>, filter: &DeliveryFilter, upto: Option<i64>) -> SqliteQuery<'a> {
    let ids = (!filter.deliveries.is_empty()).then(|| list(filter.deliveries.iter().map(|id| id.0)));
    query(text)
        .bind(ids)
        .bind(filter.handler.clone())
        .bind(filter.scope.clone())
        .bind(filter.message_id.clone())
        .bind(filter.kind.clone())
        .bind(filter.key.clone())
        .bind(filter.error.clone())
        .bind(filter.since.map(jiff::Timestamp::as_microsecond))
        .bind(filter.until.map(jiff::Timestamp::as_microsecond))
        .bind(filter.after.map(|id| id.0))
        .bind(upto)
        .bind(filter.limit.map(limit))
}

/// The stored state, and whether a last error must be there or not.
fn stored_state(wanted: Option<DeliveryState>) -> Result<(Option<i64>, Option<bool>), Error> {
    Ok(match wanted {
        None => (None, None),
        Some(DeliveryState::Waiting) => (Some(READY), Some(false)),
        Some(DeliveryState::Retrying) => (Some(READY), Some(true)),
        Some(DeliveryState::Held) => (Some(HELD), None),
        Some(DeliveryState::Scheduled) => (Some(SCHEDULED), None),
        Some(DeliveryState::Dead) => (Some(DEAD), None),
        Some(DeliveryState::Discarded) => (Some(DISCARDED), None),
        Some(other) => {
            let text = format!("deliveries cannot be listed by state `{}`", other.as_str());
            return Err(Error::invalid(text));
        }
    })
}

fn delivery_state(state: i64, failed: bool) -> DeliveryState {
    match state {
        READY if failed => DeliveryState::Retrying,
        READY => DeliveryState::Waiting,
        HELD => DeliveryState::Held,
        SCHEDULED => DeliveryState::Scheduled,
        DEAD => DeliveryState::Dead,
        DISCARDED => DeliveryState::Discarded,
        _ => DeliveryState::Unreadable,
    }
}

pub(crate) fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::caused(ErrorKind::Store, "a stored list cannot be read", error))
}
