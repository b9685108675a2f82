//! Lanes: claims, fences, and commits that must not be believed.

mod common;

use std::time::Duration;

use common::{LIMITS, everything, message, moved};
use oncebox_core::store::{ABANDONED_AFTER, Claim, Commit, Connection, LaneBound, ParkState, ReadLanes};
use oncebox_core::{ErrorKind, Kinds, Message, Received, Store};
use sqlx::Connection as _;

#[tokio::test]
async fn a_claimed_lane_is_read_moved_and_not_given_to_others() {
    common::with_store(async |scratch| {
        scratch.receive(vec![message("before")]).await;
        scratch.register("h", false).await;
        let token = scratch.token();
        let claim = Claim { handler: "h", token, lanes: 32, limit: 7 };
        assert!(
            scratch.store.claim(&claim).await.unwrap().is_empty(),
            "a new handler starts with the next message"
        );
        scratch.effects().await;
        let keys: Vec<Message> = (0..6).map(|n| message(format!("m{n}")).key("k")).collect();
        scratch.receive(keys).await;
        let lanes = scratch.store.claim(&claim).await.unwrap();
        assert_eq!(lanes.len(), 1);
        assert_eq!(lanes[0].suspects, None);
        let rival = Claim { token: scratch.token(), ..claim };
        assert!(scratch.store.claim(&rival).await.unwrap().is_empty(), "freshly marked");

        let bounds = [LaneBound { lane: lanes[0].lane, upto: None }];
        let kinds = everything();
        let read = ReadLanes {
            handler: "h",
            token,
            lanes: &bounds,
            limit: 4,
            kinds: &kinds,
            ordered: false,
            limits: LIMITS,
        };
        let mut batch = scratch.store.begin_lanes(&read).await.unwrap().unwrap();
        assert_eq!(batch.rows.len(), 4);
        sqlx::query(scratch.effect()).execute(&mut *batch.connection).await.unwrap();
        // Old as the mark may look, the lane is locked.
        scratch.clock.advance(ABANDONED_AFTER);
        assert!(scratch.store.claim(&rival).await.unwrap().is_empty(), "locked");
        assert!(scratch.store.begin_lanes(&read).await.unwrap().is_none(), "locked by ourselves");
        let mut lanes = moved("h", token, &batch);
        lanes.keep = true;
        let commit = Commit { lanes: Some(lanes), ..Commit::default() };
        scratch.store.commit(batch.connection, commit).await.unwrap();
        assert_eq!(scratch.count_effects().await, 1);

        // The mark was kept for the next batch; a bound stops it, other kinds come without content.
        let batch = scratch.store.begin_lanes(&read).await.unwrap().unwrap();
        assert_eq!(batch.rows.len(), 2);
        let upto = batch.rows[0].seq;
        batch.connection.rollback().await;
        let none = Kinds { exact: vec!["order".into()], prefixes: vec!["orders".into()] };
        let bounds = [LaneBound { lane: bounds[0].lane, upto: Some(upto) }];
        let batch = scratch
            .store
            .begin_lanes(&ReadLanes { lanes: &bounds, kinds: &none, ..read })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(batch.rows.len(), 1);
        assert!(batch.rows[0].message.is_none());
        batch.connection.rollback().await;

        // Abandoned: the successor learns how many to suspect.
        scratch.clock.advance(ABANDONED_AFTER);
        let lanes = scratch.store.claim(&rival).await.unwrap();
        assert_eq!(lanes[0].suspects, Some(7));
        assert!(scratch.store.begin_lanes(&read).await.unwrap().is_none(), "no longer ours");
        scratch.store.release("h", rival.token).await.unwrap();
        assert_eq!(scratch.store.claim(&claim).await.unwrap()[0].suspects, None);

        scratch.store.release("h", token).await.unwrap();
        assert!(scratch.store.set_paused("h", true).await.unwrap());
        assert!(scratch.store.claim(&claim).await.unwrap().is_empty(), "paused");
        assert!(scratch.store.set_paused("h", false).await.unwrap());
        assert_eq!(scratch.store.claim(&claim).await.unwrap().len(), 1);
        assert!(!scratch.store.set_paused("nobody", true).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn lanes_served_longest_ago_come_first_and_rows_in_the_order_asked() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.receive((0..200).map(|n| message(format!("m{n}"))).collect()).await;
        let mut served = Vec::new();
        for _ in 0..4 {
            let token = scratch.token();
            let claim = Claim { handler: "h", token, lanes: 8, limit: 1 };
            let lanes = scratch.store.claim(&claim).await.unwrap();
            assert_eq!(lanes.len(), 8);
            served.extend(lanes.iter().map(|claimed| claimed.lane));
            let bounds: Vec<LaneBound> =
                lanes.iter().rev().map(|claimed| LaneBound { lane: claimed.lane, upto: None }).collect();
            let kinds = everything();
            let read = ReadLanes {
                handler: "h",
                token,
                lanes: &bounds,
                limit: 10,
                kinds: &kinds,
                ordered: false,
                limits: LIMITS,
            };
            let batch = scratch.store.begin_lanes(&read).await.unwrap().unwrap();
            assert_eq!(batch.rows.len(), 10);
            let order = |lane| bounds.iter().position(|bound| bound.lane == lane).unwrap();
            assert!(batch.rows.is_sorted_by_key(|row| (order(row.lane), row.seq)));
            batch.connection.rollback().await;
            scratch.store.release("h", token).await.unwrap();
        }
        served.sort_unstable();
        served.dedup();
        assert_eq!(served.len(), 32);
    })
    .await;
}

#[tokio::test]
async fn savepoints_of_the_handler_work_and_the_marker_survives_them() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
        let mut inner = tx.begin().await.unwrap();
        assert!(sqlx::query("select no_such_column").execute(&mut *inner).await.is_err());
        inner.rollback().await.unwrap();
        let mut inner = tx.begin().await.unwrap();
        sqlx::query(scratch.effect()).execute(&mut *inner).await.unwrap();
        inner.commit().await.unwrap();
        drop(tx.begin().await.unwrap());
        scratch.store.commit(tx, Commit::default()).await.unwrap();
        assert_eq!(scratch.count_effects().await, 1);

        let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
        std::mem::forget(tx.begin().await.unwrap());
        let error = scratch.store.commit(tx, Commit::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
    })
    .await;
}

