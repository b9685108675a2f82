//! The store suite under a role that owns nothing and has only what the guide grants, and what such roles cannot do.

#![allow(clippy::unwrap_used)]

mod common;
// Shared with the other suites, which use more of it.
#[allow(dead_code)]
mod support;

use oncebox_core::Store;
use oncebox_postgres::PgStore;
use oncebox_testkit::{Subject, store_suite};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row};
use support::{SubjectBy, Way};

/// With the rights of a runner and no others.
#[derive(Debug)]
struct RuntimeRole;

impl Way for RuntimeRole {
    const RUNTIME_ROLE: bool = true;
    const POOLER: bool = false;
}

store_suite!(SubjectBy<RuntimeRole>);

/// What the guide says to grant to a role that only calls the functions.
const CALLER: &str = include_str!("../../../examples/languages/roles/caller.sql");

async fn denied(pool: &PgPool, statement: String) {
    let error = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(pool).await;
    let error = error.expect_err(&statement);
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
}

#[tokio::test]
async fn a_runner_cannot_change_the_schema_and_need_not() {
    let Some(subject) = SubjectBy::<RuntimeRole>::create().await else { return };
    let (pool, schema) = (subject.pool(), subject.name());
    for statement in [
        format!("drop table {schema}.log"),
        format!("alter table {schema}.log add extra int"),
        format!("create table {schema}.extra (id int)"),
        format!("drop function {schema}.once(text, text)"),
        format!(
            "create or replace function {schema}.once(handler text, id text) returns bool language sql as 'select true'"
        ),
        format!("truncate {schema}.seen"),
        format!("update {schema}.migration set checksum = 'x'"),
        format!("delete from {schema}.migration"),
        format!("update {schema}.audit set actor = 'x'"),
        format!("delete from {schema}.audit"),
        format!("drop schema {schema} cascade"),
    ] {
        denied(pool, statement).await;
    }
    // Nothing is to be done, so nothing is refused.
    subject.store().migrate().await.unwrap();
    let error = subject.store().drift().await.unwrap_err();
    assert!(error.to_string().contains("role that migrates"), "{error}");
}

#[tokio::test]
async fn a_caller_adds_messages_and_can_neither_read_nor_remove_them() {
    common::with_store(async |scratch| {
        let (schema, role) = (&scratch.schema, format!("caller_{}", scratch.schema));
        let grants = CALLER.replace(" oncebox", &format!(" {schema}")).replace("shop_caller", &role);
        scratch.sql(&format!("create role {role} login; {grants}")).await;
        let options = scratch.pool.connect_options().as_ref().clone().username(&role);
        let pool = PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
        let answers = async |call: &str| -> Vec<String> {
            let call = call.replace("{schema}", schema);
            let rows = sqlx::query(AssertSqlSafe(call)).fetch_all(&pool).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        };
        for expected in ["true", "false"] {
            assert_eq!(answers("select {schema}.once('import', 'may')::text").await, [expected]);
        }
        for (payload, expected) in [("x", "new"), ("x", "duplicate"), ("y", "conflict"), ("y", "conflict")] {
            let call = format!(
                "select {{schema}}.receive('shop', '1', 'order', '{payload}', 'k', '{{\"a\":\"b\"}}')"
            );
            assert_eq!(answers(&call).await, [expected]);
        }
        assert_eq!(answers("select {schema}.publish('order', 'x', id => 'out')").await, ["out"]);
        assert_eq!(answers("select {schema}.publish('order', 'x')").await.len(), 1);

        for statement in [
            format!("select payload from {schema}.log"),
            format!("select payload from {schema}.outbox"),
            format!("select payload from {schema}.conflict"),
            format!("select id from {schema}.delivery"),
            format!("delete from {schema}.seen"),
            format!("delete from {schema}.outbox"),
            format!("update {schema}.log set payload = ''"),
            format!("update {schema}.cursor set position = 0"),
            format!("drop function {schema}.once(text, text)"),
        ] {
            denied(&pool, statement).await;
        }
        let store = PgStore::new(pool.clone()).schema(schema).unwrap();
        assert!(store.counts().await.is_err(), "it is no runner");
        pool.close().await;
        scratch.sql(&format!("drop owned by {role}; drop role {role}")).await;
    })
    .await;
}
