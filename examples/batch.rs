//! Batch: many messages in one call and one statement. A bad message is found and set aside; the rest goes on.
//!
//! `cargo run --package oncebox-examples --example batch`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncebox::admin::DeliveryFilter;
use oncebox::{Batch, Failure, Inbox, Message, SqliteStore, SqliteTx, State, Store, handler, run};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct PageViewed {
    page: String,
}

async fn count_views(
    State(calls): State<Arc<AtomicUsize>>,
    mut tx: SqliteTx,
    Batch(views): Batch<PageViewed>,
) -> Result<(), Failure> {
    calls.fetch_add(1, Ordering::Relaxed);
    let pages: Vec<&str> = views.iter().map(|view| view.page.as_str()).collect();
    sqlx::query(
        "insert into page_view (page, views)
         select value, count(*) from json_each(?1) where true group by value
         on conflict (page) do update set views = views + excluded.views",
    )
    .bind(serde_json::to_string(&pages)?)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("batch.db").display().to_string()).await?;
    store.migrate().await?;
    sqlx::query("create table page_view (page text primary key, views integer not null)")
        .execute(store.pool())
        .await?;

    // `from_start`, because the messages are received before this handler runs for the first time.
    let calls = Arc::new(AtomicUsize::new(0));
    let inbox = Inbox::with_state(store.clone(), calls.clone())
        .on("page.viewed", handler("count-views", count_views).batch(500).from_start());

    let mut messages = Vec::new();
    for number in 0..2_000 {
        let page = if number % 4 == 0 { "/home" } else { "/shop" };
        let view = PageViewed { page: page.to_owned() };
        messages.push(Message::json("page.viewed", &view)?.id(format!("view-{number}")));
    }
    messages.push(Message::new("page.viewed", "not JSON").id("view-broken"));
    inbox.receive(&messages).await?;
    inbox.receive(&messages).await?; // all duplicates

    run(inbox).drain().await?;

    let views: Vec<(String, i64)> =
        sqlx::query_as("select page, views from page_view order by page").fetch_all(store.pool()).await?;
    let dead = store.deliveries(&DeliveryFilter::dead("count-views")).await?;
    let calls = calls.load(Ordering::Relaxed);
    println!("{views:?} in {calls} calls");
    println!("dead letter {}: {}", dead[0].message.id, dead[0].history[0].error);
    assert_eq!(views, [("/home".to_owned(), 500), ("/shop".to_owned(), 1_500)]);
    assert_eq!((dead.len(), dead[0].message.id.as_str()), (1, "view-broken"));
    assert!(calls < 100, "{calls} calls are not batches");
    store.close().await;
    Ok(())
}
