//! A schema with the store's tables and one with the user's.

use std::error::Error as StdError;
use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::{Duration, Instant};

use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::{Message, Store};
use oncebox_postgres::PgStore;
use oncebox_testkit::{Effect, Facts, Subject};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions};
use sqlx::query::Query;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction,
};

/// The address of the server; without it nothing is tested.
const ADDRESS: &str = "ONCEBOX_TEST_POSTGRES";
/// The address of a pooler in front of that server.
const POOLER: &str = "ONCEBOX_TEST_PGBOUNCER";

/// What the guide says to grant to a role that runs handlers, for the schema `oncebox` and the role `shop_runner`.
const GRANTS: &str = include_str!("../../../../examples/languages/roles/runner.sql");

/// How the store gets to its tables.
pub(crate) trait Way: Send + Sync + fmt::Debug + 'static {
    /// With a role that owns nothing and has only what the guide grants.
    const RUNTIME_ROLE: bool;
    /// Through PgBouncer in transaction mode.
    const POOLER: bool;
}

/// As the owner of the tables, straight to the server.
#[derive(Debug)]
pub(crate) struct Owner;

impl Way for Owner {
    const RUNTIME_ROLE: bool = false;
    const POOLER: bool = false;
}

pub(crate) type PgSubject = SubjectBy<Owner>;

/// A store in a schema of its own, seen by the server under a name of its own.
#[derive(Debug)]
pub(crate) struct SubjectBy<W> {
    way: PhantomData<W>,
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

impl<W: Way> SubjectBy<W> {
    fn new(url: &str, name: String, owned: bool) -> Self {
        let plain = PgConnectOptions::from_str(url).unwrap().disable_statement_logging();
        let plain = plain.application_name(&name).options([("search_path", user_schema(&name))]);
        let options = if W::POOLER {
            let url = std::env::var(POOLER).unwrap();
            // The pooler takes no `options`; the role brings its search_path along.
            let options = PgConnectOptions::from_str(&url).unwrap().disable_statement_logging();
            options.application_name(&name).username(&name)
        } else if W::RUNTIME_ROLE {
            plain.clone().username(&name)
        } else {
            plain.clone()
        };
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options.clone());
        Self { way: PhantomData, name, plain, options, pool, clock: ClockShift::default(), owned }
    }

    /// Makes the role of the same name and grants it what the guide says, and its own tables.
    async fn create_role(&self, connection: &mut PgConnection) {
        let (name, user) = (&self.name, user_schema(&self.name));
        let grants = GRANTS.replace(" oncebox", &format!(" {name}")).replace("shop_runner", name);
        let role = format!(
            "create role {name} login; alter role {name} set search_path = {user};
             grant usage on schema {user} to {name};
             grant select, insert, update, delete on all tables in schema {user} to {name}; {grants}"
        );
        sqlx::raw_sql(AssertSqlSafe(role)).execute(connection).await.unwrap();
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
        let store = PgStore::new(pool).schema(&self.name).unwrap().with_clock(self.clock.clone());
        match (W::RUNTIME_ROLE, W::POOLER) {
            (_, true) => store.behind_pooler(),
            // One of the suites reads everything from the server.
            (true, false) => store.remember(0),
            (false, false) => store,
        }
    }

    /// A query that a pooler without knowledge of prepared statements can stand.
    fn query(text: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(text).persistent(!W::POOLER)
    }
}

fn user_schema(name: &str) -> String {
    format!("{name}_user")
}

impl<W: Way> Subject for SubjectBy<W> {
    type Store = PgStore;
    type Own = Transaction<'static, Postgres>;

    const FACTS: Facts = Facts {
        error_aborts_transaction: true,
        parallel_transactions: true,
        commits_outside_transaction: true,
    };
    const HINTS: bool = !W::POOLER;

