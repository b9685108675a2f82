//! Replays of many dead letters: written down, and done step by step.

use oncebox_core::Error;
use oncebox_core::admin::{
    DeliveryFilter, DeliveryState, Pace, Replay, ReplayId, ReplayInfo, ReplayState, StoredReplay,
};
use oncebox_core::store::DeliveryId;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::deliveries::storable;
use crate::error::Problem;
use crate::rows::{amount, limit};
use crate::store::Inner;
use crate::tx::{autocommit, transaction};

/// How many letters that match are counted.
const MOST_MATCHED: u64 = 100_000;

impl Inner {
    pub(crate) async fn start_replay(&self, replay: &Replay) -> Result<ReplayInfo, Error> {
        replay.check()?;
        let dead = replay.filter.clone().state(DeliveryState::Dead);
        let matched = self.count_deliveries(&dead, MOST_MATCHED).await?;
        let (filter, actor) = (replay.filter.to_stored(), storable(&replay.actor));
        autocommit!(self, |connection| {
            let start = self
                .sql
                .start_replay
                .query()
                .bind(self.shift())
                .bind(&filter)
                .bind(replay.rate.map(i64::from))
                .bind(&actor)
                .bind(i64::try_from(matched).unwrap_or(i64::MAX));
            info(&start.fetch_one(&mut *connection).await?)
        })
    }

    pub(crate) async fn step_replay(&self, id: ReplayId, most: u64) -> Result<Option<ReplayInfo>, Error> {
        transaction!(self, |connection| {
            let lock = self.sql.lock_replay.query().bind(self.shift()).bind(id.0);
            let Some(row) = lock.fetch_optional(&mut *connection).await? else { return Ok(None) };
            let at = info(&row)?;
            if at.state != ReplayState::Running {
                return Ok(Some(at));
            }
            let (position, upto): (i64, i64) = (row.try_get(9)?, row.try_get(10)?);
            let pace = Pace::new(at.replay.rate, row.try_get(11)?, row.try_get(12)?);
            let left =
                at.replay.filter.limit.map_or(u64::MAX, |limit| limit as u64).saturating_sub(at.replayed);
            let ask = most.min(pace.allowed()).min(left);
            if ask == 0 && left > 0 {
                return Ok(Some(at));
            }
            let step = Step { position, upto, ask, left, pace };
            Ok(Some(self.replay_step(connection, &at, step).await?))
        })
    }

    async fn replay_step(
        &self,
        connection: &mut PgConnection,
        at: &ReplayInfo,
        step: Step,
    ) -> Result<ReplayInfo, Problem> {
        let mut filter: DeliveryFilter =
            at.replay.filter.clone().limit(usize::try_from(step.ask).unwrap_or(usize::MAX));
        filter.after = filter.after.max(Some(DeliveryId(step.position)));
        let found = self.matching(connection, &filter, Some(step.upto)).await?;
        let replayed = self.replay_letters(connection, &found).await?;
        let ended = (found.len() as u64) < step.ask || replayed >= step.left;
        let state = if ended { ReplayState::Done } else { ReplayState::Running };
        let moved = self
            .sql
            .move_replay
            .query()
            .bind(self.shift())
            .bind(at.id.0)
            .bind(found.last().map_or(step.position, |letter| letter.id))
            .bind(i64::try_from(replayed).unwrap_or(i64::MAX))
            .bind(step.pace.after(replayed))
            .bind(state.to_stored())
            .fetch_one(&mut *connection)
            .await?;
        info(&moved)
    }

    pub(crate) async fn cancel_replay(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        autocommit!(self, |connection| {
            self.sql.cancel_replay.query().bind(self.shift()).bind(id.0).execute(&mut *connection).await?;
            Ok(())
        })?;
        self.replay_info(id).await
    }

    pub(crate) async fn replay_info(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        autocommit!(self, |connection| {
            let row = self.sql.read_replay.query().bind(id.0).fetch_optional(&mut *connection).await?;
            row.as_ref().map(info).transpose()
        })
    }

    pub(crate) async fn replays(&self, running: bool, most: usize) -> Result<Vec<ReplayInfo>, Error> {
        autocommit!(self, |connection| {
            let list = self.sql.list_replays.query().bind(running).bind(limit(most));
            list.fetch_all(&mut *connection).await?.iter().map(info).collect()
        })
    }
}

/// What one step may do.
struct Step {
    position: i64,
    upto: i64,
    ask: u64,
    left: u64,
    pace: Pace,
}

fn info(row: &PgRow) -> Result<ReplayInfo, Problem> {
    let stored = StoredReplay {
        id: row.try_get(0)?,
        filter: row.try_get(1)?,
        rate: row.try_get(2)?,
        actor: row.try_get(3)?,
        state: row.try_get(4)?,
        matched: amount(row, 5)?,
        replayed: amount(row, 6)?,
        started_at: row.try_get(7)?,
        ended_at: row.try_get(8)?,
    };
    Ok(stored.read())
}
