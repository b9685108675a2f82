//! Migrations: from many processes at once, drift, newer schemas, and the printed SQL.

mod common;

use oncebox_core::{ErrorKind, Store};
use oncebox_mariadb::{MariaStore, migration_sql};
use sqlx::Executor;

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_processes_may_migrate_at_once() {
    common::with_schema(async |scratch| {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let store = MariaStore::new(scratch.pool.clone()).schema(&scratch.schema).unwrap();
                tokio::spawn(async move { store.migrate().await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let status = scratch.store.migration_status().await.unwrap();
        let applied = scratch.number("select count(*) from {schema}.migration").await;
        assert_eq!(applied, status.len() as i64);
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
async fn the_printed_sql_makes_the_same_tables() {
    common::with_schema(async |scratch| {
        // Twice: the client may have died half-way through the first time.
        for _ in 0..2 {
            scratch.sql(&for_the_driver(&migration_sql(&scratch.schema).unwrap())).await;
        }
        assert_eq!(scratch.store.drift().await.unwrap(), [] as [&str; 0]);
        scratch.store.migrate().await.unwrap();
        scratch.register("a", false).await;
        assert!(scratch.store.migration_status().await.unwrap()[0].applied_at.is_some());
    })
    .await;
    assert!(migration_sql("a; drop table x").is_err());
}

/// MariaDB commits after each table, so a killed process may leave half of them.
#[tokio::test]
async fn a_migration_that_died_half_way_is_finished_by_the_next() {
    common::with_schema(async |scratch| {
        let sql = for_the_driver(&migration_sql(&scratch.schema).unwrap());
        // A statement ends where the next line begins at the margin.
        let mut statements: Vec<String> = Vec::new();
        for line in sql.lines() {
            if ["create ", "insert "].iter().any(|word| line.starts_with(word)) {
                statements.push(String::new());
            }
            let statement = statements.last_mut().unwrap();
            statement.push_str(line);
            statement.push('\n');
        }
        for half in [3, statements.len() / 2, statements.len() - 1] {
            scratch.sql(&statements[..half].concat()).await;
            scratch.store.migrate().await.unwrap();
            scratch.register("a", false).await;
            assert_eq!(scratch.number("select seq from {schema}.head").await, 0);
            scratch.sql("drop database {schema}").await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_read_only_database_is_refused() {
    common::with_store(async |scratch| {
        let options = scratch.pool.connect_options().as_ref().clone();
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1).after_connect(|connection, _| {
            Box::pin(async move { connection.execute("set session transaction read only").await.map(drop) })
        });
        let pool = pool.connect_lazy_with(options);
        let store = MariaStore::new(pool).schema(&scratch.schema).unwrap();
        let error = store.register(&[common::registration("a", false)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        let error = store.receive(&common::arrivals(vec![common::message("1")])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    })
    .await;
}

/// The printed SQL tells the client `mariadb` where a function ends; the server finds that by itself.
fn for_the_driver(sql: &str) -> String {
    let lines =
        sql.lines().filter(|line| !line.starts_with("delimiter") && *line != "//" && !line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}
