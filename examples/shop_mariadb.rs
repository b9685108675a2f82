//! The same shop on MariaDB, in a schema of its own that is dropped at the end.
//!
//! `ONCEBOX_TEST_MARIADB=mysql://… cargo run --package oncebox-examples --example shop_mariadb`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use oncebox::admin::DeliveryFilter;
use oncebox::{Counter, Failure, Inbox, Json, MariaStore, MariaTx, Message, State, Store, handler, run};
use oncebox_testkit::{Manners, MemoryBroker, until};
use serde::{Deserialize, Serialize};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::sync::oneshot;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: i64,
    cents: i64,
}

#[derive(Clone)]
struct Shop {
    limit_cents: i64,
    mail: MemoryBroker,
}

async fn charge_card(
    State(shop): State<Shop>,
    mut tx: MariaTx,
    Json(order): Json<Order>,
) -> Result<(), Failure> {
    if order.cents > shop.limit_cents {
        return Err(Failure::permanent(format!("order {} is over the limit", order.id)));
    }
    sqlx::query("insert into charge (order_id, cents) values (?, ?)")
        .bind(order.id)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
    tx.publish(Message::json("order.paid", &order)?.id(format!("paid-{}", order.id)).key(order.id)).await?;
    Ok(())
}

/// Takes no transaction: an effect outside the database, at least once. The id is the mail's idempotency key.
async fn send_receipt(State(shop): State<Shop>, message: Message) -> Result<(), Failure> {
    shop.mail.put([message]);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("ONCEBOX_TEST_MARIADB").or_else(|_| std::env::var("DATABASE_URL"));
    let Ok(address) = address else {
        println!(
            "nothing was run: set ONCEBOX_TEST_MARIADB or DATABASE_URL to the address of a MariaDB server"
        );
        return Ok(());
    };
    let schema = format!("oncebox_example_{}", std::process::id());
    let pool = MySqlPoolOptions::new().max_connections(8).connect(&address).await?;
    sqlx::query(AssertSqlSafe(format!("create database {schema}"))).execute(&pool).await?;
    // The shop's own table goes to the same schema, so that dropping it cleans up everything.
    let options = pool.connect_options().as_ref().clone().database(&schema);
    let pool = MySqlPoolOptions::new().max_connections(8).connect_with(options).await?;
    let outcome = open_shop(&pool, &schema).await;
    sqlx::query(AssertSqlSafe(format!("drop database if exists {schema}"))).execute(&pool).await?;
    outcome
}

async fn open_shop(pool: &MySqlPool, schema: &str) -> Result<(), Box<dyn std::error::Error>> {
    let store = MariaStore::new(pool.clone()).schema(schema)?;
    store.migrate().await?;
    // No unique key on order_id: a doubled effect would show.
    sqlx::query("create table charge (order_id bigint not null, cents bigint not null)")
        .execute(pool)
        .await?;

    let broker = MemoryBroker::new(7, Manners::BAD);
    let events = MemoryBroker::new(8, Manners::GOOD);
    let shop = Shop { limit_cents: 100_000, mail: MemoryBroker::new(9, Manners::GOOD) };
    let inbox = Inbox::with_state(store.clone(), shop.clone())
        .on("order.placed", handler("charge-card", charge_card).ordered())
        .on("order.placed", handler("send-receipt", send_receipt));
    broker.put([Message::json("order.placed", &Order { id: 13, cents: 900_000 })?.id("order-13").key(13)]);
    for id in 1..=10 {
        let order = Order { id, cents: 100 * id };
        broker.put([Message::json("order.placed", &order)?.id(format!("order-{id}")).key(id)]);
    }

    let (stop, stopped) = oneshot::channel::<()>();
    let runner = run(inbox.clone()).consume(broker.source("orders")).relay(events.clone()).concurrency(2);
    let runner = tokio::spawn(runner.with_graceful_shutdown(async { _ = stopped.await }).into_future());
    until("ten orders are paid, one is dead, eleven receipts are out and all is acknowledged", || async {
        let dead = inbox.counters().get("charge-card", Counter::Dead);
        (events.sent().len(), dead, shop.mail.pending(), broker.pending()) == (10, 1, 11, 0)
    })
    .await;
    stop.send(()).map_err(|()| "the runner ended early")?;
    runner.await??;

    let charges: Vec<i64> =
        sqlx::query_scalar("select order_id from charge order by order_id").fetch_all(pool).await?;
    let dead = store.deliveries(&DeliveryFilter::dead("charge-card")).await?;
    println!("{} deliveries of 11 orders; charged {charges:?}", broker.deliveries());
    println!("dead letter {}: {}", dead[0].message.id, dead[0].history[0].error);
    assert_eq!(charges, (1..=10).collect::<Vec<i64>>(), "each order is charged once");
    assert_eq!((dead.len(), dead[0].message.id.as_str()), (1, "order-13"));
    Ok(())
}
