//! A schema with the store's tables and one with the user's.

use std::error::Error as StdError;
use std::io::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::{Message, Store};
use oncebox_postgres::PgStore;
use oncebox_testkit::{Effect, Facts, Subject};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction,
};

/// The address of the server; without it nothing is tested.
const ADDRESS: &str = "ONCEBOX_TEST_POSTGRES";

/// A store in a schema of its own, seen by the server under a name of its own.
#[derive(Debug)]
pub(crate) struct PgSubject {
    name: String,
    options: PgConnectOptions,
    // Without the settings of `with_settings`, which may forbid to clean up.
    plain: PgConnectOptions,
    pool: PgPool,
    clock: ClockShift,
    // False for one that another process has made.
    owned: bool,
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl PgSubject {
    fn new(url: &str, name: String, owned: bool) -> Self {
        let options = PgConnectOptions::from_str(url)
            .unwrap()
            .application_name(&name)
            .options([("search_path", user_schema(&name))])
            .disable_statement_logging();
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options.clone());
        Self { name, plain: options.clone(), options, pool, clock: ClockShift::default(), owned }
    }

    /// A subject whose sessions have these settings.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) async fn with_settings(settings: &[(&str, &str)]) -> Option<Self> {
        let mut subject = Self::create().await?;
        subject.options = subject.options.clone().options(settings.iter().copied());
        subject.pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(subject.options.clone());
        Some(subject)
    }

    /// The pool of the subject's store.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The name under which its sessions appear in `pg_stat_activity`.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn store_on(&self, pool: PgPool) -> PgStore {
        PgStore::new(pool).schema(&self.name).unwrap().with_clock(self.clock.clone())
    }
}

fn user_schema(name: &str) -> String {
    format!("{name}_user")
}

impl Subject for PgSubject {
    type Store = PgStore;
    type Own = Transaction<'static, Postgres>;

    const FACTS: Facts = Facts { error_aborts_transaction: true, parallel_transactions: true };

    async fn create() -> Option<Self> {
        let Ok(url) = std::env::var(ADDRESS) else {
            say_once_that_nothing_is_tested();
            return None;
        };
        let subject = Self::new(&url, format!("suite_{:016x}", Seed::from_system().next()), true);
        subject.store().migrate().await.unwrap();
        let tables = format!(
            "create schema {user};
             create table {user}.ledger (
                number bigint generated always as identity primary key,
                id text not null, handler text not null, note text not null
             );
             create table {user}.parent (id bigint primary key);
             create table {user}.child (
                parent bigint references {user}.parent (id) deferrable initially deferred
             );
             create table {user}.once (one int primary key);
             insert into {user}.once (one) values (1);",
            user = user_schema(&subject.name)
        );
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&subject.pool).await.unwrap();
        Some(subject)
    }

    fn store(&self) -> PgStore {
        self.store_on(self.pool.clone())
    }

    async fn store_with_one_connection(&self) -> PgStore {
        self.store_on(PgPoolOptions::new().max_connections(1).connect_lazy_with(self.options.clone()))
    }

    async fn reopen(&self) -> PgStore {
        self.store_on(PgPoolOptions::new().max_connections(8).connect_lazy_with(self.options.clone()))
    }

    fn clock(&self) -> ClockShift {
        self.clock.clone()
    }

    fn address(&self) -> String {
        self.name.clone()
    }

    async fn attach(address: &str) -> Self {
        let url = std::env::var(ADDRESS).unwrap();
        Self::new(&url, address.to_owned(), false)
    }

    async fn record(tx: &mut PgConnection, effect: Effect) -> Result<(), BoxError> {
        sqlx::query("insert into ledger (id, handler, note) values ($1, $2, $3)")
            .bind(effect.id)
            .bind(effect.handler)
            .bind(effect.note)
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<Effect> {
        let rows = sqlx::query("select id, handler, note from ledger order by number")
            .fetch_all(&self.pool)
            .await
            .unwrap();
        rows.iter().map(|row| Effect { id: row.get(0), handler: row.get(1), note: row.get(2) }).collect()
    }

    async fn fail(tx: &mut PgConnection) -> Result<(), BoxError> {
        tx.execute("insert into once (one) values (1)").await?;
        Ok(())
    }

    async fn end_transaction(tx: &mut PgConnection) -> Result<(), BoxError> {
        tx.execute("commit").await?;
        Ok(())
    }

    async fn fail_at_commit(tx: &mut PgConnection) -> Result<(), BoxError> {
        tx.execute("insert into child (parent) values (12345)").await?;
        Ok(())
    }

    async fn work_for(tx: &mut PgConnection, time: Duration) -> Result<(), BoxError> {
        sqlx::query("select pg_sleep($1)").bind(time.as_secs_f64()).execute(tx).await?;
        Ok(())
    }

    async fn begin(&self) -> Transaction<'static, Postgres> {
        self.pool.begin().await.unwrap()
    }

    async fn commit(own: Transaction<'static, Postgres>) {
        own.commit().await.unwrap();
    }

    async fn rollback(own: Transaction<'static, Postgres>) {
        own.rollback().await.unwrap();
    }

    async fn once_outside_transaction(&self) -> String {
        let mut connection = self.pool.acquire().await.unwrap();
        match self.store().once(&mut connection, "import", "file").await {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => error.to_string(),
        }
    }

    async fn publish_outside_transaction(&self, message: Message) -> String {
        let mut connection = self.pool.acquire().await.unwrap();
        match self.store().publish(&mut connection, &[message]).await {
            Ok(()) => "published".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn stuck_transactions(&self) -> usize {
        let mut connection = self.options.clone().application_name("oncebox suite").connect().await.unwrap();
        let count = "select count(*) from pg_stat_activity
                     where application_name = $1 and state like 'idle in transaction%'";
        let started = Instant::now();
        loop {
            let row = sqlx::query(count).bind(&self.name).fetch_one(&mut connection).await.unwrap();
            let stuck: i64 = row.get(0);
            if stuck == 0 || started.elapsed() > Duration::from_secs(10) {
                return usize::try_from(stuck).unwrap();
            }
        }
    }
}

impl Drop for PgSubject {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let options = self.plain.clone().application_name("oncebox suite");
        let name = self.name.clone();
        // Another thread with a runtime of its own, because this one may be in the middle of a panic.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(remove(options, &name)).map_err(BoxError::from)
        });
        if !matches!(removed.join(), Ok(Ok(()))) {
            let _ = writeln!(std::io::stderr(), "the schema `{}` could not be removed", self.name);
        }
    }
}

/// Ends the subject's sessions and drops its schemas.
async fn remove(options: PgConnectOptions, name: &str) -> Result<(), sqlx::Error> {
    let mut connection = options.connect().await?;
    sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1")
        .bind(name)
        .execute(&mut connection)
        .await?;
    let drop =
        format!("drop schema if exists {name} cascade; drop schema if exists {} cascade", user_schema(name));
    sqlx::raw_sql(AssertSqlSafe(format!(
        "set lock_timeout = '10s'; set client_min_messages = warning; {drop}"
    )))
    .execute(&mut connection)
    .await?;
    connection.close().await
}

fn say_once_that_nothing_is_tested() {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text =
            format!("the Postgres suite was not run: {ADDRESS} is not set; `cargo xtask test` runs it\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}
