//! A POST that counts once: the client sends the same order three times, and one is placed.
//!
//! `cargo run --package oncebox-examples --example http_idempotency`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use oncebox::http::{Idempotency, RequestTx};
use oncebox::{Inbox, Message, SqliteStore, run};
use oncebox_testkit::{Manners, MemoryBroker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    article: String,
    cents: i64,
}

#[derive(Clone)]
struct Shop {
    limit: i64,
}

/// The row, the outgoing message and the stored response are committed together, before the response is sent.
async fn place_order(
    State(shop): State<Shop>,
    mut tx: RequestTx<SqliteStore>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, String), (StatusCode, String)> {
    if order.cents > shop.limit {
        // Stored too, and what the handler had written until here is rolled back.
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "over the limit".to_owned()));
    }
    // Not stored: the next request with the same key runs again.
    let failed = |error: &dyn std::fmt::Display| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let id: i64 = sqlx::query_scalar("insert into orders (article, cents) values (?1, ?2) returning rowid")
        .bind(&order.article)
        .bind(order.cents)
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| failed(&error))?;
    let message = Message::json("order.placed", &order).map_err(|error| failed(&error))?;
    tx.publish(message.id(format!("order-{id}"))).await.map_err(|error| failed(&error))?;
    Ok((StatusCode::CREATED, format!("order {id}")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("shop.db").display().to_string()).await?;
    store.migrate().await?;
    sqlx::query("create table orders (article text not null, cents integer not null)")
        .execute(store.pool())
        .await?;

    let app = Router::new()
        .route("/orders", post(place_order))
        .layer(Idempotency::new(store.clone()).required())
        .with_state(Shop { limit: 100_000 });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    // A client that never got the answer sends the same request with the same key again.
    let tea = r#"{"article":"tea","cents":450}"#;
    for _ in 0..3 {
        let reply = send(address, Some("8e03978e"), tea).await?;
        println!("{reply}");
        assert!(reply.starts_with("HTTP/1.1 201 ") && reply.ends_with("order 1"));
    }
    let other = send(address, Some("8e03978e"), r#"{"article":"coffee","cents":450}"#).await?;
    assert!(other.starts_with("HTTP/1.1 422 "), "{other}");
    let missing = send(address, None, tea).await?;
    assert!(missing.starts_with("HTTP/1.1 400 "), "{missing}");

    let orders: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(store.pool()).await?;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(store.clone())).relay(broker.clone()).drain().await?;
    println!("{orders} order, {} message", broker.sent().len());
    assert_eq!((orders, broker.sent().len()), (1, 1));
    Ok(())
}

async fn send(address: std::net::SocketAddr, key: Option<&str>, body: &str) -> std::io::Result<String> {
    let key = key.map(|key| format!("idempotency-key: \"{key}\"\r\n")).unwrap_or_default();
    let length = body.len();
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {key}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    Ok(reply)
}