    async fn create() -> Option<Self> {
        let Ok(url) = std::env::var(ADDRESS) else {
            say_once_that_nothing_is_tested(ADDRESS);
            return None;
        };
        if W::POOLER && std::env::var_os(POOLER).is_none() {
            say_once_that_nothing_is_tested(POOLER);
            return None;
        }
        let subject = Self::new(&url, format!("suite_{:016x}", Seed::from_system().next()), true);
        let owner = PgPoolOptions::new().max_connections(1).connect_lazy_with(subject.plain.clone());
        PgStore::new(owner.clone()).schema(&subject.name).unwrap().migrate().await.unwrap();
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
        let mut connection = owner.acquire().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&mut *connection).await.unwrap();
        if W::RUNTIME_ROLE {
            subject.create_role(&mut connection).await;
        }
        connection.close().await.unwrap();
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
        Self::query("insert into ledger (id, handler, note) values ($1, $2, $3)")
            .bind(effect.id)
            .bind(effect.handler)
            .bind(effect.note)
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<Effect> {
        // In a transaction, because a pooler may run a statement elsewhere than it was prepared. At read committed
        // whatever the session's default, because a reader must not be asked to try again. Boxed, because the cases
        // hold it on stacks that are small for unoptimized futures.
        let read = Box::pin(async {
            let mut tx = self.pool.begin_with("begin isolation level read committed").await?;
            let rows = Self::query("select id, handler, note from ledger order by number");
            let rows = rows.fetch_all(&mut *tx).await?;
            tx.commit().await?;
            Ok::<_, sqlx::Error>(rows)
        });
        let rows = read.await.unwrap();
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
        Self::query("select pg_sleep($1)").bind(time.as_secs_f64()).execute(tx).await?;
        Ok(())
    }

    async fn spoil(&self, id: &str) {
        let mut connection = self.plain.clone().connect().await.unwrap();
        for (table, column) in [("log", "id"), ("delivery", "message_id"), ("outbox", "id")] {
            let text = format!(
                "update {}.{table} set headers = '{{oops', not_before = {} where {column} = $1",
                self.name,
                i64::MAX
            );
            sqlx::query(AssertSqlSafe(text)).bind(id).execute(&mut connection).await.unwrap();
        }
    }

    async fn write_as_newer(&self, replay: i64, message: &str) {
        let mut connection = self.plain.clone().connect().await.unwrap();
        let text = format!("update {}.replay set filter = '{{\"colour\":\"red\"}}' where id = $1", self.name);
        sqlx::query(AssertSqlSafe(text)).bind(replay).execute(&mut connection).await.unwrap();
        let text = format!("update {}.delivery set state = 99 where message_id = $1", self.name);
        sqlx::query(AssertSqlSafe(text)).bind(message).execute(&mut connection).await.unwrap();
    }

    async fn begin(&self) -> Transaction<'static, Postgres> {
        // At read committed whatever the session's default: a caller who chooses a stricter level must be ready to run
        // his transaction again (40001), and the cases are not.
        self.pool.begin_with("begin isolation level read committed").await.unwrap()
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
        let mut connection = self.plain.clone().application_name("oncebox suite").connect().await.unwrap();
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

impl<W> Drop for SubjectBy<W> {
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
    // A pooler's own session, which looks up roles, may bear the name of the client it last did so for.
    let terminate = "select pg_terminate_backend(pid) from pg_stat_activity
                     where application_name = $1 and (usename = $1 or to_regrole($1) is null)";
    sqlx::query(terminate).bind(name).execute(&mut connection).await?;
    let drop = format!(
        "drop schema if exists {name} cascade; drop schema if exists {user} cascade;
         do $$ begin if to_regrole('{name}') is not null then
            execute 'drop owned by {name}; drop role {name}';
         end if; end $$",
        user = user_schema(name)
    );
    sqlx::raw_sql(AssertSqlSafe(format!(
        "set lock_timeout = '10s'; set client_min_messages = warning; {drop}"
    )))
    .execute(&mut connection)
    .await?;
    connection.close().await
}

fn say_once_that_nothing_is_tested(variable: &str) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text =
            format!("the Postgres suite was not run: {variable} is not set; `cargo xtask test` runs it\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}
