//! The transaction a handler works in: begun, checked and committed here and nowhere else.

mod watch;
pub(crate) mod writer;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use oncebox_core::store::{Commit, Connection, DeliveryId, Revoker, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::sqlite::SqliteTransactionManager;
use sqlx::{Executor, SqlStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;

use crate::error::classify;
use crate::store::SqliteStore;
use crate::tx::writer::{Sync, Write, fenced};

/// The transaction argument of a handler on SQLite; dereferences to [`SqliteConnection`].
pub type SqliteTx = oncebox_core::Tx<SqliteTransaction>;

/// An open write transaction of a [`SqliteStore`].
///
/// While it is open nobody else can write to the database. A commit the handler tries by itself is turned into a
/// rollback by SQLite, whatever way it is spelled. A single statement that runs longer than the transaction's limit
/// is interrupted, which ends the transaction too.
pub struct SqliteTransaction {
    write: Write,
    statement: Duration,
}

/// Marks our transaction: a handler that ends it, by `rollback` or by an error that does, takes the savepoint along.
const BEGIN: &str = "begin immediate; savepoint oncebox_fence";
const RELEASE: &str = "release oncebox_fence";

impl SqliteStore {
    pub(crate) async fn begin(&self, limits: TxLimits) -> Result<SqliteTransaction, Error> {
        let write = self.writer.begin_with(Sync::Durable, BEGIN).await?;
        let transaction = SqliteTransaction { write, statement: limits.statement };
        transaction.write.watch().allow(limits.statement);
        Ok(transaction)
    }

    pub(crate) async fn commit_transaction(
        &self,
        transaction: SqliteTransaction,
        commit: Commit,
    ) -> Result<Vec<DeliveryId>, Error> {
        let mut write = transaction.write;
        write.watch().allow_any_time();
        // Waits for whatever the handler left running, then proves that the transaction is the one we began.
        let released = write.connection().execute(RELEASE).await;
        if released.is_err() || write.is_over() {
            write.rollback().await;
            return Err(fenced(
                "the transaction was ended before its commit: by the handler, or by an SQL error it ignored",
            ));
        }
        match self.write_outcome(&mut write, &commit).await {
            Ok(ids) => {
                write.commit().await?;
                Ok(ids)
            }
            Err(error) => {
                write.rollback().await;
                Err(error)
            }
        }
    }

    /// Everything that belongs to a handler's work, the checks of its lanes and leases last.
    async fn write_outcome(&self, write: &mut Write, commit: &Commit) -> Result<Vec<DeliveryId>, Error> {
        let connection = write.connection();
        self.insert_outgoing(connection, &commit.outgoing).await?;
        let ids = self.park(connection, &commit.park).await?;
        if let Some(done) = &commit.done {
            self.finish_leases(connection, done).await?;
        }
        if let Some(respond) = &commit.respond
            && !self.write_response(connection, respond).await?
        {
            return Err(fenced("the idempotency key is no longer ours; nothing is kept"));
        }
        if let Some(lanes) = &commit.lanes {
            self.move_lanes(connection, lanes).await?;
        }
        Ok(ids)
    }
}

impl Connection for SqliteTransaction {
    async fn rollback(self) {
        self.write.rollback().await;
    }

    /// SQLite cannot end a transaction whose connection somebody else holds: the revoker interrupts what it is
    /// running, and nothing it does later can be committed. The write lock is free when the holder drops it.
    fn revoker(&self) -> Revoker {
        let watch = self.write.watch().clone();
        let number = self.write.number();
        Box::new(move || {
            watch.cancel(number);
            Box::pin(async {})
        })
    }
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.write.connection_ref()
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        // Each `&mut *tx` is about to run a statement, whose time begins now.
        self.write.watch().allow(self.statement);
        self.write.connection()
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}

/// Refuses a connection that has no transaction open.
///
/// sqlx's own count is not enough: SQLite ends a transaction by itself on some errors (`insert or rollback`, a full
/// disk), and then the next statement would commit alone.
pub(crate) async fn require_transaction(connection: &mut SqliteConnection, what: &str) -> Result<(), Error> {
    // A second `begin` is an error inside a transaction and changes nothing there.
    const PROBE: &str = "begin; rollback";
    let outside = if SqliteTransactionManager::get_transaction_depth(connection) == 0 {
        match SqliteTransactionManager::begin(connection, Some(SqlStr::from_static(PROBE))).await {
            Ok(()) | Err(sqlx::Error::BeginFailed) => true,
            Err(sqlx::Error::Database(_)) => false,
            Err(error) => return Err(classify(error)),
        }
    } else {
        match connection.execute(PROBE).await {
            Ok(_) => true,
            Err(sqlx::Error::Database(_)) => false,
            Err(error) => return Err(classify(error)),
        }
    };
    if outside {
        return Err(Error::new(
            ErrorKind::NotInTransaction,
            format!(
                "`{what}` needs an open transaction; begin one with `pool.begin_with(\"begin immediate\")`"
            ),
        ));
    }
    Ok(())
}
