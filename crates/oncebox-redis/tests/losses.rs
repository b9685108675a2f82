//! What Redis can lose, and has lost, is told to whoever runs the service: in the log and in the status of the source.

#![allow(clippy::unwrap_used)]

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

use std::time::Duration;

use oncebox_core::{Inbox, Settle, Source, run};
use oncebox_redis::{RedisSource, RedisSourceConfig};
use oncebox_testkit::{DEADLINE, Subject, until};
use sqlite::SqliteSubject;
use support::{Log, Plain, fresh_name, own_server, shared_server};
use tracing::Level;
use xtask::redis::PrivateRedis;

const GROUP: &str = "g";

async fn put(plain: &Plain, stream: &str, ids: &[&str]) {
    for id in ids {
        let fields: [(&[u8], &[u8]); 2] = [(b"id", id.as_bytes()), (b"payload", b"x")];
        plain.add(stream, &fields).await.unwrap();
    }
}

/// Connects to a server with these settings, and answers what was warned of.
async fn warnings(settings: &'static str, user: &str) -> Option<Vec<String>> {
    let server = own_server(move || PrivateRedis::start_with(settings)).await?;
    let (log, _guard) = Log::begin();
    let url = format!("redis://{user}127.0.0.1:{}", server.port());
    let config = RedisSourceConfig::new(url, "orders", GROUP).create();
    let mut source = RedisSource::new("orders", config).unwrap();
    assert_eq!(source.lag().await.unwrap(), Some(0));
    Some(log.lines(Level::WARN, &["Redis"]))
}

