//! Charges a card once per order, and stores incoming orders once, with SeaORM.

#![allow(clippy::print_stdout, reason = "an example shows its outcome")]

use sea_orm::{
    ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult,
    Statement, TransactionTrait, Value,
};
use serde_json::json;

async fn ask(
    tx: &DatabaseTransaction,
    sql: &str,
    values: impl IntoIterator<Item = Value>,
) -> Result<QueryResult, DbErr> {
    let row = tx.query_one_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, values)).await?;
    row.ok_or_else(|| DbErr::RecordNotFound(sql.to_owned()))
}

/// The effect, the outgoing message and the memory of both commit together; dropping the transaction rolls back.
async fn charge(database: &DatabaseConnection, order_id: &str, cents: i32) -> Result<&'static str, DbErr> {
    let tx = database.begin().await?;
    let id = format!("order-{order_id}");
    let first = ask(&tx, "select oncebox.once('charge-card', $1) as first", [id.into()]).await?;
    if !first.try_get::<bool>("", "first")? {
        return Ok("again");
    }
    let paid = json!({ "order_id": order_id, "cents": cents }).to_string().into_bytes();
    let headers = json!({ "source": "sea-orm" }).to_string();
    let publish = "select oncebox.publish('order.paid', $1, key => $2, headers => $3::json)";
    ask(&tx, publish, [paid.into(), order_id.into(), headers.into()]).await?;
    let insert = "insert into charge (order_id, cents) values ($1, $2)";
    let values: [Value; 2] = [order_id.into(), cents.into()];
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, insert, values)).await?;
    tx.commit().await?;
    Ok("first")
}

/// A handler of a runner does the work. Acknowledge to your source after the commit, never before it.
async fn receive(database: &DatabaseConnection, order_id: &str, body: &str) -> Result<String, DbErr> {
    let tx = database.begin().await?;
    let (id, headers) = (format!("order-{order_id}"), json!({ "source": "sea-orm" }).to_string());
    let receive = "select oncebox.receive('shop', $1, 'order.placed', $2, $3, $4::json) as answer";
    let values = [id.into(), body.as_bytes().to_vec().into(), order_id.into(), headers.into()];
    let answer = ask(&tx, receive, values).await?.try_get("", "answer")?;
    tx.commit().await?;
    Ok(answer)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, order_id, argument] = &arguments[..] else { return Err("charge | receive".into()) };
    let database = Database::connect(std::env::var("DATABASE_URL")?).await?;
    let answer = match command.as_str() {
        "charge" => charge(&database, order_id, argument.parse()?).await?.to_owned(),
        _ => receive(&database, order_id, argument).await?,
    };
    println!("{answer}");
    Ok(())
}
