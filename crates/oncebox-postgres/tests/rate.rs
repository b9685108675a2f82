//! Measures receiving against a bare insert: `cargo test --release --test rate -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

mod common;

use std::time::Instant;

use common::arrivals;
use oncebox_core::store::Arrival;
use oncebox_core::{Message, Store};
use sqlx::AssertSqlSafe;

const BATCH: usize = 1000;
const BATCHES: usize = 60;

fn batch(round: usize, name: &str) -> Vec<Arrival> {
    let body = vec![b'x'; 210];
    arrivals(
        (0..BATCH)
            .map(|n| Message::new("order.placed", body.clone()).id(format!("{name}-{round}-{n}")).scope("orders"))
            .collect(),
    )
}

#[tokio::test]
#[ignore = "a measurement, not a test"]
async fn receiving_against_a_bare_insert() {
    common::with_store(async |scratch| {
        scratch.sql("create table {schema}.bare (id text collate \"C\" primary key, payload bytea)").await;
        let insert: std::sync::Arc<str> = format!(
            "insert into {}.bare select * from unnest($1::text[], $2::bytea[])",
            scratch.schema
        )
        .into();
        for pass in 0..3 {
            let mut bare = std::time::Duration::ZERO;
            let mut ours = std::time::Duration::ZERO;
            for round in 0..BATCHES {
                let batch = batch(round, &format!("pass-{pass}"));
                let began = Instant::now();
                let ids: Vec<&str> = batch.iter().map(|arrival| arrival.message.id.as_str()).collect();
                let payloads: Vec<&[u8]> = batch.iter().map(|arrival| &arrival.message.payload[..]).collect();
                sqlx::query(AssertSqlSafe(insert.clone())).bind(ids).bind(payloads).execute(&scratch.pool).await.unwrap();
                bare += began.elapsed();
                let began = Instant::now();
                scratch.store.receive(&batch).await.unwrap();
                ours += began.elapsed();
            }
            let rate = |took: std::time::Duration| (BATCH * BATCHES) as f64 / took.as_secs_f64();
            println!(
                "bare {:.0}/s, receive {:.0}/s, ratio {:.2}",
                rate(bare),
                rate(ours),
                rate(ours) / rate(bare)
            );
        }
        let known = batch(0, "pass-0");
        scratch.store.receive(&known).await.unwrap();
        let began = Instant::now();
        for _ in 0..BATCHES {
            scratch.store.receive(&known).await.unwrap();
        }
        println!("only duplicates {:.0}/s", (BATCH * BATCHES) as f64 / began.elapsed().as_secs_f64());
    })
    .await;
}
