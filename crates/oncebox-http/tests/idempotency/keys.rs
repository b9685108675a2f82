//! The header, and what a key belongs to.

use std::sync::Arc;

use oncebox_core::ResponseStore;
use oncebox_testkit::Subject;

use crate::app::{placed, serve, serve_with};
use crate::client::{order, post, request};
use oncebox_testkit::Plan;

pub(crate) async fn the_first_request_runs_and_its_copies_get_its_response<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let first = order(server.address, "a", "one").send().await;
    assert_eq!((first.status, first.body.as_str()), (201, "order 1"));
    assert!(!first.is_replay());
    for _ in 0..3 {
        let again = order(server.address, "a", "one").send().await;
        assert_eq!((again.status, again.body.as_str()), (201, "order 1"));
        assert!(again.is_replay());
    }
    let other = order(server.address, "b", "two").send().await;
    assert_eq!((other.status, other.body.as_str(), other.is_replay()), (201, "order 2", false));
    assert_eq!(placed(&*subject).await, ["one", "two"]);
}

pub(crate) async fn a_missing_key_is_refused_where_it_is_required<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.required()).await;
    let missing = post(server.address, "/orders", "one").send().await;
    missing.assert_problem(400, "key-missing");
    assert!(missing.body.contains("`Idempotency-Key`"), "{missing:?}");
    request(server.address, "PATCH", "/orders", "one").send().await.assert_problem(400, "key-missing");
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    // What is idempotent by itself needs no key.
    assert_eq!(request(server.address, "GET", "/orders", "read").send().await.status, 201);
}

pub(crate) async fn a_missing_key_runs_where_it_is_not_required<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for number in 1..=2 {
        let reply = post(server.address, "/orders", "one").send().await;
        assert_eq!((reply.status, reply.body), (201, format!("order {number}")));
    }
    for status in ["404", "500"] {
        let reply = post(server.address, "/orders", "undone").told(status).send().await;
        assert_eq!(reply.status.to_string(), status);
    }
    post(server.address, "/orders", "undone")
        .told("swallow")
        .send()
        .await
        .assert_problem(500, "not-committed");
    assert_eq!(placed(&*subject).await, ["one", "one"], "its transaction is its own");
    assert_eq!(subject.stuck_transactions().await, 0);
}

pub(crate) async fn two_keys_are_refused<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for second in ["\"a\"", "\"b\"", "b"] {
        let twice = order(server.address, "a", "one").header("Idempotency-Key", second);
        twice.send().await.assert_problem(400, "key-invalid");
    }
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
}

pub(crate) async fn what_is_no_string_is_refused<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let huge = format!("\"{}\"", "k".repeat(10_000)).into_bytes();
    let wrong: [&[u8]; 9] = [
        b"bare",
        b"",
        b"\"\"",
        b"\"open",
        b"\"a\", \"b\"",
        b"\"\xff\xfe\"",
        b"\"caf\xc3\xa9\"",
        b"?1",
        &huge,
    ];
    for value in wrong {
        let reply = post(server.address, "/orders", "one").header("idempotency-key", value).send().await;
        reply.assert_problem(400, "key-invalid");
    }
    assert_eq!(placed(&*subject).await, [] as [&str; 0]);
    let longest = order(server.address, &"k".repeat(255), "one").send().await;
    assert_eq!(longest.status, 201);
}

pub(crate) async fn a_bare_key_is_read_where_it_is_allowed<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.allow_bare_keys()).await;
    let bare = post(server.address, "/orders", "one").header("idempotency-key", "8e03978e-40d5");
    assert_eq!(bare.send().await.status, 201);
    assert!(bare.send().await.is_replay());
    assert!(order(server.address, "8e03978e-40d5", "one").send().await.is_replay(), "the same key in quotes");
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn other_content_is_refused<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let first = order(server.address, "a", "one").told("wait");
    let (first, ()) = tokio::join!(first.send(), async {
        server.entered(1).await;
        order(server.address, "a", "two").send().await.assert_problem(422, "key-reused");
        server.open();
    });
    assert_eq!(first.status, 201);
    for other in [
        order(server.address, "a", "two"),
        order(server.address, "a", "one").header("content-type", "text/x"),
        post(server.address, "/orders?dry=1", "one").header("idempotency-key", "\"a\""),
    ] {
        let refused = other.send().await;
        refused.assert_problem(422, "key-reused");
        assert!(refused.body.contains("use a new key"), "{refused:?}");
    }
    assert!(order(server.address, "a", "one").send().await.is_replay());
    assert_eq!(placed(&*subject).await, ["one"]);
}

