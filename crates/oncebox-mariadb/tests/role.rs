//! The store suite under a user that owns nothing and has only what the guide grants, and what such users cannot do.

#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod, reason = "both of the shared modules look at sessions")]

mod common;
// Shared with the other suites, which use more of it.
#[allow(dead_code)]
mod support;

use oncebox_core::Store;
use oncebox_mariadb::MariaStore;
use oncebox_testkit::{Subject, store_suite};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use support::{SubjectBy, Way};

/// With the rights of a runner and no others.
#[derive(Debug)]
struct RuntimeRole;

impl Way for RuntimeRole {
    const RUNTIME_ROLE: bool = true;
}

store_suite!(SubjectBy<RuntimeRole>);

/// What the guide says to grant to a user that runs handlers, and to one that only calls the functions.
const RUNNER: &str = include_str!("../../../examples/languages/roles/runner_mariadb.sql");
const CALLER: &str = include_str!("../../../examples/languages/roles/caller_mariadb.sql");

async fn denied(pool: &MySqlPool, statement: String) {
    let error = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(pool).await;
    let error = error.expect_err(&statement);
    // Syntax error or access denied: of a table, a column, a routine, and of a whole schema.
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    assert_eq!(code.as_deref(), Some("42000"), "{statement}: {error}");
    assert!(error.to_string().contains("denied"), "{statement}: {error}");
}

#[tokio::test]
async fn a_runner_cannot_change_the_schema_and_need_not() {
    let Some(subject) = SubjectBy::<RuntimeRole>::create().await else { return };
    let (pool, schema) = (subject.pool(), subject.name());
    for statement in [
        format!("drop table {schema}.log"),
        format!("alter table {schema}.log add extra int"),
        format!("create table {schema}.extra (id int)"),
        format!("drop function {schema}.once"),
        format!(
            "create or replace function {schema}.once(handler text, id text) returns boolean return true"
        ),
        format!("truncate {schema}.seen"),
        format!("update {schema}.migration set checksum = 'x'"),
        format!("delete from {schema}.migration"),
        format!("update {schema}.audit set actor = 'x'"),
        format!("delete from {schema}.audit"),
        format!("drop database {schema}"),
    ] {
        denied(pool, statement).await;
    }
    // Nothing is to be done, so nothing is refused.
    subject.store().migrate().await.unwrap();
    let error = subject.store().drift().await.unwrap_err();
    assert!(error.to_string().contains("user that migrates"), "{error}");
}

#[tokio::test]
async fn the_runner_is_granted_every_table_but_that_of_the_migrations() {
    common::with_store(async |scratch| {
        let tables = "select table_name from information_schema.tables where table_schema = ? order by 1";
        let rows = sqlx::query(tables).bind(&scratch.schema).fetch_all(&scratch.pool).await.unwrap();
        for table in rows.iter().map(|row| row.get::<String, _>(0)) {
            // What was written down must not be changed any more.
            let rights = if table == "audit" { "insert" } else { "insert, update, delete" };
            let granted = RUNNER.lines().any(|line| {
                line.starts_with(&format!("grant {rights} on ")) && line.contains(&format!(".`{table}` "))
            });
            assert_eq!(granted, table != "migration", "{table}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_caller_adds_messages_and_can_neither_read_nor_remove_them() {
    common::with_store(async |scratch| {
        let (schema, user) = (&scratch.schema, format!("caller_{}", scratch.schema));
        let grants = CALLER.replace(" oncebox.", &format!(" {schema}.")).replace("shop_caller", &user);
        scratch.sql(&format!("create user {user}; {grants}")).await;
        let options = scratch.pool.connect_options().as_ref().clone().username(&user).database(schema);
        let pool = MySqlPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
        let answer = async |call: &str| -> String {
            let call = format!("select cast({} as char)", call.replace("{schema}", schema));
            sqlx::query(AssertSqlSafe(call)).fetch_one(&pool).await.unwrap().get(0)
        };
        for expected in ["1", "0"] {
            assert_eq!(answer("{schema}.once('import', 'may')").await, expected);
        }
        for (payload, expected) in [("x", "new"), ("x", "duplicate"), ("y", "conflict"), ("y", "conflict")] {
            let call =
                format!("{{schema}}.receive('shop', '1', 'order', '{payload}', 'k', '{{\"a\":\"b\"}}')");
            assert_eq!(answer(&call).await, expected);
        }
        assert_eq!(answer("{schema}.publish('order', 'x', null, 'out', null, null)").await, "out");
        assert_eq!(answer("{schema}.publish_to('a', 'order', 'x', null, 'to', null, null)").await, "to");
        assert_eq!(answer("{schema}.publish('order', 'x', null, null, null, null)").await.len(), 36);

        for statement in [
            format!("select payload from {schema}.log"),
            format!("select payload from {schema}.outbox"),
            format!("select payload from {schema}.conflict"),
            format!("select id from {schema}.delivery"),
            format!("delete from {schema}.seen"),
            format!("delete from {schema}.outbox"),
            format!("update {schema}.log set payload = ''"),
            format!("update {schema}.cursor set position = 0"),
            format!("drop function {schema}.once"),
        ] {
            denied(&pool, statement).await;
        }
        let store = MariaStore::new(pool.clone()).schema(schema).unwrap();
        assert!(store.counts().await.is_err(), "it is no runner");
        pool.close().await;
        scratch.sql(&format!("drop user {user}")).await;
    })
    .await;
}
