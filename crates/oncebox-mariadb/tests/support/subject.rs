//! A schema with the store's tables and one with the user's.

use std::error::Error as StdError;
use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::{Duration, Instant};

use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::{Message, Store};
use oncebox_mariadb::MariaStore;
use oncebox_testkit::{Effect, Facts, Subject};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, MySql, MySqlConnection, MySqlPool, Row, Transaction,
};

use super::sessions::{OpenTransaction, open_transactions};

/// The address of the server; without it nothing is tested.
const ADDRESS: &str = "ONCEBOX_TEST_MARIADB";

/// What the guide says to grant to a user that runs handlers, for the schema `oncebox` and the user `shop_runner`.
const GRANTS: &str = include_str!("../../../../examples/languages/roles/runner_mariadb.sql");

/// How the store gets to its tables.
pub(crate) trait Way: Send + Sync + fmt::Debug + 'static {
    /// With a user that owns nothing and has only what the guide grants.
    const RUNTIME_ROLE: bool;
}

/// As the user that has made the tables.
#[derive(Debug)]
pub(crate) struct Owner;

impl Way for Owner {
    const RUNTIME_ROLE: bool = false;
}

pub(crate) type MariaSubject = SubjectBy<Owner>;

/// A store in a schema of its own. Its sessions are known by their default schema, which is the user's.
#[derive(Debug)]
pub(crate) struct SubjectBy<W> {
    way: PhantomData<W>,
    name: String,
    options: MySqlConnectOptions,
    // With the rights to make the schema and to clean up.
    plain: MySqlConnectOptions,
    // What every session of the pool is set to first.
    settings: &'static str,
    pool: MySqlPool,
    clock: ClockShift,
    // False for one that another process has made.
    owned: bool,
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl<W: Way> SubjectBy<W> {
    fn new(url: &str, name: String, owned: bool) -> Self {
        let plain = MySqlConnectOptions::from_str(url)
            .unwrap()
            .database(&user_schema(&name))
            .disable_statement_logging();
        let options = if W::RUNTIME_ROLE { plain.clone().username(&name) } else { plain.clone() };
        let pool = MySqlPoolOptions::new().max_connections(8).connect_lazy_with(options.clone());
        Self {
            way: PhantomData,
            name,
            options,
            plain,
            settings: "",
            pool,
            clock: ClockShift::default(),
            owned,
        }
    }

    /// Makes the user of the same name and grants it what the guide says, and its own tables.
    async fn create_user(&self, connection: &mut MySqlConnection) {
        let (name, user) = (&self.name, user_schema(&self.name));
        let grants = GRANTS.replace(" oncebox.", &format!(" {name}.")).replace("shop_runner", name);
        let create = format!(
            "create user {name}; grant select, insert, update, delete on {user}.* to {name};
             grant insert on oncebox_late.* to {name}; {grants}"
        );
        sqlx::raw_sql(AssertSqlSafe(create)).execute(connection).await.unwrap();
    }

    /// A subject whose sessions have these settings.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) async fn with_settings(settings: &'static str) -> Option<Self> {
        let mut subject = Self::create().await?;
        subject.settings = settings;
        subject.pool = subject.new_pool(8);
        Some(subject)
    }

    fn new_pool(&self, connections: u32) -> MySqlPool {
        let settings = self.settings;
        let options = MySqlPoolOptions::new().max_connections(connections);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move {
                if !settings.is_empty() {
                    connection.execute(settings).await?;
                }
                Ok(())
            })
        });
        options.connect_lazy_with(self.options.clone())
    }

    /// The pool of the subject's store.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// The name of the store's schema.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The transactions its sessions have open.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) async fn transactions(&self) -> Vec<OpenTransaction> {
        let mut connection = outside(&self.plain).await.unwrap();
        open_transactions(&mut connection, &user_schema(&self.name)).await
    }

    fn store_on(&self, pool: MySqlPool) -> MariaStore {
        MariaStore::new(pool).schema(&self.name).unwrap().with_clock(self.clock.clone())
    }
}

fn user_schema(name: &str) -> String {
    format!("{name}_user")
}

/// A session that belongs to no subject, so that it is neither counted nor ended with one.
async fn outside(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    options.clone().database("mysql").connect().await
}

impl<W: Way> Subject for SubjectBy<W> {
    type Store = MariaStore;
    type Own = Transaction<'static, MySql>;

