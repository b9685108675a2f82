//! Settings that nothing else needs: each test fails when its key is ignored.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy;
use oncebox_core::{Message, Sink, Source};
use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig, NatsTls};
use oncebox_testkit::{Proxy, within_deadline};
use support::{Plain, fresh_number, own_server, shared_server};
use xtask::certificates::Certificates;
use xtask::nats::PrivateNats;

async fn refused(config: NatsSourceConfig) -> String {
    NatsSource::new("orders", config).unwrap().lag().await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_domain_is_asked_instead_of_the_account() {
    let Some(server) = shared_server().await else { return };
    let stream = format!("domain-{}", fresh_number());
    let mut config = NatsSourceConfig::new(server.url(), &stream, "c").create([format!("{stream}.>")]);
    config.domain = Some("elsewhere".to_owned());
    let error = refused(config.clone()).await;
    assert!(error.contains("JetStream is not enabled"), "{error}");
    config.domain = None;
    NatsSource::new("orders", config).unwrap().lag().await.unwrap();
}

#[tokio::test]
async fn replicas_and_limits_of_a_consumer_are_those_asked_for() {
    let Some(server) = shared_server().await else { return };
    let stream = format!("limits-{}", fresh_number());
    let mut config = NatsSourceConfig::new(server.url(), &stream, "c").create([format!("{stream}.>")]);
    config.replicas = 3;
    let error = refused(config.clone()).await;
    assert!(error.contains("replicas"), "one server cannot keep three copies: {error}");
    config.replicas = 1;
    config.max_ack_pending = Some(5);
    config.ack_wait = Duration::from_secs(77);
    NatsSource::new("orders", config).unwrap().lag().await.unwrap();
    let consumer = Plain::connect(&server.url()).await.consumer(&stream, "c").await.unwrap();
    assert_eq!((consumer.config.max_ack_pending, consumer.config.ack_wait), (5, Duration::from_secs(77)));
}

#[tokio::test]
async fn a_sink_with_a_subject_sends_everything_there() {
    let Some(server) = shared_server().await else { return };
    let stream = format!("subject-{}", fresh_number());
    let plain = Plain::connect(&server.url()).await;
    plain.create_stream(&stream, &format!("{stream}.>"), RetentionPolicy::Limits).await;
    let config = NatsSinkConfig::new(server.url()).subject(format!("{stream}.all"));
    let message = Message::new("kind.that.nobody.takes", "x").id("1");
    assert_eq!(NatsSink::new(config).unwrap().send(&[message]).await.unwrap(), [Ok(())]);
}

/// Both wait for a confirmation that never comes; who has less time gives up first.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_is_waited_for_as_long_as_the_timeout_says() {
    let Some(server) = shared_server().await else { return };
    let stream = format!("timeout-{}", fresh_number());
    let plain = Plain::connect(&server.url()).await;
    plain.create_stream(&stream, &format!("{stream}.>"), RetentionPolicy::Limits).await;
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let sink = |seconds| {
        let config = NatsSinkConfig::new(format!("nats://{}", proxy.address())).prefix(&stream);
        NatsSink::new(config.timeout(Duration::from_secs(seconds))).unwrap()
    };
    let (short, long) = (sink(1), sink(20));
    let message = [Message::new("k", "x").id("1")];
    within_deadline(async {
        for sink in [&short, &long] {
            assert_eq!(sink.send(&message).await.unwrap(), [Ok(())]);
        }
        proxy.freeze();
        tokio::select! {
            answers = short.send(&message) => assert!(answers.unwrap()[0].is_err()),
            answers = long.send(&message) => panic!("it had more time: {answers:?}"),
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_shows_its_certificate_and_begins_with_tls_where_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let files = Certificates::create(folder.path()).unwrap();
    let settings = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        files.certificate, files.key, files.authority
    );
    let Some(server) = own_server(move || PrivateNats::start_with(&settings)).await else { return };
    let url = format!("tls://127.0.0.1:{}", server.port());
    let trusting = NatsTls { ca: Some(files.authority.clone()), ..NatsTls::default() };
    let known = NatsTls { certificate: Some(files.certificate), key: Some(files.key), ..trusting.clone() };
    let early = NatsTls { first: true, ..known.clone() };
    for (tls, is_let_in) in [(known, true), (trusting, false), (early, false)] {
        let config = NatsSourceConfig::new(&url, "S", "c").create(["s.>"]).tls(tls.clone());
        let asked = NatsSource::new("orders", config).unwrap().lag().await;
        assert_eq!(asked.is_ok(), is_let_in, "{tls:?}: {asked:?}");
        let sink = NatsSink::new(NatsSinkConfig::new(&url).subject("s.x").tls(tls)).unwrap();
        assert_eq!(sink.check().await.is_ok(), is_let_in);
    }
}

#[tokio::test]
async fn where_tls_is_required_a_server_without_it_is_refused() {
    let Some(server) = shared_server().await else { return };
    let tls = NatsTls { required: true, ..NatsTls::default() };
    let mut sink = NatsSinkConfig::new(server.url());
    sink.tls = tls.clone();
    assert!(NatsSink::new(sink).unwrap().check().await.is_err());
    let mut source = NatsSourceConfig::new(server.url(), "S", "c");
    source.tls = tls;
    let error = NatsSource::new("orders", source).unwrap().check().await.unwrap_err().to_string();
    assert!(error.contains("cannot connect"), "{error}");
}
