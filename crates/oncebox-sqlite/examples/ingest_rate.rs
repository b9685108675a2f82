//! How fast the store receives, next to a bare insert of the same rows into a table with one unique index.
//!
//! `cargo run --release -p oncebox-sqlite --example ingest_rate [batches] [batch size]`
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use oncebox_core::store::{
    Arrival, Claim, Commit, Connection, LaneBound, MoveLanes, ReadLanes, Registration, Token, TxLimits,
};
use oncebox_core::{Kinds, Message, Store};
use oncebox_sqlite::SqliteStore;
use sqlx::{AssertSqlSafe, SqliteConnection};

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>().unwrap());
    let batches = numbers.next().unwrap_or(100);
    let size = numbers.next().unwrap_or(1000);
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = directory.path().join("rate.db").display().to_string();
    // All of it, to compare both ways to read.
    let store = SqliteStore::open(&path).await.unwrap().remember(usize::MAX);
    store.migrate().await.unwrap();

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

    let mut bare = Vec::new();
    let mut sorted = Vec::new();
    let mut own = Vec::new();
    let mut connection = store.pool().acquire().await.unwrap();
    for table in ["bare", "sorted"] {
        let columns = "entry integer primary key, identity blob not null unique, scope text, id text, kind text, \
                       payload blob not null, at integer";
        let create = sqlx::raw_sql(AssertSqlSafe(format!("create table {table} ({columns}) strict")));
        create.execute(&mut *connection).await.unwrap();
    }
    for batch in 0..batches {
        let arrivals: Vec<Arrival> = (0..size)
            .map(|n| {
                Arrival::new(
                    Message::new("order.placed", vec![b'x'; 210]).id(format!("{batch}-{n}")).scope("bench"),
                )
            })
            .collect();
        bare.push(insert_bare(&mut connection, "bare", &arrivals).await);
        let mut in_order = arrivals.clone();
        in_order.sort_by_key(|arrival| arrival.identity);
        sorted.push(insert_bare(&mut connection, "sorted", &in_order).await);
        let started = Instant::now();
        store.receive(&arrivals).await.unwrap();
        own.push(started.elapsed());
    }
    // The store can be closed once everybody has given their connections back.
    drop(connection);
    let bare = rate("bare insert", &bare, size);
    let sorted = rate("bare insert, sorted", &sorted, size);
    let own = rate("receive", &own, size);
    println!("ratio {:.2}, to sorted {:.2}", own / bare, own / sorted);

    run("read from the file", &store.clone().remember(0), batches / 3, size, &kinds).await;
    run("remembered", &store, batches / 3, size, &kinds).await;

    let mut times = Vec::new();
    for n in 0..300 {
        let arrival = [Arrival::new(Message::new("one", vec![b'x'; 210]).id(format!("one-{n}")))];
        let started = Instant::now();
        store.receive(&arrival).await.unwrap();
        times.push(started.elapsed());
    }
    rate("receive one by one", &times, 1);

    // The same statement with and without the watch that a handler's transaction has on its connection.
    const COUNT: &str = "with recursive n (x) as (select 1 union all select x + 1 from n where x < 300000) \
                         select max(x) from n";
    let mut connection = store.pool().acquire().await.unwrap();
    let mut tx = store.begin_plain(TxLimits { statement: Duration::from_secs(60) }).await.unwrap();
    let (mut plain, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        let started = Instant::now();
        sqlx::query(COUNT).fetch_one(&mut *connection).await.unwrap();
        plain.push(started.elapsed());
        let started = Instant::now();
        sqlx::query(COUNT).fetch_one(&mut *tx).await.unwrap();
        watched.push(started.elapsed());
    }
    rate("unwatched statement", &plain, 300_000);
    rate("watched statement", &watched, 300_000);
    tx.rollback().await;
    drop(connection);
    store.close().await;
}

/// What any store must at least do: the same rows into one table with one unique index.
async fn insert_bare(connection: &mut SqliteConnection, table: &str, arrivals: &[Arrival]) -> Duration {
    let started = Instant::now();
    sqlx::raw_sql("begin immediate").execute(&mut *connection).await.unwrap();
    for piece in arrivals.chunks(250) {
        let rows = vec!["(?,?,?,?,?,?)"; piece.len()].join(",");
        let mut insert = sqlx::query(AssertSqlSafe(format!(
            "insert into {table} (identity, scope, id, kind, payload, at) values {rows} \
             on conflict (identity) do nothing"
        )));
        for arrival in piece {
            insert = insert
                .bind(&arrival.identity[..])
                .bind(arrival.message().scope)
                .bind(arrival.message().id)
                .bind(arrival.message().kind)
                .bind(arrival.message().payload)
                .bind(0);
        }
        insert.execute(&mut *connection).await.unwrap();
    }
    sqlx::raw_sql("commit").execute(&mut *connection).await.unwrap();
    started.elapsed()
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

/// Claims, reads and commits so many batches.
async fn run(name: &str, store: &SqliteStore, batches: usize, size: usize, kinds: &Kinds) {
    let (mut claims, mut reads, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..batches {
        let started = Instant::now();
        let token = Token(round as i64 + 1);
        let claimed = store.claim(&Claim { handler: "h", token, lanes: 8, limit: size }).await.unwrap();
        claims.push(started.elapsed());
        let started = Instant::now();
        let lanes: Vec<LaneBound> =
            claimed.iter().map(|one| LaneBound { lane: one.lane, upto: None }).collect();
        let limits = TxLimits { statement: Duration::from_secs(30) };
        let read =
            ReadLanes { handler: "h", token, lanes: &lanes, limit: size, kinds, ordered: false, limits };
        let batch = store.begin_lanes(&read).await.unwrap().unwrap();
        reads.push(started.elapsed());
        let started = Instant::now();
        let mut positions = std::collections::BTreeMap::new();
        for row in &batch.rows {
            positions.insert(row.lane, row.seq);
        }
        let lanes =
            MoveLanes { handler: "h".into(), token, positions: positions.into_iter().collect(), keep: false };
        store.commit(batch.connection, Commit { lanes: Some(lanes), ..Commit::default() }).await.unwrap();
        store.release("h", token).await.unwrap();
        commits.push(started.elapsed());
        assert_eq!(batch.rows.len(), size);
    }
    rate(&format!("claim, {name}"), &claims, size);
    rate(&format!("begin and read, {name}"), &reads, size);
    rate(&format!("commit, release, {name}"), &commits, size);
}