    const FACTS: Facts = Facts {
        error_aborts_transaction: false,
        parallel_transactions: true,
        commits_outside_transaction: false,
    };

    async fn create() -> Option<Self> {
        let Ok(url) = std::env::var(ADDRESS) else {
            say_once_that_nothing_is_tested();
            return None;
        };
        let subject = Self::new(&url, format!("suite_{:016x}", Seed::from_system().next()), true);
        let tables = format!(
            "create database {user};
             create table {user}.ledger (
                number bigint not null auto_increment primary key,
                id varbinary(512) not null, handler varbinary(100) not null, note longblob not null
             ) engine = innodb;
             create table {user}.once (one int primary key) engine = innodb;
             insert into {user}.once (one) values (1);
             create table {user}.pair (id int primary key, value int not null) engine = innodb;
             create table {user}.weight (id int) engine = innodb",
            user = user_schema(&subject.name)
        );
        let mut connection = outside(&subject.plain).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&mut connection).await.unwrap();
        make_late_table(&mut connection).await.unwrap();
        let owner = MySqlPoolOptions::new().max_connections(1).connect_lazy_with(subject.plain.clone());
        MariaStore::new(owner.clone()).schema(&subject.name).unwrap().migrate().await.unwrap();
        owner.close().await;
        if W::RUNTIME_ROLE {
            subject.create_user(&mut connection).await;
        }
        connection.close().await.unwrap();
        Some(subject)
    }

    fn store(&self) -> MariaStore {
        self.store_on(self.pool.clone())
    }

    async fn store_with_one_connection(&self) -> MariaStore {
        self.store_on(self.new_pool(1))
    }

    async fn reopen(&self) -> MariaStore {
        self.store_on(self.new_pool(8))
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

    async fn record(tx: &mut MySqlConnection, effect: Effect) -> Result<(), BoxError> {
        sqlx::query("insert into ledger (id, handler, note) values (?, ?, ?)")
            .bind(effect.id.as_bytes())
            .bind(effect.handler.as_bytes())
            .bind(effect.note.as_bytes())
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<Effect> {
        let rows = sqlx::query("select id, handler, note from ledger order by number")
            .fetch_all(&self.pool)
            .await
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        rows.iter()
            .map(|row| Effect { id: text(row.get(0)), handler: text(row.get(1)), note: text(row.get(2)) })
            .collect()
    }

    async fn fail(tx: &mut MySqlConnection) -> Result<(), BoxError> {
        tx.execute("insert into once (one) values (1)").await?;
        Ok(())
    }

    /// MariaDB refuses to commit or roll back this transaction, but a deadlock undoes it.
    async fn end_transaction(tx: &mut MySqlConnection) -> Result<(), BoxError> {
        let refused = tx.execute("commit").await;
        assert!(refused.is_err(), "a commit of the handler's own");
        deadlock(tx).await?;
        Ok(())
    }

    /// MariaDB checks constraints at once. But a commit that has written to a table versioned by transactions notes
    /// itself in the server's registry of them, and is refused, and all of it rolled back, when there is none.
    async fn fail_at_commit(tx: &mut MySqlConnection) -> Result<(), BoxError> {
        tx.execute("insert into oncebox_late.late (number) values (1)").await?;
        Ok(())
    }

    async fn work_for(tx: &mut MySqlConnection, time: Duration) -> Result<(), BoxError> {
        sqlx::query("select sleep(?)").bind(time.as_secs_f64()).execute(tx).await?;
        Ok(())
    }

    async fn spoil(&self, id: &str) {
        let mut connection = outside(&self.plain).await.unwrap();
        for (table, column) in [("log", "id"), ("delivery", "message_id"), ("outbox", "id")] {
            let text = format!(
                "update {}.{table} set headers = '{{oops', not_before = {} where {column} = ?",
                self.name,
                i64::MAX
            );
            sqlx::query(AssertSqlSafe(text)).bind(id.as_bytes()).execute(&mut connection).await.unwrap();
        }
    }

    async fn write_as_newer(&self, replay: i64, message: &str) {
        let mut connection = outside(&self.plain).await.unwrap();
        let text = format!("update {}.replay set filter = '{{\"colour\":\"red\"}}' where id = ?", self.name);
        sqlx::query(AssertSqlSafe(text)).bind(replay).execute(&mut connection).await.unwrap();
        let text = format!("update {}.delivery set state = 99 where message_id = ?", self.name);
        sqlx::query(AssertSqlSafe(text)).bind(message.as_bytes()).execute(&mut connection).await.unwrap();
    }

    async fn begin(&self) -> Transaction<'static, MySql> {
        self.pool.begin().await.unwrap()
    }

    async fn commit(own: Transaction<'static, MySql>) {
        own.commit().await.unwrap();
    }

    async fn rollback(own: Transaction<'static, MySql>) {
        // A call that was dropped while its statement was prepared leaves the driver in the middle of an answer. It says
        // so, and the pool closes the connection, which rolls back too.
        if let Err(error) = own.rollback().await {
            assert!(matches!(error, sqlx::Error::Protocol(_)), "{error}");
        }
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
        let mut connection = outside(&self.plain).await.unwrap();
        let started = Instant::now();
        loop {
            let open = open_transactions(&mut connection, &user_schema(&self.name)).await;
            let stuck = open.iter().filter(|transaction| transaction.is_idle).count();
            if stuck == 0 || started.elapsed() > Duration::from_secs(10) {
                return stuck;
            }
        }
    }
}

