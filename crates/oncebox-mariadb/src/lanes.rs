//! Lanes: registering handlers, claiming, reading, and the commit that moves the cursors.

use oncebox_core::clock::micros;
use oncebox_core::store::{
    ABANDONED_AFTER, Claim, ClaimedLane, Commit, Connection, DeliveryId, LaneBatch, LaneMessage, LaneRow,
    Lease, ReadLanes, Registration, Token, TxLimits,
};
use oncebox_core::{Error, LANES};
use sqlx::{MySqlConnection, Row};

use crate::error::{Problem, classify};
use crate::rows::{self, hex, leases, limit, list, text};
use crate::sql;
use crate::store::Inner;
use crate::tx::{Lent, MariaTransaction, abandon, fenced, reading, run_text, transaction};

impl Inner {
    pub(crate) async fn register(&self, handlers: &[Registration]) -> Result<(), Error> {
        self.check_settings().await?;
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
        connection: &mut MySqlConnection,
        registration: &Registration,
    ) -> Result<(), Problem> {
        let shift = self.shift();
        let name = registration.name.as_str();
        for old in registration.formerly.iter().filter(|old| *old != name) {
            let names = list([hex(name.as_bytes()), hex(old.as_bytes())]);
            let rows = self.sql.known_handlers.query(shift).bind(names).fetch_all(&mut *connection).await?;
            let known: Vec<String> = rows.iter().map(|row| text(row, 0)).collect::<Result<_, _>>()?;
            match (known.iter().any(|one| one == old), known.iter().any(|one| one == name)) {
                (true, true) => {
                    return Err(Error::invalid(format!(
                        "handler `{name}` was formerly `{old}`, but the store knows both; \
                         forget one of them, or take `formerly` away"
                    ))
                    .into());
                }
                (true, false) => self.rename(connection, old, name).await?,
                (false, _) => {}
            }
        }
        let kinds: Vec<String> = registration.kinds.patterns().collect();
        self.sql
            .register
            .query(shift)
            .bind(name.as_bytes())
            .bind(serde_json::json!(kinds).to_string().into_bytes())
            .bind(registration.ordered)
            .execute(&mut *connection)
            .await?;
        if !registration.ordered {
            // It may have been ordered before; nobody would promote these any more.
            self.sql.release_held.query(shift).bind(name.as_bytes()).execute(&mut *connection).await?;
        }
        self.sql
            .register_cursors
            .query(shift)
            .bind(name.as_bytes())
            .bind(registration.from_start)
            .bind(list(0..LANES))
            .execute(&mut *connection)
            .await?;
        Ok(())
    }

    async fn rename(&self, connection: &mut MySqlConnection, old: &str, name: &str) -> Result<(), Problem> {
        let sql = &self.sql;
        for statement in [
            &sql.rename_handler,
            &sql.rename_cursor,
            &sql.rename_delivery,
            &sql.rename_attempt,
            &sql.rename_counter,
        ] {
            statement
                .query(self.shift())
                .bind(name.as_bytes())
                .bind(old.as_bytes())
                .execute(&mut *connection)
                .await?;
        }
        sql.forget_counter.query(self.shift()).bind(old.as_bytes()).execute(&mut *connection).await?;
        Ok(())
    }

