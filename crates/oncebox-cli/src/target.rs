//! A store with a table of the user's in it, on whichever database a URL names.

pub(crate) mod mariadb;
pub(crate) mod reach;

use std::future::Future;
use std::path::Path;
use std::pin::pin;

use futures_util::{Stream, TryStreamExt};
use oncebox::clock::Seed;
use oncebox::{PgStore, SqliteStore, Store};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, SqliteConnection, SqlitePool};
use tempfile::TempDir;

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

    /// Calls `each` with every id in the ledger and its number of effects.
    fn count_effects(
        &self,
        each: impl FnMut(&str, i64) + Send,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// Which database, and where in it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// The schema in it (MariaDB says database); unused on SQLite.
    pub(crate) schema: String,
}

impl Place {
    /// A new place on this store, or in a temporary folder, which is gone when it is dropped.
    pub(crate) fn new(store: Option<&str>, purpose: &str) -> Result<(Self, Option<TempDir>), String> {
        let schema = format!("oncebox_{purpose}_{:x}", Seed::from_system().next() >> 20);
        if let Some(url) = store {
            let place = Self { url: url.to_owned(), schema };
            place.check_new()?;
            return Ok((place, None));
        }
        let folder = tempfile::tempdir().map_err(|error| {
            format!(
                "no temporary folder can be made: {error}; name one with `TMPDIR`, or a store with `--store`"
            )
        })?;
        let url = format!("sqlite:{}", folder.path().join(format!("{purpose}.db")).display());
        Ok((Self { url, schema }, Some(folder)))
    }

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

    /// Refuses what no store can open, and a SQLite file that is there already: it would be removed at the end.
    pub(crate) fn check_new(&self) -> Result<(), String> {
        self.check()?;
        let file = reach::sqlite_file(&self.url);
        if file.is_empty() {
            return Err("`sqlite:` names no file; name one that is not there, as in `--store sqlite:new.db`"
                .to_owned());
        }
        let is_there = |file: &String| self.url.starts_with("sqlite:") && is_there(Path::new(file));
        match sqlite_files(file).into_iter().find(is_there) {
            Some(file) => Err(format!(
                "`{file}` is there already, and this would remove it at the end; name a file that is not there, \
                 as in `--store sqlite:new.db`"
            )),
            None => Ok(()),
        }
    }

    fn ledger(&self) -> String {
        format!("\"{}\".ledger", self.schema)
    }
}

/// The file of a database, and those that SQLite makes beside it.
fn sqlite_files(file: &str) -> [String; 4] {
    ["", "-wal", "-shm", "-journal"].map(|suffix| format!("{file}{suffix}"))
}

/// A link that leads nowhere counts.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Hands over every row of a query, one by one: there may be many.
async fn for_each_row(
    rows: impl Stream<Item = Result<(String, i64), sqlx::Error>> + Send,
    mut each: impl FnMut(&str, i64) + Send,
) -> Result<(), String> {
    let mut rows = pin!(rows);
    while let Some((id, count)) = rows.try_next().await.map_err(|error| error.to_string())? {
        each(&id, count);
    }
    Ok(())
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
        sqlx::query("create table if not exists ledger (id text not null)")
            .execute(&self.pool)
            .await
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    async fn remove(&self) -> Result<(), String> {
        self.pool.close().await;
        for file in sqlite_files(&self.file) {
            match std::fs::remove_file(&file) {
                Ok(()) => {}
                // A connection that is closed last removes some of them itself.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{file}: {error}")),
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

    async fn count_effects(&self, each: impl FnMut(&str, i64) + Send) -> Result<(), String> {
        let sql = "select id, count(*) from ledger group by id";
        for_each_row(sqlx::query_as(sql).fetch(&self.pool), each).await
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
        let sql = format!("create table {} (id text not null)", self.place.ledger());
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

    async fn count_effects(&self, each: impl FnMut(&str, i64) + Send) -> Result<(), String> {
        let sql = format!("select id, count(*) from {} group by id", self.place.ledger());
        for_each_row(sqlx::query_as(AssertSqlSafe(sql)).fetch(&self.pool), each).await
    }
}
