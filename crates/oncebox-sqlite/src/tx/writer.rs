//! The one who writes: SQLite has one writer at a time, so a process queues its writers here, fairly, instead of in
//! SQLite's busy handler.
//!
//! The queue holds two connections of its own, taken out of the pool once: one whose commits are synced to disk, and
//! one for marks that only need to survive this process (claims, renewals, counters).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::clock::Seed;
use oncebox_core::{Error, ErrorKind};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow, SqliteTransactionManager};
use sqlx::{Connection, Executor, Row, SqlStr, Sqlite, SqliteConnection, SqlitePool};
// The facade leaves this trait out.
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::{classify, is_busy};
use crate::tx::watch::Watch;

/// How long to ask again for a lock that another process has, beyond the busy timeout of a single ask.
const PATIENCE: Duration = Duration::from_secs(20);
/// What each connection that writes is told, beside the settings that lose nothing.
///
/// `wal_autocheckpoint`: how many pages the write-ahead log may have before they are moved into the file. A commit touches
/// the last page of many lanes, and what is rewritten in the meantime is moved once; SQLite's own 1,000 make every
/// twentieth commit wait for it. `temp_store`: where the pages are kept that undo a single statement. A group of messages
/// touches so many that a file would be made, written and removed for each statement; after a crash nobody needs it.
pub(crate) const PRAGMAS: [(&str, &str); 2] = [("wal_autocheckpoint", "4000"), ("temp_store", "memory")];
/// How many KiB of pages the connection of durable writes keeps at most, unless the application has said it for its pool.
///
/// The ids of a group are scattered over the whole index of ids: with SQLite's own 2 MB, pages of a large index are read
/// again for every group.
const CACHE: i64 = -16_000;
/// What SQLite has without being told.
const SMALL_CACHE: i64 = -2_000;
/// How long a rollback may take before the connection is closed instead.
const ROLLBACK: Duration = Duration::from_secs(1);

pub(crate) type SqliteQuery<'a> = Query<'a, Sqlite, SqliteArguments>;

/// Whether a commit must reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Survives power loss.
    Durable,
    /// Survives the death of this process.
    Soft,
}

/// The queue of writers of one store.
#[derive(Clone)]
pub(crate) struct Writer {
    pool: SqlitePool,
    slot: Arc<Mutex<Slot>>,
    seed: Arc<Seed>,
}

#[derive(Default)]
struct Slot {
    durable: Option<Watched>,
    soft: Option<Watched>,
}

struct Watched {
    connection: SqliteConnection,
    watch: Arc<Watch>,
}

/// The right to write, and the connection to do it with.
///
/// Dropped before [`Write::finish`], [`Write::commit`] or [`Write::rollback`], it closes the connection, and only
/// then lets the next writer in.
pub(crate) struct Write {
    // `None` once the next writer has been let in.
    slot: Option<OwnedMutexGuard<Slot>>,
    watched: Option<Watched>,
    sync: Sync,
    number: u64,
    seed: Arc<Seed>,
}

