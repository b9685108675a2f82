//! Futures dropped at any await leave no connection behind in a transaction.

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use common::{DAY, LIMITS, MINUTE, arrivals, everything, message, moved};
use oncebox_core::Store;
use oncebox_core::admin::DeliveryFilter;
use oncebox_core::store::{
    AskLease, AskOutgoing, Claim, Commit, Connection, LaneBound, ParkState, ReadInline, ReadLanes, Retention,
};

/// Polls up to this often, giving the driver time in between; true when the future was finished.
async fn poll_times<F: Future>(future: F, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = {
            let mut context = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut context)
        };
        if polled.is_ready() {
            return true;
        }
        // Long enough for most answers to arrive, so that the next poll gets further.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_never_leaves_a_transaction_in_the_pool() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        scratch.register("h", true).await;
        let store = &scratch.store;
        let kinds = everything();
        let mut finished = 0;
        for times in 1..14 {
            let id = |what: &str| format!("{what}-{times}");
            let fresh = arrivals(vec![message(id("a")), message(id("b")).key("k")]);
            finished += usize::from(poll_times(store.receive(&fresh), times).await);
            store.receive(&fresh).await.unwrap();

            let token = scratch.token();
            let claim = Claim { handler: "h", token, lanes: 32, limit: 10 };
            finished += usize::from(poll_times(store.claim(&claim), times).await);
            scratch.clock.advance(MINUTE);
            let lanes: Vec<LaneBound> = store
                .claim(&claim)
                .await
                .unwrap()
                .iter()
                .map(|claimed| LaneBound { lane: claimed.lane, upto: None })
                .collect();
            let read = ReadLanes {
                handler: "h",
                token,
                lanes: &lanes,
                limit: 100,
                kinds: &kinds,
                ordered: true,
                limits: LIMITS,
            };
            finished += usize::from(poll_times(store.begin_lanes(&read), times).await);
            let inline = arrivals(vec![message(id("inline"))]);
            let ask = ReadInline { arrivals: &inline, ordered: &[], limits: LIMITS };
            finished += usize::from(poll_times(store.begin_inline(&ask), times).await);
            finished += usize::from(poll_times(store.begin_plain(LIMITS), times).await);

            let mut tx = store.begin_plain(LIMITS).await.unwrap();
            sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
            let park = vec![common::parked("h", message(id("p")), ParkState::Ready(Duration::ZERO))];
            let commit = Commit { park, outgoing: vec![message(id("o"))], ..Commit::default() };
            finished += usize::from(poll_times(store.commit(tx, commit), times).await);
            let tx = store.begin_plain(LIMITS).await.unwrap();
            finished += usize::from(poll_times(store.commit(tx, Commit::default()), times).await);
            let tx = store.begin_plain(LIMITS).await.unwrap();
            finished += usize::from(poll_times(tx.rollback(), times).await);

            let ask = AskLease {
                handler: "h",
                token,
                limit: 10,
                lease_for: Duration::from_millis(1),
                ordered: true,
            };
            finished += usize::from(poll_times(store.lease(&ask), times).await);
            let ask = AskOutgoing { sink: "", token, limit: 10, lease_for: MINUTE };
            finished += usize::from(poll_times(store.lease_outgoing(&ask), times).await);
            finished += usize::from(poll_times(store.settle_outgoing("", token, &[], true), times).await);
            finished += usize::from(poll_times(store.replay(&DeliveryFilter::all()), times).await);
            finished += usize::from(poll_times(store.discard(&DeliveryFilter::all(), "x"), times).await);
            let retention = Retention { keep: DAY, payload: DAY, step: 10 };
            finished += usize::from(poll_times(store.purge(&retention), times).await);
            finished += usize::from(poll_times(store.migrate(), times).await);
            let again = [common::registration("h", true)];
            finished += usize::from(poll_times(store.register(&again), times).await);
            finished += usize::from(poll_times(store.announce(), times).await);
        }
        assert!(finished > 20, "the sweep must get to the end of some of them: {finished}");

        scratch.until_no_transaction_is_open().await;

        // Every connection of the pool still works, and what is written on it is there for others.
        let before = scratch.count_effects().await;
        for _ in 0..20 {
            let mut connection = scratch.pool.acquire().await.unwrap();
            sqlx::query(scratch.effect()).execute(&mut *connection).await.unwrap();
        }
        assert_eq!(scratch.count_effects().await, before + 20);
        scratch.clock.advance(MINUTE);
        let (token, batch) = scratch.read("h", true).await;
        let commit = Commit { lanes: Some(moved("h", token, &batch)), ..Commit::default() };
        scratch.store.commit(batch.connection, commit).await.unwrap();
        assert_eq!(scratch.store.handlers().await.unwrap()[0].waiting, 0);
    })
    .await;
}