impl<W> Drop for SubjectBy<W> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let options = self.plain.clone();
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

/// Ends the subject's sessions and drops its schemas and its user.
async fn remove(options: MySqlConnectOptions, name: &str) -> Result<(), sqlx::Error> {
    let mut connection = outside(&options).await?;
    let sessions = sqlx::query("select id from information_schema.processlist where db = ?")
        .bind(user_schema(name))
        .fetch_all(&mut connection)
        .await?;
    for session in sessions {
        let id: i64 = session.get(0);
        // It may have gone by itself meanwhile.
        let _ = connection.execute(AssertSqlSafe(format!("kill connection {id}"))).await;
    }
    let drop = format!(
        "set lock_wait_timeout = 10; drop database if exists {name}; drop database if exists {}; \
         drop user if exists {name}",
        user_schema(name)
    );
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await?;
    connection.close().await
}

/// Gets this transaction into a deadlock, whose victim it is; answers the error of the statement that met it.
pub(crate) async fn deadlock(tx: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let schema: String = sqlx::query_scalar("select database()").fetch_one(&mut *tx).await?;
    let options: MySqlConnectOptions = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let mut rival = options.database(&schema).connect().await?;
    let one = Seed::from_system().next() % 1_000_000_000 * 2;
    let lock = |id: u64| AssertSqlSafe(format!("update pair set value = value + 1 where id = {id}"));
    // Rows of our own, so that others who do the same do not wait for us. The rival has changed more, so that InnoDB
    // does not choose it.
    let prepare = format!(
        "insert into pair values ({one}, 0), ({0}, 0); begin; insert into weight select seq from seq_1_to_500; \
         update pair set value = 1 where id = {0}",
        one + 1
    );
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut rival).await?;
    tx.execute(lock(one)).await?;
    let waiting = tokio::spawn(async move {
        rival.execute(lock(one)).await?;
        rival.execute("rollback").await?;
        rival.close().await
    });
    // Whoever of the two comes second meets the deadlock, and the lighter one is its victim.
    let met = tx.execute(lock(one + 1)).await;
    waiting.await.unwrap()?;
    met.map(drop)
}

/// Makes the table whose writers fail at commit, once per server: afterwards the registry is gone, and with it the
/// possibility to make such a table.
async fn make_late_table(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    connection.execute("select get_lock('oncebox late table', 60)").await?;
    let there = "select count(*) from information_schema.tables where table_schema = 'oncebox_late'";
    if sqlx::query_scalar::<_, i64>(there).fetch_one(&mut *connection).await? == 0 {
        let make = "create database oncebox_late;
            create table oncebox_late.late (
                number int,
                begun bigint unsigned generated always as row start,
                ended bigint unsigned generated always as row end,
                period for system_time (begun, ended)
            ) with system versioning engine = innodb;
            drop table mysql.transaction_registry";
        sqlx::raw_sql(make).execute(&mut *connection).await?;
    }
    connection.execute("do release_lock('oncebox late table')").await?;
    Ok(())
}

fn say_once_that_nothing_is_tested() {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text =
            format!("the MariaDB suite was not run: {ADDRESS} is not set; `cargo xtask test` runs it\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}
