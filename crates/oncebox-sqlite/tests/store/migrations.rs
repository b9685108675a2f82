use std::process::Command;

use oncebox_core::{ErrorKind, Store};
use oncebox_sqlite::{SqliteStore, migration_sql};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::{fixture, path, registration};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_tasks_migrate_a_fresh_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let path = path(&directory);
            tokio::spawn(async move {
                let store = SqliteStore::open(&path).await?;
                store.migrate().await?;
                store.register(&[registration("h", false)]).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let store = SqliteStore::open(&path(&directory)).await.unwrap();
    let status = store.migration_status().await.unwrap();
    assert!(status.iter().all(|migration| migration.applied_at.is_some()), "{status:?}");
}

/// Runs in the processes that the next test starts; alone it does nothing.
#[tokio::test]
async fn helper_migrate_in_this_process() {
    let Ok(path) = std::env::var("ONCEBOX_TEST_MIGRATE") else { return };
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    store.register(&[registration("h", false)]).await.unwrap();
}

#[test]
fn several_processes_migrate_a_fresh_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..8)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "migrations::helper_migrate_in_this_process"])
                .env("ONCEBOX_TEST_MIGRATE", path(&directory))
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[tokio::test]
async fn missing_newer_and_changed_schemas_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&path(&directory)).await.unwrap();
    let error = store.register(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("migrate"), "{error}");
    let error = store.claim(&oncebox_core::store::Claim {
        handler: "h",
        token: oncebox_core::store::Token(1),
        lanes: 1,
        limit: 1,
    });
    let error = error.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");

    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("update oncebox_migration set checksum = 'other'").execute(store.pool()).await.unwrap();
    for error in [store.migrate().await.unwrap_err(), store.register(&[]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("another text"), "{error}");
    }
    sqlx::query("insert into oncebox_migration values (99, 'later', 'x', 0)")
        .execute(store.pool())
        .await
        .unwrap();
    sqlx::query("delete from oncebox_migration where version < 99").execute(store.pool()).await.unwrap();
    for error in [store.migrate().await.unwrap_err(), store.register(&[]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("99") && error.to_string().contains("knows"), "{error}");
    }
}

#[tokio::test]
async fn printed_sql_makes_the_same_schema() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&path(&directory)).await.unwrap().prefix("inbox_").unwrap();
    assert!(store.migration_status().await.unwrap().iter().all(|migration| migration.applied_at.is_none()));
    let script = migration_sql("inbox_").unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(store.pool()).await.unwrap();
    store.migrate().await.unwrap();
    store.register(&[registration("h", false)]).await.unwrap();
    let applied = store.migration_status().await.unwrap()[0].applied_at.unwrap();
    assert!(applied.as_second() > 1_700_000_000, "{applied}");
    assert!(migration_sql("a b").is_err());
    // Another prefix is another inbox in the same file.
    let other = SqliteStore::open(&path(&directory)).await.unwrap();
    assert_eq!(other.register(&[]).await.unwrap_err().kind(), ErrorKind::Schema);
    other.migrate().await.unwrap();
    other.register(&[]).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn the_files_belong_to_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture().await;
    for entry in std::fs::read_dir(fixture.directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn settings_that_lose_messages_are_refused_unless_allowed() {
    let fixture = fixture().await;
    let options =
        |synchronous| SqliteConnectOptions::new().filename(path(&fixture.directory)).synchronous(synchronous);
    for (synchronous, right) in [
        (SqliteSynchronous::Off, false),
        (SqliteSynchronous::Normal, false),
        (SqliteSynchronous::Full, true),
        (SqliteSynchronous::Extra, true),
    ] {
        let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options(synchronous));
        let store = SqliteStore::new(pool);
        let result = store.register(&[registration("h", false)]).await;
        assert_eq!(result.is_ok(), right, "{synchronous:?}: {result:?}");
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("pragma synchronous"), "{error}");
            store.allow_relaxed_durability().register(&[]).await.unwrap();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(path(&directory))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete);
    let store = SqliteStore::new(SqlitePoolOptions::new().connect_lazy_with(options));
    store.migrate().await.unwrap();
    let error = store.register(&[]).await.unwrap_err();
    assert!(error.to_string().contains("pragma journal_mode"), "{error}");
}

#[tokio::test]
async fn memory_and_read_only_databases_are_refused() {
    for address in [":memory:", "sqlite::memory:", "sqlite:x?mode=memory"] {
        let error = SqliteStore::open(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let fixture = fixture().await;
    let store = SqliteStore::open(&format!("sqlite:{}?mode=ro", path(&fixture.directory))).await.unwrap();
    assert_eq!(store.register(&[]).await.unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn whatever_was_changed_by_hand_is_found() {
    let fixture = fixture().await;
    let none: [&str; 0] = [];
    assert_eq!(fixture.store.drift().await.unwrap(), none, "the table `effect` is not ours");
    for (change, undo, found) in [
        (
            "alter table oncebox_log add column extra integer",
            "alter table oncebox_log drop column extra",
            "table `oncebox_log` was changed",
        ),
        ("create index other on oncebox_log (kind)", "drop index other", "index `other` was added"),
        (
            "update oncebox_migration set checksum = 'x' || checksum",
            "update oncebox_migration set checksum = substr(checksum, 2)",
            "migration 1 `core` was applied with another text",
        ),
        (
            "alter table oncebox_outbox rename to oncebox_away",
            "alter table oncebox_away rename to oncebox_outbox",
            "table `oncebox_outbox` is missing",
        ),
    ] {
        sqlx::raw_sql(change).execute(fixture.store.pool()).await.unwrap();
        let drift = fixture.store.drift().await.unwrap();
        assert!(drift.iter().any(|line| line.contains(found)), "{change}: {drift:?}");
        sqlx::raw_sql(undo).execute(fixture.store.pool()).await.unwrap();
    }
}

#[tokio::test]
async fn the_printed_sql_has_no_drift() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&path(&directory)).await.unwrap();
    assert_eq!(store.drift().await.unwrap(), [] as [&str; 0], "an empty file lacks nothing yet");
    let script = sqlx::AssertSqlSafe(migration_sql("oncebox_").unwrap());
    sqlx::raw_sql(script).execute(store.pool()).await.unwrap();
    assert_eq!(store.drift().await.unwrap(), [] as [&str; 0]);
    assert!(store.migration_status().await.unwrap().iter().all(|migration| migration.applied_at.is_some()));
}
