//! A SQLite file with the store's tables and the user's.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oncebox_core::clock::ClockShift;
use oncebox_core::{Message, Store};
use oncebox_sqlite::SqliteStore;
use oncebox_testkit::{Effect, Facts, Subject};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor, Row, Sqlite, SqliteConnection, SqlitePool, Transaction};

const TABLES: &str = "
    create table ledger (
        number integer primary key autoincrement, id text not null, handler text not null, note text not null
    ) strict;
    create table parent (id integer primary key) strict;
    create table child (parent integer references parent (id) deferrable initially deferred) strict;
    create table once (one integer primary key) strict;
    insert into once (one) values (1);
";

pub(crate) type SqliteSubject = SubjectBy<true>;

/// A store in a file of its own, which remembers what it has received or reads everything back.
#[derive(Debug)]
pub(crate) struct SubjectBy<const REMEMBERING: bool> {
    path: PathBuf,
    store: SqliteStore,
    clock: ClockShift,
    // Removed with the subject that made it.
    _directory: Option<tempfile::TempDir>,
}

impl<const REMEMBERING: bool> SubjectBy<REMEMBERING> {
    async fn open(path: &Path, clock: &ClockShift) -> SqliteStore {
        Self::set(SqliteStore::open(&path.display().to_string()).await.unwrap(), clock)
    }

    fn set(store: SqliteStore, clock: &ClockShift) -> SqliteStore {
        let store = store.with_clock(clock.clone());
        if REMEMBERING { store } else { store.remember(0) }
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10))
            .foreign_keys(true)
    }

    fn pool(&self) -> &SqlitePool {
        self.store.pool()
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl<const REMEMBERING: bool> Subject for SubjectBy<REMEMBERING> {
    type Store = SqliteStore;
    type Own = Transaction<'static, Sqlite>;

    const FACTS: Facts = Facts {
        error_aborts_transaction: false,
        parallel_transactions: false,
        commits_outside_transaction: false,
    };

    async fn create() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("suite.db");
        let clock = ClockShift::default();
        let store = Self::open(&path, &clock).await;
        store.migrate().await.unwrap();
        sqlx::raw_sql(TABLES).execute(store.pool()).await.unwrap();
        Some(Self { path, store, clock, _directory: Some(directory) })
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn store_with_one_connection(&self) -> SqliteStore {
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(self.options()).await.unwrap();
        Self::set(SqliteStore::new(pool), &self.clock)
    }

    async fn reopen(&self) -> SqliteStore {
        Self::open(&self.path, &self.clock).await
    }

    fn clock(&self) -> ClockShift {
        self.clock.clone()
    }

    fn address(&self) -> String {
        self.path.display().to_string()
    }

    async fn attach(address: &str) -> Self {
        let path = PathBuf::from(address);
        let clock = ClockShift::default();
        Self { store: Self::open(&path, &clock).await, path, clock, _directory: None }
    }

    async fn record(tx: &mut SqliteConnection, effect: Effect) -> Result<(), BoxError> {
        sqlx::query("insert into ledger (id, handler, note) values (?1, ?2, ?3)")
            .bind(effect.id)
            .bind(effect.handler)
            .bind(effect.note)
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<Effect> {
        let rows = sqlx::query("select id, handler, note from ledger order by number")
            .fetch_all(self.pool())
            .await
            .unwrap();
        rows.iter().map(|row| Effect { id: row.get(0), handler: row.get(1), note: row.get(2) }).collect()
    }

    async fn fail(tx: &mut SqliteConnection) -> Result<(), BoxError> {
        tx.execute("insert into once (one) values (1)").await?;
        Ok(())
    }

    async fn end_transaction(tx: &mut SqliteConnection) -> Result<(), BoxError> {
        tx.execute("insert or rollback into once (one) values (1)").await?;
        Ok(())
    }

    async fn fail_at_commit(tx: &mut SqliteConnection) -> Result<(), BoxError> {
        tx.execute("insert into child (parent) values (12345)").await?;
        Ok(())
    }

    async fn work_for(tx: &mut SqliteConnection, time: Duration) -> Result<(), BoxError> {
        // The clock stands still within a step, so each row is a step; and it must depend on the row to be asked again.
        let until: f64 = sqlx::query("select julianday('now', ?1)")
            .bind(format!("+{} seconds", time.as_secs_f64()))
            .fetch_one(&mut *tx)
            .await?
            .try_get(0)?;
        let busy = "with recursive work (i) as (
                select 1 union all
                select i + 1 from work where julianday('now', (i * 0) || ' seconds') < ?1
            )
            select i from work";
        sqlx::query(busy).bind(until).execute(tx).await?;
        Ok(())
    }

    async fn spoil(&self, id: &str) {
        let mut connection = self.options().connect().await.unwrap();
        for (table, column) in [("log", "id"), ("delivery", "message_id"), ("outbox", "id")] {
            let text = format!(
                "update oncebox_{table} set headers = '{{oops', not_before = {} where {column} = ?1",
                i64::MAX
            );
            sqlx::query(sqlx::AssertSqlSafe(text)).bind(id).execute(&mut connection).await.unwrap();
        }
    }

    async fn write_as_newer(&self, replay: i64, message: &str) {
        let mut connection = self.options().connect().await.unwrap();
        // A migration of that version has changed them.
        sqlx::query("pragma ignore_check_constraints = on").execute(&mut connection).await.unwrap();
        let text = "update oncebox_replay set filter = '{\"colour\":\"red\"}' where id = ?1";
        sqlx::query(text).bind(replay).execute(&mut connection).await.unwrap();
        let text = "update oncebox_delivery set state = 99 where message_id = ?1";
        sqlx::query(text).bind(message).execute(&mut connection).await.unwrap();
    }

    async fn begin(&self) -> Transaction<'static, Sqlite> {
        self.pool().begin_with("begin immediate").await.unwrap()
    }

    async fn commit(own: Transaction<'static, Sqlite>) {
        own.commit().await.unwrap();
    }

    async fn rollback(own: Transaction<'static, Sqlite>) {
        own.rollback().await.unwrap();
    }

    async fn once_outside_transaction(&self) -> String {
        let mut connection = self.pool().acquire().await.unwrap();
        match self.store.once(&mut connection, "import", "file").await {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => error.to_string(),
        }
    }

    async fn publish_outside_transaction(&self, message: Message) -> String {
        let mut connection = self.pool().acquire().await.unwrap();
        match self.store.publish(&mut connection, &[message]).await {
            Ok(()) => "published".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// One, when somebody keeps the write lock.
    async fn stuck_transactions(&self) -> usize {
        let options = self.options().busy_timeout(Duration::from_millis(100));
        let mut connection = options.connect().await.unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if connection.execute("begin immediate; rollback").await.is_ok() {
                return 0;
            }
        }
        1
    }
}
