//! Billing: charges each order once, in SQLite.
//!
//! `billing BROKER ADDRESS FILE` works until it is killed, at any moment, and started again.

use std::error::Error as StdError;
use std::time::Duration;

use oncebox::{Failure, Inbox, Json, SqliteStore, SqliteTx, handler};
use oncebox_services::{Broker, ORDER_PLACED, Order, with_broker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, broker, address, file] = &arguments[..] else {
        return Err("call it as: billing BROKER ADDRESS FILE".into());
    };
    with_broker!(broker.as_str(), serve(address, file))
}

async fn serve<B: Broker>(address: &str, file: &str) -> Result<(), Box<dyn StdError>> {
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;
    // No unique key: an order that is charged twice would show.
    sqlx::query("create table if not exists charge (number integer not null, cents integer not null)")
        .execute(store.pool())
        .await?;
    let inbox = Inbox::new(store).on(ORDER_PLACED, handler("charge", charge));
    let source = B::source(address)?;
    Ok(oncebox::run(inbox).consume(source).poll_every(Duration::from_millis(20)).await?)
}

async fn charge(mut tx: SqliteTx, Json(order): Json<Order>) -> Result<(), Failure> {
    sqlx::query("insert into charge (number, cents) values (?1, ?2)")
        .bind(order.number)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}