pub(crate) async fn a_request_in_flight_is_a_conflict_at_once<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    for (path, waiting) in [("/orders", 1), ("/mails", 2)] {
        let ask = post(server.address, path, path).header("idempotency-key", "\"a\"");
        let first = tokio::spawn({
            let ask = ask.clone().told("wait");
            async move { ask.send().await }
        });
        server.entered(waiting).await;
        // The first one cannot go on before this is answered.
        let copy = ask.send().await;
        copy.assert_problem(409, "in-flight");
        assert_eq!(copy.header("retry-after"), Some("1"));
        server.open();
        let first = first.await.unwrap();
        assert_eq!(first.status, 201);
        assert_eq!(ask.send().await.body, first.body);
        server.app.close();
    }
    assert_eq!(placed(&*subject).await, ["/mails", "/orders"]);
}

/// B cannot even find out whether A has used the key.
pub(crate) async fn a_key_belongs_to_its_caller<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let by =
        |token: &str| order(server.address, "a", "one").header("authorization", format!("Bearer {token}"));
    let alice = by("alice").send().await;
    let bob = by("bob").send().await;
    assert_eq!((alice.body.as_str(), bob.body.as_str()), ("order 1", "order 2"));
    assert!(!bob.is_replay());
    let other_content =
        order(server.address, "a", "two").header("authorization", "Bearer carol").send().await;
    assert_eq!(other_content.status, 201, "not even 422");
    assert_eq!(order(server.address, "a", "one").send().await.body, "order 4", "nobody is somebody else");
    assert_eq!(by("alice").send().await.body, "order 1");
    assert_eq!(by("bob").send().await.body, "order 2");
    // A session in a cookie is not understood, and must not make all users one caller.
    let cookie = order(server.address, "a", "one").header("cookie", "session=1").send().await;
    cookie.assert_problem(500, "caller-not-told");
    assert_eq!(placed(&*subject).await, ["one", "one", "one", "two"]);
}

pub(crate) async fn a_key_belongs_to_its_route_and_method<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve(&subject).await;
    let on = |method: &str, path: &str| {
        request(server.address, method, path, "one").header("idempotency-key", "\"a\"")
    };
    for (number, (method, path)) in
        [("POST", "/orders"), ("PATCH", "/orders"), ("POST", "/orders/7/refunds")].into_iter().enumerate()
    {
        let reply = on(method, path).send().await;
        assert_eq!((reply.status, reply.body), (201, format!("order {}", number + 1)), "{method} {path}");
    }
    on("POST", "/orders/8/refunds").send().await.assert_problem(422, "key-reused");
    assert!(on("POST", "/orders/7/refunds").send().await.is_replay());
    // Keys mean nothing where a method is idempotent by itself.
    assert_eq!(on("GET", "/orders").send().await.body, "order 4");
    assert_eq!(on("GET", "/orders").send().await.body, "order 5");
}

pub(crate) async fn callers_can_be_told_apart_by_the_application<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let server = serve_with(&subject, subject.store(), Plan::none(), |layer| {
        layer.caller(|parts| parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned))
    })
    .await;
    let by = |tenant: &str, token: &str| {
        let ask = order(server.address, "a", "one").header("authorization", token);
        ask.header("cookie", "session=1").header("x-tenant", tenant)
    };
    assert_eq!(by("alice", "token 1").send().await.body, "order 1");
    assert!(by("alice", "token 2").send().await.is_replay(), "a renewed token is the same caller");
    assert_eq!(by("bob", "token 1").send().await.body, "order 2");
    order(server.address, "a", "one").send().await.assert_problem(401, "caller-unknown");
    assert_eq!(placed(&*subject).await, ["one", "one"]);
}
