//! Handlers, their cursors, and the claims on lanes.

use std::collections::HashMap;

use oncebox_core::clock::micros;
use oncebox_core::store::{
    ABANDONED_AFTER, Claim, ClaimedLane, Connection, LaneBatch, LaneBound, LaneMessage, LaneRow, MoveLanes,
    ReadLanes, Registration, Token,
};
use oncebox_core::{Error, ErrorKind, LANES};
use serde_json::Value;
use sqlx::SqliteConnection;

use crate::error::classify;
use crate::migrate::check_version;
use crate::receive::{LANE_BITS, bind_tail};
use crate::rows::{get, limit, list, message};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::SqliteTransaction;
use crate::tx::writer::{Sync, fenced};

impl SqliteStore {
    pub(crate) async fn register_handlers(&self, handlers: &[Registration]) -> Result<(), Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        let outcome = async {
            self.check_durability(connection).await?;
            check_version(self, connection).await?;
            // On a read-only database `begin immediate` succeeds, and so would registering nothing new.
            query(&self.sql.touch).execute(&mut *connection).await.map_err(classify)?;
            for handler in handlers {
                self.register_one(connection, handler).await?;
            }
            Ok(())
        }
        .await;
        match outcome {
            Ok(()) => write.commit().await,
            Err(error) => {
                write.rollback().await;
                Err(error)
            }
        }
    }

    async fn register_one(
        &self,
        connection: &mut SqliteConnection,
        handler: &Registration,
    ) -> Result<(), Error> {
        let mut known = self.is_registered(connection, &handler.name).await?;
        for old in handler.formerly.iter().filter(|old| **old != handler.name) {
            if !self.is_registered(connection, old).await? {
                continue;
            }
            if known {
                return Err(Error::invalid(format!(
                    "handler `{}` was formerly `{old}`, but the store knows both; forget one of them",
                    handler.name
                )));
            }
            let sql = &self.sql;
            for text in [
                &sql.rename_handler,
                &sql.rename_cursor,
                &sql.rename_delivery,
                &sql.rename_attempt,
                &sql.rename_counter,
            ] {
                let rename = query(text).bind(old.as_str()).bind(handler.name.as_str());
                rename.execute(&mut *connection).await.map_err(classify)?;
            }
            known = true;
        }
        query(&self.sql.register)
            .bind(self.shift())
            .bind(handler.name.as_str())
            .bind(list(handler.kinds.patterns()))
            .bind(handler.ordered)
            .execute(&mut *connection)
            .await
            .map_err(classify)?;
        if !handler.ordered {
            // It may have been ordered before; nobody would promote these any more.
            let held = query(&self.sql.release_held).bind(self.shift()).bind(handler.name.as_str());
            held.execute(&mut *connection).await.map_err(classify)?;
        }
        if !known {
            query(&self.sql.register_cursors)
                .bind(handler.name.as_str())
                .bind(LANES)
                .bind(handler.from_start)
                .execute(connection)
                .await
                .map_err(classify)?;
            if handler.from_start {
                // The oldest messages of the run may have been purged, which no cursor kept them from.
                self.recent.clear();
            }
        }
        Ok(())
    }

    async fn is_registered(&self, connection: &mut SqliteConnection, name: &str) -> Result<bool, Error> {
        let row =
            query(&self.sql.registered).bind(name).fetch_optional(connection).await.map_err(classify)?;
        Ok(row.is_some())
    }

    pub(crate) async fn claim_lanes(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        let rows = self
            .writer
            .run(Sync::Soft, || {
                query(&self.sql.claim)
                    .bind(self.shift())
                    .bind(claim.handler)
                    .bind(claim.token.0)
                    .bind(limit(claim.lanes))
                    .bind(limit(claim.limit))
                    .bind(micros(ABANDONED_AFTER))
            })
            .await?;
        rows.iter()
            .map(|row| {
                let suspects: Option<i64> = get(row, 1)?;
                let suspects = suspects.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
                Ok(ClaimedLane { lane: get(row, 0)?, suspects })
            })
            .collect()
    }

    pub(crate) async fn release_lanes(&self, handler: &str, token: Token) -> Result<(), Error> {
        self.writer.run(Sync::Soft, || query(&self.sql.release).bind(handler).bind(token.0)).await?;
        Ok(())
    }

    pub(crate) async fn read_claimed(
        &self,
        read: &ReadLanes<'_>,
    ) -> Result<Option<LaneBatch<SqliteTransaction>>, Error> {
        let mut transaction = self.begin(read.limits).await?;
        match self.verify_and_read(&mut transaction, read).await {
            Ok(Some(rows)) => Ok(Some(LaneBatch { connection: transaction, rows })),
            Ok(None) => {
                transaction.rollback().await;
                Ok(None)
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
        }
    }

    async fn verify_and_read(
        &self,
        connection: &mut SqliteConnection,
        read: &ReadLanes<'_>,
    ) -> Result<Option<Vec<LaneRow>>, Error> {
        // Higher ones would be places of the next lane.
        let upto = |lane: &LaneBound| lane.upto.map(|upto| upto.min((1 << LANE_BITS) - 1));
        let lanes = list(read.lanes.iter().map(|lane| vec![Value::from(lane.lane), Value::from(upto(lane))]));
        let tail = self.recent.tail();
        let begin = query(&self.sql.begin_lanes).bind(read.handler).bind(read.token.0).bind(lanes.as_str());
        let row = bind_tail(begin, tail.as_ref()).fetch_one(&mut *connection).await.map_err(classify)?;
        let positions: HashMap<u16, i64> = serde_json::from_str(get(&row, 0)?).map_err(|error| {
            let text = format!(
                "the positions of handler `{}` in the SQLite file cannot be read; restore it from a backup",
                read.handler
            );
            Error::caused(ErrorKind::Store, text, error)
        })?;
        if positions.len() != read.lanes.len() {
            return Ok(None);
        }
        if let Some(tail) = tail {
            let is_still_there: bool = get(&row, 2)?;
            if !is_still_there {
                self.recent.forget(&tail);
            } else if let Some(rows) = self.recent.read(&tail, get(&row, 1)?, read, &positions) {
                return Ok(Some(rows));
            }
        }
        let every_kind = read.kinds.prefixes.iter().any(String::is_empty);
        let rows = query(&self.sql.read_lanes)
            .bind(self.shift())
            .bind(read.handler)
            .bind(lanes)
            .bind(limit(read.limit))
            .bind(every_kind)
            .bind(list(read.kinds.exact.iter().map(String::as_str)))
            .bind(list(read.kinds.prefixes.iter().map(String::as_str)))
            .bind(read.ordered)
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        let rows: Vec<LaneRow> = rows
            .iter()
            .map(|row| {
                let wanted = get::<Option<&[u8]>>(row, 9)?.is_some();
                let read = if wanted { Some(message(row, 4)?) } else { None };
                let (message, unreadable) = read.unzip();
                Ok(LaneRow {
                    lane: get(row, 0)?,
                    seq: get(row, 1)?,
                    scheduled: get::<Option<bool>>(row, 2)?.unwrap_or(false),
                    held: get(row, 3)?,
                    message: message.map(LaneMessage::from),
                    unreadable: unreadable.flatten(),
                })
            })
            .collect::<Result<_, Error>>()?;
        // The statement relies on the order in which SQLite runs its joins; a position moved past an unread message
        // would lose it, so look.
        let order = |row: &LaneRow| (read.lanes.iter().position(|lane| lane.lane == row.lane), row.seq);
        if !rows.is_sorted_by_key(order) {
            return Err(Error::new(ErrorKind::Store, "SQLite gave the messages of a lane out of order"));
        }
        Ok(Some(rows))
    }

    pub(crate) async fn move_lanes(
        &self,
        connection: &mut SqliteConnection,
        lanes: &MoveLanes,
    ) -> Result<(), Error> {
        let positions = lanes.positions.iter().map(|(lane, position)| vec![i64::from(*lane), *position]);
        let moved = query(&self.sql.move_lanes)
            .bind(self.shift())
            .bind(lanes.handler.as_str())
            .bind(lanes.token.0)
            .bind(list(positions))
            .bind(lanes.keep)
            .execute(connection)
            .await
            .map_err(classify)?;
        if moved.rows_affected() != lanes.positions.len() as u64 {
            return Err(fenced("a lane of this transaction has been taken over by another runner"));
        }
        Ok(())
    }
}
