//! A small shop on SQLite. Orders come more than once and out of order; each is charged once.
//!
//! `cargo run --package oncebox-examples --example shop_sqlite`

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use std::sync::{Arc, Mutex};

use oncebox::admin::DeliveryFilter;
use oncebox::{
    Counter, Error, Failure, Inbox, Json, Message, SendFailure, Sink, SqliteStore, SqliteTx, State, Store,
    handler, run,
};
use oncebox_testkit::{Manners, MemoryBroker, until};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: i64,
    cents: i64,
}

/// What the handlers share.
#[derive(Clone)]
struct Shop {
    limit_cents: i64,
    mailbox: Arc<Mutex<Vec<String>>>,
}

/// Takes the transaction: its row, its outgoing message and the done mark commit together.
async fn charge_card(
    State(shop): State<Shop>,
    mut tx: SqliteTx,
    Json(order): Json<Order>,
) -> Result<(), Failure> {
    if order.cents > shop.limit_cents {
        return Err(Failure::permanent(format!("order {} is over the limit", order.id)));
    }
    sqlx::query("insert into charge (order_id, cents) values (?1, ?2)")
        .bind(order.id)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
    tx.publish(Message::json("order.paid", &order)?.id(format!("paid-{}", order.id)).key(order.id)).await?;
    Ok(())
}

/// Takes no transaction: an effect outside the database, at least once. The id is the mail's idempotency key.
async fn send_receipt(State(shop): State<Shop>, message: Message) -> Result<(), Failure> {
    shop.mailbox.lock().expect("no handler panics with the lock").push(message.id);
    Ok(())
}

/// A sink that prints. A real one answers `Ok` only for what its broker has confirmed.
#[derive(Clone, Default)]
struct Printer(Arc<Mutex<Vec<String>>>);

impl Sink for Printer {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        for message in messages {
            println!("relayed {} {}", message.kind, message.id);
            self.0.lock().expect("nobody panics with the lock").push(message.id.clone());
        }
        Ok(vec![Ok(()); messages.len()])
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("shop.db").display().to_string()).await?;
    store.migrate().await?;
    // No unique key on order_id: a doubled effect would show.
    sqlx::query("create table charge (order_id integer not null, cents integer not null)")
        .execute(store.pool())
        .await?;

    let shop = Shop { limit_cents: 100_000, mailbox: Arc::default() };
    let inbox = Inbox::with_state(store.clone(), shop.clone())
        .on("order.placed", handler("charge-card", charge_card).ordered())
        .on("order.placed", handler("send-receipt", send_receipt));

    let broker = MemoryBroker::new(7, Manners::BAD);
    let mut orders = vec![Order { id: 13, cents: 900_000 }];
    orders.extend((1..=10).map(|id| Order { id, cents: 100 * id }));
    for order in &orders {
        broker.put([Message::json("order.placed", order)?.id(format!("order-{}", order.id)).key(order.id)]);
    }
    broker.put([Message::json("order.placed", &orders[1])?.id("order-1").key(1)]); // and once more, to be sure

    let printer = Printer::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let runner = run(inbox.clone()).consume(broker.source("orders")).relay(printer.clone());
    let runner = tokio::spawn(runner.with_graceful_shutdown(async { _ = stopped.await }).into_future());
    until("ten orders are paid, one is dead, eleven receipts are out and all is acknowledged", || async {
        let mailed = shop.mailbox.lock().expect("no handler panics with the lock").len();
        let paid = printer.0.lock().expect("nobody panics with the lock").len();
        let dead = inbox.counters().get("charge-card", Counter::Dead);
        (paid, dead, mailed, broker.pending()) == (10, 1, 11, 0)
    })
    .await;
    stop.send(()).map_err(|()| "the runner ended early")?;
    runner.await??;

    let charges: Vec<i64> =
        sqlx::query_scalar("select order_id from charge order by order_id").fetch_all(store.pool()).await?;
    let dead = store.deliveries(&DeliveryFilter::dead("charge-card")).await?;
    println!("{} deliveries of 11 orders; charged {charges:?}", broker.deliveries());
    println!("dead letter {}: {}", dead[0].message.id, dead[0].history[0].error);
    assert!(broker.deliveries() > 11, "the broker delivers more than once");
    assert_eq!(charges, (1..=10).collect::<Vec<i64>>(), "each order is charged once");
    assert_eq!((dead.len(), dead[0].message.id.as_str()), (1, "order-13"));
    store.close().await;
    Ok(())
}