    /// Looks without a lock, and only where there is something to do locks and marks.
    pub(crate) async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        let age = micros(ABANDONED_AFTER);
        let free: Vec<u16> = reading!(self, |connection| {
            let rows = self
                .sql
                .free_lanes
                .query(self.shift())
                .bind(claim.handler.as_bytes())
                .bind(age)
                .bind(limit(claim.lanes))
                .fetch_all(&mut *connection)
                .await?;
            rows.iter().map(|row| rows::lane(row, 0)).collect::<Result<_, _>>()
        })?;
        if free.is_empty() {
            return Ok(Vec::new());
        }
        let schema = &self.options.schema;
        let lock = sql::lock_free_lanes(schema, claim.handler, &free, age, self.shift());
        let mut retry = crate::error::Retry::default();
        loop {
            match self.claim_free(claim, &lock).await {
                Ok(claimed) => return Ok(claimed),
                Err(problem) => retry.after(problem, &self.seed).await?,
            }
        }
    }

    async fn claim_free(&self, claim: &Claim<'_>, lock: &str) -> Result<Vec<ClaimedLane>, Problem> {
        let (lent, answers) = Lent::begin(&self.pool, lock).await?;
        let mut claimed = Vec::new();
        for row in answers.iter().flat_map(|answer| &answer.rows) {
            let suspects: Option<i32> = row.try_get(1)?;
            let suspects = suspects.map(|suspects| usize::try_from(suspects).unwrap_or(0));
            claimed.push(ClaimedLane { lane: rows::lane(row, 0)?, suspects });
        }
        let mark = if claimed.is_empty() {
            String::new()
        } else {
            let lanes: Vec<u16> = claimed.iter().map(|claimed| claimed.lane).collect();
            let schema = &self.options.schema;
            sql::mark_lanes(schema, claim.handler, &lanes, claim.token.0, claim.limit, self.shift())
        };
        lent.commit(&mark).await?;
        Ok(claimed)
    }

    pub(crate) async fn release(&self, handler: &str, token: Token) -> Result<(), Error> {
        transaction!(self, |connection| {
            self.sql
                .release
                .query(self.shift())
                .bind(handler.as_bytes())
                .bind(token.0)
                .execute(&mut *connection)
                .await?;
            Ok(())
        })
    }

    pub(crate) async fn begin_lanes(
        &self,
        read: &ReadLanes<'_>,
    ) -> Result<Option<LaneBatch<MariaTransaction>>, Error> {
        let tx = self.begin(read.limits).await?;
        let (connection, rows) = self
            .settled(tx, async |tx| self.read_lanes(tx, read).await)
            .await
            .map_err(Problem::into_error)?;
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
        tx: &mut MariaTransaction,
        read: &ReadLanes<'_>,
    ) -> Result<Option<Vec<LaneRow>>, Problem> {
        if read.lanes.is_empty() {
            self.now(tx).await?;
            return Ok(Some(Vec::new()));
        }
        let statements = sql::read_lanes(&self.options.schema, read, self.shift());
        let answers = run_text(tx, statements).await?;
        let [locked, messages] = &answers[..] else { return Ok(None) };
        if let Some(row) = locked.rows.first() {
            tx.note_session(row.try_get(1)?);
        }
        if locked.rows.len() != read.lanes.len() {
            return Ok(None);
        }
        let mut found = Vec::with_capacity(messages.rows.len());
        for row in &messages.rows {
            let read = if row.try_get(2)? { Some(rows::message(row, 5)?) } else { None };
            let (message, unreadable) = read.unzip();
            let (scheduled, held) = (row.try_get(3)?, row.try_get(4)?);
            let (lane, seq) = (rows::lane(row, 0)?, row.try_get(1)?);
            let (message, unreadable) = (message.map(LaneMessage::from), unreadable.flatten());
            found.push(LaneRow { lane, seq, message, scheduled, held, unreadable });
        }
        // The statement picks messages lane by lane, but joins them to their content in an order of its own.
        found.sort_by_key(|row| (read.lanes.iter().position(|bound| bound.lane == row.lane), row.seq));
        Ok(Some(found))
    }

    pub(crate) async fn begin_leased(
        &self,
        handler: &str,
        held: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<MariaTransaction>, Error> {
        let tx = self.begin(limits).await?;
        let (connection, locked) = self
            .settled(tx, async |tx| {
                let rows = self
                    .sql
                    .lock_leases
                    .query(self.shift())
                    .bind(leases(held))
                    .bind(handler.as_bytes())
                    .fetch_all(&mut **tx)
                    .await?;
                if let Some(row) = rows.first() {
                    tx.note_session(row.try_get(1)?);
                }
                Ok(rows.len())
            })
            .await
            .map_err(Problem::into_error)?;
        if locked == held.len() {
            return Ok(Some(connection));
        }
        connection.rollback().await;
        Ok(None)
    }

    pub(crate) async fn begin_plain(&self, limits: TxLimits) -> Result<MariaTransaction, Error> {
        let tx = self.begin(limits).await?;
        let (tx, _) = self.settled(tx, async |tx| self.now(tx).await).await.map_err(Problem::into_error)?;
        Ok(tx)
    }

    pub(crate) async fn begin(&self, limits: TxLimits) -> Result<MariaTransaction, Error> {
        MariaTransaction::begin(&self.pool, limits, self.seed.next()).await.map_err(classify)
    }

    /// Runs the first statements of a transaction, and rolls back when one fails.
    pub(crate) async fn settled<T>(
        &self,
        mut tx: MariaTransaction,
        work: impl AsyncFnOnce(&mut MariaTransaction) -> Result<T, Problem>,
    ) -> Result<(MariaTransaction, T), Problem> {
        match work(&mut tx).await {
            Ok(value) => Ok((tx, value)),
            Err(problem) => {
                if problem.leaves_connection_usable() {
                    tx.rollback().await;
                }
                Err(problem)
            }
        }
    }

    pub(crate) async fn commit(
        &self,
        mut tx: MariaTransaction,
        commit: Commit,
    ) -> Result<Vec<DeliveryId>, Error> {
        if !tx.is_outermost() {
            let left_open = fenced("the handler left a savepoint of its transaction open");
            return Err(abandon(tx, left_open.into()).await);
        }
        let written = async {
            self.write_outgoing(&mut tx, &commit.outgoing).await?;
            let parked = self.park(&mut tx, &commit.park).await?;
            if let Some(done) = commit.done.as_ref().filter(|done| !done.leases.is_empty()) {
                self.remove_done(&mut tx, done).await?;
            }
            if let Some(respond) = &commit.respond
                && !self.write_response(&mut tx, respond).await?
            {
                return Err(fenced("the idempotency key is no longer ours; nothing is kept").into());
            }
            Ok(parked)
        };
        let parked = match written.await {
            Ok(parked) => parked,
            Err(problem) => return Err(abandon(tx, problem).await),
        };
        let lanes = commit.lanes.as_ref().filter(|lanes| !lanes.positions.is_empty());
        let last = lanes.map(|lanes| sql::move_lanes(&self.options.schema, lanes, self.shift()));
        match tx.commit(last).await {
            Ok(()) => Ok(parked),
            Err((tx, problem)) => Err(abandon(tx, problem).await),
        }
    }
}
