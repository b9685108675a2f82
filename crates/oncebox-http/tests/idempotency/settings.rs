//! Limits, times and scopes.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::ResponseStore;
use oncebox_testkit::{Fault, How, Plan, Side, Subject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::app::{placed, serve_with};
use crate::client::{order, post};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn a_body_over_the_limit_is_refused<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.request_limit(100)).await;
    let refused = order(server.address, "a", &"x".repeat(101)).send().await;
    refused.assert_problem(413, "body-too-large");
    post(server.address, "/orders", &"x".repeat(101)).send().await.assert_problem(413, "body-too-large");

    // Without a length it is found out while reading, long before the end.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nhost: test\r\nconnection: close\r\nidempotency-key: \"b\"\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("a\r\n{}\r\n", "x".repeat(10));
    for _ in 0..11 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 413");

    let largest = order(server.address, "a", &"x".repeat(100)).send().await;
    assert_eq!((largest.status, largest.is_replay()), (201, false), "a refused request has used no key");
    assert_eq!(placed(&*subject).await, ["x".repeat(100)]);
}

pub(crate) async fn a_response_over_the_limit_is_undone<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let limited = |bytes| {
        let subject = subject.clone();
        async move {
            let store = subject.store();
            serve_with(&subject, store, Plan::none(), |layer| layer.response_limit(bytes)).await
        }
    };
    let (small, large) = (limited(2999).await, limited(3000).await);
    order(small.address, "a", "one").told("large").send().await.assert_problem(500, "response-too-large");
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    let ask = order(large.address, "a", "one").told("large");
    assert_eq!(ask.send().await.body.len(), 3000);
    assert_eq!(ask.send().await.body.len(), 3000);
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_key_is_forgotten_when_its_time_is_over<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.keep(HOUR)).await;
    let ask = order(server.address, "a", "one");
    assert_eq!(ask.send().await.body, "order 1");
    subject.clock().advance(HOUR - Duration::from_secs(60));
    assert_eq!(ask.send().await.body, "order 1");
    subject.clock().advance(Duration::from_secs(61));
    assert_eq!(
        order(server.address, "a", "two").send().await.body,
        "order 2",
        "a new key, whatever its content"
    );
    assert_eq!(placed(&*subject).await, ["one", "two"]);
}

pub(crate) async fn expired_responses_are_removed_by_later_requests<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    // Made known once it has been done.
    let purge = Fault { method: "purge_responses", call: 1, side: Side::After, how: How::ErrorOnce };
    let plan = Plan::with(purge);
    let never = Duration::from_secs(1_000_000);
    let patient =
        serve_with(&subject, subject.store(), plan.clone(), |layer| layer.keep(HOUR).purge_every(never))
            .await;
    for key in ["a", "b", "c"] {
        assert_eq!(order(patient.address, key, key).send().await.status, 201);
    }
    subject.clock().advance(2 * HOUR);
    assert_eq!(order(patient.address, "d", "d").send().await.status, 201);
    assert!(!plan.calls().contains_key("purge_responses"), "it is not yet time");

    let eager = serve_with(&subject, subject.store(), plan.clone(), |layer| {
        layer.keep(HOUR).purge_every(Duration::ZERO)
    })
    .await;
    assert_eq!(order(eager.address, "e", "e").send().await.status, 201);
    plan.struck().await;
    assert_eq!(subject.store().purge_responses(100).await.unwrap(), 0, "they are gone already");
    for key in ["d", "e"] {
        assert!(order(eager.address, key, key).send().await.is_replay(), "{key}");
    }
}

pub(crate) async fn scopes_are_set_apart<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let shop = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.scope("shop")).await;
    let bank = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.scope("bank")).await;
    for server in [&shop, &bank] {
        assert!(!order(server.address, "a", "one").send().await.is_replay());
        assert!(order(server.address, "a", "one").send().await.is_replay());
    }
    assert_eq!(placed(&*subject).await, ["one", "one"]);
}
