//! `oncebox check` asks every source and sink there is, says what it found, and touches nothing.

#![cfg(all(feature = "nats", feature = "redis", feature = "rabbitmq"))]
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::redis::redis;
use support::{Place, text};
use xtask::nats::PrivateNats;
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::redis::PrivateRedis;

fn started<T>(server: std::io::Result<T>) -> Option<T> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

/// The exit code and the lines; an `ok` or a `problem` at the beginning of each.
fn check(place: &Place) -> (Option<i32>, String) {
    let output = place.run(&["check"]);
    assert_eq!(text(&output.stderr), "");
    (output.status.code(), text(&output.stdout))
}

/// Asserts that this part has this beginning and this text in its line.
#[track_caller]
fn has(shown: &str, verdict: &str, what: &str, words: &str) {
    let line = shown
        .lines()
        .find(|line| line.split_once(' ').is_some_and(|(_, rest)| rest.trim().starts_with(what)));
    let line = line.unwrap_or_else(|| panic!("nothing about {what}: {shown}"));
    assert!(line.starts_with(verdict) && line.contains(words), "expected {verdict} … {words}: {line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_asks_nats() {
    use async_nats::jetstream::{consumer, new, stream};

    let Some(server) = started(PrivateNats::start()) else { return };
    let url = server.url();
    let place = Place::new(&format!(
        "[source.orders]\ntype = \"nats\"\nurl = \"{url}\"\nstream = \"ORDERS\"\nconsumer = \"c\"\n\
         [source.new]\ntype = \"nats\"\nurl = \"{url}\"\nstream = \"NEW\"\nconsumer = \"c\"\ncreate = true\nsubjects = [\"new.>\"]\n\
         [sink.events]\ntype = \"nats\"\nurl = \"{url}\"\nprefix = \"events\"\n\
         [sink.one]\ntype = \"nats\"\nurl = \"{url}\"\nsubject = \"events.one\"\n\
         [sink.only]\ntype = \"nats\"\nurl = \"{url}\"\nstream = \"EVENTS\"\n\
         [sink.kinds]\ntype = \"nats\"\nurl = \"{url}\"\n"
    ));
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    has(&shown, "problem", "source orders", "NATS has no stream `ORDERS`; create it");
    has(&shown, "ok", "source new", "stream `NEW` is not there yet and would be created");
    has(&shown, "problem", "sink events", "no stream takes the subject `events.>`; create one");
    has(&shown, "problem", "sink one", "no stream takes the subject `events.one`; create one");
    has(&shown, "problem", "sink only", "NATS has no stream `EVENTS`; create it");
    has(&shown, "ok", "sink kinds", "0 streams");

    let context = new(async_nats::connect(&url).await.unwrap());
    let named = |name: &str, subject: &str| stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..stream::Config::default()
    };
    let orders = context.create_stream(named("ORDERS", "orders.>")).await.unwrap();
    let mut events = context.create_stream(named("EVENTS", "events.>")).await.unwrap();
    let durable =
        consumer::pull::Config { durable_name: Some("c".to_owned()), ..consumer::pull::Config::default() };
    let mut durable = orders.create_consumer(durable).await.unwrap();
    for _ in 0..3 {
        context.publish("orders.placed", "x".into()).await.unwrap().await.unwrap();
    }
    let (code, shown) = check(&place);
    assert_eq!(code, Some(0), "{shown}");
    has(
        &shown,
        "ok",
        "source orders",
        "takes messages from nats: consumer `c` of stream `ORDERS`, 3 waiting",
    );
    has(&shown, "ok", "sink events", "sends to nats: subject `events.>` of stream `EVENTS`");
    has(&shown, "ok", "sink only", "stream `EVENTS`");
    has(&shown, "ok", "sink kinds", "2 streams");
    let info = durable.info().await.unwrap();
    assert_eq!((info.num_pending, info.num_ack_pending, info.delivered.consumer_sequence), (3, 0, 0));
    assert_eq!(events.info().await.unwrap().state.messages, 0);
    assert!(context.get_stream("NEW").await.is_err(), "looking makes nothing");

    let port = server.port();
    server.stop().unwrap();
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    for what in ["source orders", "source new", "sink events", "sink kinds"] {
        has(&shown, "problem", what, &format!("127.0.0.1:{port} (is it running? check `url`)"));
    }
}

