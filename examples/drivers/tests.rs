//! Each driver's program is run against a real database, together with a runner and its relay.

#![allow(clippy::unwrap_used)]

#[path = "../languages/postgres.rs"]
mod postgres;
#[path = "../languages/scenario.rs"]
mod scenario;

use std::process::Command;

use postgres::PgShop;
use scenario::Program;

fn program(name: &'static str, file: &'static str) -> Program {
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new(file);
        command.args([action, order, argument]);
        command
    };
    Program { name, run: Box::new(run) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_postgres_has_each_effect_once() {
    scenario::play::<PgShop>(program("tokio-postgres", env!("CARGO_BIN_EXE_shop_tokio_postgres"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diesel_has_each_effect_once() {
    scenario::play::<PgShop>(program("diesel", env!("CARGO_BIN_EXE_shop_diesel"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sea_orm_has_each_effect_once() {
    scenario::play::<PgShop>(program("sea-orm", env!("CARGO_BIN_EXE_shop_sea_orm"))).await;
}
