//! The floor and the plain recipe on MariaDB.

use sqlx::{Connection, MySql, MySqlConnection, QueryBuilder, Row as _};

use crate::bench::report::ServerCost;
use crate::bench::yard::{Row, Yard};
use crate::target::mariadb::in_schema;
use crate::target::{MariaTarget, Target};

impl Yard for MariaTarget {
    async fn lay_out(&self) -> Result<(), sqlx::Error> {
        let tables = self.sql(
            "create table {s}.effect (id varchar(191) not null) character set utf8mb4 engine = innodb;
             create table {s}.floor (id varchar(191) primary key, kind varchar(255) not null, payload longblob not null,
                received_at timestamp(6) not null default now(6)) character set utf8mb4 engine = innodb;
             create table {s}.recipe (number bigint not null auto_increment primary key, id varchar(191) not null unique,
                kind varchar(255) not null, payload longblob not null, received_at timestamp(6) not null default now(6),
                status tinyint not null default 0, key recipe_open (status, number))
                character set utf8mb4 engine = innodb",
        );
        sqlx::raw_sql(tables).execute(self.pool()).await?;
        Ok(())
    }

    async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        let options = self.pool().connect_options();
        let connection = MySqlConnection::connect_with(&options).await?;
        oncebox::no_delay(options.get_port());
        Ok(connection)
    }

    async fn floor_insert(&self, connection: &mut MySqlConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        insert_rows(self, connection, "insert into {s}.floor (id, kind, payload) ", "", rows).await
    }

    async fn floor_loop(&self, connection: &mut MySqlConnection, ids: &[String]) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin().await?;
        for id in ids {
            Self::effect(&mut tx, self.schema(), id).await?;
        }
        tx.commit().await
    }

    async fn floor_batch(
        &self,
        connection: &mut MySqlConnection,
        ids: Vec<String>,
    ) -> Result<(), sqlx::Error> {
        let mut tx = connection.begin().await?;
        Self::effects_of(&mut tx, self.schema(), ids).await?;
        tx.commit().await
    }

    async fn recipe_ingest(&self, connection: &mut MySqlConnection, row: &Row) -> Result<(), sqlx::Error> {
        // Not `insert ignore`, which ignores more than duplicates.
        let sql = "insert into {s}.recipe (id, kind, payload) values (?, 'page.viewed', ?)
                   on duplicate key update number = number";
        sqlx::query(self.sql(sql)).bind(&row.id).bind(&row.payload).execute(connection).await?;
        Ok(())
    }

    async fn recipe_fill(&self, connection: &mut MySqlConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
        let head = "insert into {s}.recipe (id, kind, payload) ";
        insert_rows(self, connection, head, " on duplicate key update number = number", rows).await
    }

    async fn recipe_process(
        &self,
        connection: &mut MySqlConnection,
        set_based: bool,
    ) -> Result<usize, sqlx::Error> {
        let mut tx = connection.begin_with("set transaction isolation level read committed; begin").await?;
        let sql = "select number, id, payload from {s}.recipe where status = 0 order by number limit 1000
                   for update skip locked";
        let rows = sqlx::query(self.sql(sql)).fetch_all(&mut *tx).await?;
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let ids: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        if numbers.is_empty() {
            tx.commit().await?;
            return Ok(0);
        }
        if set_based {
            Self::effects_of(&mut tx, self.schema(), ids).await?;
        } else {
            for id in ids {
                Self::effect(&mut tx, self.schema(), &id).await?;
            }
        }
        let sql = "update json_table(?, '$[*]' columns (number bigint path '$')) n
                   straight_join {s}.recipe r force index (primary) on r.number = n.number set r.status = 1";
        let list = serde_json::json!(numbers).to_string();
        sqlx::query(self.sql(sql)).bind(list).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(numbers.len())
    }

    async fn effect(tx: &mut MySqlConnection, schema: &str, id: &str) -> Result<(), sqlx::Error> {
        let sql = in_schema(schema, "insert into {s}.effect (id) values (?)");
        sqlx::query(sql).bind(id).execute(tx).await?;
        Ok(())
    }

    async fn effects_of(tx: &mut MySqlConnection, schema: &str, ids: Vec<String>) -> Result<(), sqlx::Error> {
        let sql = "insert into {s}.effect (id)
                   select n.id from json_table(?, '$[*]' columns (id varchar(191) path '$')) n";
        let list = serde_json::json!(ids).to_string();
        sqlx::query(in_schema(schema, sql)).bind(list).execute(tx).await?;
        Ok(())
    }

    async fn has_effect(&self, id: &str) -> Result<bool, sqlx::Error> {
        let sql = self.sql("select count(*) from {s}.effect where id = ?");
        let found: i64 = sqlx::query_scalar(sql).bind(id).fetch_one(self.pool()).await?;
        Ok(found > 0)
    }

    async fn effect_rows(&self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(self.sql("select count(*) from {s}.effect")).fetch_one(self.pool()).await
    }

    async fn server_cost(&self) -> Result<Option<ServerCost>, sqlx::Error> {
        // Nothing tells how many row versions wait to be purged for one table.
        let row = sqlx::query(
            "select cast(sum(case variable_name when 'INNODB_OS_LOG_WRITTEN' then variable_value else 0 end) as double),
                cast(sum(case variable_name when 'INNODB_OS_LOG_WRITTEN' then 0 else variable_value end) as double)
             from information_schema.global_status
             where variable_name in ('INNODB_OS_LOG_WRITTEN', 'COM_COMMIT', 'COM_XA_COMMIT')",
        )
        .fetch_one(self.pool())
        .await?;
        Ok(Some(ServerCost { wal_bytes: row.get(0), commits: row.get(1), dead_tuples: None }))
    }
}

async fn insert_rows(
    yard: &MariaTarget,
    connection: &mut MySqlConnection,
    head: &str,
    tail: &str,
    rows: &[Row],
) -> Result<(), sqlx::Error> {
    let head = yard.sql(head).0;
    let mut query: QueryBuilder<MySql> = QueryBuilder::new(head);
    query.push_values(rows, |mut values, row| {
        values.push_bind(&row.id).push_bind("page.viewed").push_bind(&row.payload);
    });
    query.push(tail);
    query.build().execute(connection).await?;
    Ok(())
}
