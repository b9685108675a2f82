//! What only Redis Streams can get wrong.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use oncebox_core::{Error, Incoming, Message, SendFailure, Settle, Sink, Source};
use oncebox_redis::{RedisReceipt, RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig, RedisTls};
use oncebox_testkit::{DEADLINE, until};
use support::{Plain, fresh_name, own_server, shared_server};
use xtask::certificates::Certificates;
use xtask::redis::PrivateRedis;

const GROUP: &str = "g";

/// A stream of its own on the shared server.
struct Queue {
    url: String,
    port: u16,
    stream: String,
    plain: Plain,
}

impl Queue {
    async fn create() -> Option<Self> {
        let server = shared_server().await?;
        let stream = fresh_name("own");
        Some(Self { plain: Plain::new(&server.url()), url: server.url(), port: server.port(), stream })
    }

    fn config(&self) -> RedisSourceConfig {
        RedisSourceConfig::new(&self.url, &self.stream, GROUP).create()
    }

    async fn put(&self, ids: &[&str]) {
        for id in ids {
            let fields: [(&[u8], &[u8]); 2] = [(b"id", id.as_bytes()), (b"payload", b"body")];
            self.plain.add(&self.stream, &fields).await.unwrap();
        }
    }

    async fn pending(&self) -> u64 {
        self.plain.of_group(&self.stream, GROUP, "pending").await
    }

    async fn of(&self, consumer: &str) -> usize {
        let words = ["XPENDING", &self.stream, GROUP, "-", "+", "1000", consumer];
        match self.plain.say(&words).await {
            redis::Value::Array(entries) => entries.len(),
            _ => 0,
        }
    }
}

fn source(config: RedisSourceConfig) -> RedisSource {
    RedisSource::new("orders", config).unwrap()
}

type Taken = Vec<Incoming<RedisReceipt>>;

async fn next(source: &mut RedisSource) -> Result<Taken, Error> {
    tokio::time::timeout(DEADLINE, source.next(1000)).await.expect("something comes")
}

/// Takes until this many are there, through failures.
async fn take(source: &mut RedisSource, count: usize) -> Taken {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(source).await.unwrap_or_default());
    }
    taken
}

fn ids(taken: &Taken) -> Vec<&str> {
    taken.iter().map(|one| one.message.id.as_str()).collect::<BTreeSet<_>>().into_iter().collect()
}

async fn settle(source: &mut RedisSource, taken: Taken, how: Settle) -> Result<(), Error> {
    source.settle(taken.into_iter().map(|one| (one.receipt, how)).collect()).await
}

#[tokio::test]
async fn a_source_that_lives_keeps_what_it_holds() {
    let Some(queue) = Queue::create().await else { return };
    let config = queue.config().claim_after(Duration::from_secs(1));
    let mut slow = source(config.clone().consumer("slow"));
    queue.put(&["a", "b"]).await;
    let taken = take(&mut slow, 2).await;
    let mut other = source(config.consumer("other"));
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        let stolen = tokio::time::timeout(Duration::from_millis(200), other.next(10)).await;
        assert!(stolen.is_err(), "{stolen:?}");
    }
    assert_eq!(queue.of("slow").await, 2);
    settle(&mut slow, taken, Settle::Accept).await.unwrap();
    assert_eq!(queue.pending().await, 0);
}

