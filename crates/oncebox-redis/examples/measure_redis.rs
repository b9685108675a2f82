//! How fast the source and the sink are beside the plain client, on a private server.
//!
//! `cargo run --release -p oncebox-redis --example measure_redis -- 50000`

// A program that prints.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use oncebox_core::{Counter, Inbox, Message, Settle, Sink, Source, run};
use oncebox_redis::{RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig};
use oncebox_sqlite::SqliteStore;
use redis::aio::ConnectionLike;
use redis::{RedisError, Value};
use xtask::redis::PrivateRedis;

/// As many as a relay hands over at once.
const LOT: usize = 500;

fn said(what: &str, count: usize, since: Instant) {
    println!("{what:<48} {:>9.0}/s", count as f64 / since.elapsed().as_secs_f64());
}

#[tokio::main]
async fn main() -> Result<(), RedisError> {
    let count: usize = std::env::args().nth(1).map_or(50_000, |count| count.parse().unwrap());
    let server = PrivateRedis::start().unwrap();
    let messages: Vec<Message> =
        (0..count).map(|number| Message::new("paid", vec![b'x'; 200]).id(format!("m-{number}"))).collect();
    let client = redis::Client::open(server.url())?;
    let mut plain = client.get_multiplexed_async_connection().await?;

    let since = Instant::now();
    for lot in messages.chunks(LOT) {
        let mut pipeline = redis::pipe();
        for message in lot {
            let add = pipeline.cmd("XADD").arg("plain").arg("*").arg("id").arg(&message.id).arg("kind");
            add.arg(&message.kind).arg("payload").arg(&message.payload[..]);
        }
        let answers = plain.req_packed_commands(&pipeline, 0, lot.len()).await?;
        assert!(answers.iter().all(|answer| matches!(answer, Value::BulkString(_))));
    }
    said("plain client adds, pipelined", count, since);

    let sink = RedisSink::new(RedisSinkConfig::new(server.url(), "ours")).unwrap();
    let since = Instant::now();
    for lot in messages.chunks(LOT) {
        assert!(sink.send(lot).await.unwrap().iter().all(Result::is_ok));
    }
    said("the sink", count, since);

    for group in ["alone", "source", "inbox"] {
        let () = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg("ours")
            .arg(group)
            .arg("0")
            .query_async(&mut plain)
            .await?;
    }
    let since = Instant::now();
    let mut left = count;
    while left > 0 {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("alone").arg("c").arg("COUNT").arg(LOT).arg("STREAMS").arg("ours").arg(">");
        type Fields = Vec<(String, Vec<u8>)>;
        let streams: Vec<(String, Vec<(String, Fields)>)> = read.query_async(&mut plain).await?;
        let ids: Vec<&str> = streams[0].1.iter().map(|(id, _)| id.as_str()).collect();
        left -= ids.len();
        let _: u64 = redis::cmd("XACK").arg("ours").arg("alone").arg(ids).query_async(&mut plain).await?;
    }
    said("plain client reads with acknowledgements", count, since);

    let mut source = RedisSource::new("s", RedisSourceConfig::new(server.url(), "ours", "source")).unwrap();
    let since = Instant::now();
    let mut left = count;
    while left > 0 {
        let taken = source.next(1000).await.unwrap();
        left -= taken.len();
        source.settle(taken.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }
    said("the source alone", count, since);

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inbox.db").to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let inbox = Inbox::new(store);
    let source = RedisSource::new("s", RedisSourceConfig::new(server.url(), "ours", "inbox")).unwrap();
    let since = Instant::now();
    let running = tokio::spawn(IntoFuture::into_future(run(inbox.clone()).consume(source)));
    while inbox.counters().get("", Counter::Received) < i64::try_from(count).unwrap() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    said("the source into an inbox on SQLite", count, since);
    running.abort();
    Ok(())
}
