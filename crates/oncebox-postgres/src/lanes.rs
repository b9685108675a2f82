//! Lanes: registering handlers, claiming, reading, and the commit that moves the cursors.

use std::collections::HashMap;

use oncebox_core::clock::micros;
use oncebox_core::gathering::Gathering;
use oncebox_core::recent::Tail;
use oncebox_core::store::{
    ABANDONED_AFTER, Ahead, Claim, ClaimedLane, Commit, Connection, DeliveryId, LaneBatch, LaneBound,
    LaneMessage, LaneRow, Lease, MoveLanes, ReadLanes, Registration, Token, TxLimits,
};
use oncebox_core::{Error, ErrorKind, LANES};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::error::{Problem, classify};
use crate::rows::{self, LeaseColumns, limit, stored_lane};
use crate::store::Inner;
use crate::tx::{Lent, NO_CURSOR, PgTransaction, autocommit, ended, fenced, transaction};

const LOST: &str =
    "an SQL error that the handler did not return aborted the transaction; nothing of it is kept";

impl Inner {
    pub(crate) async fn register(&self, handlers: &[Registration]) -> Result<(), Error> {
        let row = autocommit!(self, |connection| {
            Ok(self.sql.settings.query().fetch_one(&mut *connection).await?)
        })?;
        let (replica, read_only): (bool, bool) =
            (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        if replica || read_only {
            let text = "postgres accepts no writes here (a replica, or read-only by default); connect to the primary";
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let relaxed: Option<&str> = row.try_get(2).map_err(classify)?;
        if let Some(setting) = relaxed.filter(|_| !self.options.relaxed) {
            return Err(Error::invalid(format!(
                "postgres has {setting} = off, which can lose acknowledged messages in a crash; turn it on, or call \
                 `allow_relaxed_durability`"
            )));
        }
        let encoding: Option<&str> = row.try_get(3).map_err(classify)?;
        if let Some(encoding) = encoding {
            return Err(Error::invalid(format!(
                "the database has the encoding {encoding}, which cannot hold every message; use one with UTF8 \
                 (`create database … encoding 'UTF8' template template0`)"
            )));
        }
        self.check_version().await?;
        let mut handlers: Vec<&Registration> = handlers.iter().collect();
        handlers.sort_by(|one, other| one.name.cmp(&other.name));
        transaction!(self, |connection| {
            for registration in &handlers {
                self.register_one(connection, registration).await?;
            }
            Ok(())
        })
    }

    async fn register_one(
        &self,
        connection: &mut PgConnection,
        registration: &Registration,
    ) -> Result<(), Problem> {
        let name = registration.name.as_str();
        for old in registration.formerly.iter().filter(|old| *old != name) {
            let rows = self
                .sql
                .known_handlers
                .query()
                .bind([name, old.as_str()])
                .fetch_all(&mut *connection)
                .await?;
            let known: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            match (known.iter().any(|one| one == old), known.iter().any(|one| one == name)) {
                (true, true) => {
                    return Err(Error::invalid(format!(
                        "handler `{name}` was formerly `{old}`, but the store knows both; \
                         forget one of them, or take `formerly` away"
                    ))
                    .into());
                }
                (true, false) => {
                    self.sql.rename.query().bind(old).bind(name).execute(&mut *connection).await?;
                }
                (false, _) => {}
            }
        }
        let kinds: Vec<String> = registration.kinds.patterns().collect();
        self.sql
            .register
            .query()
            .bind(self.shift())
            .bind(name)
            .bind(serde_json::json!(kinds).to_string())
            .bind(registration.ordered)
            .execute(&mut *connection)
            .await?;
        if !registration.ordered {
            // It may have been ordered before; nobody would promote these any more.
            self.sql.release_held.query().bind(self.shift()).bind(name).execute(&mut *connection).await?;
        }
        let cursors = self
            .sql
            .register_cursors
            .query()
            .bind(name)
            .bind(registration.from_start)
            .bind(i32::from(LANES))
            .execute(&mut *connection)
            .await?;
        if registration.from_start && cursors.rows_affected() > 0 {
            // The oldest messages of the run may have been purged, which no cursor kept them from.
            self.recent.clear();
        }
        Ok(())
    }

    pub(crate) async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        autocommit!(self, |connection| {
            let rows = self
                .sql
                .claim
                .query()
                .bind(self.shift())
                .bind(claim.handler)
                .bind(claim.token.0)
                .bind(limit(claim.lanes))
                .bind(i32::try_from(claim.limit).unwrap_or(i32::MAX))
                .bind(micros(ABANDONED_AFTER))
                .fetch_all(&mut *connection)
                .await?;
            rows.iter()
                .map(|row| {
                    let suspects: Option<i32> = row.try_get(1)?;
                    let suspects = suspects.map(|suspects| usize::try_from(suspects).unwrap_or(0));
                    Ok(ClaimedLane { lane: rows::lane(row, 0)?, suspects })
                })
                .collect()
        })
    }

    pub(crate) async fn release(&self, handler: &str, token: Token) -> Result<(), Error> {
        autocommit!(self, |connection| {
            self.sql.release.query().bind(handler).bind(token.0).execute(&mut *connection).await?;
            Ok(())
        })
    }

    pub(crate) async fn begin_lanes(
        &self,
        read: &ReadLanes<'_>,
    ) -> Result<Option<LaneBatch<PgTransaction>>, Error> {
        self.begin_and_read(read, None).await
    }

    pub(crate) async fn begin_lanes_ahead(
        &self,
        read: &ReadLanes<'_>,
        ahead: Ahead,
    ) -> Result<Option<LaneBatch<PgTransaction>>, Error> {
        self.begin_and_read(read, Some(ahead)).await
    }

    pub(crate) async fn read_ahead(
        &self,
        read: &ReadLanes<'_>,
        from: &[(u16, i64)],
    ) -> Result<Option<Vec<LaneRow>>, Error> {
        // Behind a pooler, a statement outside of a transaction may not be prepared where it runs.
        if self.options.pooler {
            return Ok(None);
        }
        let from: HashMap<u16, i64> = from.iter().copied().collect();
        if self.recent.covers(read, &from) {
            return Ok(None);
        }
        let mut lent = match self.pool.try_acquire() {
            Some(connection) => Lent::from(connection),
            None if self.pool.size() < self.pool.options().get_max_connections() => {
                Lent::from_pool(&self.pool).await.map_err(classify)?
            }
            // Others need the connections for more than a head start.
            None => return Ok(None),
        };
        let rows = self.read_from(&mut lent, read, from).await;
        match rows {
            Ok(rows) => {
                lent.give_back();
                Ok(Some(rows))
            }
            Err(problem) => Err(problem.into_error()),
        }
    }

    async fn begin_and_read(
        &self,
        read: &ReadLanes<'_>,
        ahead: Option<Ahead>,
    ) -> Result<Option<LaneBatch<PgTransaction>>, Error> {
        let tx = self.begin(read.limits).await?;
        let (connection, rows) = self.settled(tx, async |tx| self.read_lanes(tx, read, ahead).await).await?;
        match rows {
            Some(rows) => Ok(Some(LaneBatch { connection, rows })),
            None => {
                connection.rollback().await;
                Ok(None)
            }
        }
    }

    async fn read_lanes(
        &self,
        tx: &mut PgTransaction,
        read: &ReadLanes<'_>,
        ahead: Option<Ahead>,
    ) -> Result<Option<Vec<LaneRow>>, Problem> {
        let asked: Vec<i16> = read.lanes.iter().map(|bound| stored_lane(bound.lane)).collect();
        let tail = self.recent.tail();
        let locked = self
            .sql
            .lock_lanes
            .query()
            .bind(read.handler)
            .bind(read.token.0)
            .bind(asked)
            .bind(tail.map(|tail| stored_lane(tail.lane)))
            .bind(tail.map(|tail| tail.seq))
            .fetch_all(&mut **tx)
            .await?;
        let Some(first) = locked.first() else { return Ok(None) };
        tx.note_session(first)?;
        if locked.len() != read.lanes.len() {
            return Ok(None);
        }
        let mut positions: HashMap<u16, i64> = HashMap::with_capacity(locked.len());
        for row in &locked {
            positions.insert(rows::lane(row, 0)?, row.try_get::<i64, _>(1)?);
        }
        if let Some(tail) = tail {
            if !is_still_there(&tail, first)? {
                self.recent.forget(&tail);
            } else if let Some(rows) = self.recent.read(&tail, first.try_get("head")?, read, &positions) {
                return Ok(Some(rows));
            }
        }
        let is_next = |ahead: &Ahead| {
            ahead.from.len() == positions.len()
                && ahead.from.iter().all(|(lane, position)| positions.get(lane) == Some(position))
        };
        if let Some(ahead) = ahead.filter(is_next) {
            return Ok(Some(ahead.rows));
        }
        self.read_from(tx, read, positions).await.map(Some)
    }

    /// Reads the next messages of lanes that stand at these positions.
    async fn read_from(
        &self,
        connection: &mut PgConnection,
        read: &ReadLanes<'_>,
        positions: HashMap<u16, i64>,
    ) -> Result<Vec<LaneRow>, Problem> {
        let mut gathering = Gathering::new(read, positions);
        while let Some(quota) = gathering.quota() {
            let from = gathering.found.len();
            let Gathering { open, positions, found, .. } = &mut gathering;
            self.read_some(connection, read, open, positions, quota, found).await?;
            gathering.added(from, quota);
        }
        Ok(gathering.finish())
    }

    /// Reads at most `most` messages of each lane, after these positions.
    async fn read_some(
        &self,
        connection: &mut PgConnection,
        read: &ReadLanes<'_>,
        lanes: &[LaneBound],
        positions: &HashMap<u16, i64>,
        most: usize,
        found: &mut Vec<LaneRow>,
    ) -> Result<(), Problem> {
        let position = |bound: &LaneBound| positions.get(&bound.lane).copied().unwrap_or(i64::MAX);
        let rows = self
            .sql
            .read_lanes
            .query()
            .bind(self.shift())
            .bind(lanes.iter().map(|bound| stored_lane(bound.lane)).collect::<Vec<i16>>())
            .bind(lanes.iter().map(position).collect::<Vec<i64>>())
            .bind(lanes.iter().map(|bound| bound.upto.unwrap_or(i64::MAX)).collect::<Vec<i64>>())
            .bind(limit(most))
            .bind(&read.kinds.exact)
            .bind(&read.kinds.prefixes)
            .bind(read.ordered)
            .bind(read.handler)
            .fetch_all(connection)
            .await?;
        for row in &rows {
            let state: i16 = row.try_get(2)?;
            let read = if state == 0 { None } else { Some(rows::message(row, 3)?) };
            let (message, unreadable) = read.unzip();
            found.push(LaneRow {
                lane: rows::lane(row, 0)?,
                seq: row.try_get(1)?,
                message: message.map(LaneMessage::from),
                scheduled: state == 2,
                held: state == 3,
                unreadable: unreadable.flatten(),
            });
        }
        Ok(())
    }

    pub(crate) async fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<PgTransaction>, Error> {
        let tx = self.begin(limits).await?;
        let (connection, locked) = self
            .settled(tx, async |tx| {
                let columns: LeaseColumns = leases.iter().collect();
                let row = self
                    .sql
                    .begin_leased
                    .query()
                    .bind(handler)
                    .bind(columns.ids)
                    .bind(columns.tokens)
                    .bind(columns.attempts)
                    .fetch_one(&mut **tx)
                    .await?;
                tx.note_session(&row)?;
                rows::amount(&row, 0)
            })
            .await?;
        if locked == leases.len() as u64 {
            return Ok(Some(connection));
        }
        connection.rollback().await;
        Ok(None)
    }

    pub(crate) async fn begin_plain(&self, limits: TxLimits) -> Result<PgTransaction, Error> {
        let tx = self.begin(limits).await?;
        let (tx, ()) = self
            .settled(tx, async |tx| {
                let row = self.sql.begin_plain.query().fetch_one(&mut **tx).await?;
                Ok(tx.note_session(&row)?)
            })
            .await?;
        Ok(tx)
    }

    pub(crate) async fn begin(&self, limits: TxLimits) -> Result<PgTransaction, Error> {
        PgTransaction::begin(&self.pool, &self.sql.revoke, limits, self.seed.next()).await.map_err(classify)
    }

    /// Runs the first statement of a transaction, and rolls back when it fails.
    pub(crate) async fn settled<T>(
        &self,
        mut tx: PgTransaction,
        work: impl AsyncFnOnce(&mut PgTransaction) -> Result<T, Problem>,
    ) -> Result<(PgTransaction, T), Error> {
        match work(&mut tx).await {
            Ok(value) => Ok((tx, value)),
            Err(problem) => {
                if problem.leaves_connection_usable() {
                    tx.rollback().await;
                }
                Err(problem.into_error())
            }
        }
    }

    pub(crate) async fn commit(
        &self,
        mut tx: PgTransaction,
        commit: Commit,
    ) -> Result<Vec<DeliveryId>, Error> {
        // Every statement checks the marker, because outside of our transaction it would commit by itself.
        match self.write_outcome(&mut tx, &commit).await {
            Ok(parked) => match tx.check_and_commit().await {
                Ok(()) => {
                    tx.give_back();
                    Ok(parked)
                }
                // Postgres reports a refused commit before it lets go of the locks; the rollback waits for that.
                Err(problem) => Err(abandon(tx, problem).await),
            },
            Err(problem) => Err(abandon(tx, problem).await),
        }
    }

    /// Answers what was parked.
    async fn write_outcome(
        &self,
        tx: &mut PgTransaction,
        commit: &Commit,
    ) -> Result<Vec<DeliveryId>, Problem> {
        if !tx.is_outermost() {
            return Err(fenced("the handler left a savepoint of its transaction open").into());
        }
        let marker = tx.marker().to_owned();
        if !commit.outgoing.is_empty() {
            let written = self.write_outgoing(tx, &commit.outgoing, Some(&marker)).await?;
            expect(written, commit.outgoing.len(), LOST)?;
        }
        let mut parked = Vec::new();
        if !commit.park.is_empty() {
            parked = self.park(tx, &commit.park, &marker).await?;
            expect(parked.len() as u64, commit.park.len(), LOST)?;
        }
        if let Some(done) = commit.done.as_ref().filter(|done| !done.leases.is_empty()) {
            let removed = self.remove_done(tx, done, &marker).await?;
            expect(removed, done.leases.len(), "a leased delivery is no longer ours; nothing is kept")?;
        }
        if let Some(respond) = &commit.respond {
            let written = self.write_response(tx, respond, Some(&marker)).await?;
            expect(u64::from(written), 1, "the idempotency key is no longer ours; nothing is kept")?;
        }
        if let Some(lanes) = commit.lanes.as_ref().filter(|lanes| !lanes.positions.is_empty()) {
            let moved = self.move_lanes(tx, lanes, &marker).await?;
            expect(moved, lanes.positions.len(), "a lane is no longer ours; nothing is kept")?;
        }
        Ok(parked)
    }

    async fn move_lanes(
        &self,
        tx: &mut PgTransaction,
        lanes: &MoveLanes,
        marker: &str,
    ) -> Result<u64, Problem> {
        let done = self
            .sql
            .commit_lanes
            .query()
            .bind(self.shift())
            .bind(&lanes.handler)
            .bind(lanes.token.0)
            .bind(lanes.positions.iter().map(|(lane, _)| stored_lane(*lane)).collect::<Vec<i16>>())
            .bind(lanes.positions.iter().map(|(_, position)| *position).collect::<Vec<i64>>())
            .bind(lanes.keep)
            .bind(marker)
            .execute(&mut **tx)
            .await?;
        Ok(done.rows_affected())
    }
}

/// Whether the log has at the tail's place what was appended there.
fn is_still_there(tail: &Tail, row: &PgRow) -> Result<bool, sqlx::Error> {
    let identity: Option<Uuid> = row.try_get("tail_identity")?;
    let received_at: Option<i64> = row.try_get("tail_received_at")?;
    Ok(identity == Some(Uuid::from_bytes(tail.identity)) && received_at == Some(tail.received_at))
}

fn expect(written: u64, wanted: usize, text: &str) -> Result<(), Problem> {
    if written == wanted as u64 { Ok(()) } else { Err(fenced(text).into()) }
}

/// Rolls back and says why: an aborted transaction counts as fenced, one that is gone as ended.
async fn abandon(mut tx: PgTransaction, problem: Problem) -> Error {
    let code = problem.code();
    let gone = match &problem {
        Problem::Driver(_) => code.as_deref() == Some(NO_CURSOR),
        // A statement of ours found nothing to write: its row is not ours any more, or the transaction is not.
        Problem::Ours(_) => tx.is_gone().await,
    };
    if problem.leaves_connection_usable() {
        tx.rollback().await;
    }
    match code.as_deref() {
        _ if gone => ended(),
        Some("25P02") => fenced(LOST),
        _ => problem.into_error(),
    }
}
