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
        let from = [(batch.rows[3].lane, batch.rows[3].seq)];
        let ahead = scratch.store.read_ahead(&read, &from).await.unwrap().expect("a connection is free");
        assert_eq!(ahead.len(), 2, "behind rows that are still locked");
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
async fn a_batch_is_filled_from_whatever_lanes_have_messages() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        // One lane with many, the others with one or two.
        let mut messages: Vec<_> = (0..200).map(|n| message(format!("hot-{n}")).key("hot")).collect();
        messages.extend((0..40).map(|n| message(format!("cold-{n}"))));
        scratch.receive(messages).await;
        let token = scratch.token();
        let claim = Claim { handler: "h", token, lanes: 32, limit: 100 };
        let claimed = scratch.store.claim(&claim).await.unwrap();
        let hot = oncebox_core::lane_of("hot");
        let kinds = everything();
        let bounds = |upto: Option<i64>| -> Vec<LaneBound> {
            claimed.iter().map(|claimed| LaneBound { lane: claimed.lane, upto }).collect()
        };
        for (limit, upto) in [(100, None), (100, Some(i64::MAX)), (7, None), (1000, None)] {
            let lanes = bounds(upto);
            let read = ReadLanes {
                handler: "h",
                token,
                lanes: &lanes,
                limit,
                kinds: &kinds,
                ordered: false,
                limits: LIMITS,
            };
            let batch = scratch.store.begin_lanes(&read).await.unwrap().unwrap();
            assert_eq!(batch.rows.len(), limit.min(240));
            let order = |lane| lanes.iter().position(|bound| bound.lane == lane).unwrap();
            assert!(batch.rows.is_sorted_by_key(|row| (order(row.lane), row.seq)));
            // Of each lane the next ones, without a gap.
            let of_hot: Vec<String> = batch
                .rows
                .iter()
                .filter(|row| row.lane == hot)
                .filter_map(|row| row.to_message())
                .filter(|message| message.key.is_some())
                .map(|message| message.id)
                .collect();
            let wanted: Vec<String> = (0..of_hot.len()).map(|n| format!("hot-{n}")).collect();
            assert_eq!(of_hot, wanted);
            if upto.is_some() {
                // With an end to each lane, nothing of a lane is left out for the sake of a later one.
                let last = order(batch.rows.last().unwrap().lane);
                let lanes_read = batch.rows.iter().map(|row| order(row.lane));
                let all_hot = of_hot.len() == 200 || order(hot) >= last;
                assert!(all_hot && lanes_read.max() == Some(last));
            }
            batch.connection.rollback().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_swallowed_sql_error_is_fenced_and_nothing_is_kept() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.effects().await;
        scratch.receive(vec![message("a")]).await;
        let (token, mut batch) = scratch.read("h", false).await;
        sqlx::query(scratch.effect()).execute(&mut *batch.connection).await.unwrap();
        assert!(sqlx::query("select no_such_column").execute(&mut *batch.connection).await.is_err());
        let commit = Commit { lanes: Some(moved("h", token, &batch)), ..Commit::default() };
        let error = scratch.store.commit(batch.connection, commit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");

        // The same where nothing but the commit is left to do, and with rows to park or publish.
        for commit in [
            Commit::default(),
            Commit { outgoing: vec![message("out")], ..Commit::default() },
            Commit { park: vec![common::parked("h", message("p"), ParkState::Dead)], ..Commit::default() },
        ] {
            let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
            sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
            assert!(sqlx::query("select 1 / 0").execute(&mut *tx).await.is_err());
            let error = scratch.store.commit(tx, commit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        }
        assert_eq!(scratch.count_effects().await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.delivery").await, 0);
        scratch.until_no_transaction_is_open().await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_costs_the_same_however_long_its_lanes_are() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        for group in 0..40 {
            scratch.receive((0..1000).map(|n| message(format!("{group}-{n}"))).collect()).await;
        }
        // The planner's mind is not the same before and after it has counted.
        for statistics in ["select 1", "analyze {schema}.log"] {
            scratch.sql(statistics).await;
            let token = scratch.token();
            let claim = Claim { handler: "h", token, lanes: 8, limit: 1000 };
            let claimed = scratch.store.claim(&claim).await.unwrap();
            let lanes: Vec<LaneBound> =
                claimed.iter().map(|lane| LaneBound { lane: lane.lane, upto: None }).collect();
            let kinds = everything();
            let read = ReadLanes {
                handler: "h",
                token,
                lanes: &lanes,
                limit: 1000,
                kinds: &kinds,
                ordered: false,
                limits: LIMITS,
            };
            let mut batch = scratch.store.begin_lanes(&read).await.unwrap().unwrap();
            assert_eq!(batch.rows.len(), 1000);
            let fetched = format!(
                "select pg_stat_get_xact_tuples_fetched('{0}.log'::regclass) + \
                 pg_stat_get_xact_tuples_returned('{0}.log'::regclass)",
                scratch.schema
            );
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(fetched));
            let fetched: i64 = query.fetch_one(&mut *batch.connection).await.unwrap();
            assert!(fetched <= 2500, "{fetched} rows were looked at for 1,000 messages after `{statistics}`");
            batch.connection.rollback().await;
            scratch.store.release("h", token).await.unwrap();
        }
    })
    .await;
}