impl Writer {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        Self { pool, slot: Arc::default(), seed: Arc::new(Seed::from_system()) }
    }

    /// Waits for its turn and begins a transaction of our own.
    pub(crate) async fn begin(&self, sync: Sync) -> Result<Write, Error> {
        let write = self.begin_with(sync, "begin immediate").await?;
        write.watch().let_commit(true);
        Ok(write)
    }

    /// Waits for its turn and begins a transaction with these statements; commits are refused until allowed.
    pub(crate) async fn begin_with(&self, sync: Sync, sql: &'static str) -> Result<Write, Error> {
        let mut write = self.take(sync).await?;
        let asked = Instant::now();
        loop {
            match SqliteTransactionManager::begin(write.connection(), Some(SqlStr::from_static(sql))).await {
                Ok(()) => return Ok(write),
                Err(error) if is_busy(&error) && asked.elapsed() < PATIENCE => write.pause().await,
                Err(error) => return Err(classify(error)),
            }
        }
    }

    /// Waits for its turn and runs one statement that commits by itself.
    pub(crate) async fn run<'a>(
        &self,
        sync: Sync,
        statement: impl Fn() -> SqliteQuery<'a> + Send,
    ) -> Result<Vec<SqliteRow>, Error> {
        let mut write = self.take(sync).await?;
        write.watch().let_commit(true);
        let asked = Instant::now();
        loop {
            match statement().fetch_all(write.connection()).await {
                Ok(rows) => {
                    write.finish();
                    return Ok(rows);
                }
                Err(error) if is_busy(&error) && asked.elapsed() < PATIENCE => write.pause().await,
                Err(error) => return Err(classify(error)),
            }
        }
    }

    /// Waits for its turn and runs statements that begin and commit one transaction; the turn goes on.
    pub(crate) async fn run_whole<'a>(
        &self,
        sync: Sync,
        statements: impl Fn() -> SqliteQuery<'a> + Send,
    ) -> Result<(Write, Vec<SqliteRow>), Error> {
        let mut write = self.take(sync).await?;
        write.watch().let_commit(true);
        let asked = Instant::now();
        loop {
            match statements().fetch_all(write.connection()).await {
                Ok(rows) => return Ok((write, rows)),
                Err(error) if is_busy(&error) && asked.elapsed() < PATIENCE => {
                    // Open only when it was the commit that had to wait.
                    let _ = write.connection().execute("rollback").await;
                    write.pause().await;
                }
                // The connection is closed, which rolls back.
                Err(error) => return Err(classify(error)),
            }
        }
    }

    /// Closes the write connections, after whoever is writing.
    pub(crate) async fn close(&self) {
        let mut slot = self.slot.lock().await;
        for watched in [slot.durable.take(), slot.soft.take()].into_iter().flatten() {
            // The file is all that matters, and it is consistent whether or not closing went well.
            let _ = watched.connection.close().await;
        }
    }

    async fn take(&self, sync: Sync) -> Result<Write, Error> {
        // First the turn, then the connection: waiting writers must not empty the pool.
        let mut slot = self.slot.clone().lock_owned().await;
        if self.pool.is_closed() {
            return Err(classify(sqlx::Error::PoolClosed));
        }
        let idle = match sync {
            Sync::Durable => slot.durable.take(),
            Sync::Soft => slot.soft.take(),
        };
        let watched = match idle {
            Some(watched) => watched,
            None => self.connect(sync).await.map_err(classify)?,
        };
        let number = watched.watch.next();
        Ok(Write { slot: Some(slot), watched: Some(watched), sync, number, seed: self.seed.clone() })
    }

    async fn connect(&self, sync: Sync) -> Result<Watched, sqlx::Error> {
        // Through the pool, so that what the application does to each new connection is done to this one.
        let mut connection = self.pool.acquire().await?.detach();
        if sync == Sync::Soft {
            let level: i64 =
                sqlx::query("pragma synchronous").fetch_one(&mut connection).await?.try_get(0)?;
            if level > 1 {
                connection.execute("pragma synchronous = normal").await?;
            }
        }
        for (name, value) in PRAGMAS {
            connection.execute(sqlx::AssertSqlSafe(format!("pragma {name} = {value}"))).await?;
        }
        let cache: i64 = sqlx::query("pragma cache_size").fetch_one(&mut connection).await?.try_get(0)?;
        if sync == Sync::Durable && cache == SMALL_CACHE {
            connection.execute(sqlx::AssertSqlSafe(format!("pragma cache_size = {CACHE}"))).await?;
        }
        let watch = Watch::install(&mut connection).await?;
        Ok(Watched { connection, watch })
    }
}

