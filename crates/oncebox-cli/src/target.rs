//! A store with a table of the user's in it, on whichever database a URL names.

pub(crate) mod mariadb;
pub(crate) mod reach;

use std::future::Future;
use std::path::Path;

use oncebox::{PgStore, SqliteStore, Store};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, SqliteConnection, SqlitePool};

pub(crate) use mariadb::MariaTarget;

/// A migrated store and its ledger: a table without any unique key, so that a doubled effect shows.
pub(crate) trait Target: Clone + Send + Sync + 'static {
    type Store: Store;

    /// Opens what `create` has made.
    fn open(place: &Place, connections: u32) -> impl Future<Output = Result<Self, String>> + Send;

    /// Migrates, and makes the ledger.
    fn create(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Removes everything `create` made.
    fn remove(&self) -> impl Future<Output = Result<(), String>> + Send;

    fn store(&self) -> Self::Store;

    /// Closes every connection: only then has the server counted all they did.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// The schema everything is in; empty where there is none.
    fn schema(&self) -> &str;

    /// The handler's effect: one row.
    fn insert_effect(
        tx: &mut <Self::Store as Store>::Driver,
        place: &Place,
        id: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// How many effects are committed.
    fn effects(&self) -> impl Future<Output = Result<u64, String>> + Send;

    /// Every id in the ledger with its number of effects.
    fn effects_by_id(&self) -> impl Future<Output = Result<Vec<(String, i64)>, String>> + Send;
}

/// Which database, and where in it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// The schema in it (MariaDB says database); unused on SQLite.
    pub(crate) schema: String,
}

impl Place {
    pub(crate) fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres://") || self.url.starts_with("postgresql://")
    }

    /// As people write it.
    pub(crate) fn store_name(&self) -> &'static str {
        match () {
            () if self.is_postgres() => "Postgres",
            () if self.is_mariadb() => "MariaDB",
            () => "SQLite",
        }
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.url.starts_with("mysql://") || self.url.starts_with("mariadb://")
    }

    /// Refuses what no store can open.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.is_postgres() || self.is_mariadb() || self.url.starts_with("sqlite:") {
            return Ok(());
        }
        // The URL may hold a password, so only its beginning is shown.
        let begins = match self.url.split_once(':') {
            Some((scheme, _)) => format!("begins with `{scheme}:`"),
            None => "does not begin with the name of a store".to_owned(),
        };
        Err(format!("store URL {begins}; use `sqlite:FILE`, `postgres://…` or `mysql://…` (MariaDB)"))
    }

    fn ledger(&self) -> String {
        format!("\"{}\".ledger", self.schema)
    }
}

#[derive(Clone)]
pub(crate) struct SqliteTarget {
    pool: SqlitePool,
    store: SqliteStore,
    file: String,
}

impl SqliteTarget {
    pub(crate) fn pool(&self) -> &SqlitePool {
        &self.pool
    }
}

impl Target for SqliteTarget {
    type Store = SqliteStore;

    async fn open(place: &Place, _connections: u32) -> Result<Self, String> {
        let file = reach::sqlite_file(&place.url).to_owned();
        let store = SqliteStore::open(&file).await.map_err(|error| error.to_string())?;
        Ok(Self { pool: store.pool().clone(), store, file })
    }

    async fn create(&self) -> Result<(), String> {
        self.store.migrate().await.map_err(|error| error.to_string())?;
        let sql =
            "create table if not exists ledger (number integer primary key autoincrement, id text not null)";
        sqlx::query(sql).execute(&self.pool).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    async fn remove(&self) -> Result<(), String> {
        self.pool.close().await;
        for suffix in ["", "-wal", "-shm"] {
            let file = format!("{}{suffix}", self.file);
            if Path::new(&file).exists() {
                std::fs::remove_file(&file).map_err(|error| format!("{file}: {error}"))?;
            }
        }
        Ok(())
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn close(&self) {
        self.store.close().await;
        self.pool.close().await;
    }

    fn schema(&self) -> &str {
        ""
    }

    async fn insert_effect(tx: &mut SqliteConnection, _place: &Place, id: &str) -> Result<(), sqlx::Error> {
        sqlx::query("insert into ledger (id) values (?)").bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects(&self) -> Result<u64, String> {
        let count: i64 = sqlx::query_scalar("select count(*) from ledger")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| error.to_string())?;
        Ok(count.unsigned_abs())
    }

    async fn effects_by_id(&self) -> Result<Vec<(String, i64)>, String> {
        sqlx::query_as("select id, count(*) from ledger group by id")
            .fetch_all(&self.pool)
            .await
            .map_err(|error| error.to_string())
    }
}

#[derive(Clone)]
pub(crate) struct PgTarget {
    pool: PgPool,
    store: PgStore,
    place: Place,
}

impl PgTarget {
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }
}

impl Target for PgTarget {
    type Store = PgStore;

    async fn open(place: &Place, connections: u32) -> Result<Self, String> {
        let pool = reach::postgres(&place.url, connections).await?;
        let store = PgStore::new(pool.clone()).schema(&place.schema).map_err(|error| error.to_string())?;
        Ok(Self { pool, store, place: place.clone() })
    }

    async fn create(&self) -> Result<(), String> {
        self.store.migrate().await.map_err(|error| error.to_string())?;
        let sql = format!("create table {} (number bigserial, id text not null)", self.place.ledger());
        sqlx::query(AssertSqlSafe(sql)).execute(&self.pool).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    async fn remove(&self) -> Result<(), String> {
        let sql = format!("drop schema if exists \"{}\" cascade", self.place.schema);
        sqlx::query(AssertSqlSafe(sql)).execute(&self.pool).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn store(&self) -> PgStore {
        self.store.clone()
    }

    async fn close(&self) {
        self.pool.close().await;
    }

    fn schema(&self) -> &str {
        &self.place.schema
    }

    async fn insert_effect(tx: &mut PgConnection, place: &Place, id: &str) -> Result<(), sqlx::Error> {
        let sql = format!("insert into {} (id) values ($1)", place.ledger());
        sqlx::query(AssertSqlSafe(sql)).bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects(&self) -> Result<u64, String> {
        let sql = format!("select count(*) from {}", self.place.ledger());
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .map_err(|error| error.to_string())?;
        Ok(count.unsigned_abs())
    }

    async fn effects_by_id(&self) -> Result<Vec<(String, i64)>, String> {
        let sql = format!("select id, count(*) from {} group by id", self.place.ledger());
        sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&self.pool).await.map_err(|error| error.to_string())
    }
}
