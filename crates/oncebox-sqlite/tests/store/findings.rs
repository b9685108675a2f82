use std::io::{Seek, SeekFrom, Write};

use oncebox_core::admin::AdminStore;
use oncebox_sqlite::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Executor};

use crate::{fixture, path};

async fn codes(store: &SqliteStore) -> Vec<&'static str> {
    store.findings().await.unwrap().iter().map(|finding| finding.code).collect()
}

async fn opened(path: &str, journal: SqliteJournalMode, synchronous: SqliteSynchronous) -> SqliteStore {
    let options = SqliteConnectOptions::new().filename(path).journal_mode(journal).synchronous(synchronous);
    SqliteStore::new(SqlitePoolOptions::new().max_connections(3).connect_with(options).await.unwrap())
}

#[tokio::test]
async fn every_fault_of_a_file_is_found_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(codes(&store).await, ["schema"], "nothing has been migrated");
    store.migrate().await.unwrap();
    assert_eq!(store.findings().await.unwrap(), []);
    for (make, undo) in [
        ("create index extra on oncebox_log (kind)", "drop index extra"),
        (
            "drop index oncebox_delivery_state",
            "create index oncebox_delivery_state on oncebox_delivery (handler, state, id)",
        ),
    ] {
        store.pool().execute(AssertSqlSafe(make)).await.unwrap();
        assert_eq!(codes(&store).await, ["schema-drift"], "{make}");
        store.pool().execute(AssertSqlSafe(undo)).await.unwrap();
        assert_eq!(store.findings().await.unwrap(), [], "{undo}");
    }
    // Beyond its last frame nothing of it is read, so a long one is easily had.
    let wal = std::fs::OpenOptions::new().write(true).open(format!("{path}-wal")).unwrap();
    let length = wal.metadata().unwrap().len();
    wal.set_len(300 << 20).unwrap();
    assert_eq!(codes(&store).await, ["wal-large"]);
    wal.set_len(length).unwrap();
    drop(wal);
    store.close().await;

    let relaxed = opened(&path, SqliteJournalMode::Wal, SqliteSynchronous::Normal).await;
    assert_eq!(codes(&relaxed).await, ["synchronous"]);
    relaxed.close().await;
    let rollback = opened(&path, SqliteJournalMode::Delete, SqliteSynchronous::Full).await;
    assert_eq!(codes(&rollback).await, ["journal-mode"]);
    rollback.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_everybody_can_read_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture().await;
    let file = path(&fixture.directory);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let found = fixture.store.findings().await.unwrap();
    assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["world-readable"]);
    assert!(found[0].what.contains("644") && found[0].remedy.contains("chmod 600"), "{found:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fixture.store.findings().await.unwrap(), [], "a group was chosen by somebody");
}

#[tokio::test]
async fn a_damaged_file_is_found() {
    let fixture = fixture().await;
    let text = "insert into effect (note) select hex(randomblob(500)) from (with recursive n (i) as \
                (select 1 union all select i + 1 from n where i < 400) select i from n)";
    fixture.store.pool().execute(text).await.unwrap();
    fixture.store.pool().execute("pragma wal_checkpoint(truncate)").await.unwrap();
    let pages = fixture.number("select rootpage from sqlite_schema where name = 'effect'").await;
    fixture.store.close().await;
    let file = path(&fixture.directory);
    let mut bytes = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    bytes.seek(SeekFrom::Start(4096 * (pages.unsigned_abs() - 1) + 8)).unwrap();
    bytes.write_all(&[0xff; 64]).unwrap();
    drop(bytes);
    let found = SqliteStore::open(&file).await.unwrap().findings().await.unwrap();
    assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["corrupt"], "{found:?}");
}
