//! The shop: places orders in Postgres and tells billing about them.
//!
//! `shop BROKER ADDRESS POSTGRES ORDERS` places an order every few milliseconds until there are so many, and sends until
//! it is killed. It can be killed at any moment and started again.

use std::error::Error as StdError;
use std::time::Duration;

use oncebox::{Backoff, Inbox, Message, PgStore, Relay, Store};
use oncebox_services::{Broker, ORDER_PLACED, Order, with_broker};
use sqlx::PgPool;

/// The time from one order to the next.
const PACE: Duration = Duration::from_millis(4);

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, broker, address, database, orders] = &arguments[..] else {
        return Err("call it as: shop BROKER ADDRESS POSTGRES ORDERS".into());
    };
    with_broker!(broker.as_str(), serve(address, database, orders.parse()?))
}

async fn serve<B: Broker>(address: &str, database: &str, orders: i64) -> Result<(), Box<dyn StdError>> {
    let pool = PgPool::connect(database).await?;
    let store = PgStore::new(pool.clone());
    store.migrate().await?;
    sqlx::query("create table if not exists placed (number bigint primary key, cents bigint not null)")
        .execute(&pool)
        .await?;
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let relay = Relay::new(B::sink(address)?).backoff(backoff).max_attempts(1000);
    let sending = oncebox::run(Inbox::new(store.clone())).relay(relay).poll_every(Duration::from_millis(20));
    let placing = place_orders(&pool, &store, orders);
    let (sent, placed) = tokio::join!(sending.into_future(), placing);
    placed?;
    Ok(sent?)
}

async fn place_orders(pool: &PgPool, store: &PgStore, orders: i64) -> Result<(), Box<dyn StdError>> {
    let last: i64 = sqlx::query_scalar("select coalesce(max(number), 0) from placed").fetch_one(pool).await?;
    for number in last + 1..=orders {
        let order = Order { number, cents: 100 + number % 7 };
        let mut tx = pool.begin().await?;
        sqlx::query("insert into placed (number, cents) values ($1, $2)")
            .bind(order.number)
            .bind(order.cents)
            .execute(&mut *tx)
            .await?;
        // In the same transaction: there is no order without its message, and no message without its order.
        let message = Message::json(ORDER_PLACED, &order)?.id(format!("order-{number}")).key(number % 50);
        store.publish(&mut tx, &[message]).await?;
        tx.commit().await?;
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}
