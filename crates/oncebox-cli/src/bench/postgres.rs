//! The floor and the plain recipe on Postgres.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row as _};

use crate::bench::report::ServerCost;
use crate::bench::yard::{Row, Yard};
use crate::target::{PgTarget, Target};

impl PgTarget {
    fn sql(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{s}", &format!("\"{}\"", self.schema())))
    }
}

impl Yard for PgTarget {
    async fn lay_out(&self) -> Result<(), sqlx::Error> {
        let tables = self.sql(
            "create table {s}.effect (id text not null);
             create table {s}.floor (id text primary key, kind text not null, payload bytea not null,
                received_at timestamptz not null default now());
             create table {s}.recipe (number bigserial primary key, id text not null unique, kind text not null,
                payload bytea not null, received_at timestamptz not null default now(), status smallint not null default 0);
             create index recipe_open on {s}.recipe (number) where status = 0;",
        );
        sqlx::raw_sql(tables).execute(self.pool()).await?;
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let options = self.pool().connect_options();
        let connection = PgConnection::connect_with(&options).await?;
        oncebox::no_delay(options.get_port());
        Ok(connection)
    }

    async fn floor_insert(&self, connection: &mut PgConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        let sql = "insert into {s}.floor (id, kind, payload) select id, 'page.viewed', payload \
                   from unnest($1::text[], $2::bytea[]) as r (id, payload)";
        insert_rows(self, connection, sql, rows).await
    }

    async fn floor_loop(&self, connection: &mut PgConnection, ids: &[String]) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin().await?;
        for id in ids {
            Self::effect(&mut tx, self.schema(), id).await?;
        }
        tx.commit().await
    }

    async fn floor_batch(&self, connection: &mut PgConnection, ids: Vec<String>) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin().await?;
        Self::effects_of(&mut tx, self.schema(), ids).await?;
        tx.commit().await
    }

    async fn recipe_ingest(&self, connection: &mut PgConnection, row: &Row) -> Result<(), sqlx::Error> {
        let sql = "insert into {s}.recipe (id, kind, payload) values ($1, 'page.viewed', $2) on conflict do nothing";
        sqlx::query(self.sql(sql)).bind(&row.id).bind(&row.payload).execute(connection).await?;
        Ok(())
    }

    async fn recipe_fill(&self, connection: &mut PgConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        let sql = "insert into {s}.recipe (id, kind, payload) select id, 'page.viewed', payload \
                   from unnest($1::text[], $2::bytea[]) as r (id, payload) on conflict do nothing";
        insert_rows(self, connection, sql, rows).await
    }

    async fn recipe_process(
        &self,
        connection: &mut PgConnection,
        set_based: bool,
    ) -> Result<usize, sqlx::Error> {
        let mut tx = connection.begin().await?;
        let sql = "select number, id, payload from {s}.recipe where status = 0 order by number limit 1000 \
                   for update skip locked";
        let rows = sqlx::query(self.sql(sql)).fetch_all(&mut *tx).await?;
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let ids: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        if set_based {
            Self::effects_of(&mut tx, self.schema(), ids).await?;
        } else {
            for id in ids {
                Self::effect(&mut tx, self.schema(), &id).await?;
            }
        }
        let sql = "update {s}.recipe r set status = 1 from unnest($1::bigint[]) as n (number) where r.number = n.number";
        sqlx::query(self.sql(sql)).bind(&numbers).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(numbers.len())
    }

    async fn effect(tx: &mut PgConnection, schema: &str, id: &str) -> Result<(), sqlx::Error> {
        let sql = format!("insert into \"{schema}\".effect (id) values ($1)");
        sqlx::query(AssertSqlSafe(sql)).bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects_of(tx: &mut PgConnection, schema: &str, ids: Vec<String>) -> Result<(), sqlx::Error> {
        let sql = format!("insert into \"{schema}\".effect (id) select unnest($1::text[])");
        sqlx::query(AssertSqlSafe(sql)).bind(ids).execute(tx).await?;
        Ok(())
    }

    async fn has_effect(&self, id: &str) -> Result<bool, sqlx::Error> {
        let sql = self.sql("select exists (select 1 from {s}.effect where id = $1)");
        sqlx::query_scalar(sql).bind(id).fetch_one(self.pool()).await
    }

    async fn effect_rows(&self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(self.sql("select count(*) from {s}.effect")).fetch_one(self.pool()).await
    }

    async fn server_cost(&self) -> Result<Option<ServerCost>, sqlx::Error> {
        // Every commit that wrote something has used up a transaction id.
        let row = sqlx::query(
            "select (pg_current_wal_insert_lsn() - '0/0')::float8,
                pg_snapshot_xmax(pg_current_snapshot())::text::float8,
                (select coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 from pg_stat_user_tables
                 where schemaname = $1 and relname not in ('effect', 'floor', 'recipe'))",
        )
        .bind(self.schema())
        .fetch_one(self.pool())
        .await?;
        Ok(Some(ServerCost { wal_bytes: row.get(0), commits: row.get(1), dead_tuples: Some(row.get(2)) }))
    }
}

async fn insert_rows(
    yard: &PgTarget,
    connection: &mut PgConnection,
    sql: &str,
    rows: &[Row],
) -> Result<(), sqlx::Error> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let payloads: Vec<&[u8]> = rows.iter().map(|row| row.payload.as_slice()).collect();
    sqlx::query(yard.sql(sql)).bind(ids).bind(payloads).execute(connection).await?;
    Ok(())
}
