//! Connections on loan from the pool, and the one place that begins and commits a handler's transaction.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, TryStreamExt};
use oncebox_core::store::{Connection, Revoker, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::mysql::MySqlRow;
use sqlx::pool::PoolConnection;
use sqlx::{
    AssertSqlSafe, Connection as _, Database, Either, Executor, MySql, MySqlConnection, MySqlPool, SqlSafeStr,
};
// sqlx keeps this trait's name to itself.
use sqlx_core::transaction::TransactionManager;

use crate::error::{NO_SESSION, Problem, is_over, is_usable_after};
use crate::sql;

/// The driver's own bookkeeping of transactions, so that a handler's `begin` makes a savepoint.
type Manager = <MySql as Database>::TransactionManager;

/// How long a rollback may take before the connection is closed instead.
const ROLLBACK_PATIENCE: Duration = Duration::from_secs(1);

/// A pooled connection that is closed when dropped, unless it was given back on purpose.
///
/// A future of ours may be dropped at any await; what state the connection is in then, nobody knows.
pub(crate) struct Lent(Option<PoolConnection<MySql>>);

impl Lent {
    pub(crate) async fn from_pool(pool: &MySqlPool) -> Result<Self, sqlx::Error> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    /// Takes a connection, begins a transaction of our own and runs these statements in it, in one round trip.
    ///
    /// The driver does not know of this transaction: nobody but us has the connection until it is over.
    pub(crate) async fn begin(pool: &MySqlPool, first: &str) -> Result<(Self, Vec<Answer>), sqlx::Error> {
        let mut lent = Self::from_pool(pool).await?;
        let separator = if first.is_empty() { "" } else { "; " };
        match run_text(&mut lent, format!("{}{separator}{first}", sql::BEGIN)).await {
            Ok(mut answers) => {
                answers.drain(..sql::BEGIN_ANSWERS.min(answers.len()));
                Ok((lent, answers))
            }
            Err(error) => {
                let problem = Problem::Driver(error);
                lent.undo(&problem).await;
                match problem {
                    Problem::Driver(error) => Err(error),
                    Problem::Ours(_) => Err(sqlx::Error::BeginFailed),
                }
            }
        }
    }

    /// Runs these statements, commits and gives the connection back, in one round trip.
    pub(crate) async fn commit(mut self, last: &str) -> Result<(), Problem> {
        let separator = if last.is_empty() { "" } else { "; " };
        let text = format!("{last}{separator}{}; {}", sql::COMMIT, sql::END);
        match run_text(&mut self, text).await {
            Ok(_) => {
                self.give_back();
                Ok(())
            }
            Err(error) => {
                let problem = Problem::Driver(error);
                self.undo(&problem).await;
                Err(problem)
            }
        }
    }

    /// Rolls back and gives the connection back if it is still good.
    pub(crate) async fn undo(mut self, problem: &Problem) {
        if !problem.leaves_connection_usable() {
            return;
        }
        let rollback = run_text(&mut self, format!("{}; {}", sql::ROLLBACK, sql::END));
        if matches!(tokio::time::timeout(ROLLBACK_PATIENCE, rollback).await, Ok(Ok(_))) {
            self.give_back();
        }
    }

    /// Gives the connection back as it is.
    pub(crate) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Lent {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        self.0.as_ref().expect("a lent connection is there until it is given back")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
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

/// What one statement of a text answered.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<MySqlRow>,
    pub(crate) last_insert_id: u64,
}

/// Runs several statements in one round trip, up to the first that fails. They have no parameters.
pub(crate) async fn run_text(
    connection: &mut MySqlConnection,
    text: String,
) -> Result<Vec<Answer>, sqlx::Error> {
    let mut stream = connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(text)));
    let mut answers = Vec::new();
    let mut rows = Vec::new();
    while let Some(step) = stream.try_next().await? {
        match step {
            Either::Right(row) => rows.push(row),
            Either::Left(done) => answers
                .push(Answer { rows: std::mem::take(&mut rows), last_insert_id: done.last_insert_id() }),
        }
    }
    Ok(answers)
}

