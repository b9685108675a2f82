//! Charges a card once per order, and stores incoming orders once, with Diesel (diesel-async).

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]
#![allow(missing_docs, reason = "the macros of Diesel write functions and tables without")]

use diesel::prelude::*;
use diesel::sql_types::{Binary, Json, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use serde_json::{Value, json};

#[diesel::declare_sql_function]
extern "SQL" {
    #[sql_name = "oncebox.once"]
    fn once(handler: Text, id: Text) -> Bool;
    #[sql_name = "oncebox.publish"]
    fn publish(
        kind: Text,
        payload: Binary,
        key: Nullable<Text>,
        id: Nullable<Text>,
        headers: Nullable<Json>,
    ) -> Text;
    #[sql_name = "oncebox.receive"]
    fn receive_message(
        scope: Text,
        id: Text,
        kind: Text,
        payload: Binary,
        key: Nullable<Text>,
        headers: Nullable<Json>,
    ) -> Text;
}

diesel::table! {
    charge (order_id) {
        order_id -> Text,
        cents -> Integer,
    }
}

/// The effect, the outgoing message and the memory of both commit together; an error rolls all of it back.
async fn charge(connection: &mut AsyncPgConnection, order_id: &str, cents: i32) -> QueryResult<&'static str> {
    connection
        .transaction(async |tx| {
            let first = diesel::select(once("charge-card", format!("order-{order_id}")));
            if !first.get_result::<bool>(tx).await? {
                return Ok("again");
            }
            let paid = json!({ "order_id": order_id, "cents": cents }).to_string().into_bytes();
            let headers: Option<Value> = Some(json!({ "source": "diesel" }));
            let published = publish("order.paid", paid, Some(order_id), None::<String>, headers);
            diesel::select(published).get_result::<String>(tx).await?;
            let row = (charge::order_id.eq(order_id), charge::cents.eq(cents));
            diesel::insert_into(charge::table).values(row).execute(tx).await?;
            Ok("first")
        })
        .await
}

/// A handler of a runner does the work. Acknowledge to your source after the commit, never before it.
async fn receive(connection: &mut AsyncPgConnection, order_id: &str, body: &str) -> QueryResult<String> {
    connection
        .transaction(async |tx| {
            let headers: Option<Value> = Some(json!({ "source": "diesel" }));
            let id = format!("order-{order_id}");
            let received =
                receive_message("shop", id, "order.placed", body.as_bytes(), Some(order_id), headers);
            diesel::select(received).get_result(tx).await
        })
        .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, order_id, argument] = &arguments[..] else { return Err("charge | receive".into()) };
    let mut connection = AsyncPgConnection::establish(&std::env::var("DATABASE_URL")?).await?;
    let answer = match command.as_str() {
        "charge" => charge(&mut connection, order_id, argument.parse()?).await?.to_owned(),
        _ => receive(&mut connection, order_id, argument).await?,
    };
    println!("{answer}");
    Ok(())
}
