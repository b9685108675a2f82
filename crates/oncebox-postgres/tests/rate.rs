//! Measures receiving against a bare insert: `cargo test --release --test rate -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Scratch, arrivals};
use oncebox_core::store::Arrival;
use oncebox_core::{Message, Store};
use sqlx::AssertSqlSafe;

const BATCH: usize = 1000;
const BATCHES: usize = 60;

/// Ids as most producers make them: random, so that neither index has them in order.
fn batch(scratch: &Scratch) -> Vec<Arrival> {
    let body = vec![b'x'; 210];
    let id = || format!("{:016x}{:016x}", scratch.seed.next(), scratch.seed.next());
    let message = |_| Message::new("order.placed", body.clone()).id(id()).scope("orders");
    arrivals((0..BATCH).map(message).collect())
}

fn rate(took: Duration) -> f64 {
    (BATCH * BATCHES) as f64 / took.as_secs_f64()
}

#[tokio::test]
#[ignore = "a measurement, not a test"]
async fn receiving_against_a_bare_insert() {
    common::with_store(async |scratch| {
        scratch.sql("create table {schema}.bare (id text collate \"C\" primary key, payload bytea)").await;
        let insert =
            format!("insert into {}.bare select * from unnest($1::text[], $2::bytea[])", scratch.schema);
        let insert: Arc<str> = insert.into();
        for _ in 0..3 {
            let (mut bare, mut ours) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..BATCHES {
                let batch = batch(scratch);
                let began = Instant::now();
                let ids: Vec<&str> = batch.iter().map(|arrival| arrival.message.id.as_str()).collect();
                let payloads: Vec<&[u8]> = batch.iter().map(|arrival| &arrival.message.payload[..]).collect();
                let query = sqlx::query(AssertSqlSafe(insert.clone())).bind(ids).bind(payloads);
                query.execute(&scratch.pool).await.unwrap();
                bare += began.elapsed();
                let began = Instant::now();
                scratch.store.receive(&batch).await.unwrap();
                ours += began.elapsed();
            }
            let ratio = rate(ours) / rate(bare);
            println!("bare {:.0}/s, receive {:.0}/s, ratio {ratio:.2}", rate(bare), rate(ours));
        }
        let known = batch(scratch);
        scratch.store.receive(&known).await.unwrap();
        scratch.store.receive(&known).await.unwrap();
        let began = Instant::now();
        for _ in 0..BATCHES {
            scratch.store.receive(&known).await.unwrap();
        }
        println!("only duplicates {:.0}/s", rate(began.elapsed()));
    })
    .await;
}