/// An open transaction of Oncebox on a pooled connection; dereferences to [`sqlx::MySqlConnection`].
///
/// `begin` on it makes a savepoint. `commit`, `rollback` and statements that commit by themselves, such as
/// `create table`, are refused in it (error 1399). Dropping it closes the connection, which rolls back.
pub struct MariaTransaction {
    lent: Lent,
    // Part of its name on the server.
    marker: u64,
    session: Option<u64>,
    // Set when the session serves others again, and must not be ended any more.
    is_given_back: Arc<AtomicBool>,
    pool: MySqlPool,
}

impl MariaTransaction {
    /// Begins a transaction with its limits and its mark, in one round trip.
    pub(crate) async fn begin(pool: &MySqlPool, limits: TxLimits, marker: u64) -> Result<Self, sqlx::Error> {
        let mut lent = Lent::from_pool(pool).await?;
        let text = sql::begin_transaction(limits, marker);
        Manager::begin(&mut lent, Some(AssertSqlSafe(text).into_sql_str())).await?;
        Ok(Self { lent, marker, session: None, is_given_back: Arc::default(), pool: pool.clone() })
    }

    /// Remembers which session this is.
    pub(crate) fn note_session(&mut self, session: u64) {
        self.session = Some(session);
    }

    /// False when the handler left a savepoint open.
    pub(crate) fn is_outermost(&self) -> bool {
        Manager::get_transaction_depth(&self.lent) == 1
    }

    /// Runs this statement, commits and gives the connection back, in one round trip.
    pub(crate) async fn commit(mut self, last: Option<String>) -> Result<(), (Self, Problem)> {
        let mut text = last.map_or_else(String::new, |last| last + "; ");
        text.push_str(&sql::commit_transaction(self.marker));
        match run_text(&mut self.lent, text).await {
            Ok(_) => {
                // The driver still counts the transaction; its rollback of nothing travels with the next statement.
                Manager::start_rollback(&mut self.lent);
                self.give_back();
                Ok(())
            }
            Err(error) => Err((self, error.into())),
        }
    }

    fn give_back(self) {
        self.is_given_back.store(true, Ordering::SeqCst);
        self.lent.give_back();
    }

    async fn roll_back(&mut self) -> bool {
        let rollback = async {
            // Savepoints of the handler, of which the driver keeps count.
            while Manager::get_transaction_depth(&self.lent) > 1 {
                Manager::rollback(&mut self.lent).await?;
            }
            match run_text(&mut self.lent, sql::end_transaction(self.marker)).await {
                Err(error) if !is_usable_after(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
            run_text(&mut self.lent, sql::roll_back_transaction(self.marker)).await?;
            Manager::start_rollback(&mut self.lent);
            Ok(())
        };
        matches!(tokio::time::timeout(ROLLBACK_PATIENCE, rollback).await, Ok(Ok(())))
    }
}

impl Connection for MariaTransaction {
    async fn rollback(mut self) {
        if self.roll_back().await {
            self.give_back();
            return;
        }
        // A statement is still running on the server, and closing the connection would leave it there with its locks.
        if let Err(error) = end_session(&self.pool, self.session).await {
            tracing::warn!(session = self.session, %error, "a transaction that did not roll back could not be ended");
        }
    }

    fn revoker(&self) -> Revoker {
        let (pool, session, is_given_back) = (self.pool.clone(), self.session, self.is_given_back.clone());
        Box::new(move || {
            async move {
                if is_given_back.load(Ordering::SeqCst) {
                    return;
                }
                if let Err(error) = end_session(&pool, session).await {
                    tracing::warn!(session, %error, "a kept transaction could not be ended");
                }
            }
            .boxed()
        })
    }
}

/// The pool may be empty because of transactions that are kept, so this does not wait for it.
///
/// Numbers of sessions are not given twice, so nobody else is hit when it has gone by itself.
async fn end_session(pool: &MySqlPool, session: Option<u64>) -> Result<(), sqlx::Error> {
    let Some(session) = session else { return Ok(()) };
    let result = if let Some(connection) = pool.try_acquire() {
        let mut lent = Lent(Some(connection));
        let result = run_text(&mut lent, sql::kill(session)).await;
        if result.is_ok() {
            lent.give_back();
        }
        result
    } else {
        let mut connection = MySqlConnection::connect_with(&pool.connect_options()).await?;
        let result = run_text(&mut connection, sql::kill(session)).await;
        connection.close().await?;
        result
    };
    let problem = match result {
        Ok(_) => return Ok(()),
        Err(error) => Problem::Driver(error),
    };
    match (problem.number(), problem) {
        // It has gone by itself.
        (Some(NO_SESSION), _) | (_, Problem::Ours(_)) => Ok(()),
        (_, Problem::Driver(error)) => Err(error),
    }
}

impl Deref for MariaTransaction {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.lent
    }
}

impl DerefMut for MariaTransaction {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.lent
    }
}

