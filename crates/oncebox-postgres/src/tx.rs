//! Connections on loan from the pool, and the one place that begins and commits a handler's transaction.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use futures_util::FutureExt;
use oncebox_core::store::{Connection, Revoker, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{
    AssertSqlSafe, Connection as _, Database, Executor, PgConnection, PgPool, Postgres, Row, SqlSafeStr,
    SqlStr,
};
// sqlx keeps this trait's name to itself.
use sqlx_core::transaction::TransactionManager;

use crate::error::Problem;
use crate::sql::{self, Statement};

/// The driver's own bookkeeping of transactions, so that a handler's `begin` makes a savepoint.
pub(crate) type Manager = <Postgres as Database>::TransactionManager;

/// The code with which Postgres says that there is no cursor of that name.
pub(crate) const NO_CURSOR: &str = "34000";

/// How long a rollback may take before the connection is closed instead.
const ROLLBACK_PATIENCE: Duration = Duration::from_secs(1);

/// A pooled connection that is closed when dropped, unless it was given back on purpose.
///
/// A future of ours may be dropped at any await; what state the connection is in then, nobody knows.
pub(crate) struct Lent(Option<PoolConnection<Postgres>>);

impl Lent {
    pub(crate) async fn from_pool(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    /// Takes a connection and begins a transaction of our own on it.
    pub(crate) async fn begin(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut lent = Self::from_pool(pool).await?;
        // A process that stops here for good must not keep its locks for good.
        let statement = SqlStr::from_static(
            "begin isolation level read committed; set local idle_in_transaction_session_timeout = '30s'; \
             set local lock_timeout = '30s'",
        );
        Manager::begin(&mut lent, Some(statement)).await?;
        Ok(lent)
    }

    /// Commits, when there is a transaction, and gives the connection back.
    pub(crate) async fn finish(mut self) -> Result<(), sqlx::Error> {
        Manager::commit(&mut self).await?;
        self.give_back();
        Ok(())
    }

    /// Rolls back, when there is a transaction, and gives the connection back if it is still good.
    pub(crate) async fn undo(mut self, problem: &Problem) {
        if problem.leaves_connection_usable() && self.roll_back().await {
            self.give_back();
        }
    }

    /// Rolls back what was only done to look at it, and gives the connection back.
    pub(crate) async fn discard(mut self) {
        if self.roll_back().await {
            self.give_back();
        }
    }

    pub(crate) fn give_back(mut self) {
        drop(self.0.take());
    }

    async fn roll_back(&mut self) -> bool {
        let rollback = async {
            while Manager::get_transaction_depth(self) > 0 {
                Manager::rollback(self).await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        matches!(tokio::time::timeout(ROLLBACK_PATIENCE, rollback).await, Ok(Ok(())))
    }
}

impl From<PoolConnection<Postgres>> for Lent {
    fn from(connection: PoolConnection<Postgres>) -> Self {
        Self(Some(connection))
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("a lent connection is there until it is given back")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("a lent connection is there until it is given back")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// An open transaction of Oncebox on a pooled connection; dereferences to [`sqlx::PgConnection`].
///
/// `begin` on it makes a savepoint. Dropping it closes the connection, which rolls back.
pub struct PgTransaction {
    lent: Lent,
    // Set for this transaction only, on the server: gone as soon as somebody else ends the transaction.
    marker: String,
    session: Session,
    pool: PgPool,
    revoke: Statement,
}

/// The server's side of a transaction. The process may serve others later; its time of beginning tells them apart.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    pid: i32,
    began_at: i64,
}

impl PgTransaction {
    /// Begins a transaction; see [`sql::begin_transaction`].
    pub(crate) async fn begin(
        pool: &PgPool,
        revoke: &Statement,
        limits: TxLimits,
        marker: u64,
    ) -> Result<Self, sqlx::Error> {
        let marker = format!("{marker:016x}");
        let statement = sql::begin_transaction(limits, &marker);
        let mut lent = Lent::from_pool(pool).await?;
        Manager::begin(&mut lent, Some(AssertSqlSafe(statement).into_sql_str())).await?;
        Ok(Self { lent, marker, session: Session::default(), pool: pool.clone(), revoke: revoke.clone() })
    }

    /// Remembers which session this is, from the columns `pid` and `began_at`.
    pub(crate) fn note_session(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        self.session = Session { pid: row.try_get("pid")?, began_at: row.try_get("began_at")? };
        Ok(())
    }

    /// What `current_setting('oncebox.tx')` answers while this transaction is the one that was begun.
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// False when the handler left a savepoint open.
    pub(crate) fn is_outermost(&self) -> bool {
        Manager::get_transaction_depth(&self.lent) == 1
    }

    /// Checks that the transaction is the one that was begun and is sound, and commits it, in one round trip.
    ///
    /// Postgres answers the COMMIT of an aborted transaction without an error, and sqlx shows no command tag; hence the
    /// check. `and chain` leaves an empty transaction for sqlx to count down; its rollback travels with the ping that
    /// the pool sends anyway.
    pub(crate) async fn check_and_commit(&mut self) -> Result<(), Problem> {
        let statement = sql::check_and_commit(&self.marker);
        (&mut *self.lent).execute(sqlx::raw_sql(AssertSqlSafe(statement))).await?;
        Manager::start_rollback(&mut self.lent);
        Ok(())
    }

    /// True when the server has no such transaction any more: somebody ended it.
    pub(crate) async fn is_gone(&mut self) -> bool {
        let statement = sql::close_guard(&self.marker);
        let closed = (&mut *self.lent).execute(sqlx::raw_sql(AssertSqlSafe(statement))).await;
        closed.map_err(Problem::from).is_err_and(|problem| problem.code().as_deref() == Some(NO_CURSOR))
    }

    /// Ends the session on the server, when the transaction does not roll back in time.
    async fn end_session(self) {
        // A statement is still running on the server, and closing the connection would leave it there with its locks.
        // Boxed, because it is rare and every handler's future would have room for it.
        if let Err(error) = Box::pin(end_session(&self.pool, &self.revoke, self.session)).await {
            tracing::warn!(pid = self.session.pid, %error, "a transaction that did not roll back could not be ended");
        }
    }

    /// Gives the connection back after a commit.
    pub(crate) fn give_back(self) {
        self.lent.give_back();
    }
}

impl Connection for PgTransaction {
    async fn rollback(mut self) {
        if self.lent.roll_back().await {
            self.lent.give_back();
            return;
        }
        self.end_session().await;
    }

    async fn rollback_unless_ended(mut self) -> bool {
        let rollback = async {
            let gone = self.is_gone().await;
            self.lent.roll_back().await.then_some(gone)
        };
        if let Ok(Some(gone)) = tokio::time::timeout(ROLLBACK_PATIENCE, rollback).await {
            self.lent.give_back();
            return gone;
        }
        self.end_session().await;
        false
    }

    fn revoker(&self) -> Revoker {
        let (pool, revoke, session) = (self.pool.clone(), self.revoke.clone(), self.session);
        Box::new(move || {
            async move {
                if let Err(error) = end_session(&pool, &revoke, session).await {
                    tracing::warn!(pid = session.pid, %error, "a kept transaction could not be ended");
                }
            }
            .boxed()
        })
    }
}

/// The pool may be empty because of transactions that are kept, so this does not wait for it.
async fn end_session(pool: &PgPool, revoke: &Statement, session: Session) -> Result<(), sqlx::Error> {
    let query = revoke.query().bind(session.pid).bind(session.began_at);
    // In a transaction, so that a pooler runs the statement in the session where it was prepared.
    if let Some(connection) = pool.try_acquire() {
        let mut lent = Lent::from(connection);
        Manager::begin(&mut lent, None).await?;
        query.execute(&mut *lent).await?;
        lent.finish().await?;
    } else {
        let mut connection = PgConnection::connect_with(&pool.connect_options()).await?;
        Manager::begin(&mut connection, None).await?;
        query.execute(&mut connection).await?;
        Manager::commit(&mut connection).await?;
        connection.close().await?;
    }
    Ok(())
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.lent
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.lent
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PgTransaction").field("session", &self.session).finish_non_exhaustive()
    }
}

/// The error for a transaction that is not ours to commit any more.
pub(crate) fn fenced(text: &str) -> Error {
    Error::new(ErrorKind::Fenced, text)
}

/// The error for a transaction that the handler ended.
pub(crate) fn ended() -> Error {
    Error::new(ErrorKind::Ended, "the handler ended the transaction it was given; nothing of it is kept")
}

/// Runs a body on a connection, in a transaction when `explicit`, and again on contention.
///
/// A second try always runs in a transaction of ours at read committed, because the session's own default may be
/// a level at which rivals make each other fail.
macro_rules! run {
    ($inner:expr, $explicit:expr, |$connection:ident| $body:expr) => {{
        let mut retry = $crate::error::Retry::default();
        loop {
            let result: Result<_, $crate::error::Problem> = async {
                // Behind a pooler, only a transaction makes sure that a statement is run where it was prepared.
                let mut lent = if $explicit || retry.tried() || $inner.options.pooler {
                    $crate::tx::Lent::begin(&$inner.pool).await?
                } else {
                    $crate::tx::Lent::from_pool(&$inner.pool).await?
                };
                let result: Result<_, $crate::error::Problem> = async {
                    let $connection: &mut sqlx::PgConnection = &mut lent;
                    $body
                }
                .await;
                match result {
                    Ok(value) => {
                        lent.finish().await?;
                        Ok(value)
                    }
                    Err(problem) => {
                        lent.undo(&problem).await;
                        Err(problem)
                    }
                }
            }
            .await;
            match result {
                Ok(value) => break Ok::<_, oncebox_core::Error>(value),
                Err(problem) => {
                    if let Err(error) = retry.after(problem, &$inner.seed).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}

/// One or more statements that each commit by themselves.
macro_rules! autocommit {
    ($inner:expr, |$connection:ident| $body:expr) => {
        $crate::tx::run!($inner, false, |$connection| $body)
    };
}

/// Several statements in one commit.
macro_rules! transaction {
    ($inner:expr, |$connection:ident| $body:expr) => {
        $crate::tx::run!($inner, true, |$connection| $body)
    };
}

pub(crate) use {autocommit, run, transaction};
