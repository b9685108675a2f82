//! Retention: nothing goes early, nothing unfinished goes at all, and every call is bounded.

#![allow(clippy::unwrap_used)]

mod common;

use common::{DAY, LIMITS, MINUTE, Scratch, message};
use oncebox_core::admin::DeliveryFilter;
use oncebox_core::store::{Commit, Count, ParkState, Purged, Retention};
use oncebox_core::{Message, Received, Store};

const KEEP: Retention = Retention { keep: DAY, payload: DAY, step: 1000 };

async fn purge_all(scratch: &Scratch, retention: &Retention) -> Purged {
    let mut all = Purged::default();
    loop {
        let purged = scratch.store.purge(retention).await.unwrap();
        all.ids += purged.ids;
        all.messages += purged.messages;
        all.others += purged.others;
        if !purged.more {
            return all;
        }
    }
}

#[tokio::test]
async fn ids_and_payloads_go_only_when_old_and_done() {
    common::with_store(async |scratch| {
        scratch.receive(vec![message("unrouted")]).await;
        scratch.clock.advance(DAY * 2);
        assert_eq!(
            purge_all(scratch, &KEEP).await,
            Purged::default(),
            "without handlers nothing is done with"
        );

        scratch.register("h", false).await;
        scratch.receive((0..100).map(|n| message(format!("m{n}"))).collect()).await;
        assert_eq!(purge_all(scratch, &KEEP).await.messages, 1, "a new handler begins after it");
        scratch.clock.advance(DAY - MINUTE);
        scratch.process_all("h").await;
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!((purged.ids, purged.messages), (0, 0), "a minute too early");
        scratch.receive(vec![message("waiting")]).await;
        scratch.clock.advance(MINUTE * 2);
        let short = Retention { keep: DAY * 30, ..KEEP };
        assert_eq!(purge_all(scratch, &short).await, Purged { messages: 100, ..Purged::default() });
        assert_eq!(scratch.receive(vec![message("m1")]).await, [Received::Duplicate], "the id still blocks");
        assert_eq!(purge_all(scratch, &KEEP).await.ids, 100);
        assert_eq!(scratch.receive(vec![message("m1")]).await, [Received::New]);
        scratch.clock.advance(DAY * 2);
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!((purged.ids, purged.messages), (0, 0), "not handled yet");
        scratch.process_all("h").await;
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!((purged.ids, purged.messages), (2, 2));
    })
    .await;
}

#[tokio::test]
async fn every_step_is_bounded_and_the_sweep_goes_round() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        for round in 0..5 {
            scratch.receive((0..1000).map(|n| message(format!("{round}-{n}"))).collect()).await;
        }
        scratch.process_all("h").await;
        scratch.clock.advance(DAY * 2);
        let small = Retention { step: 700, ..KEEP };
        let (mut ids, mut messages, mut calls) = (0, 0, 0);
        loop {
            let purged = scratch.store.purge(&small).await.unwrap();
            assert!(purged.ids <= 700 && purged.messages <= 700);
            (ids, messages, calls) = (ids + purged.ids, messages + purged.messages, calls + 1);
            if !purged.more {
                break;
            }
        }
        assert_eq!((ids, messages), (5000, 5000));
        assert_eq!(calls, 8);
        // Ids are in no order, so some of these come before the place where the last sweep stopped.
        scratch.receive((0..1000).map(|n| message(format!("again-{n}"))).collect()).await;
        scratch.process_all("h").await;
        scratch.clock.advance(DAY * 2);
        assert_eq!(purge_all(scratch, &small).await.ids, 1000);
    })
    .await;
}

#[tokio::test]
async fn ids_of_open_and_dead_deliveries_stay() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        let open = ["ready", "held", "dead"];
        scratch.receive(open.iter().map(|id| message(*id)).collect()).await;
        scratch.process_all("h").await;
        for (id, state) in open.iter().zip([ParkState::Ready(MINUTE), ParkState::Held, ParkState::Dead]) {
            let mut park = common::parked("h", message(*id), state);
            (park.attempts, park.error) = (1, Some("e".into()));
            let tx = scratch.store.begin_plain(LIMITS).await.unwrap();
            scratch.store.commit(tx, Commit { park: vec![park], ..Commit::default() }).await.unwrap();
        }
        let other = Message::new("order.placed", "other").id("ready").scope("orders");
        assert_eq!(scratch.receive(vec![other]).await, [Received::Conflict]);
        let count = Count { handler: "h".into(), name: "done".into(), value: 1 };
        scratch.store.add_counts(&[count]).await.unwrap();
        scratch.clock.advance(DAY * 4);
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!((purged.ids, purged.others), (0, 2), "the conflict and one counter bucket");
        assert_eq!(scratch.store.counts().await.unwrap().len(), 1);

        assert_eq!(scratch.store.discard(&DeliveryFilter::dead("h"), "no").await.unwrap(), 1);
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!(
            (purged.ids, purged.others),
            (0, 0),
            "discarded a moment ago: its row stays, and so does its id"
        );
        scratch.clock.advance(DAY * 2);
        // The row first, then its id and its history, which had to stay as long as the row.
        let purged = purge_all(scratch, &KEEP).await;
        assert_eq!((purged.ids, purged.others), (1, 3));
        assert_eq!(scratch.number("select count(*) from {schema}.attempt").await, 2);
        assert_eq!(scratch.number("select count(*) from {schema}.delivery").await, 2);
    })
    .await;
}
