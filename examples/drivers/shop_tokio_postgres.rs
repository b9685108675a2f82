//! Charges a card once per order, and stores incoming orders once, with tokio-postgres.

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use serde_json::json;
use tokio_postgres::{Client, Error, NoTls};

/// The effect, the outgoing message and the memory of both commit together; dropping the transaction rolls back.
async fn charge(client: &mut Client, order_id: &str, cents: i32) -> Result<&'static str, Error> {
    let tx = client.transaction().await?;
    let id = format!("order-{order_id}");
    let first: bool = tx.query_one("select oncebox.once('charge-card', $1)", &[&id]).await?.get(0);
    if !first {
        return Ok("again");
    }
    let paid = json!({ "order_id": order_id, "cents": cents }).to_string();
    let headers = json!({ "source": "tokio-postgres" }).to_string();
    // The casts say which of the functions is meant, and that the headers come as text.
    let publish = "select oncebox.publish('order.paid', $1::bytea, key => $2, headers => $3::text::json)";
    tx.execute(publish, &[&paid.as_bytes(), &order_id, &headers]).await?;
    tx.execute("insert into charge (order_id, cents) values ($1, $2)", &[&order_id, &cents]).await?;
    tx.commit().await?;
    Ok("first")
}

/// A handler of a runner does the work. Acknowledge to your source after the commit, never before it.
async fn receive(client: &mut Client, order_id: &str, body: &str) -> Result<String, Error> {
    let tx = client.transaction().await?;
    let (id, headers) = (format!("order-{order_id}"), json!({ "source": "tokio-postgres" }).to_string());
    let receive = "select oncebox.receive('shop', $1, 'order.placed', $2::bytea, $3, $4::text::json)";
    let answer = tx.query_one(receive, &[&id, &body.as_bytes(), &order_id, &headers]).await?.get(0);
    tx.commit().await?;
    Ok(answer)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, order_id, argument] = &arguments[..] else { return Err("charge | receive".into()) };
    let (mut client, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    let running = tokio::spawn(connection);
    let answer = match command.as_str() {
        "charge" => charge(&mut client, order_id, argument.parse()?).await?.to_owned(),
        _ => receive(&mut client, order_id, argument).await?,
    };
    println!("{answer}");
    drop(client);
    running.await??;
    Ok(())
}
