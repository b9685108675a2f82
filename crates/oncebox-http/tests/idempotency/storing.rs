//! What is stored, what is undone, and what may run again.

use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::{Inbox, ResponseStore, run};
use oncebox_testkit::{Manners, MemoryBroker, Plan, Subject, until};

use crate::app::{placed, serve, serve_with};
use crate::client::{order, post};

pub(crate) async fn a_replay_has_status_headers_and_body_but_no_secrets<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let first = order(server.address, "a", "one").send().await;
    assert_eq!(first.header("set-cookie"), Some("secret=1"));
    let again = order(server.address, "a", "one").send().await;
    assert!(again.is_replay());
    assert_eq!((again.status, again.body.as_str()), (first.status, first.body.as_str()));
    for name in ["location", "x-kind", "content-type", "content-length"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    assert_eq!(again.header("set-cookie"), None);
    // Not the stored date: one of this response.
    assert_eq!(again.headers.iter().filter(|(name, _)| name == "date").count(), 1);
}

pub(crate) async fn a_refusal_is_stored_and_its_work_undone<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for status in [400, 404, 409, 422] {
        let ask = order(server.address, &format!("key {status}"), "undone");
        let first = ask.clone().told(&status.to_string()).send().await;
        assert_eq!(first.status, status);
        let again = ask.send().await;
        assert_eq!((again.status, &again.body, again.is_replay()), (status, &first.body, true));
    }
    assert_eq!(server.calls(), 4);
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn not_now_is_not_stored<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for status in ["401", "403", "408", "425", "429"] {
        let ask = order(server.address, status, status);
        assert_eq!(ask.clone().told(status).send().await.status.to_string(), status);
        assert_eq!(ask.send().await.status, 201, "{status} may be otherwise the next time");
    }
    assert_eq!(placed(&*subject).await, ["401", "403", "408", "425", "429"]);
}

pub(crate) async fn a_failure_is_undone_and_the_next_request_runs<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = order(server.address, "a", "one");
    for status in ["500", "502", "503", "500"] {
        assert_eq!(ask.clone().told(status).send().await.status.to_string(), status);
        assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    }
    assert_eq!(ask.send().await.body, "order 5");
    assert_eq!(ask.clone().told("500").send().await.body, "order 5", "it is stored now");
    assert_eq!(placed(&*subject).await, ["one"]);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn a_panic_is_undone_and_the_next_request_runs<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for path in ["/orders", "/mails"] {
        let ask = post(server.address, path, path).header("idempotency-key", "\"a\"");
        // Without a layer that catches panics the connection is closed, as it is without ours.
        assert_eq!(ask.clone().told("panic").try_send().await, None);
        // The claim was given up before the connection was closed.
        assert_eq!(ask.send().await.status, 201);
        assert!(ask.send().await.is_replay());
    }
    // A mail is an effect outside of the transaction: at least once.
    assert_eq!(placed(&*subject).await, ["/mails", "/mails", "/orders"]);
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn a_handler_without_a_transaction_runs_once_while_all_goes_well<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = post(server.address, "/mails", "one").header("idempotency-key", "\"a\"");
    let first = ask.send().await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    for _ in 0..3 {
        let again = ask.clone().told("500").send().await;
        assert_eq!((&again.body, again.is_replay()), (&first.body, true));
    }
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_long_call_without_a_transaction_keeps_its_key<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let plan = Plan::none();
    let lease = Duration::from_secs(6);
    let server = serve_with(&subject, subject.store(), plan.clone(), |layer| layer.lease(lease)).await;
    let ask = post(server.address, "/mails", "one").header("idempotency-key", "\"a\"");
    let first = tokio::spawn({
        let ask = ask.clone().told("wait");
        async move { ask.send().await }
    });
    server.entered(1).await;
    let renewals = || plan.calls().get("renew_response").copied().unwrap_or_default();
    // Asked right after a renewal that was written in time, so that a machine that stood still is not taken for a bug.
    loop {
        let seen = renewals();
        until("a lease is renewed", || ready(renewals() > seen)).await;
        let renewed_at = Instant::now();
        until("the lease is renewed again", || ready(renewals() > seen + 1)).await;
        if renewals() >= 5 && renewed_at.elapsed() < lease / 2 {
            break;
        }
    }
    ask.send().await.assert_problem(409, "in-flight");
    server.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_request_publishes_what_it_commits<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let ask = order(server.address, "a", "one");
    assert_eq!(ask.clone().told("500").send().await.status, 500);
    for _ in 0..3 {
        assert_eq!(ask.clone().told("publish").send().await.status, 201);
    }
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(subject.store())).relay(broker.clone()).drain().await.unwrap();
    let sent: Vec<String> = broker.sent().iter().map(|message| message.id.clone()).collect();
    assert_eq!(sent, ["published"]);
}