#[tokio::test]
async fn a_server_that_forgets_in_a_crash_is_warned_of() {
    let Some(none) = warnings("", "").await else { return };
    assert!(none.is_empty(), "it writes everything at once: {none:?}");

    let no_log = warnings("appendonly no\n", "").await.unwrap();
    assert_eq!(no_log.len(), 1, "{no_log:?}");
    assert!(no_log[0].contains("appendonly = no: a crash loses") && no_log[0].contains("stream=\"orders\""));

    let later = warnings("appendfsync everysec\n", "").await.unwrap();
    assert_eq!(later.len(), 1, "{later:?}");
    assert!(
        later[0].contains("appendfsync=\"everysec\"") && later[0].contains("a crash of the machine loses")
    );

    // Who may not ask is let in nevertheless, and nothing is made up.
    let settings = "appendonly no\nuser ann on >canary ~* +@all -config\n";
    assert_eq!(warnings(settings, "ann:canary@").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_stream_trimmed_under_a_source_at_work_is_told_with_the_count() {
    let Some(server) = shared_server().await else { return };
    let (log, _guard) = Log::begin();
    let (stream, plain) = (fresh_name("trimmed"), Plain::new(&server.url()));
    put(&plain, &stream, &["a"]).await;
    let config = RedisSourceConfig::new(server.url(), &stream, GROUP).create().prefetch(1);
    let mut source = RedisSource::new("orders", config).unwrap();
    let held = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap();

    // It has no room, so these wait in the stream.
    put(&plain, &stream, &["b", "c", "d"]).await;
    plain.say(&["XTRIM", &stream, "MAXLEN", "1"]).await;
    let words = [&format!("stream=\"{stream}\"") as &str, "count=\"2\"", "removed before they were read"];
    assert!(log.lines(Level::ERROR, &words).is_empty(), "it has not looked yet");
    // It looks before it reads, when a tenth of a second has passed since it last did.
    tokio::time::sleep(Duration::from_millis(150)).await;
    source.settle(held.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();

    let error = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("2 entries were removed before group `g` read them; they are lost"), "{error}");
    assert!(error.contains(&stream) && error.contains("trim by the oldest entry that is needed"), "{error}");
    assert_eq!(log.lines(Level::ERROR, &words).len(), 1);
    let after = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap();
    assert_eq!(after[0].message.id, "d", "and it goes on");
}

/// How often the server was asked how a stream stands.
async fn looks(plain: &Plain) -> u64 {
    let redis::Value::BulkString(answer) = plain.say(&["INFO", "commandstats"]).await else { return 0 };
    let answer = String::from_utf8(answer).unwrap();
    let count = answer.split("cmdstat_xinfo|stream:calls=").nth(1).and_then(|rest| rest.split(',').next());
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_loss_that_was_told_is_not_told_again() {
    let Some(server) = own_server(PrivateRedis::start).await else { return };
    let (log, _guard) = Log::begin();
    let plain = Plain::new(&server.url());
    plain.say(&["XGROUP", "CREATE", "orders", GROUP, "0", "MKSTREAM"]).await;
    put(&plain, "orders", &["a", "b", "c"]).await;
    plain.say(&["XTRIM", "orders", "MAXLEN", "0"]).await;
    let config = RedisSourceConfig::new(server.url(), "orders", GROUP);
    let mut source = RedisSource::new("orders", config).unwrap();
    let error = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("3 entries were removed"), "{error}");
    let before = looks(&plain).await;
    tokio::select! {
        next = source.next(1) => panic!("nothing new has happened: {next:?}"),
        () = until("it has looked twice more", || async { looks(&plain).await >= before + 2 }) => {}
    }
    assert_eq!(log.lines(Level::ERROR, &["they are lost"]).len(), 1);
}

/// What was read stays in the stream before it, so neither the server nor we can count what is missing.
#[tokio::test]
async fn an_entry_deleted_before_it_was_read_is_told_once_and_so_is_the_unknown_lag() {
    let Some(server) = own_server(PrivateRedis::start).await else { return };
    let (log, _guard) = Log::begin();
    let plain = Plain::new(&server.url());
    plain.say(&["XGROUP", "CREATE", "orders", GROUP, "0", "MKSTREAM"]).await;
    let entry = |number: u8| format!("{number}-0");
    for (number, id) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        plain.say(&["XADD", "orders", &entry(number), "id", id, "payload", "x"]).await;
    }
    plain.say(&["XREADGROUP", "GROUP", GROUP, "before", "COUNT", "1", "STREAMS", "orders", ">"]).await;
    plain.say(&["XACK", "orders", GROUP, &entry(1)]).await;
    let config = RedisSourceConfig::new(server.url(), "orders", GROUP).prefetch(1);
    let mut source = RedisSource::new("orders", config).unwrap();
    assert_eq!(source.lag().await.unwrap(), Some(3));

    plain.say(&["XDEL", "orders", &entry(3)]).await;
    assert_eq!(source.lag().await.unwrap(), None);
    let found = source.check().await.unwrap().unwrap();
    assert!(found.contains("an unknown number of waiting"), "{found}");

    let error = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap_err().to_string();
    let lost = "an unknown number of entries were removed before group `g` read them; they are lost";
    assert!(error.contains("stream `orders`") && error.contains(lost), "{error}");
    let error = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap_err().to_string();
    let unknown = "entries that group `g` has not read were deleted, so its lag is unknown; 0 are delivered";
    assert!(error.contains("stream `orders`") && error.contains(unknown), "{error}");
    let next = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap();
    assert_eq!(next[0].message.id, "b", "and it goes on");

    // The deleted one still lies ahead when it looks again: not before a tenth of a second has passed.
    let before = looks(&plain).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    source.settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    let next = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap();
    assert_eq!(next[0].message.id, "d");
    assert!(looks(&plain).await > before, "it has looked");
    for words in [["an unknown number of", "they are lost"], ["entries were deleted", "the lag is unknown"]] {
        assert_eq!(log.lines(Level::ERROR, &words).len(), 1, "{words:?}");
    }
    assert_eq!(source.lag().await.unwrap(), Some(1), "only what it holds");
}

#[tokio::test]
async fn what_was_trimmed_away_shows_in_the_status_of_the_source() {
    let Some(server) = shared_server().await else { return };
    let (log, _guard) = Log::begin();
    let (stream, plain) = (fresh_name("trimmed"), Plain::new(&server.url()));
    plain.say(&["XGROUP", "CREATE", &stream, GROUP, "0", "MKSTREAM"]).await;
    put(&plain, &stream, &["a", "b", "c"]).await;
    plain.say(&["XTRIM", &stream, "MAXLEN", "0"]).await;

    let store = SqliteSubject::create().await.unwrap();
    let inbox = Inbox::new(store.store());
    let source = RedisSource::new("orders", RedisSourceConfig::new(server.url(), &stream, GROUP)).unwrap();
    let running = tokio::spawn(run(inbox.clone()).consume(source).into_future());
    let told = "3 entries were removed before group `g` read them; they are lost";
    until("the status says so", || async {
        let sources = inbox.sources();
        sources.iter().any(|source| source.error.as_deref().is_some_and(|error| error.contains(told)))
    })
    .await;
    assert_eq!(log.lines(Level::ERROR, &[&stream, "count=\"3\"", "they are lost"]).len(), 1);
    running.abort();
}
