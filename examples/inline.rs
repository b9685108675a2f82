//! Inline: handled in the transaction that records the message, answered then, and no payload stored.
//!
//! `cargo run --package oncebox-examples --example inline`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use oncebox::admin::{DeliveryFilter, DeliveryState};
use oncebox::{Attempt, Failure, Inbox, Message, Processed, SqliteStore, SqliteTx, Store, handler, run};
use std::time::Duration;

async fn note(mut tx: SqliteTx, message: Message) -> Result<(), Failure> {
    sqlx::query("insert into note (message_id) values (?1)").bind(message.id).execute(&mut *tx).await?;
    Ok(())
}

/// Fails at its first attempt, so that the delivery is stored and the runner makes the second one.
async fn fetch_rate(mut tx: SqliteTx, Attempt(attempt): Attempt, message: Message) -> Result<(), Failure> {
    sqlx::query("insert into note (message_id) values (?1)").bind(&message.id).execute(&mut *tx).await?;
    if attempt == 1 {
        return Err(Failure::retry_in(Duration::ZERO, "the bank does not answer"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("inline.db").display().to_string()).await?;
    store.migrate().await?;
    sqlx::query("create table note (message_id text not null)").execute(store.pool()).await?;
    let inbox = Inbox::new(store.clone())
        .on("note.taken", handler("note", note))
        .on("rate.wanted", handler("fetch-rate", fetch_rate));

    let message = Message::new("note.taken", "buy milk").id("note-1");
    let first = inbox.process(message.clone()).await?;
    let again = inbox.process(message).await?;
    println!("note-1: {first:?}, then {again:?}");
    assert_eq!((first, again), (Processed::Done, Processed::Duplicate));

    let same_id = Message::new("note.taken", "buy beer").id("note-1");
    let conflict = inbox.process(same_id).await?;
    println!("note-1 with other bytes: {conflict:?}; kept: {}", store.conflicts(10).await?.len());
    assert_eq!(conflict, Processed::Conflict);

    // A failed inline attempt is rolled back and becomes an ordinary delivery: same retries, same dead letters.
    let failed = inbox.process(Message::new("rate.wanted", "EUR").id("rate-1")).await?;
    let waiting = store.deliveries(&DeliveryFilter::all()).await?;
    println!("rate-1: {failed:?}, {} after: {}", waiting[0].state.as_str(), waiting[0].history[0].error);
    assert_eq!((failed, waiting[0].state), (Processed::Stored, DeliveryState::Retrying));

    run(inbox).drain().await?;
    let notes: Vec<String> =
        sqlx::query_scalar("select message_id from note order by message_id").fetch_all(store.pool()).await?;
    println!("notes after the runner's attempt: {notes:?}");
    assert_eq!(notes, ["note-1", "rate-1"], "one effect each");
    assert!(store.deliveries(&DeliveryFilter::all()).await?.is_empty(), "nothing waits");
    store.close().await;
    Ok(())
}
