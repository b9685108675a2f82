//! A store on MariaDB.

use oncebox::MariaStore;
use sqlx::{AssertSqlSafe, MySqlConnection, MySqlPool};

use super::{Place, Target, for_each_row, reach};

#[derive(Clone)]
pub(crate) struct MariaTarget {
    pool: MySqlPool,
    store: MariaStore,
    place: Place,
}

impl MariaTarget {
    pub(crate) fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// A statement on the tables of this place.
    pub(crate) fn sql(&self, text: &str) -> AssertSqlSafe<String> {
        in_schema(&self.place.schema, text)
    }
}

/// `{s}` in the text becomes the schema's name.
pub(crate) fn in_schema(schema: &str, text: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(text.replace("{s}", &format!("`{schema}`")))
}

impl Target for MariaTarget {
    type Store = MariaStore;

    async fn open(place: &Place, connections: u32) -> Result<Self, String> {
        let pool = reach::mariadb(&place.url, connections).await?;
        let store = MariaStore::new(pool.clone()).schema(&place.schema).map_err(|error| error.to_string())?;
        Ok(Self { pool, store, place: place.clone() })
    }

    async fn create(&self) -> Result<(), String> {
        self.store.migrate().await.map_err(|error| error.to_string())?;
        let sql = self.sql(
            "create table {s}.ledger (id varchar(191) not null)
             character set utf8mb4 collate utf8mb4_bin engine = innodb",
        );
        sqlx::query(sql).execute(&self.pool).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    async fn remove(&self) -> Result<(), String> {
        let sql = self.sql("drop database if exists {s}");
        sqlx::query(sql).execute(&self.pool).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn store(&self) -> MariaStore {
        self.store.clone()
    }

    async fn close(&self) {
        self.pool.close().await;
    }

    fn schema(&self) -> &str {
        &self.place.schema
    }

    async fn insert_effect(tx: &mut MySqlConnection, place: &Place, id: &str) -> Result<(), sqlx::Error> {
        let sql = in_schema(&place.schema, "insert into {s}.ledger (id) values (?)");
        sqlx::query(sql).bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects(&self) -> Result<u64, String> {
        let count: i64 = sqlx::query_scalar(self.sql("select count(*) from {s}.ledger"))
            .fetch_one(&self.pool)
            .await
            .map_err(|error| error.to_string())?;
        Ok(count.unsigned_abs())
    }

    async fn count_effects(&self, each: impl FnMut(&str, i64) + Send) -> Result<(), String> {
        let sql = self.sql("select id, count(*) from {s}.ledger group by id");
        for_each_row(sqlx::query_as(sql).fetch(&self.pool), each).await
    }
}
