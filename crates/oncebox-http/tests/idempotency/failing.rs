//! Clients that go away, handlers that misbehave, a store that is away.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::ResponseStore;
use oncebox_testkit::{Fault, How, Plan, Side, Subject};

use crate::app::{placed, serve, serve_with};
use crate::client::{order, post};

fn once(method: &'static str, side: Side) -> Plan {
    Plan::with(Fault { method, call: 1, side, how: How::ErrorOnce })
}

pub(crate) async fn a_client_that_goes_away_leaves_nothing_behind<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let lease = Duration::from_secs(3600);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.lease(lease)).await;
    for (round, key) in ["a", "b", "c"].into_iter().enumerate() {
        let ask = order(server.address, key, key);
        let stream = ask.clone().told("wait").start().await.unwrap();
        server.entered(round + 1).await;
        drop(stream);
        // Long before the lease is over: the layer gave the key up.
        let reply = ask.insist().await;
        assert_eq!((reply.status, reply.is_replay()), (201, false));
    }
    assert_eq!(placed(&*subject).await, ["a", "b", "c"]);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn a_swallowed_sql_error_is_no_success<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    not_committed(subject, "swallow").await;
}

pub(crate) async fn a_handler_that_ends_its_transaction_has_failed<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    not_committed(subject, "end").await;
}

async fn not_committed<T: Subject>(subject: T, told: &str)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = order(server.address, "a", "one");
    let failed = ask.clone().told(told).send().await;
    // Where the database refuses only the statement, the handler has done nothing wrong.
    if failed.status != 201 {
        failed.assert_problem(500, "not-committed");
        assert!(failed.body.contains("return SQL errors"), "{failed:?}");
        assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    }
    assert_eq!(ask.send().await.status, 201);
    assert_eq!(placed(&*subject).await, ["one"]);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn an_error_at_commit_is_no_success<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = order(server.address, "a", "one");
    let failed = ask.clone().told("fail at commit").send().await;
    assert_eq!(failed.status, 500, "{failed:?}");
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    assert_eq!(ask.send().await.status, 201);
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_handler_that_keeps_its_transaction_has_failed<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    if !T::FACTS.parallel_transactions {
        // Nobody else can write while it keeps the only writer.
        return;
    }
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = order(server.address, "a", "one");
    ask.clone().told("keep").send().await.assert_problem(500, "store-failed");
    assert_eq!(ask.insist().await.status, 201);
    assert_eq!(placed(&*subject).await, ["one"]);
}

/// The database is asked, and the request is not run again.
pub(crate) async fn a_commit_whose_outcome_is_unknown_is_looked_up<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), once("commit", Side::After), |layer| layer).await;
    let ask = order(server.address, "a", "one");
    let reply = ask.send().await;
    assert_eq!((reply.status, reply.body.as_str()), (201, "order 1"));
    assert_eq!(ask.send().await.body, "order 1");
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_commit_that_failed_is_undone<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), once("commit", Side::Before), |layer| layer).await;
    let ask = order(server.address, "a", "one");
    let failed = ask.send().await;
    failed.assert_problem(503, "store-away");
    assert_eq!(failed.header("retry-after"), Some("1"));
    assert_eq!(ask.send().await.body, "order 2", "its key was given up");
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_store_that_is_away_is_told<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    for (method, side) in [
        ("claim_response", Side::Before),
        ("claim_response", Side::After),
        ("begin_response", Side::Before),
        ("begin_response", Side::After),
    ] {
        let name = format!("{method} {side:?}");
        let server = serve_with(&subject, subject.store(), once(method, side), |layer| layer).await;
        let ask = order(server.address, &name, &name);
        let failed = ask.send().await;
        failed.assert_problem(503, "store-away");
        assert!(!failed.body.contains("on purpose"), "the error is for the log: {failed:?}");
        let reply = ask.insist().await;
        assert_eq!((reply.status, reply.is_replay()), (201, false), "{name}");
    }
    assert_eq!(placed(&*subject).await.len(), 4);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn a_response_that_cannot_be_written_at_once_is_written_later<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    for (number, side) in [Side::Before, Side::After].into_iter().enumerate() {
        let plan = once("settle_response", side);
        let server = serve_with(&subject, subject.store(), plan, |layer| layer).await;
        let key = format!("\"{number}\"");
        let ask = post(server.address, "/mails", &key).header("idempotency-key", key.clone());
        let first = ask.send().await;
        assert_eq!(first.status, 201, "{first:?}");
        assert_eq!(ask.send().await.body, first.body);
    }
    assert_eq!(placed(&*subject).await, ["\"0\"", "\"1\""]);
}
