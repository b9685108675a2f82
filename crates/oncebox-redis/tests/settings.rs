//! Settings that nothing else needs: each test fails when its key is ignored.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use oncebox_core::{Message, Sink, Source};
use oncebox_redis::{RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig, RedisTls};
use oncebox_testkit::{DEADLINE, Proxy, within_deadline};
use support::{Plain, fresh_name, own_server, shared_server};
use xtask::redis::PrivateRedis;

#[tokio::test]
async fn no_more_than_prefetch_is_taken_from_the_stream() {
    let Some(server) = shared_server().await else { return };
    let (stream, plain) = (fresh_name("prefetch"), Plain::new(&server.url()));
    for id in ["1", "2", "3", "4", "5"] {
        let fields: [(&[u8], &[u8]); 2] = [(b"id", id.as_bytes()), (b"payload", b"x")];
        plain.add(&stream, &fields).await.unwrap();
    }
    let config = RedisSourceConfig::new(server.url(), &stream, "g").create().prefetch(2);
    let mut source = RedisSource::new("orders", config).unwrap();
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(tokio::time::timeout(DEADLINE, source.next(10)).await.unwrap().unwrap());
    }
    // More would come at once if it might.
    assert!(tokio::time::timeout(Duration::from_millis(500), source.next(10)).await.is_err());
    assert_eq!((taken.len(), plain.of_group(&stream, "g", "pending").await), (2, 2));
}

#[tokio::test]
async fn the_payload_is_in_the_field_that_was_named() {
    let Some(server) = shared_server().await else { return };
    let (stream, plain) = (fresh_name("field"), Plain::new(&server.url()));
    let fields: [(&[u8], &[u8]); 3] = [(b"id", b"1"), (b"body", b"this"), (b"payload", b"that")];
    plain.add(&stream, &fields).await.unwrap();
    let mut config = RedisSourceConfig::new(server.url(), &stream, "g").create();
    config.payload_field = "body".to_owned();
    let mut source = RedisSource::new("orders", config).unwrap();
    let taken = tokio::time::timeout(DEADLINE, source.next(1)).await.unwrap().unwrap();
    assert_eq!(taken[0].message.payload, "this");
}

#[tokio::test]
async fn a_stream_keeps_about_as_many_entries_as_its_sink_says() {
    let Some(server) = shared_server().await else { return };
    let (stream, plain) = (fresh_name("length"), Plain::new(&server.url()));
    let sink = RedisSink::new(RedisSinkConfig::new(server.url(), &stream).max_length(10)).unwrap();
    let many: Vec<Message> = (0..1000).map(|number| Message::new("k", "x").id(number.to_string())).collect();
    assert!(sink.send(&many).await.unwrap().iter().all(Result::is_ok));
    let kept = plain.entries(&stream).await.unwrap().len();
    assert!((10..1000).contains(&kept), "{kept} are left");
}

/// Both wait for a confirmation that never comes; who has less time gives up first.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_is_waited_for_as_long_as_the_timeout_says() {
    let Some(server) = shared_server().await else { return };
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let sink = |seconds| {
        let config = RedisSinkConfig::new(format!("redis://{}", proxy.address()), fresh_name("timeout"));
        RedisSink::new(config.timeout(Duration::from_secs(seconds))).unwrap()
    };
    let (short, long) = (sink(1), sink(30));
    let message = [Message::new("k", "x").id("1")];
    within_deadline(async {
        for sink in [&short, &long] {
            assert_eq!(sink.send(&message).await.unwrap(), [Ok(())]);
        }
        proxy.freeze();
        tokio::select! {
            answers = short.send(&message) => assert!(answers.is_err()),
            answers = long.send(&message) => panic!("it had more time: {answers:?}"),
        }
    })
    .await;
}

#[tokio::test]
async fn the_files_of_a_client_certificate_are_read() {
    let Some(server) = own_server(PrivateRedis::start_tls).await else { return };
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let good = RedisTls {
        ca: Some(files.authority.clone()),
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
    };
    let no_certificate = RedisTls { certificate: Some("/nowhere.pem".into()), ..good.clone() };
    let no_key = RedisTls { key: Some("/nowhere.pem".into()), ..good.clone() };
    for (tls, is_good) in [(good, true), (no_certificate, false), (no_key, false)] {
        let sink = RedisSink::new(RedisSinkConfig::new(&url, "s").tls(tls.clone())).unwrap();
        assert_eq!(sink.check().await.is_ok(), is_good, "{tls:?}");
        let config = RedisSourceConfig::new(&url, "s", "g").create().tls(tls);
        assert_eq!(RedisSource::new("orders", config).unwrap().check().await.is_ok(), is_good);
    }
}
