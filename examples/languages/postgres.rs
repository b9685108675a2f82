//! The shop on Postgres: a database of its own, with the store in the schema `oncebox`.

use std::time::Duration;

use oncebox::clock::Seed;
use oncebox::{Failure, Inbox, Message, PgStore, PgTx, handler};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction,
};

use crate::scenario::{Effect, Shop};

#[derive(Clone)]
pub(crate) struct PgShop {
    address: String,
    /// Of the database, and of the role that the program uses.
    name: String,
    pool: PgPool,
    url: String,
}

impl Shop for PgShop {
    type Store = PgStore;
    type Driver = Postgres;

    const ADDRESS: &'static str = "ONCEBOX_TEST_POSTGRES";
    // It is the hint of `receive` that wakes the runner.
    const POLL_EVERY: Duration = Duration::from_secs(3600);

    async fn create(address: &str) -> Self {
        let name = format!("shop_{:016x}", Seed::from_system().next());
        let mut server = PgConnection::connect(address).await.unwrap();
        execute(&mut server, format!("create database {name}")).await;
        execute(&mut server, format!("create role {name} login")).await;
        let options: PgConnectOptions = address.parse().unwrap();
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options.clone().database(&name));
        PgStore::new(pool.clone()).migrate().await.unwrap();
        let mut own = pool.acquire().await.unwrap();
        execute(&mut own, include_str!("shop.sql").to_owned()).await;
        execute(&mut own, include_str!("roles/caller.sql").replace("shop_caller", &name)).await;
        execute(&mut own, format!("grant insert on charge to {name}")).await;
        drop(own);
        let url = options.database(&name).username(&name).to_url_lossy().to_string();
        // Without `sslmode`, which not every driver knows.
        let url = url.split('?').next().unwrap().to_owned();
        Self { address: address.to_owned(), name, pool, url }
    }

    async fn remove(&self) {
        self.pool.close().await;
        let mut server = PgConnection::connect(&self.address).await.unwrap();
        execute(&mut server, format!("drop database {} with (force)", self.name)).await;
        execute(&mut server, format!("drop role {}", self.name)).await;
    }

    fn store(&self) -> PgStore {
        PgStore::new(self.pool.clone())
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn rival(&self, statement: &'static str) -> Transaction<'static, Postgres> {
        let mut rival = self.pool.begin().await.unwrap();
        rival.execute(statement).await.unwrap();
        rival
    }

    async fn waiting(&self) -> usize {
        let waiting = "select pid from pg_stat_activity where usename = $1 and wait_event_type = 'Lock'";
        sqlx::query(waiting).bind(&self.name).fetch_all(&self.pool).await.unwrap().len()
    }

    async fn charges(&self, order: &str) -> i64 {
        let count = "select count(*) from charge where order_id = $1";
        sqlx::query(count).bind(order).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn outgoing(&self, order: &str) -> i64 {
        let count = "select count(*) from oncebox.outbox where key = $1";
        sqlx::query(count).bind(order).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn recording(&self) -> Inbox<PgStore> {
        let table = "create table effect (id text, key text, payload bytea, source text)";
        self.pool.execute(table).await.unwrap();
        let record = |mut tx: PgTx, message: Message| async move {
            sqlx::query("insert into effect (id, key, payload, source) values ($1, $2, $3, $4)")
                .bind(&message.id)
                .bind(&message.key)
                .bind(&message.payload[..])
                .bind(message.headers.text("source"))
                .execute(&mut *tx)
                .await?;
            Ok::<(), Failure>(())
        };
        Inbox::new(self.store()).on("order.placed", handler("record", record))
    }

    async fn effects(&self) -> Vec<Effect> {
        let query = "select id, key, payload, source from effect order by id";
        let rows = sqlx::query(query).fetch_all(&self.pool).await.unwrap();
        let effect = |row: &sqlx::postgres::PgRow| Effect {
            id: row.get(0),
            key: row.get(1),
            payload: row.get(2),
            source: row.get(3),
        };
        rows.iter().map(effect).collect()
    }
}

async fn execute(connection: &mut PgConnection, text: String) {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.unwrap();
}