#[tokio::test]
async fn what_a_dead_consumer_held_is_taken_over_whatever_the_cursor_says() {
    let Some(queue) = Queue::create().await else { return };
    queue.plain.say(&["XGROUP", "CREATE", &queue.stream, GROUP, "0", "MKSTREAM"]).await;
    let names: Vec<String> = (0..2500).map(|number| format!("m-{number:04}")).collect();
    queue.put(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    queue
        .plain
        .say(&["XREADGROUP", "GROUP", GROUP, "dead", "COUNT", "2500", "STREAMS", &queue.stream, ">"])
        .await;
    let mut living = source(queue.config().claim_after(Duration::from_secs(1)));
    let mut seen = BTreeSet::new();
    while seen.len() < 2500 {
        let taken = next(&mut living).await.unwrap();
        seen.extend(taken.iter().map(|one| one.message.id.clone()));
        settle(&mut living, taken, Settle::Accept).await.unwrap();
    }
    assert_eq!((queue.pending().await, queue.of("dead").await), (0, 0));
}

#[tokio::test]
async fn a_consumer_of_the_same_name_goes_on_where_the_last_one_died() {
    let Some(queue) = Queue::create().await else { return };
    queue.plain.say(&["XGROUP", "CREATE", &queue.stream, GROUP, "0", "MKSTREAM"]).await;
    queue.put(&["a", "b", "c"]).await;
    queue
        .plain
        .say(&["XREADGROUP", "GROUP", GROUP, "same", "COUNT", "2", "STREAMS", &queue.stream, ">"])
        .await;
    // It does not wait until anything may be claimed.
    let mut again = source(queue.config().consumer("same").claim_after(Duration::from_secs(3600)));
    let taken = take(&mut again, 3).await;
    assert_eq!(ids(&taken), ["a", "b", "c"]);
    settle(&mut again, taken, Settle::Accept).await.unwrap();
    assert_eq!(queue.pending().await, 0);
}

#[tokio::test]
async fn a_new_connection_brings_back_what_is_not_held() {
    let Some(queue) = Queue::create().await else { return };
    let proxy = oncebox_testkit::Proxy::start(([127, 0, 0, 1], queue.port).into()).await;
    let mut config = queue.config().claim_after(Duration::from_secs(3600));
    config.url = format!("redis://{}", proxy.address());
    let mut source = source(config);
    queue.put(&["held", "unsettled"]).await;
    let mut taken = take(&mut source, 2).await;
    let unsettled = taken.split_off(1);
    proxy.cut();
    // Whether or not the cut was noticed before: the acknowledgement is lost, or it is not.
    let told = settle(&mut source, unsettled, Settle::Accept).await;
    queue.put(&["new"]).await;
    let expected = if told.is_ok() { vec!["new"] } else { vec!["new", "unsettled"] };
    let more = take(&mut source, expected.len()).await;
    assert_eq!(ids(&more), expected, "what is held does not come twice");
    settle(&mut source, taken, Settle::Accept).await.unwrap();
    settle(&mut source, more, Settle::Accept).await.unwrap();
    assert_eq!(queue.pending().await, 0);
}

#[tokio::test]
async fn returned_messages_come_again_to_anyone() {
    let Some(queue) = Queue::create().await else { return };
    let config = queue.config().claim_after(Duration::from_secs(3600));
    let mut first = source(config.clone());
    queue.put(&["a"]).await;
    let taken = take(&mut first, 1).await;
    settle(&mut first, taken, Settle::Return).await.unwrap();
    let again = take(&mut first, 1).await;
    assert_eq!(ids(&again), ["a"]);
    settle(&mut first, again, Settle::Return).await.unwrap();
    drop(first);
    let mut second = source(config);
    let taken = take(&mut second, 1).await;
    settle(&mut second, taken, Settle::Reject).await.unwrap();
    assert_eq!(queue.pending().await, 0);
    assert_eq!(queue.plain.entries(&queue.stream).await.unwrap().len(), 1, "it stays in the stream");
}

#[tokio::test]
async fn what_was_not_handed_over_is_given_back_at_once() {
    let Some(queue) = Queue::create().await else { return };
    let config = queue.config().claim_after(Duration::from_secs(3600));
    let mut first = source(config.clone());
    queue.put(&["a", "b", "c"]).await;
    let taken = tokio::time::timeout(DEADLINE, first.next(1)).await.unwrap().unwrap();
    settle(&mut first, taken, Settle::Accept).await.unwrap();
    until("all are fetched", || async { queue.pending().await == 2 }).await;
    drop(first);
    // The new source looks once when it starts, and again when a quarter of an hour has passed.
    let words = ["XPENDING", &queue.stream, GROUP, "IDLE", "3600000", "-", "+", "10"];
    until("all are given back", || async {
        matches!(queue.plain.say(&words).await, redis::Value::Array(entries) if entries.len() == 2)
    })
    .await;
    let mut second = source(config);
    assert_eq!(ids(&take(&mut second, 2).await), ["b", "c"]);
}

#[tokio::test]
async fn entries_removed_before_they_were_read_are_reported() {
    let Some(queue) = Queue::create().await else { return };
    queue.plain.say(&["XGROUP", "CREATE", &queue.stream, GROUP, "0", "MKSTREAM"]).await;
    queue.put(&["a", "b", "c", "d"]).await;
    queue.plain.say(&["XTRIM", &queue.stream, "MAXLEN", "1"]).await;
    let mut source = source(queue.config());
    let error = next(&mut source).await.unwrap_err().to_string();
    assert!(error.contains("3 entries") && error.contains("removed before group `g` read them"), "{error}");
    assert_eq!(ids(&take(&mut source, 1).await), ["d"], "and it goes on");
}

#[tokio::test]
async fn entries_removed_before_they_were_acknowledged_are_reported() {
    let Some(queue) = Queue::create().await else { return };
    queue.plain.say(&["XGROUP", "CREATE", &queue.stream, GROUP, "0", "MKSTREAM"]).await;
    for (consumer, claim_after) in [("same", Duration::from_secs(3600)), ("other", Duration::from_secs(1))] {
        queue.put(&["a", "b", "c"]).await;
        queue
            .plain
            .say(&["XREADGROUP", "GROUP", GROUP, "same", "COUNT", "3", "STREAMS", &queue.stream, ">"])
            .await;
        queue.plain.say(&["XTRIM", &queue.stream, "MAXLEN", "1"]).await;
        let mut source = source(queue.config().consumer(consumer).claim_after(claim_after));
        let mut errors = Vec::new();
        let taken = loop {
            match next(&mut source).await {
                Ok(taken) => break taken,
                Err(error) => errors.push(error.to_string()),
            }
        };
        assert_eq!(ids(&taken), ["c"]);
        settle(&mut source, taken, Settle::Accept).await.unwrap();
        if errors.is_empty() {
            errors.push(next(&mut source).await.unwrap_err().to_string());
        }
        assert!(
            errors.iter().any(|error| error.contains("2 entries") && error.contains("lost")),
            "{errors:?}"
        );
        until("nothing is left", || async { queue.pending().await == 0 }).await;
    }
}

#[tokio::test]
async fn an_entry_whose_field_has_no_text_as_its_name_is_unreadable_and_stops_nothing() {
    let Some(queue) = Queue::create().await else { return };
    let strange: [(&[u8], &[u8]); 3] = [(b"id", b"strange"), (b"a\xff", b"\xfe"), (b"payload", b"body")];
    queue.plain.add(&queue.stream, &strange).await.unwrap();
    queue.put(&["good"]).await;
    let mut source = source(queue.config());
    let taken = take(&mut source, 2).await;
    let fault = taken[0].fault.as_deref().expect("it is marked");
    assert!(fault.contains("field `a\\xff` is not UTF-8 text"), "{fault}");
    assert_eq!((taken[0].message.id.as_str(), &taken[0].message.payload[..]), ("strange", &b"body"[..]));
    assert_eq!(taken[0].message.headers.get("a\\xff").unwrap(), &b"\xfe"[..]);
    assert_eq!((taken[1].message.id.as_str(), &taken[1].fault), ("good", &None));
    settle(&mut source, taken, Settle::Accept).await.unwrap();
    assert_eq!(queue.pending().await, 0);
}

#[tokio::test]
async fn what_is_missing_is_said_by_name_and_created_when_asked_for() {
    let Some(queue) = Queue::create().await else { return };
    let config = RedisSourceConfig::new(&queue.url, &queue.stream, GROUP);
    let error = next(&mut source(config.clone())).await.unwrap_err().to_string();
    assert!(error.contains("no stream") && error.contains("`create`"), "{error}");
    queue.put(&["before"]).await;
    let error = next(&mut source(config.clone())).await.unwrap_err().to_string();
    assert!(error.contains("no group `g`"), "{error}");
    let mut source = source(config.create());
    assert_eq!(ids(&take(&mut source, 1).await), ["before"], "a new group begins at the beginning");
}

#[tokio::test]
async fn a_sink_says_what_a_stream_refused() {
    let Some(queue) = Queue::create().await else { return };
    let message = |id: &str| Message::new("order.paid", "x").id(id);
    queue.plain.say(&["SET", &queue.stream, "no stream"]).await;
    let sink = RedisSink::new(RedisSinkConfig::new(&queue.url, &queue.stream)).unwrap();
    let answers = sink.send(&[message("a"), message("b")]).await.unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(SendFailure::Retry(why)) if why.contains("WRONGTYPE")))
    );
    queue.plain.say(&["DEL", &queue.stream]).await;
    assert_eq!(sink.send(&[message("a"), message("b")]).await.unwrap(), [Ok(()), Ok(())]);

    let short = RedisSink::new(RedisSinkConfig::new(&queue.url, fresh_name("short")).max_length(10)).unwrap();
    let many: Vec<Message> = (0..500).map(|number| message(&number.to_string())).collect();
    assert!(short.send(&many).await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_full_server_takes_all_of_a_call_or_nothing() {
    let Some(server) =
        own_server(|| PrivateRedis::start_with("maxmemory 3mb\nmaxmemory-policy noeviction\n")).await
    else {
        return;
    };
    let sink = RedisSink::new(RedisSinkConfig::new(server.url(), "events")).unwrap();
    let mut confirmed = 0;
    let refused = loop {
        let lot: Vec<Message> = (0..10).map(|_| Message::new("k", vec![b'x'; 20_000])).collect();
        match sink.send(&lot).await {
            Ok(answers) if answers.iter().all(Result::is_ok) => confirmed += 10,
            Ok(answers) => break answers.iter().all(Result::is_err),
            Err(error) => break error.to_string().contains("took nothing"),
        }
        assert!(confirmed < 1000, "the server is never full");
    };
    assert!(refused);
    assert_eq!(Plain::new(&server.url()).entries("events").await.unwrap().len(), confirmed);
}

/// Sends one message and takes it in again.
async fn round_trip(url: &str, tls: RedisTls) -> Result<(), Error> {
    let stream = fresh_name("trip");
    let mut source =
        RedisSource::new("o", RedisSourceConfig::new(url, &stream, GROUP).create().tls(tls.clone()))?;
    source.lag().await?;
    let sink = RedisSink::new(RedisSinkConfig::new(url, &stream).tls(tls))?;
    assert_eq!(sink.send(&[Message::new("paid", "x").id("1")]).await?, [Ok(())]);
    let taken = next(&mut source).await?;
    assert_eq!(ids(&taken), ["1"]);
    settle(&mut source, taken, Settle::Accept).await
}

#[tokio::test]
async fn passwords_and_users_are_let_in_and_others_are_not() {
    let settings = "requirepass s3cret\nuser ann on >canary ~* +@all -config\n";
    let Some(server) = own_server(move || PrivateRedis::start_with(settings)).await else { return };
    for who in [":s3cret", "ann:canary"] {
        round_trip(&format!("redis://{who}@127.0.0.1:{}", server.port()), RedisTls::default()).await.unwrap();
    }
    for who in ["", ":wr0ng@", "ann:wr0ng@", "nobody:wr0ng@"] {
        let url = format!("redis://{who}127.0.0.1:{}", server.port());
        let mut source = source(RedisSourceConfig::new(&url, "s", GROUP).create());
        let sink = RedisSink::new(RedisSinkConfig::new(&url, "s")).unwrap();
        let of_source = next(&mut source).await.unwrap_err();
        let of_sink = sink.send(&[Message::new("paid", "x").id("1")]).await.unwrap_err();
        for error in [of_source, of_sink, source.check().await.unwrap_err(), sink.check().await.unwrap_err()]
        {
            assert!(error.is_transient() && error.to_string().contains("check user and password"), "{error}");
            assert!(!format!("{error} {error:?} {source:?} {sink:?}").contains("wr0ng"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn tls_is_checked() {
    let Some(server) = own_server(PrivateRedis::start_tls).await else { return };
    let authority = server.certificates().unwrap().authority.clone();
    let url = server.tls_url().unwrap();
    round_trip(&url, RedisTls { ca: Some(authority), ..RedisTls::default() }).await.unwrap();
    let error = round_trip(&url, RedisTls::default()).await.unwrap_err().to_string();
    assert!(error.contains("cannot connect to Redis"), "{error}");
}

#[tokio::test]
async fn a_server_that_wants_a_client_certificate_gets_one() {
    let Some(server) = own_server(PrivateRedis::start_mutual_tls).await else { return };
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let trusting = RedisTls { ca: Some(files.authority.clone()), ..RedisTls::default() };
    let with = |files: &Certificates| RedisTls {
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
        ..trusting.clone()
    };
    round_trip(&url, with(files)).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let of_another = Certificates::create(folder.path()).unwrap();
    for tls in [trusting.clone(), with(&of_another)] {
        let source = RedisSourceConfig::new(&url, fresh_name("trip"), GROUP).create().tls(tls.clone());
        let sink = RedisSink::new(RedisSinkConfig::new(&url, fresh_name("trip")).tls(tls)).unwrap();
        let of_source = next(&mut RedisSource::new("o", source).unwrap()).await.unwrap_err();
        let of_sink = sink.send(&[Message::new("paid", "x").id("1")]).await.unwrap_err();
        for error in [of_source, of_sink] {
            let error = error.to_string();
            assert!(
                error.contains("cannot connect to Redis")
                    && error.contains("`tls.certificate` if it wants one"),
                "{error}"
            );
        }
    }
}
