//! How fast the store receives, next to a bare insert of the same rows into a table with one unique index.
//!
//! `cargo run --release -p oncebox-sqlite --example ingest_rate [batches] [batch size]`
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use oncebox_core::store::{
    Arrival, Claim, Commit, LaneBound, MoveLanes, ReadLanes, Registration, Token, TxLimits,
};
use oncebox_core::{Kinds, Message, Store};
use oncebox_sqlite::SqliteStore;
use sqlx::AssertSqlSafe;

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>().unwrap());
    let batches = numbers.next().unwrap_or(100);
    let size = numbers.next().unwrap_or(1000);
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = directory.path().join("rate.db").display().to_string();
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();

    let mut bare = Vec::new();
    let mut own = Vec::new();
    let mut connection = store.pool().acquire().await.unwrap();
    sqlx::raw_sql("create table bare (entry integer primary key, identity blob not null unique, scope text, id text, kind text, payload blob not null, at integer) strict")
        .execute(&mut *connection).await.unwrap();
    for batch in 0..batches {
        let arrivals: Vec<Arrival> = (0..size)
            .map(|n| {
                Arrival::new(
                    Message::new("order.placed", vec![b'x'; 210]).id(format!("{batch}-{n}")).scope("bench"),
                )
            })
            .collect();
        let started = Instant::now();
        sqlx::raw_sql("begin immediate").execute(&mut *connection).await.unwrap();
        for piece in arrivals.chunks(250) {
            let rows = vec!["(?,?,?,?,?,?)"; piece.len()].join(",");
            let mut insert = sqlx::query(AssertSqlSafe(format!(
                "insert into bare (identity, scope, id, kind, payload, at) values {rows} on conflict (identity) do nothing"
            )));
            for arrival in piece {
                insert = insert
                    .bind(&arrival.identity[..])
                    .bind(arrival.message.scope.as_str())
                    .bind(arrival.message.id.as_str())
                    .bind(arrival.message.kind.as_str())
                    .bind(&arrival.message.payload[..])
                    .bind(0);
            }
            insert.execute(&mut *connection).await.unwrap();
        }
        sqlx::raw_sql("commit").execute(&mut *connection).await.unwrap();
        bare.push(started.elapsed());
        let started = Instant::now();
        store.receive(&arrivals).await.unwrap();
        own.push(started.elapsed());
    }
    // The store can be closed once everybody has given their connections back.
    drop(connection);
    let bare = rate("bare insert", &bare, size);
    let own = rate("receive", &own, size);
    println!("ratio       {:.2}", own / bare);

    let mut kinds = Kinds::default();
    kinds.add("*").unwrap();
    let handler = Registration {
        name: "h".into(),
        formerly: vec![],
        kinds: kinds.clone(),
        from_start: true,
        ordered: false,
    };
    store.register(&[handler]).await.unwrap();
    let mut times = Vec::new();
    for round in 0..batches.min(60) {
        let started = Instant::now();
        let token = Token(round as i64 + 1);
        let claimed = store.claim(&Claim { handler: "h", token, lanes: 8, limit: size }).await.unwrap();
        let lanes: Vec<LaneBound> =
            claimed.iter().map(|one| LaneBound { lane: one.lane, upto: None }).collect();
        let limits = TxLimits { statement: Duration::from_secs(30) };
        let read = ReadLanes {
            handler: "h",
            token,
            lanes: &lanes,
            limit: size,
            kinds: &kinds,
            ordered: false,
            limits,
        };
        let batch = store.begin_lanes(&read).await.unwrap().unwrap();
        let mut positions = std::collections::BTreeMap::new();
        for row in &batch.rows {
            positions.insert(row.lane, row.seq);
        }
        let lanes =
            MoveLanes { handler: "h".into(), token, positions: positions.into_iter().collect(), keep: false };
        store.commit(batch.connection, Commit { lanes: Some(lanes), ..Commit::default() }).await.unwrap();
        store.release("h", token).await.unwrap();
        times.push(started.elapsed());
        assert_eq!(batch.rows.len(), size);
    }
    rate("claim, read, commit", &times, size);

    let mut times = Vec::new();
    for n in 0..300 {
        let arrival = [Arrival::new(Message::new("one", vec![b'x'; 210]).id(format!("one-{n}")))];
        let started = Instant::now();
        store.receive(&arrival).await.unwrap();
        times.push(started.elapsed());
    }
    rate("receive one by one", &times, 1);
    store.close().await;
}

/// Prints the median and answers the rate.
fn rate(what: &str, times: &[Duration], size: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    let median = times[times.len() / 2];
    let rate = size as f64 / median.as_secs_f64();
    println!("{what:<20} median {median:>9.2?} per batch, {rate:>8.0} rows/s");
    rate
}
