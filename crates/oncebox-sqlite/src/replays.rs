//! Replays of many dead letters: written down, and done step by step.

use oncebox_core::admin::{
    DeliveryFilter, DeliveryState, Pace, Replay, ReplayId, ReplayInfo, ReplayState, StoredReplay,
};
use oncebox_core::store::DeliveryId;
use oncebox_core::{Error, ErrorKind};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::classify;
use crate::rows::{count, error_text, get, limit};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::writer::Sync;

/// How many letters that match are counted.
const MOST_MATCHED: u64 = 100_000;

impl SqliteStore {
    pub(crate) async fn begin_replay(&self, replay: &Replay) -> Result<ReplayInfo, Error> {
        replay.check()?;
        let dead = replay.filter.clone().state(DeliveryState::Dead);
        let matched = self.count_matching(&dead, MOST_MATCHED).await?;
        let (filter, actor) = (replay.filter.to_stored(), error_text(&replay.actor));
        let start = || {
            query(&self.sql.start_replay)
                .bind(self.shift())
                .bind(&filter)
                .bind(replay.rate)
                .bind(&actor)
                .bind(i64::try_from(matched).unwrap_or(i64::MAX))
        };
        let rows = self.writer.run(Sync::Durable, start).await?;
        info(rows.first().ok_or_else(|| Error::new(ErrorKind::Store, "an insert gave no row"))?)
    }

    pub(crate) async fn continue_replay(&self, id: ReplayId, most: u64) -> Result<Option<ReplayInfo>, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let at = self.replay_step(write.connection(), id, most).await;
        match at {
            Ok((at, true)) => {
                write.commit().await?;
                Ok(at)
            }
            Ok((at, false)) => {
                write.rollback().await;
                Ok(at)
            }
            Err(error) => {
                write.rollback().await;
                Err(error)
            }
        }
    }

    /// Where the replay stands then, and whether anything was written.
    async fn replay_step(
        &self,
        connection: &mut SqliteConnection,
        id: ReplayId,
        most: u64,
    ) -> Result<(Option<ReplayInfo>, bool), Error> {
        let read = query(&self.sql.read_replay).bind(id.0);
        let Some(row) = read.fetch_optional(&mut *connection).await.map_err(classify)? else {
            return Ok((None, false));
        };
        let at = info(&row)?;
        let left = at.replay.filter.limit.map_or(u64::MAX, |limit| limit as u64).saturating_sub(at.replayed);
        let pace = Pace::new(at.replay.rate, get(&row, 11)?, self.now(connection).await?);
        let ask = most.min(pace.allowed()).min(left);
        if at.state != ReplayState::Running || (ask == 0 && left > 0) {
            return Ok((Some(at), false));
        }
        let (position, upto): (i64, i64) = (get(&row, 9)?, get(&row, 10)?);
        let mut filter: DeliveryFilter =
            at.replay.filter.clone().limit(usize::try_from(ask).unwrap_or(usize::MAX));
        filter.after = filter.after.max(Some(DeliveryId(position)));
        let found = self.dead(connection, &filter, Some(upto)).await?;
        let (looked_at, last) = (found.len() as u64, found.last().copied());
        let replayed = self.replay_letters(connection, found).await?;
        let ended = looked_at < ask || replayed >= left;
        let state = if ended { ReplayState::Done } else { ReplayState::Running };
        let moved = query(&self.sql.move_replay)
            .bind(self.shift())
            .bind(id.0)
            .bind(last.unwrap_or(position))
            .bind(i64::try_from(replayed).unwrap_or(i64::MAX))
            .bind(pace.after(replayed))
            .bind(state.to_stored());
        let row = moved.fetch_one(connection).await.map_err(classify)?;
        Ok((Some(info(&row)?), true))
    }

    pub(crate) async fn stop_replay(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        let cancel = || query(&self.sql.cancel_replay).bind(self.shift()).bind(id.0);
        self.writer.run(Sync::Durable, cancel).await?;
        self.read_replay(id).await
    }

    pub(crate) async fn read_replay(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        let read = query(&self.sql.read_replay).bind(id.0);
        let row = read.fetch_optional(&self.pool).await.map_err(classify)?;
        row.as_ref().map(info).transpose()
    }

    pub(crate) async fn list_replays(&self, running: bool, most: usize) -> Result<Vec<ReplayInfo>, Error> {
        let list = query(&self.sql.list_replays).bind(running).bind(limit(most));
        list.fetch_all(&self.pool).await.map_err(classify)?.iter().map(info).collect()
    }
}

fn info(row: &SqliteRow) -> Result<ReplayInfo, Error> {
    let stored = StoredReplay {
        id: get(row, 0)?,
        filter: get(row, 1)?,
        rate: get(row, 2)?,
        actor: get(row, 3)?,
        state: i16::try_from(get::<i64>(row, 4)?).unwrap_or(i16::MAX),
        matched: count(get(row, 5)?),
        replayed: count(get(row, 6)?),
        started_at: get(row, 7)?,
        ended_at: get(row, 8)?,
    };
    Ok(stored.read())
}