/// Ways to end a transaction, and whether Postgres refuses it.
const ENDINGS: [(&str, bool); 6] = [
    ("commit", true),
    ("commit and chain", true),
    ("prepare transaction 'mine'", true),
    ("commit; begin", true),
    ("rollback", false),
    ("rollback; begin", false),
];

#[tokio::test]
async fn a_commit_of_the_handlers_own_is_refused_and_a_transaction_it_ended_is_not_committed() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.effects().await;
        scratch.receive(vec![message("a")]).await;
        for (ending, refused) in ENDINGS {
            for commit in [
                Commit::default(),
                Commit { outgoing: vec![message("out")], ..Commit::default() },
                Commit {
                    park: vec![common::parked("h", message("p"), ParkState::Dead)],
                    ..Commit::default()
                },
            ] {
                let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
                sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
                let answer = sqlx::raw_sql(ending).execute(&mut *tx).await;
                assert_eq!(answer.is_err(), refused, "{ending}");
                let error = scratch.store.commit(tx, commit).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Ended, "{ending}: {error}");
            }
            let (token, mut batch) = scratch.read("h", false).await;
            assert_eq!(batch.rows.len(), 1, "{ending}");
            sqlx::query(scratch.effect()).execute(&mut *batch.connection).await.unwrap();
            assert_eq!(sqlx::raw_sql(ending).execute(&mut *batch.connection).await.is_err(), refused);
            let commit = Commit { lanes: Some(moved("h", token, &batch)), ..Commit::default() };
            let error = scratch.store.commit(batch.connection, commit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Ended, "{ending}: {error}");
            scratch.store.release("h", token).await.unwrap();
        }
        assert_eq!(scratch.count_effects().await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.delivery").await, 0);
        scratch.until_no_transaction_is_open().await;
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
async fn an_error_that_only_the_commit_finds_is_an_error() {
    common::with_store(async |scratch| {
        scratch.sql("create table {schema}.one (id int unique deferrable initially deferred)").await;
        let insert = format!("insert into {}.one values (1), (1)", scratch.schema);
        for outgoing in [vec![], vec![message("out")]] {
            let mut tx = scratch.store.begin_plain(LIMITS).await.unwrap();
            sqlx::query(sqlx::AssertSqlSafe(insert.clone())).execute(&mut *tx).await.unwrap();
            let commit = Commit { outgoing, ..Commit::default() };
            let error = scratch.store.commit(tx, commit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        }
        assert_eq!(scratch.number("select count(*) from {schema}.one").await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 0);
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
        let error = sqlx::query("select pg_sleep(5)").execute(&mut *tx).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "57014");
        tx.rollback().await;

        // Unsettled settings must not follow the connection into the pool.
        let text =
            "select count(*) from pg_settings where name = 'statement_timeout' and setting <> reset_val";
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