impl fmt::Debug for MariaTransaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MariaTransaction").field("session", &self.session).finish_non_exhaustive()
    }
}

/// The error for a transaction that is not ours to commit any more.
pub(crate) fn fenced(text: &str) -> Error {
    Error::new(ErrorKind::Fenced, text)
}

const LOST: &str = "the transaction was over before its commit: a deadlock undid it, and the handler did not return the \
                    error, or the handler ended it; nothing of it is kept";

/// Rolls back and says why: a transaction that is over, or a lane that is not ours, counts as fenced.
pub(crate) async fn abandon(tx: MariaTransaction, problem: Problem) -> Error {
    let number = problem.number();
    if problem.leaves_connection_usable() {
        tx.rollback().await;
    }
    match number {
        Some(number) if is_over(number) => fenced(LOST),
        Some(sql::LANE_LOST) => fenced("a lane is no longer ours; nothing is kept"),
        _ => problem.into_error(),
    }
}

/// Reads on a connection, each statement by itself, and again on contention.
macro_rules! reading {
    ($inner:expr, |$connection:ident| $body:expr) => {{
        let mut retry = $crate::error::Retry::default();
        loop {
            let result: Result<_, $crate::error::Problem> = async {
                let mut lent = $crate::tx::Lent::from_pool(&$inner.pool).await?;
                let result: Result<_, $crate::error::Problem> = async {
                    let $connection: &mut sqlx::MySqlConnection = &mut lent;
                    $body
                }
                .await;
                match &result {
                    Ok(_) => lent.give_back(),
                    Err(problem) if problem.leaves_connection_usable() => lent.give_back(),
                    Err(_) => {}
                }
                result
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

/// Several statements in one commit, and again on contention.
///
/// Everything we write goes through here, also single statements: a session that the application has taken out of
/// autocommit would keep them to itself.
macro_rules! transaction {
    ($inner:expr, |$connection:ident| $body:expr) => {
        $crate::tx::transaction!($inner, "", |$connection, _answers| $body)
    };
    ($inner:expr, $first:expr, |$connection:ident, $answers:ident| $body:expr) => {{
        let mut retry = $crate::error::Retry::default();
        loop {
            let result: Result<_, $crate::error::Problem> = async {
                let (mut lent, $answers) = $crate::tx::Lent::begin(&$inner.pool, $first).await?;
                let result: Result<_, $crate::error::Problem> = async {
                    let $connection: &mut sqlx::MySqlConnection = &mut lent;
                    $body
                }
                .await;
                match result {
                    Ok(value) => {
                        lent.commit("").await?;
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

pub(crate) use {reading, transaction};
