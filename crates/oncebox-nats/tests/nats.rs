//! What only JetStream can get wrong.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull, push};
use async_nats::jetstream::stream::RetentionPolicy;
use oncebox_core::mapping::Mapping;
use oncebox_core::{Error, Incoming, Message, SendFailure, Settle, Sink, Source};
use oncebox_nats::{
    NatsAuth, NatsReceipt, NatsRetention, NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig, NatsTls,
};
use oncebox_testkit::{DEADLINE, until};
use support::{Plain, fresh_number, own_server, shared_server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xtask::nats::PrivateNats;

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
        let stream = format!("own-{}", fresh_number());
        let plain = Plain::connect(&server.url()).await;
        plain.create_stream(&stream, &format!("{stream}.>"), RetentionPolicy::Limits).await;
        Some(Self { url: server.url(), port: server.port(), stream, plain })
    }

    fn config(&self) -> NatsSourceConfig {
        NatsSourceConfig::new(&self.url, &self.stream, "c").create([format!("{}.>", self.stream)])
    }

    fn source(&self, config: NatsSourceConfig) -> NatsSource {
        NatsSource::new("orders", config).unwrap()
    }

    async fn put(&self, ids: &[&str]) {
        for id in ids {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", *id);
            self.plain.publish(format!("{}.put", self.stream), headers, "body".into()).await.unwrap();
        }
    }

    async fn ack_pending(&self) -> usize {
        self.plain.consumer(&self.stream, "c").await.unwrap().num_ack_pending
    }
}

type Taken = Vec<Incoming<NatsReceipt>>;

async fn next(source: &mut NatsSource) -> Result<Taken, Error> {
    tokio::time::timeout(DEADLINE, source.next(1000)).await.expect("something comes")
}

/// Takes until this many are there, through failures.
async fn take(source: &mut NatsSource, count: usize) -> Taken {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(source).await.unwrap_or_default());
    }
    taken
}

async fn settle(source: &mut NatsSource, taken: Taken, how: Settle) -> Result<(), Error> {
    source.settle(taken.into_iter().map(|one| (one.receipt, how)).collect()).await
}

async fn refused(config: NatsSourceConfig) -> String {
    let mut source = NatsSource::new("orders", config).unwrap();
    next(&mut source).await.unwrap_err().to_string()
}

#[tokio::test]
async fn what_is_held_for_long_does_not_come_again() {
    let Some(queue) = Queue::create().await else { return };
    let mut source = queue.source(queue.config().ack_wait(Duration::from_secs(1)));
    queue.put(&["a", "b"]).await;
    let taken = take(&mut source, 2).await;
    let since = Instant::now();
    until("four waits have passed", || async { since.elapsed() > Duration::from_secs(4) }).await;
    let info = queue.plain.consumer(&queue.stream, "c").await.unwrap();
    assert_eq!((info.num_redelivered, info.num_ack_pending), (0, 2));
    settle(&mut source, taken, Settle::Accept).await.unwrap();
    until("both are acknowledged", || async { queue.ack_pending().await == 0 }).await;
}

#[tokio::test]
async fn an_old_acknowledgement_never_takes_a_message_of_a_new_stream_away() {
    let Some(queue) = Queue::create().await else { return };
    let mut source = queue.source(queue.config());
    queue.put(&["old"]).await;
    let old = take(&mut source, 1).await;
    queue.plain.jetstream.delete_stream(&queue.stream).await.unwrap();
    queue.plain.create_stream(&queue.stream, &format!("{}.>", queue.stream), RetentionPolicy::Limits).await;
    queue.put(&["new"]).await;
    let new = take(&mut source, 1).await;
    assert_eq!(new[0].message.id, "new");
    settle(&mut source, old, Settle::Accept).await.unwrap();
    let sequence = queue.plain.consumer(&queue.stream, "c").await.unwrap().ack_floor.stream_sequence;
    assert_eq!((queue.ack_pending().await, sequence), (1, 0), "it has the same place in the stream");
    settle(&mut source, new, Settle::Accept).await.unwrap();
    until("it is acknowledged", || async { queue.ack_pending().await == 0 }).await;
}

#[tokio::test]
async fn a_late_acknowledgement_of_a_lost_connection_still_counts() {
    let Some(queue) = Queue::create().await else { return };
    let proxy = oncebox_testkit::Proxy::start(([127, 0, 0, 1], queue.port).into()).await;
    let mut config = queue.config().ack_wait(Duration::from_secs(3600));
    config.url = format!("nats://{}", proxy.address());
    let mut source = queue.source(config);
    queue.put(&["a"]).await;
    let taken = take(&mut source, 1).await;
    proxy.cut();
    next(&mut source).await.unwrap_err();
    let source = tokio::sync::Mutex::new(source);
    until("it is connected again", || async { source.lock().await.lag().await.is_ok() }).await;
    settle(&mut source.into_inner(), taken, Settle::Accept).await.unwrap();
    until("it is acknowledged", || async { queue.ack_pending().await == 0 }).await;
    assert_eq!(queue.plain.consumer(&queue.stream, "c").await.unwrap().num_redelivered, 0);
}