#[tokio::test]
async fn a_lane_taken_by_another_is_fenced() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.effects().await;
        scratch.receive(vec![message("a")]).await;
        let (_, mut batch) = scratch.read("h", false).await;
        sqlx::query(scratch.effect()).execute(&mut *batch.connection).await.unwrap();
        let commit = Commit { lanes: Some(moved("h", scratch.token(), &batch)), ..Commit::default() };
        let error = scratch.store.commit(batch.connection, commit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert_eq!(scratch.count_effects().await, 0);
    })
    .await;
}

#[tokio::test]
async fn the_server_ends_what_takes_too_long_and_a_revoker_ends_it_at_once() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        let limits = oncebox_core::store::TxLimits { statement: Duration::from_millis(100) };
        let mut tx = scratch.store.begin_plain(limits).await.unwrap();
        let error = sqlx::query("select sleep(5)").execute(&mut *tx).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "70100");
        tx.rollback().await;

        // Unsettled settings must not follow the connection into the pool.
        let text = "select @@max_statement_time <> @@global.max_statement_time
                or @@idle_transaction_timeout <> @@global.idle_transaction_timeout
                or @@innodb_lock_wait_timeout <> @@global.innodb_lock_wait_timeout
                or @@lock_wait_timeout <> @@global.lock_wait_timeout";
        assert_eq!(scratch.number(text).await, 0);

        let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
        sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
        let late = tx.revoker();
        let revoke = tx.revoker();
        revoke().await;
        let error = scratch.store.commit(tx, Commit::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(scratch.count_effects().await, 0);
        late().await;

        // A revoker that comes late leaves the next transaction of the same backend alone.
        let tx = scratch.store.begin_plain(LIMITS).await.unwrap();
        let late = tx.revoker();
        scratch.store.commit(tx, Commit::default()).await.unwrap();
        let mut open = Vec::new();
        for _ in 0..scratch.pool.size() {
            open.push(scratch.store.begin_plain(LIMITS).await.unwrap());
        }
        late().await;
        for tx in open {
            scratch.store.commit(tx, Commit::default()).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_renamed_handler_keeps_what_it_had() {
    common::with_store(async |scratch| {
        scratch.register("old", false).await;
        scratch.receive(vec![message("a")]).await;
        scratch.park("old", ParkState::Dead, vec![message("dead")]).await;
        let mut new = common::registration("new", true);
        new.formerly = vec!["older".into(), "old".into()];
        for _ in 0..2 {
            scratch.store.register(std::slice::from_ref(&new)).await.unwrap();
        }
        let handlers = scratch.store.handlers().await.unwrap();
        assert_eq!(handlers.len(), 1);
        let status = &handlers[0];
        assert_eq!(
            (status.name.as_str(), status.waiting, status.waiting_is_exact, status.dead),
            ("new", 1, true, 1)
        );
        assert!(status.lag.is_some());
        assert_eq!(status.kinds, ["*"]);
        scratch.register("old", false).await;
        let error = scratch.store.register(&[new]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("`old`") && error.to_string().contains("`new`"), "{error}");
        assert!(scratch.store.forget("old").await.unwrap());
        assert!(!scratch.store.forget("old").await.unwrap());

        let mut first = common::registration("from-start", false);
        first.from_start = true;
        scratch.store.register(&[first]).await.unwrap();
        let (_, batch) = scratch.read("from-start", false).await;
        assert_eq!(batch.rows.len(), 1);
        batch.connection.rollback().await;
        assert_eq!(scratch.receive(vec![message("a")]).await, [Received::Duplicate]);
    })
    .await;
}
