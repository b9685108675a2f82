//! The floor and the plain recipe on SQLite.

use sqlx::{Connection, QueryBuilder, Row as _, Sqlite, SqliteConnection};

use crate::bench::report::ServerCost;
use crate::bench::yard::{Row, Yard};
use crate::target::SqliteTarget;

/// Rows per statement: the best of a few sizes tried for the bare insert.
const CHUNK: usize = 250;

impl Yard for SqliteTarget {
    // There is one writer at a time. More of them would wait for its lock by sleeping, longer and longer.
    const RECIPE_CALLERS: usize = 1;

    async fn lay_out(&self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(
            "create table effect (id text not null);
             create table floor (id text primary key, kind text not null, payload blob not null,
                received_at integer not null default (unixepoch()));
             create table recipe (number integer primary key, id text not null unique, kind text not null,
                payload blob not null, received_at integer not null default (unixepoch()), status integer not null default 0);
             create index recipe_open on recipe (number) where status = 0;",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    async fn connect(&self) -> Result<SqliteConnection, sqlx::Error> {
        let mut connection = SqliteConnection::connect_with(&self.pool().connect_options()).await?;
        // The page cache of Oncebox's writer.
        sqlx::query("pragma cache_size = -16000").execute(&mut connection).await?;
        Ok(connection)
    }

    async fn floor_insert(&self, connection: &mut SqliteConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        insert_rows(connection, "insert into floor (id, kind, payload) ", "", rows).await
    }

    async fn floor_loop(&self, connection: &mut SqliteConnection, ids: &[String]) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin_with("begin immediate").await?;
        for id in ids {
            Self::effect(&mut tx, "", id).await?;
        }
        tx.commit().await
    }

    async fn floor_batch(
        &self,
        connection: &mut SqliteConnection,
        ids: Vec<String>,
    ) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin_with("begin immediate").await?;
        Self::effects_of(&mut tx, "", ids).await?;
        tx.commit().await
    }

    async fn recipe_ingest(&self, connection: &mut SqliteConnection, row: &Row) -> Result<(), sqlx::Error> {
        sqlx::query(
            "insert into recipe (id, kind, payload) values (?, 'page.viewed', ?) on conflict do nothing",
        )
        .bind(&row.id)
        .bind(&row.payload)
        .execute(connection)
        .await?;
        Ok(())
    }

    async fn recipe_fill(&self, connection: &mut SqliteConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        insert_rows(connection, "insert into recipe (id, kind, payload) ", " on conflict do nothing", rows)
            .await
    }

    async fn recipe_process(
        &self,
        connection: &mut SqliteConnection,
        set_based: bool,
    ) -> Result<usize, sqlx::Error> {
        let mut tx = connection.begin_with("begin immediate").await?;
        let rows =
            sqlx::query("select number, id, payload from recipe where status = 0 order by number limit 1000")
                .fetch_all(&mut *tx)
                .await?;
        let ids: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if set_based {
            Self::effects_of(&mut tx, "", ids).await?;
        } else {
            for id in ids {
                Self::effect(&mut tx, "", &id).await?;
            }
        }
        sqlx::query("update recipe set status = 1 where number in (select value from json_each(?))")
            .bind(serde_json::json!(numbers).to_string())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(numbers.len())
    }

    async fn effect(tx: &mut SqliteConnection, _schema: &str, id: &str) -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (id) values (?)").bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects_of(
        tx: &mut SqliteConnection,
        _schema: &str,
        ids: Vec<String>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (id) select value from json_each(?)")
            .bind(serde_json::json!(ids).to_string())
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn has_effect(&self, id: &str) -> Result<bool, sqlx::Error> {
        let found: i64 = sqlx::query_scalar("select exists (select 1 from effect where id = ?)")
            .bind(id)
            .fetch_one(self.pool())
            .await?;
        Ok(found == 1)
    }

    async fn effect_rows(&self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select count(*) from effect").fetch_one(self.pool()).await
    }

    async fn server_cost(&self) -> Result<Option<ServerCost>, sqlx::Error> {
        Ok(None)
    }
}

async fn insert_rows(
    connection: &mut SqliteConnection,
    head: &str,
    tail: &str,
    rows: &[Row],
) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin_with("begin immediate").await?;
    for chunk in rows.chunks(CHUNK) {
        let mut query: QueryBuilder<Sqlite> = QueryBuilder::new(head);
        query.push_values(chunk, |mut values, row| {
            values.push_bind(&row.id).push_bind("page.viewed").push_bind(&row.payload);
        });
        query.push(tail);
        query.build().execute(&mut *tx).await?;
    }
    tx.commit().await
}
