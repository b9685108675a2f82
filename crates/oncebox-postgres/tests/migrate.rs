//! Migrations: from many processes at once, drift, newer schemas, and the printed SQL.

mod common;

use oncebox_core::admin::AdminStore;
use oncebox_core::{ErrorKind, Received, Store};
use oncebox_postgres::{PgStore, migration_sql};

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_processes_may_migrate_at_once() {
    common::with_schema(async |scratch| {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let store = PgStore::new(scratch.pool.clone()).schema(&scratch.schema).unwrap();
                tokio::spawn(async move { store.migrate().await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let status = scratch.store.migration_status().await.unwrap();
        let known = i64::try_from(status.len()).unwrap();
        assert_eq!(scratch.number("select count(*) from {schema}.migration").await, known);
        assert!(status.iter().all(|migration| migration.applied_at.is_some()));
        scratch.store.register(&[common::registration("a", false)]).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn missing_newer_and_changed_schemas_are_refused_with_a_remedy() {
    common::with_schema(async |scratch| {
        let status = scratch.store.migration_status().await.unwrap();
        assert_eq!((status[0].version, status[0].applied_at), (1, None));
        let error = scratch.store.register(&[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("migrate"), "{error}");
        let error = scratch.store.counts().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);

        scratch.store.migrate().await.unwrap();
        scratch.store.migrate().await.unwrap();

        scratch.sql("insert into {schema}.migration values (99, 'later', 'x', 0)").await;
        for error in [
            scratch.store.migrate().await.unwrap_err(),
            scratch.store.register(&[]).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Schema);
            let newest = format!("knows version {};", status[status.len() - 1].version);
            assert!(error.to_string().contains("99") && error.to_string().contains(&newest), "{error}");
        }
        assert_eq!(scratch.store.migration_status().await.unwrap().len(), status.len() + 1);

        scratch.sql("delete from {schema}.migration where version = 99; update {schema}.migration set checksum = 'x'")
            .await;
        let error = scratch.store.migrate().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("core"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn whatever_was_changed_by_hand_is_found() {
    common::with_store(async |scratch| {
        assert_eq!(scratch.store.drift().await.unwrap(), [] as [&str; 0]);
        scratch.sql("create table {schema}.own (id int); create function {schema}.own() returns int language sql as 'select 1'").await;
        assert_eq!(scratch.store.drift().await.unwrap(), [] as [&str; 0], "what is not ours does not matter");
        for (change, undo, found) in [
            (
                "alter function {schema}.once(text, text) rename to twice",
                "alter function {schema}.twice(text, text) rename to once",
                "function `once(handler text, id text)` is missing",
            ),
            (
                "alter function {schema}.once(text, text) security definer",
                "alter function {schema}.once(text, text) security invoker",
                "function `once(handler text, id text)` was changed",
            ),
            (
                "alter table {schema}.log add extra int",
                "alter table {schema}.log drop extra",
                "column `log.extra` was added",
            ),
            (
                "alter table {schema}.log alter key type varchar(10)",
                "alter table {schema}.log alter key type text collate \"C\"",
                "column `log.key` was changed",
            ),
            (
                "alter index {schema}.delivery_due rename to other",
                "alter index {schema}.other rename to delivery_due",
                "index `delivery_due` is missing",
            ),
            (
                "alter table {schema}.head set (fillfactor = 100)",
                "alter table {schema}.head set (fillfactor = 10)",
                "table `head` was changed",
            ),
            (
                "update {schema}.migration set checksum = 'x' || checksum where version = 1",
                "update {schema}.migration set checksum = substr(checksum, 2) where version = 1",
                "migration 1 `core` was applied with other text",
            ),
        ] {
            scratch.sql(change).await;
            let drift = scratch.store.drift().await.unwrap();
            assert!(drift.iter().any(|line| line.contains(found)), "{change}: {drift:?}");
            scratch.sql(undo).await;
            assert_eq!(scratch.store.drift().await.unwrap(), [] as [&str; 0], "{undo}");
        }
        assert_eq!(scratch.number("select count(*) from pg_namespace where nspname like 'oncebox_fresh%'").await, 0);
    })
    .await;
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    common::with_schema(async |scratch| {
        let sql = migration_sql(&scratch.schema).unwrap();
        scratch.sql(&sql).await;
        assert_eq!(scratch.store.drift().await.unwrap(), [] as [&str; 0]);
        scratch.store.migrate().await.unwrap();
        scratch.register("a", false).await;
        assert!(scratch.store.migration_status().await.unwrap()[0].applied_at.is_some());
    })
    .await;
    assert!(migration_sql("a; drop table x").is_err());
}

#[tokio::test]
async fn a_read_only_database_is_refused() {
    common::with_store(async |scratch| {
        let options = scratch.pool.connect_options().as_ref().clone();
        let options = options.options([("default_transaction_read_only", "on")]);
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let store = PgStore::new(pool).schema(&scratch.schema).unwrap();
        let error = store.register(&[common::registration("a", false)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        let error = store.receive(&common::arrivals(vec![common::message("1")])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    })
    .await;
}

#[tokio::test]
async fn settings_that_can_lose_an_acknowledged_message_are_refused_by_name() {
    common::with_store(async |scratch| {
        let options = scratch.pool.connect_options().as_ref().clone();
        let options = options.options([("synchronous_commit", "off")]);
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let store = PgStore::new(pool).schema(&scratch.schema).unwrap();
        let error = store.register(&[common::registration("a", false)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("synchronous_commit"), "{error}");
        store.allow_relaxed_durability().register(&[common::registration("a", false)]).await.unwrap();
    })
    .await;
}

/// A database that cannot hold every text: refused where somebody would see it, and if it is used all the same, the
/// message is at fault and not the server, so that no other waits for it.
#[tokio::test]
async fn a_database_with_a_narrow_encoding_is_refused_and_so_is_what_it_cannot_hold() {
    common::with_schema(async |scratch| {
        let database = format!("{}_narrow", scratch.schema);
        let make = "create database {} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0";
        scratch.sql(&make.replace("{}", &database)).await;
        let options = scratch.pool.connect_options().as_ref().clone().database(&database);
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let store = PgStore::new(pool.clone());
        store.migrate().await.unwrap();
        let error = store.register(&[common::registration("a", false)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("LATIN1"), "{error}");
        let codes: Vec<&str> = store.findings().await.unwrap().iter().map(|finding| finding.code).collect();
        assert!(codes.contains(&"encoding"), "{codes:?}");
        let wide = vec![common::message("fits"), common::message("ключ")];
        let error = store.receive(&common::arrivals(wide)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("cannot hold a message"), "{error}");
        let fits = store.receive(&common::arrivals(vec![common::message("fits")])).await.unwrap();
        assert_eq!(fits, [Received::New]);
        pool.close().await;
        scratch.sql(&format!("drop database {database} with (force)")).await;
    })
    .await;
}