/// Publishes these bytes as headers, as clients of other languages may.
async fn publish_raw(port: u16, subject: &str, headers: &[u8], payload: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let total = headers.len() + payload.len();
    let mut wire = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    wire.extend(format!("HPUB {subject} {} {total}\r\n", headers.len()).into_bytes());
    wire.extend(headers);
    wire.extend(format!("{payload}\r\nPING\r\n").into_bytes());
    stream.write_all(&wire).await.unwrap();
    let mut said = Vec::new();
    while !said.windows(4).any(|four| four == b"PONG") {
        assert_ne!(stream.read_buf(&mut said).await.unwrap(), 0, "the server refused the message");
    }
}

#[tokio::test]
async fn headers_that_the_client_cannot_read_stop_nothing() {
    let Some(queue) = Queue::create().await else { return };
    let mut source = queue.source(queue.config());
    let subject = format!("{}.raw", queue.stream);
    queue.put(&["first"]).await;
    for headers in [
        &b"NATS/1.0\r\nNats-Msg-Id: latin\r\nname: J\xf6rg\r\n\r\n"[..],
        b"NATS/1.0\r\nNats-Msg-Id: carriage\r\nname: a\rb\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: no-colon\r\nnot a header\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n",
    ] {
        publish_raw(queue.port, &subject, headers, "raw").await;
    }
    queue.put(&["last"]).await;
    let (mut ids, mut faults) = (BTreeSet::new(), 0);
    while ids.len() < 5 || faults == 0 {
        for one in next(&mut source).await.unwrap_or_default() {
            match one.fault {
                None => {
                    if one.message.id == "latin" {
                        assert_eq!(&one.message.headers.get("name").unwrap()[..], b"J\xf6rg");
                    }
                    ids.insert(one.message.id);
                }
                Some(fault) => {
                    assert!(fault.contains("not UTF-8"), "{fault}");
                    assert_eq!(one.message.payload, "raw");
                    faults += 1;
                }
            }
            source.settle(vec![(one.receipt, Settle::Accept)]).await.ok();
        }
    }
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["carriage", "first", "last", "latin", "no-colon"]);
    // What came with the broken connections comes again.
    let source = tokio::sync::Mutex::new(source);
    until("all are acknowledged", || async {
        let mut source = source.lock().await;
        if let Ok(Ok(again)) = tokio::time::timeout(Duration::from_millis(100), source.next(10)).await {
            settle(&mut source, again, Settle::Accept).await.ok();
        }
        let info = queue.plain.consumer(&queue.stream, "c").await.unwrap();
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
}

#[tokio::test]
async fn what_is_missing_or_does_not_fit_is_said_by_name() {
    let Some(queue) = Queue::create().await else { return };
    let missing = NatsSourceConfig::new(&queue.url, "nothing", "c");
    assert!(refused(missing).await.contains("no stream `nothing`; create it, or set `create`"));
    let missing = NatsSourceConfig::new(&queue.url, &queue.stream, "nobody");
    assert!(refused(missing).await.contains("no consumer `nobody`"));

    let none = pull::Config {
        durable_name: Some("none".into()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    queue.plain.create_consumer(&queue.stream, none).await;
    let config = NatsSourceConfig::new(&queue.url, &queue.stream, "none");
    assert!(refused(config).await.contains("ack policy `explicit`"));

    let pushed = push::Config {
        durable_name: Some("pushed".into()),
        deliver_subject: "somewhere".into(),
        ..push::Config::default()
    };
    queue.plain.jetstream.create_consumer_on_stream(pushed, &queue.stream).await.unwrap();
    let config = NatsSourceConfig::new(&queue.url, &queue.stream, "pushed");
    assert!(refused(config).await.contains("push consumer"));
}

#[tokio::test]
async fn what_is_missing_is_created_when_asked_for() {
    let Some(server) = shared_server().await else { return };
    let stream = format!("created-{}", fresh_number());
    let config = NatsSourceConfig::new(server.url(), &stream, "c")
        .create([format!("{stream}.*")])
        .retention(NatsRetention::WorkQueue)
        .filter(format!("{stream}.wanted"))
        .prefetch(7)
        .mapping(Mapping::new(&["position"], &["subject"]).unwrap());
    let mut source = NatsSource::new("orders", config).unwrap();
    assert_eq!(source.lag().await.unwrap(), Some(0));
    let plain = Plain::connect(&server.url()).await;
    for word in ["other", "wanted"] {
        plain.publish(format!("{stream}.{word}"), HeaderMap::new(), "x".into()).await.unwrap();
    }
    let taken = take(&mut source, 1).await;
    assert_eq!(taken[0].message.id, format!("{stream}-2"));
    assert_eq!(taken[0].message.kind, format!("{stream}.wanted"));
    settle(&mut source, taken, Settle::Accept).await.unwrap();
    let mut created = plain.jetstream.get_stream(&stream).await.unwrap();
    until("the work queue removed it", || async {
        created.clone().info().await.unwrap().state.messages == 1
    })
    .await;
    let info = created.info().await.unwrap();
    assert_eq!(info.config.retention, RetentionPolicy::WorkQueue);
    let consumer = plain.consumer(&stream, "c").await.unwrap();
    assert_eq!((consumer.config.max_ack_pending, consumer.config.max_deliver), (28, -1));
}

#[tokio::test]
async fn returned_messages_come_again_and_rejected_ones_do_not() {
    let Some(queue) = Queue::create().await else { return };
    let mut source = queue.source(queue.config().return_delay(Duration::from_millis(50)));
    queue.put(&["a"]).await;
    let taken = take(&mut source, 1).await;
    settle(&mut source, taken, Settle::Return).await.unwrap();
    let again = take(&mut source, 1).await;
    assert_eq!(again[0].message.id, "a");
    settle(&mut source, again, Settle::Reject).await.unwrap();
    until("it is gone", || async { queue.ack_pending().await == 0 }).await;
    let info = queue.plain.consumer(&queue.stream, "c").await.unwrap();
    assert_eq!(info.ack_floor.stream_sequence, 1);
}

#[tokio::test]
async fn what_was_not_handed_over_is_given_back_at_once() {
    let Some(queue) = Queue::create().await else { return };
    // Nobody waits an hour for messages that a stopped process had fetched.
    let config = queue.config().ack_wait(Duration::from_secs(3600));
    let mut first = queue.source(config.clone());
    queue.put(&["a", "b", "c", "d"]).await;
    let taken = tokio::time::timeout(DEADLINE, first.next(1)).await.unwrap().unwrap();
    settle(&mut first, taken, Settle::Accept).await.unwrap();
    until("all are fetched", || async { queue.ack_pending().await == 3 }).await;
    drop(first);
    let mut second = queue.source(config);
    let mut ids = BTreeSet::new();
    while ids.len() < 3 {
        ids.extend(take(&mut second, 1).await.into_iter().map(|one| one.message.id));
    }
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["b", "c", "d"]);
}

#[tokio::test]
async fn confirmed_acknowledgements_are_done_when_settle_returns() {
    let Some(queue) = Queue::create().await else { return };
    let mut source = queue.source(queue.config().confirm_acks());
    queue.put(&["a", "b", "c"]).await;
    let taken = take(&mut source, 3).await;
    settle(&mut source, taken, Settle::Accept).await.unwrap();
    assert_eq!(queue.ack_pending().await, 0);
}

#[tokio::test]
async fn a_source_holds_no_more_than_it_may() {
    let Some(queue) = Queue::create().await else { return };
    let mut config = queue.config().prefetch(100);
    config.prefetch_bytes = 4 * 1024 * 1024;
    let mut source = queue.source(config);
    for _ in 0..12 {
        let payload = vec![b'x'; 1024 * 1024].into();
        queue.plain.publish(format!("{}.put", queue.stream), HeaderMap::new(), payload).await.unwrap();
    }
    let (mut total, mut most) = (0, 0);
    while total < 12 {
        let taken = next(&mut source).await.unwrap();
        most = most.max(queue.ack_pending().await);
        total += taken.len();
        settle(&mut source, taken, Settle::Accept).await.unwrap();
    }
    // One request may always bring the largest message that the server takes: 8 MB here.
    assert!(most < 12, "all {most} were fetched at once");
}

#[tokio::test]
async fn a_sink_says_what_a_stream_refused() {
    let Some(queue) = Queue::create().await else { return };
    let message = |id: &str| Message::new("order.paid", "x").id(id);
    let config = || NatsSinkConfig::new(&queue.url).prefix(&queue.stream);

    let sink = NatsSink::new(config().stream("another")).unwrap();
    let answers = sink.send(&[message("a")]).await.unwrap();
    assert!(matches!(&answers[0], Err(SendFailure::Retry(why)) if why.contains("stream")), "{answers:?}");

    let sink = NatsSink::new(config().stream(&queue.stream)).unwrap();
    let large = Message::new("order.paid", vec![0; 9_000_000]).id("large");
    let answers = sink.send(&[message("a"), large, message("b"), message("a")]).await.unwrap();
    assert_eq!((&answers[0], &answers[2], &answers[3]), (&Ok(()), &Ok(()), &Ok(())));
    assert!(
        matches!(&answers[1], Err(SendFailure::Permanent(why)) if why.contains("too large")),
        "{answers:?}"
    );
    assert_eq!(queue.plain.messages(&queue.stream).await.unwrap().len(), 2, "the stream dropped the copy");
}

#[tokio::test]
async fn a_kind_from_outside_never_reaches_the_servers_own_subjects() {
    let Some(queue) = Queue::create().await else { return };
    let sink = NatsSink::new(NatsSinkConfig::new(&queue.url)).unwrap();
    let evil = Message::new(format!("$JS.API.STREAM.DELETE.{}", queue.stream), "");
    let answers = sink.send(&[evil]).await.unwrap();
    assert!(answers[0].is_err());
    queue.plain.jetstream.get_stream(&queue.stream).await.unwrap();
}

/// Sends one message and takes it in again.
async fn round_trip(source: NatsSourceConfig, sink: NatsSinkConfig) -> Result<(), Error> {
    let mut source = NatsSource::new("orders", source)?;
    source.lag().await?;
    let answers = NatsSink::new(sink.prefix("orders"))?.send(&[Message::new("paid", "x").id("1")]).await?;
    assert_eq!(answers, [Ok(())]);
    let taken = next(&mut source).await?;
    assert_eq!((taken[0].message.id.as_str(), taken[0].message.kind.as_str()), ("1", "paid"));
    settle(&mut source, taken, Settle::Accept).await
}

async fn with_auth(url: &str, auth: NatsAuth) -> Result<(), Error> {
    let source = NatsSourceConfig::new(url, format!("s{}", fresh_number()), "c").create(["orders.>"]);
    round_trip(source.auth(auth.clone()), NatsSinkConfig::new(url).auth(auth)).await
}

#[tokio::test]
async fn users_tokens_and_keys_are_let_in_and_others_are_not() {
    let key = nkeys::KeyPair::new_user();
    let by_nkey = format!("authorization {{ users: [{{ nkey: {} }}] }}", key.public_key());
    let ways = [
        (
            "authorization { user: ann, password: \"s3cret@/\" }".to_owned(),
            NatsAuth { user: Some("ann".into()), password: Some("s3cret@/".into()), ..NatsAuth::default() },
            "ann:s3cret%40%2F@",
        ),
        (
            "authorization { token: canary }".to_owned(),
            NatsAuth { token: Some("canary".into()), ..NatsAuth::default() },
            "canary@",
        ),
        (by_nkey, NatsAuth { nkey: Some(key.seed().unwrap()), ..NatsAuth::default() }, ""),
    ];
    for (settings, auth, in_url) in ways {
        let Some(server) = own_server(move || PrivateNats::start_with(&settings)).await else { return };
        with_auth(&server.url(), auth).await.unwrap();
        let wrong =
            NatsAuth { user: Some("ann".into()), password: Some("wr0ng".into()), ..NatsAuth::default() };
        let error = with_auth(&server.url(), wrong).await.unwrap_err().to_string();
        assert!(error.contains("check `auth`") && !error.contains("wr0ng"), "{error}");
        if !in_url.is_empty() {
            let url = format!("nats://{in_url}127.0.0.1:{}", server.port());
            let source = NatsSourceConfig::new(&url, "another", "c").create(["another.>"]);
            assert_eq!(NatsSource::new("orders", source).unwrap().lag().await.unwrap(), Some(0));
        }
    }
}

#[tokio::test]
async fn a_credentials_file_that_is_none_is_said() {
    let auth = NatsAuth { credentials: Some("/nowhere/user.creds".into()), ..NatsAuth::default() };
    let error = with_auth("nats://127.0.0.1:1", auth).await.unwrap_err().to_string();
    assert!(error.contains("credentials file /nowhere/user.creds"), "{error}");
}

#[tokio::test]
async fn tls_is_checked() {
    let Some(server) = own_server(PrivateNats::start_tls).await else { return };
    let authority = server.certificates().unwrap().authority.clone();
    let config = |tls: NatsTls| {
        let source = NatsSourceConfig::new(server.url(), "S", "c").create(["orders.>"]).tls(tls.clone());
        (source, NatsSinkConfig::new(server.url()).tls(tls))
    };
    let (source, sink) = config(NatsTls { ca: Some(authority), ..NatsTls::default() });
    round_trip(source, sink).await.unwrap();
    let (source, sink) = config(NatsTls::default());
    let error = round_trip(source, sink).await.unwrap_err().to_string();
    assert!(error.contains("cannot connect to NATS"), "{error}");
}
