//! Copies at the same time, and owners that come too late.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncebox_core::ResponseStore;
use oncebox_testkit::{Fault, How, Plan, Side, Subject};

use crate::app::{Server, placed, serve, serve_with};
use crate::client::{Ask, Reply, order, post};

const COPIES: usize = 50;

/// Two servers, as two processes would be.
async fn two_servers<T: Subject>(subject: &Arc<T>, wait: Duration) -> [Server<T>; 2]
where
    T::Store: ResponseStore,
{
    let other = subject.reopen().await;
    [
        serve_with(subject, subject.store(), Plan::none(), |layer| layer.wait(wait)).await,
        serve_with(subject, other, Plan::none(), |layer| layer.wait(wait)).await,
    ]
}

async fn all_at_once(asks: Vec<Ask>) -> Vec<Reply> {
    join_all(asks.into_iter().map(|ask| tokio::spawn(async move { ask.send().await })))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

pub(crate) async fn fifty_copies_at_once_have_one_effect<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let servers = two_servers(&subject, Duration::ZERO).await;
    for round in 0..3 {
        let key = format!("key {round}");
        let asks: Vec<Ask> = (0..COPIES).map(|copy| order(servers[copy % 2].address, &key, &key)).collect();
        let replies = all_at_once(asks.clone()).await;
        let body = asks[0].insist().await.body;
        let first: Vec<&Reply> =
            replies.iter().filter(|reply| reply.status == 201 && !reply.is_replay()).collect();
        assert_eq!(first.len(), 1, "{replies:?}");
        for reply in &replies {
            match reply.status {
                201 => assert_eq!(reply.body, body),
                _ => reply.assert_problem(409, "in-flight"),
            }
        }
    }
    assert_eq!(placed(&*subject).await, ["key 0", "key 1", "key 2"]);
    assert_eq!(servers[0].calls() + servers[1].calls(), 3);
}

pub(crate) async fn fifty_copies_that_wait_all_get_the_response<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let servers = two_servers(&subject, Duration::from_secs(60)).await;
    for path in ["/orders", "/mails"] {
        let asks = (0..COPIES)
            .map(|copy| post(servers[copy % 2].address, path, path).header("idempotency-key", "\"a\""));
        let replies = all_at_once(asks.collect()).await;
        assert!(
            replies.iter().all(|reply| reply.status == 201 && reply.body == replies[0].body),
            "{replies:?}"
        );
        assert_eq!(replies.iter().filter(|reply| !reply.is_replay()).count(), 1);
    }
    assert_eq!(placed(&*subject).await, ["/mails", "/orders"]);
}

/// The fence, with and without a transaction.
pub(crate) async fn who_has_lost_its_key_answers_nothing<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let lease = Duration::from_secs(600);
    // Stands still after it has claimed the key and before its transaction begins.
    let stall = Fault { method: "begin_response", call: 1, side: Side::Before, how: How::Stall };
    let plan = Plan::with(stall);
    let slow = serve_with(&subject, subject.store(), plan.clone(), |layer| layer.lease(lease)).await;
    let rival = serve(&subject).await;
    let late = tokio::spawn({
        let ask = order(slow.address, "a", "one");
        async move { ask.send().await }
    });
    plan.struck().await;
    order(rival.address, "a", "one").send().await.assert_problem(409, "in-flight");
    subject.clock().advance(lease);
    let reply = order(rival.address, "a", "one").send().await;
    assert_eq!((reply.status, reply.is_replay()), (201, false));
    plan.heal();
    let late = late.await.unwrap();
    assert_eq!((late.status, &late.body, late.is_replay()), (201, &reply.body, true), "it gets the other's");
    assert_eq!(placed(&*subject).await, ["one"]);

    // Without a transaction its effect has happened; its response is still not the one that is kept.
    let late = tokio::spawn({
        let ask = post(slow.address, "/mails", "two").header("idempotency-key", "\"b\"").told("wait");
        async move { ask.send().await }
    });
    slow.entered(1).await;
    subject.clock().advance(lease);
    let ask = post(rival.address, "/mails", "two").header("idempotency-key", "\"b\"");
    let reply = ask.send().await;
    assert_eq!((reply.status, reply.is_replay()), (201, false));
    slow.open();
    let late = late.await.unwrap();
    assert_eq!((&late.body, late.is_replay()), (&reply.body, true));
    assert_eq!(placed(&*subject).await, ["one", "two", "two"]);
}

pub(crate) async fn one_connection_is_enough<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let store = subject.store_with_one_connection().await;
    let server = serve_with(&subject, store, Plan::none(), |layer| layer).await;
    let asks = (0..30).map(|number| {
        let key = format!("{:02}", number % 10);
        let ask = order(server.address, &key, &key);
        tokio::spawn(async move { ask.insist().await })
    });
    for reply in join_all(asks).await {
        assert_eq!(reply.unwrap().status, 201);
    }
    let expected: Vec<String> = (0..10).map(|number| format!("{number:02}")).collect();
    assert_eq!(placed(&*subject).await, expected);
}