#[test]
fn check_asks_redis() {
    let Some(server) = started(PrivateRedis::start()) else { return };
    let (url, port) = (server.url(), server.port());
    let config = |login: &str| {
        let url = url.replacen("redis://", &format!("redis://{login}"), 1);
        format!(
            "[source.orders]\ntype = \"redis\"\nurl = \"{url}\"\nstream = \"orders\"\ngroup = \"g\"\n\
             [source.new]\ntype = \"redis\"\nurl = \"{url}\"\nstream = \"new\"\ngroup = \"g\"\ncreate = true\n\
             [sink.events]\ntype = \"redis\"\nurl = \"{url}\"\nstream = \"events\"\n\
             [sink.there]\ntype = \"redis\"\nurl = \"{url}\"\nstream = \"there\"\ncreate = false\n"
        )
    };
    let place = Place::new(&config(""));
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    has(&shown, "problem", "source orders", "Redis has no stream `orders`; create it");
    has(&shown, "ok", "source new", "group `g` of stream `new` is not there yet and would be created");
    has(&shown, "ok", "sink events", "stream `events` is not there yet and would be created");
    has(&shown, "problem", "sink there", "there is no stream `there`; create it, or set `create`");

    redis(port, "XGROUP CREATE orders g 0 MKSTREAM");
    redis(port, "XADD orders * id 1 kind k payload x");
    redis(port, "XADD there * id 1 kind k payload x");
    let (code, shown) = check(&place);
    assert_eq!(code, Some(0), "{shown}");
    has(&shown, "ok", "source orders", "takes messages from redis: group `g` of stream `orders`, 1 waiting");
    has(&shown, "ok", "sink there", "sends to redis: stream `there`");
    assert_eq!(redis(port, "XLEN there"), "1", "nothing was sent");
    assert_eq!(redis(port, "EXISTS new events"), "0", "looking makes nothing");
    assert_eq!(redis(port, "XPENDING orders g - + 10"), "0", "nothing was taken");

    redis(port, "SET new text");
    redis(port, "SET events text");
    let (_, shown) = check(&place);
    has(&shown, "problem", "source new", "`new`");
    has(&shown, "problem", "sink events", "`events` is a string, not a stream");
    redis(port, "DEL new events");

    redis(port, "CONFIG SET requirepass sesame");
    let (code, shown) = check(&Place::new(&config(":barley@")));
    assert_eq!(code, Some(1), "{shown}");
    for what in ["source orders", "sink there"] {
        has(&shown, "problem", what, &format!("127.0.0.1:{port} (check user and password)"));
    }
    assert!(!shown.contains("barley"), "{shown}");
    assert_eq!(check(&Place::new(&config(":sesame@"))).0, Some(0));

    server.stop().unwrap();
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    for what in ["source orders", "source new", "sink events", "sink there"] {
        has(&shown, "problem", what, &format!("127.0.0.1:{port} (is it running? check `url`)"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_asks_rabbitmq() {
    use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions};

    let Some(server) = started(PrivateRabbitmq::start()) else { return };
    let url = server.url();
    let config = |password: &str| {
        format!(
            "[defaults.source.rabbitmq]\nurl = \"{url}\"\n{password}[defaults.sink.rabbitmq]\nurl = \"{url}\"\n{password}\
             [source.orders]\ntype = \"rabbitmq\"\nqueue = \"orders\"\n\
             [source.new]\ntype = \"rabbitmq\"\nqueue = \"new\"\ndeclare = \"classic\"\n\
             [sink.events]\ntype = \"rabbitmq\"\nexchange = \"events\"\n\
             [sink.queue]\ntype = \"rabbitmq\"\nrouting_key = \"orders\"\n\
             [sink.kinds]\ntype = \"rabbitmq\"\n"
        )
    };
    let place = Place::new(&config(""));
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    has(&shown, "problem", "source orders", "queue `orders` is not there; create it");
    has(&shown, "ok", "source new", "queue `new` is not there yet and would be created");
    has(&shown, "problem", "sink events", "exchange `events` is not there; create it");
    has(&shown, "problem", "sink queue", "queue `orders` is not there; create it");
    has(&shown, "ok", "sink kinds", "the default exchange");

    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("orders".into(), durable, Default::default()).await.unwrap();
    let (kind, options) = (lapin::ExchangeKind::Topic, ExchangeDeclareOptions::default());
    channel.exchange_declare("events".into(), kind, options, Default::default()).await.unwrap();
    channel.confirm_select(Default::default()).await.unwrap();
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish("".into(), "orders".into(), options, b"x", Default::default()).await;
    sent.unwrap().await.unwrap();
    let (code, shown) = check(&place);
    assert_eq!(code, Some(0), "{shown}");
    has(&shown, "ok", "source orders", "takes messages from rabbitmq: queue `orders`, 1 waiting");
    has(&shown, "ok", "sink events", "sends to rabbitmq: exchange `events`");
    has(&shown, "ok", "sink queue", "queue `orders`");
    let queues = server.control(&["list_queues", "--silent", "name", "messages", "consumers"]).unwrap();
    assert_eq!(
        queues.split_whitespace().collect::<Vec<_>>(),
        ["orders", "1", "0"],
        "nothing taken, sent or made"
    );

    let (code, shown) = check(&Place::new(&config("password = \"barley\"\n")));
    assert_eq!(code, Some(1), "{shown}");
    for what in ["source orders", "sink events"] {
        has(&shown, "problem", what, "check `username` and `password`");
    }
    assert!(!shown.contains("barley"), "{shown}");

    let port = server.port();
    server.stop().unwrap();
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    for what in ["source orders", "source new", "sink events", "sink queue", "sink kinds"] {
        has(&shown, "problem", what, &format!("127.0.0.1:{port} (is it running? check `url`)"));
    }
}

/// One after the other, six that say nothing would take half a minute.
#[test]
fn all_are_asked_at_one_time_and_none_for_ever() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let config: String = (0..6)
        .map(|number| {
            format!(
                "[source.s{number}]\ntype = \"rabbitmq\"\nurl = \"amqp://{address}\"\nqueue = \"q\"\nconnect_timeout = \"5s\"\n"
            )
        })
        .collect();
    let begun_at = Instant::now();
    let output = Place::new(&config).run(&["check", "--json"]);
    let took = begun_at.elapsed();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["good"]), (Some(1), &Value::Bool(false)));
    let findings = report["findings"].as_array().unwrap();
    let late = format!("RabbitMQ at {address} did not answer within 5s; check `url`");
    assert_eq!(findings.iter().filter(|one| one["problem"] == late.as_str()).count(), 6, "{report}");
    assert!(took < Duration::from_secs(25), "it took {took:?}");
}

/// A host that is away is told of handlers and collectors as well, also when there is no database yet.
#[test]
fn hosts_of_handlers_and_of_the_collector_are_asked() {
    let place = Place::new(
        "[telemetry]\notlp = \"http://127.0.0.1:1\"\n[handler.h]\non = [\"*\"]\nhttp = \"http://127.0.0.1:1/\"\n\
         [handler.s]\non = [\"*\"]\nsql = \"select :id\"\n",
    );
    let (code, shown) = check(&place);
    assert_eq!(code, Some(1), "{shown}");
    has(&shown, "ok", "store", "SQLite, whose file `oncebox.db` is not there yet and would be created");
    has(&shown, "problem", "telemetry", "sends traces to 127.0.0.1: `127.0.0.1` port 1 cannot be reached");
    has(
        &shown,
        "problem",
        "handler h",
        "`127.0.0.1` port 1 cannot be reached (is it running? check the address)",
    );
    has(&shown, "ok", "handler s", "not tried without a database");
}
