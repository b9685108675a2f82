//! Settings that nothing else needs: each test fails when its key is ignored.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use oncebox_core::{Message, Sink, Source};
use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig, TlsConfig};
use oncebox_testkit::{until, within_deadline};
use rumqttc::QoS;
use support::{Observer, fresh_name};
use xtask::mosquitto::PrivateMosquitto;

macro_rules! server {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server,
            None => return,
        }
    };
}

fn message() -> [Message; 1] {
    [Message::with_id("1", "order.placed", "x")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_carries_how_long_it_is_kept_and_the_server_knows_who_sends_it() {
    let server = server!();
    let name = fresh_name();
    let (port, topic) = (server.port(), format!("{name}/#"));
    let observer = Observer::subscribe(&format!("{name}-observer"), port, &topic, QoS::AtLeastOnce).await;
    let config = MqttSinkConfig::new(server.url())
        .topic(format!("{name}/{{kind}}"))
        .client_id(format!("{name}-sink"))
        .message_expiry(Duration::from_secs(1000))
        .retain(true);
    assert_eq!(MqttSink::new(config).unwrap().send(&message()).await.unwrap(), [Ok(())]);
    until("it has come", || async { !observer.got().is_empty() }).await;
    let expiry =
        observer.got()[0].properties.as_ref().and_then(|properties| properties.message_expiry_interval);
    assert!(expiry.is_some_and(|seconds| (1..=1000).contains(&seconds)), "{expiry:?}");
    let late = Observer::subscribe(&format!("{name}-late"), port, &topic, QoS::AtLeastOnce).await;
    until("who subscribes later gets it too", || async { !late.got().is_empty() }).await;
    let log = server.folder().join("server.log");
    until("the server has written who came", || async {
        let log = std::fs::read_to_string(&log).unwrap();
        log.lines().any(|line| line.contains(&format!(" as {name}-sink ")))
    })
    .await;
}

/// The server takes the connection and says nothing; who has less time gives up first.
#[tokio::test(flavor = "multi_thread")]
async fn connecting_takes_no_longer_than_it_may() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://{}", silent.local_addr().unwrap());
    let sink = |seconds| {
        let connect_timeout = Duration::from_secs(seconds);
        MqttSink::new(MqttSinkConfig { connect_timeout, ..MqttSinkConfig::new(&url) }).unwrap()
    };
    let source = |seconds| {
        let connect_timeout = Duration::from_secs(seconds);
        let config = MqttSourceConfig { connect_timeout, ..MqttSourceConfig::new(&url, "c").topic("t") };
        MqttSource::new("orders", config).unwrap()
    };
    within_deadline(async {
        let (short, long, message) = (sink(1), sink(25), message());
        tokio::select! {
            answers = short.send(&message) => assert!(answers.is_err()),
            answers = long.send(&message) => panic!("it had more time: {answers:?}"),
        }
        let (mut short, mut long) = (source(1), source(25));
        tokio::select! {
            next = short.next(1) => assert!(next.is_err()),
            next = long.next(1) => panic!("it had more time: {next:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_client_certificate_are_read() {
    if xtask::mosquitto::program().is_err() {
        return;
    }
    let server = tokio::task::spawn_blocking(|| PrivateMosquitto::start_tls().unwrap()).await.unwrap();
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let good = TlsConfig {
        ca: Some(files.authority.clone()),
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
    };
    let nowhere = || Some("/nowhere.pem".into());
    for (tls, missing) in [
        (good.clone(), None),
        (TlsConfig { certificate: nowhere(), ..good.clone() }, Some("`tls.certificate`")),
        (TlsConfig { key: nowhere(), ..good }, Some("`tls.key`")),
    ] {
        let sink = MqttSink::new(MqttSinkConfig::new(&url).tls(tls.clone())).unwrap();
        let source = MqttSourceConfig::new(&url, fresh_name()).topic("t").tls(tls);
        let mut source = MqttSource::new("orders", source).unwrap();
        for checked in [sink.check().await, source.check().await] {
            match missing {
                None => drop(checked.unwrap()),
                Some(key) => assert!(checked.unwrap_err().to_string().contains(key)),
            }
        }
    }
}
