//! Consumers that somebody else has created, and what a source says to their settings.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::RetentionPolicy;
use futures_util::StreamExt;
use oncebox_core::{Settle, Source};
use oncebox_nats::{NatsSource, NatsSourceConfig};
use oncebox_testkit::within_deadline;
use support::{Log, Plain, fresh_number, shared_server};
use tracing::Level;

/// A stream with a consumer `c` of these settings, and a source of it.
async fn create(settings: pull::Config) -> Option<(Plain, String, NatsSource)> {
    let server = shared_server().await?;
    let plain = Plain::connect(&server.url()).await;
    let stream = format!("consumer-{}", fresh_number());
    plain.create_stream(&stream, &format!("{stream}.>"), RetentionPolicy::Limits).await;
    let explicit = AckPolicy::Explicit;
    let consumer = pull::Config { durable_name: Some("c".to_owned()), ack_policy: explicit, ..settings };
    plain.create_consumer(&stream, consumer).await;
    let config = NatsSourceConfig::new(server.url(), &stream, "c").return_delay(Duration::from_millis(20));
    Some((plain, stream, NatsSource::new("orders", config).unwrap()))
}

/// What the log says about a limit to deliveries.
fn warnings(log: &Log) -> Vec<String> {
    log.lines(Level::WARN, &["consumer=\"c\"", "max_deliver", "set max_deliver to -1"])
}

// One test for both: a warning that is first given on a thread without a log is taken as wanted by nobody.
#[tokio::test]
async fn a_consumer_that_gives_messages_up_is_warned_of_and_no_other_one() {
    let (log, _guard) = Log::begin();
    let with_limit = |max_deliver| create(pull::Config { max_deliver, ..pull::Config::default() });
    let Some((_, _, mut source)) = with_limit(-1).await else { return };
    let Some((plain, stream, mut giving_up)) = with_limit(2).await else { return };
    within_deadline(async {
        source.check().await.unwrap();
        source.lag().await.unwrap();
        assert_eq!(warnings(&log), [""; 0]);

        giving_up.check().await.unwrap();
        assert_eq!(warnings(&log).len(), 1, "by the check");
        giving_up.lag().await.unwrap();
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 2, "by the source");
        assert!(warnings.iter().all(|line| line.contains("max_deliver=2")), "{warnings:?}");
        is_given_up(&plain, &stream, &mut giving_up).await;
    })
    .await;
}

/// Returns a message twice; then the server gives it up.
async fn is_given_up(plain: &Plain, stream: &str, source: &mut NatsSource) {
    let client = plain.jetstream.client();
    let told = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.c");
    let mut given_up = client.subscribe(told).await.unwrap();
    client.flush().await.unwrap();
    plain.publish(format!("{stream}.put"), HeaderMap::new(), "body".into()).await.unwrap();
    for _ in 0..2 {
        let taken = source.next(1).await.unwrap();
        let returned = taken.into_iter().map(|one| (one.receipt, Settle::Return));
        source.settle(returned.collect()).await.unwrap();
    }
    given_up.next().await.unwrap();
    let info = plain.consumer(stream, "c").await.unwrap();
    assert_eq!((info.num_pending, info.num_ack_pending), (0, 0), "though nobody has stored it");
}

#[tokio::test]
async fn a_consumer_that_delivers_headers_only_is_refused() {
    let settings = pull::Config { headers_only: true, ..pull::Config::default() };
    let Some((_, _, mut source)) = create(settings).await else { return };
    within_deadline(async {
        for refused in [source.check().await.map(drop), source.next(1).await.map(drop)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("consumer `c` delivers headers only"), "{error}");
            assert!(error.contains("create it without `headers_only`"), "{error}");
        }
    })
    .await;
}