impl Write {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.watched.as_mut().expect("a write has its connection until it ends").connection
    }

    pub(crate) fn connection_ref(&self) -> &SqliteConnection {
        &self.watched.as_ref().expect("a write has its connection until it ends").connection
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watched.as_ref().expect("a write has its connection until it ends").watch
    }

    /// The number under which the watch knows this transaction.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// True when the transaction is no longer the one that was begun.
    pub(crate) fn is_over(&self) -> bool {
        self.depth() != 1 || self.watch().is_over(self.number)
    }

    /// Gives the connection back; there is no transaction open on it.
    pub(crate) fn finish(mut self) {
        if let (Some(slot), Some(watched)) = (&mut self.slot, self.watched.take()) {
            match self.sync {
                Sync::Durable => slot.durable = Some(watched),
                Sync::Soft => slot.soft = Some(watched),
            }
        }
    }

    /// Commits and gives the connection back. After an error the outcome is unknown.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.watch().allow_any_time();
        self.watch().let_commit(true);
        let asked = Instant::now();
        loop {
            match SqliteTransactionManager::commit(self.connection()).await {
                Ok(()) => {
                    self.finish();
                    return Ok(());
                }
                // Without WAL a reader can keep a commit waiting; the transaction stays open meanwhile.
                Err(error) if is_busy(&error) && asked.elapsed() < PATIENCE => self.pause().await,
                Err(error) => {
                    self.rollback().await;
                    return Err(classify(error));
                }
            }
        }
    }

    /// Stops what is running, rolls back and gives the connection back; closes it when that does not work at once.
    pub(crate) async fn rollback(mut self) {
        self.watch().let_commit(false);
        self.watch().cancel(self.number);
        let connection = self.connection();
        let clean = tokio::time::timeout(ROLLBACK, async {
            // A handler's own `begin` that was never ended lies on top of ours.
            for _ in 0..8 {
                if SqliteTransactionManager::rollback(connection).await.is_err() {
                    return false;
                }
                if SqliteTransactionManager::get_transaction_depth(connection) == 0 {
                    return true;
                }
            }
            false
        })
        .await;
        if clean == Ok(true) {
            self.finish();
        }
    }

    fn depth(&self) -> usize {
        SqliteTransactionManager::get_transaction_depth(self.connection_ref())
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_micros(2_000 + self.seed.next() % 18_000)).await;
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let (Some(watched), Some(slot)) = (self.watched.take(), self.slot.take()) else { return };
        watched.watch.cancel(self.number);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    // Closing waits for the statement that is running and rolls back what is open.
                    let _ = watched.connection.close().await;
                    drop(slot);
                });
            }
            // Without a runtime the connection's own thread closes it a moment later.
            Err(_) => drop(watched),
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// The error for a transaction that is no longer ours.
pub(crate) fn fenced(text: &'static str) -> Error {
    Error::new(ErrorKind::Fenced, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;

    async fn setting(connection: &mut SqliteConnection, name: &str) -> i64 {
        let text = sqlx::AssertSqlSafe(format!("pragma {name}"));
        sqlx::query(text).fetch_one(connection).await.unwrap().get(0)
    }

    #[tokio::test]
    async fn connections_that_write_have_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("messages.db");
        let opened = SqliteStore::open(file.to_str().unwrap()).await.unwrap();
        let own = SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap();
        let told =
            format!("sqlite:{}", file.display()).parse::<sqlx::sqlite::SqliteConnectOptions>().unwrap();
        let told = SqlitePool::connect_lazy_with(told.pragma("cache_size", "500"));
        let stores = [(opened, -16_000), (SqliteStore::new(own), -16_000), (SqliteStore::new(told), 500)];
        for (store, cache) in stores {
            for sync in [Sync::Durable, Sync::Soft] {
                let mut write = store.writer.take(sync).await.unwrap();
                assert_eq!(setting(write.connection(), "wal_autocheckpoint").await, 4000);
                // 2 is memory.
                assert_eq!(setting(write.connection(), "temp_store").await, 2);
                let small = cache.max(-2_000);
                let cache = if sync == Sync::Durable { cache } else { small };
                assert_eq!(setting(write.connection(), "cache_size").await, cache);
                let level = setting(write.connection(), "synchronous").await;
                assert_eq!(level, if sync == Sync::Durable { 2 } else { 1 });
                write.finish();
            }
            store.close().await;
        }
    }
}
