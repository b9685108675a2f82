//! The shop on MariaDB: a database of its own, and the store in the database `oncebox`.
//!
//! A server has only one database `oncebox`, whose name the programs know. So one shop at a time is played, and the
//! database is replaced only when a shop has made it.

use std::sync::Arc;
use std::time::Duration;

use oncebox::clock::Seed;
use oncebox::{Failure, Inbox, MariaStore, MariaTx, Message, handler};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, MySql, MySqlConnection, MySqlPool, Row, Transaction,
};

use crate::scenario::{Effect, Shop};

/// Says of the database `oncebox` that it may be dropped.
const MARK: &str = "made by a test of oncebox";

#[derive(Clone)]
pub(crate) struct MariaShop {
    /// Of the shop's database, and of the user that the program connects as.
    name: String,
    pool: MySqlPool,
    url: String,
    /// Its session has the lock that keeps other shops away.
    _turn: Arc<MySqlConnection>,
}

impl Shop for MariaShop {
    type Store = MariaStore;
    type Driver = MySql;

    const ADDRESS: &'static str = "ONCEBOX_TEST_MARIADB";
    // MariaDB has no notifications; the runner asks.
    const POLL_EVERY: Duration = Duration::from_millis(50);

    async fn create(address: &str) -> Self {
        let name = format!("shop_{:016x}", Seed::from_system().next());
        let options: MySqlConnectOptions = address.parse().unwrap();
        let mut turn = options.connect().await.unwrap();
        let lock = "select get_lock('oncebox shop', 600)";
        let is_our_turn: Option<i64> = sqlx::query_scalar(lock).fetch_one(&mut turn).await.unwrap();
        assert_eq!(is_our_turn, Some(1), "another shop has been played for ten minutes");
        remove_store(&mut turn).await;
        let pool = MySqlPoolOptions::new().max_connections(8).connect_lazy_with(options.clone());
        execute(&mut turn, format!("create database oncebox comment '{MARK}'")).await;
        MariaStore::new(pool.clone()).migrate().await.unwrap();
        let grants = include_str!("roles/caller_mariadb.sql").replace("shop_caller", &name);
        let prepare = format!(
            "create database {name}; create user {name}; {grants} grant insert on {name}.* to {name}; use {name}; {}",
            include_str!("shop.sql")
        );
        let mut own = options.connect().await.unwrap();
        execute(&mut own, prepare).await;
        own.close().await.unwrap();
        let url = options.database(&name).username(&name).to_url_lossy().to_string();
        // Without what only this driver knows.
        let url = url.split('?').next().unwrap().to_owned();
        Self { name, pool, url, _turn: turn.into() }
    }

    async fn remove(&self) {
        let mut server = self.pool.connect_options().connect().await.unwrap();
        self.pool.close().await;
        execute(&mut server, format!("drop database {0}; drop user {0}", self.name)).await;
        remove_store(&mut server).await;
        server.close().await.unwrap();
    }

    fn store(&self) -> MariaStore {
        MariaStore::new(self.pool.clone())
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn rival(&self, statement: &'static str) -> Transaction<'static, MySql> {
        let mut rival = self.pool.begin().await.unwrap();
        rival.execute(statement).await.unwrap();
        rival
    }

    async fn waiting(&self) -> usize {
        let row = sqlx::query("show engine innodb status").fetch_one(&self.pool).await.unwrap();
        waiting_sessions(&row.get::<String, _>(2), &self.name)
    }

    async fn charges(&self, order: &str) -> i64 {
        let count = format!("select count(*) from {}.charge where order_id = ?", self.name);
        sqlx::query(AssertSqlSafe(count)).bind(order).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn outgoing(&self, order: &str) -> i64 {
        let count = "select count(*) from oncebox.outbox where `key` = ?";
        sqlx::query(count).bind(order.as_bytes()).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn recording(&self) -> Inbox<MariaStore> {
        let table = format!(
            "create table {}.effect (id varchar(512), `key` varchar(512), payload longblob, source text)",
            self.name
        );
        self.pool.execute(AssertSqlSafe(table)).await.unwrap();
        let insert =
            format!("insert into {}.effect (id, `key`, payload, source) values (?, ?, ?, ?)", self.name);
        let record = move |mut tx: MariaTx, message: Message| {
            let insert = insert.clone();
            async move {
                sqlx::query(AssertSqlSafe(insert))
                    .bind(&message.id)
                    .bind(&message.key)
                    .bind(&message.payload[..])
                    .bind(message.headers.text("source"))
                    .execute(&mut *tx)
                    .await?;
                Ok::<(), Failure>(())
            }
        };
        Inbox::new(self.store()).on("order.placed", handler("record", record))
    }

    async fn effects(&self) -> Vec<Effect> {
        let query = format!("select id, `key`, payload, source from {}.effect order by id", self.name);
        let rows = sqlx::query(AssertSqlSafe(query)).fetch_all(&self.pool).await.unwrap();
        let effect = |row: &sqlx::mysql::MySqlRow| Effect {
            id: row.get(0),
            key: row.get(1),
            payload: row.get(2),
            source: row.get(3),
        };
        rows.iter().map(effect).collect()
    }
}

/// How many sessions of the user wait for a row lock, as InnoDB itself tells: `information_schema.innodb_trx` is a copy
/// that grows old, and by its default database a session is not known while a function of another one runs.
fn waiting_sessions(status: &str, user: &str) -> usize {
    let mut is_waiting = false;
    let of_user = |line: &str| line.starts_with("MariaDB thread id ") && line.contains(&format!(" {user} "));
    let waits = |line: &&str| {
        if line.starts_with("---TRANSACTION") {
            is_waiting = false;
        } else if line.starts_with("LOCK WAIT") {
            is_waiting = true;
        }
        is_waiting && of_user(line)
    };
    // A deadlock of the past is told in front of them.
    status.lines().skip_while(|line| !line.starts_with("---TRANSACTION")).filter(waits).count()
}

/// Drops the database `oncebox`, which a shop that was killed may have left behind.
async fn remove_store(server: &mut MySqlConnection) {
    let comment = "select schema_comment from information_schema.schemata where schema_name = 'oncebox'";
    let comment: Option<String> = sqlx::query_scalar(comment).fetch_optional(&mut *server).await.unwrap();
    if let Some(comment) = comment {
        assert_eq!(
            comment,
            MARK,
            "the database `oncebox` was made by somebody else; name a server for tests in {}",
            MariaShop::ADDRESS
        );
        execute(server, "drop database oncebox".to_owned()).await;
    }
}

async fn execute(connection: &mut MySqlConnection, text: String) {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.unwrap();
}
