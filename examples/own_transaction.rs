//! Your own transaction: `once` and `publish` beside your own SQL, with no handler and no runner for the work itself.
//!
//! `cargo run --package oncebox-examples --example own_transaction`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use oncebox::{ErrorKind, Inbox, Message, Once, SqliteStore, Store, run};
use oncebox_testkit::{Manners, MemoryBroker};

/// Imports a file once, however often it is called and wherever it is killed.
async fn import(store: &SqliteStore, file: &str, rows: &[&str]) -> Result<Once, Box<dyn std::error::Error>> {
    // SQLite has one writer: `begin immediate` waits for its turn instead of failing in the middle.
    let mut tx = store.pool().begin_with("begin immediate").await?;
    let once = store.once(&mut tx, "import-csv", file).await?;
    if once == Once::First {
        for row in rows {
            sqlx::query("insert into customer (name) values (?1)").bind(*row).execute(&mut *tx).await?;
        }
        store.publish(&mut tx, &[Message::new("csv.imported", file.to_owned()).id(file)]).await?;
    }
    tx.commit().await?;
    Ok(once)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("import.db").display().to_string()).await?;
    store.migrate().await?;
    sqlx::query("create table customer (name text not null)").execute(store.pool()).await?;

    let first = import(&store, "2026-05.csv", &["Ada", "Grace"]).await?;
    let again = import(&store, "2026-05.csv", &["Ada", "Grace"]).await?;
    println!("2026-05.csv: {first:?}, then {again:?}");
    assert_eq!((first, again), (Once::First, Once::Again));

    // A transaction that is rolled back has neither imported nor published, nor remembered.
    let mut tx = store.pool().begin_with("begin immediate").await?;
    store.once(&mut tx, "import-csv", "2026-06.csv").await?;
    store.publish(&mut tx, &[Message::new("csv.imported", "2026-06.csv").id("2026-06.csv")]).await?;
    tx.rollback().await?;

    // Outside a transaction the call would be a lie, so it is refused.
    let mut connection = store.pool().acquire().await?;
    let refused =
        store.once(&mut connection, "import-csv", "2026-07.csv").await.map_err(|error| error.kind());
    println!("without a transaction: {refused:?}");
    assert_eq!(refused, Err(ErrorKind::NotInTransaction));
    drop(connection);

    // Any runner on this store relays what was published; it needs no handlers for that.
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(store.clone())).relay(broker.clone()).drain().await?;
    let sent: Vec<String> = broker.sent().into_iter().map(|message| message.id).collect();
    let customers: i64 = sqlx::query_scalar("select count(*) from customer").fetch_one(store.pool()).await?;
    println!("{customers} customers; relayed {sent:?}");
    assert_eq!((customers, sent), (2, vec!["2026-05.csv".to_owned()]));
    store.close().await;
    Ok(())
}
