//! The caller's own transaction, and relays.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{LIMITS, MINUTE, Scratch, message};
use oncebox_core::store::{AskOutgoing, Commit, SendOutcome, Sent, Token};
use oncebox_core::{ErrorKind, Message, Once, Store, Wake};
use oncebox_postgres::PgStore;

async fn publish(scratch: &Scratch, messages: &[Message]) {
    let mut tx = scratch.pool.begin().await.unwrap();
    scratch.store.publish(&mut tx, messages).await.unwrap();
    tx.commit().await.unwrap();
}

async fn lease(scratch: &Scratch, token: Token, limit: usize) -> Vec<(i64, String)> {
    lease_from(&scratch.store, token, limit).await
}

async fn lease_from(store: &PgStore, token: Token, limit: usize) -> Vec<(i64, String)> {
    let ask = AskOutgoing { sink: "", token, limit, lease_for: MINUTE };
    let outgoing = store.lease_outgoing(&ask).await.unwrap();
    outgoing.into_iter().map(|one| (one.seq, one.message.id)).collect()
}

fn ids(leased: &[(i64, String)]) -> Vec<&str> {
    leased.iter().map(|(_, id)| id.as_str()).collect()
}

fn sent(seq: i64, outcome: SendOutcome) -> Sent {
    Sent { seq, outcome }
}

#[tokio::test]
async fn once_and_publish_need_a_transaction_and_follow_it() {
    common::with_store(async |scratch| {
        let mut connection = scratch.pool.acquire().await.unwrap();
        let error = scratch.store.once(&mut connection, "import", "1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInTransaction);
        let error = scratch.store.publish(&mut connection, &[message("1")]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInTransaction);
        drop(connection);
        for (commit, again) in [(false, Once::First), (true, Once::First), (true, Once::Again)] {
            let mut tx = scratch.pool.begin().await.unwrap();
            assert_eq!(scratch.store.once(&mut tx, "import", "1").await.unwrap(), again);
            scratch.store.publish(&mut tx, &[message("m")]).await.unwrap();
            if commit {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
        }
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 2);
        let mut tx = scratch.pool.begin().await.unwrap();
        assert_eq!(scratch.store.once(&mut tx, "other", "1").await.unwrap(), Once::First);
        let long = "x".repeat(513);
        for (handler, id) in [("", "1"), ("h", ""), ("h", "a\0"), ("h", &long), (&long, "1")] {
            let error = scratch.store.once(&mut tx, handler, id).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        let small = scratch.store.clone().payload_limit(3);
        assert_eq!(small.publish(&mut tx, &[message("m")]).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(scratch.store.once(&mut tx, "still", "fine").await.unwrap(), Once::First);
    })
    .await;
}

#[tokio::test]
async fn messages_come_in_order_and_a_failing_key_holds_only_itself() {
    common::with_store(async |scratch| {
        let one = message("a1").key("a").header("h", "v");
        publish(scratch, &[one.clone(), message("b1").key("b"), message("a2").key("a"), message("n1")]).await;
        publish(scratch, &[message("a3").key("a"), message("other").to("mail")]).await;
        let token = scratch.token();
        let ask = AskOutgoing { sink: "", token, limit: 10, lease_for: MINUTE };
        let outgoing = scratch.store.lease_outgoing(&ask).await.unwrap();
        assert_eq!(outgoing[0].message, one);
        let leased = lease(scratch, token, 10).await;
        assert_eq!(ids(&leased), ["a1", "b1", "a2", "n1", "a3"], "the same token reads again");
        assert!(lease(scratch, scratch.token(), 10).await.is_empty(), "the lanes are taken");

        let retry = sent(leased[0].0, SendOutcome::Retry(MINUTE, "down".into()));
        let results = [retry, sent(leased[1].0, SendOutcome::Confirmed)];
        scratch.store.settle_outgoing("", token, &results, false).await.unwrap();
        let left = lease(scratch, token, 10).await;
        assert_eq!(ids(&left), ["n1"], "a2 and a3 wait behind a1");
        let status = scratch.store.outbox().await.unwrap();
        assert_eq!(status.len(), 2);
        assert_eq!(
            (status[0].sink.as_str(), status[0].waiting, status[0].retrying, status[0].dead),
            ("", 4, 1, 0)
        );
        assert!(status[0].lag.is_some());
        assert_eq!((status[1].sink.as_str(), status[1].waiting), ("mail", 1));

        // A dead message no longer holds its key.
        scratch.clock.advance(MINUTE - Duration::from_secs(1));
        let dead = [sent(leased[0].0, SendOutcome::Dead("never".into()))];
        scratch.store.settle_outgoing("", token, &dead, true).await.unwrap();
        let rival = scratch.token();
        assert_eq!(ids(&lease(scratch, rival, 10).await), ["a2", "n1", "a3"]);
        assert_eq!(scratch.store.replay_outgoing("").await.unwrap(), 1);
        assert_eq!(ids(&lease(scratch, rival, 1).await), ["a1"]);
        assert_eq!(scratch.store.replay_outgoing("").await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_scheduled_message_waits_without_holding_its_key() {
    common::with_store(async |scratch| {
        let later = message("later").key("k").not_before("2200-01-01T00:00:00Z".parse().unwrap());
        publish(scratch, &[later, message("now").key("k")]).await;
        assert_eq!(ids(&lease(scratch, scratch.token(), 10).await), ["now"]);
    })
    .await;
}

/// A store that knows of a backlog looks at the beginning of the outbox first, one that has just been opened does not.
#[tokio::test]
async fn a_backlog_is_read_alike_from_its_beginning_and_lane_by_lane() {
    common::with_store(async |scratch| {
        let far = "2200-01-01T00:00:00Z".parse().unwrap();
        let mixed = |n: usize| match message(format!("{n:03}")) {
            one if n.is_multiple_of(5) => one.to("mail"),
            one if n.is_multiple_of(11) => one.not_before(far),
            one if n.is_multiple_of(4) => one.key(format!("key-{}", n % 3)),
            one => one,
        };
        publish(scratch, &(0..400).map(mixed).collect::<Vec<_>>()).await;
        let token = scratch.token();
        let leased = lease(scratch, token, 60).await;
        let seq_of = |wanted: &str| leased.iter().find(|(_, id)| id == wanted).unwrap().0;
        let fails = |id| sent(seq_of(id), SendOutcome::Retry(MINUTE, "down".into()));
        let dies = sent(seq_of("001"), SendOutcome::Dead("never".into()));
        let failed = [fails("004"), fails("008"), fails("012"), dies];
        scratch.store.settle_outgoing("", token, &failed, false).await.unwrap();
        let theirs =
            "update {schema}.relay set token = 7, leased_until = 9000000000000000 where lane % 3 = 0";
        scratch.sql(theirs).await;
        for _ in 0..3 {
            let from_beginning = lease(scratch, token, 30).await;
            let opened = PgStore::new(scratch.pool.clone()).schema(&scratch.schema).unwrap();
            let by_lane = lease_from(&opened.with_clock(scratch.clock.clone()), token, 30).await;
            assert_eq!(from_beginning, by_lane);
            assert_eq!(by_lane.len(), 30, "there is a backlog");
            let confirmed: Vec<Sent> =
                by_lane.iter().map(|(seq, _)| sent(*seq, SendOutcome::Confirmed)).collect();
            scratch.store.settle_outgoing("", token, &confirmed, false).await.unwrap();
        }
    })
    .await;
}

/// More rows than are looked at belong to another sink.
#[tokio::test]
async fn a_backlog_behind_that_of_another_sink_is_found() {
    common::with_store(async |scratch| {
        let others = "insert into {schema}.outbox (sink, lane, scope, id, kind, headers, payload, due_at, created_at) \
                      select 'mail', 0, '', n::text, 'k', '', '', 0, 0 from generate_series(1, 17000) n";
        scratch.sql(others).await;
        let messages: Vec<Message> = (0..90).map(|n| message(format!("{n:03}"))).collect();
        publish(scratch, &messages).await;
        let token = scratch.token();
        let mut all = Vec::new();
        for _ in 0..3 {
            let leased = lease(scratch, token, 30).await;
            let confirmed: Vec<Sent> =
                leased.iter().map(|(seq, _)| sent(*seq, SendOutcome::Confirmed)).collect();
            scratch.store.settle_outgoing("", token, &confirmed, false).await.unwrap();
            all.extend(leased);
        }
        assert_eq!(ids(&all), messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>());
        assert!(lease(scratch, token, 30).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_lost_its_lanes_can_confirm_but_not_push_back() {
    common::with_store(async |scratch| {
        publish(scratch, &[message("x").key("k"), message("y").key("k")]).await;
        let (slow, fast) = (scratch.token(), scratch.token());
        let leased = lease(scratch, slow, 10).await;
        scratch.clock.advance(MINUTE);
        assert_eq!(lease(scratch, fast, 10).await, leased);
        let results = [
            sent(leased[0].0, SendOutcome::Confirmed),
            sent(leased[1].0, SendOutcome::Retry(MINUTE, "late".into())),
        ];
        scratch.store.settle_outgoing("", slow, &results, true).await.unwrap();
        assert_eq!(ids(&lease(scratch, fast, 10).await), ["y"]);
        assert!(lease(scratch, slow, 10).await.is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_never_send_the_same_message_or_break_the_order_of_a_key() {
    common::with_store(async |scratch| {
        let messages: Vec<Message> =
            (0..600).map(|n| message(format!("{:03}", n / 20)).key(format!("key-{}", n % 20))).collect();
        publish(scratch, &messages).await;
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (store, token) = (scratch.store.clone(), scratch.token());
                tokio::spawn(async move {
                    let mut log = Vec::new();
                    loop {
                        let ask = AskOutgoing { sink: "", token, limit: 7, lease_for: MINUTE };
                        let got = store.lease_outgoing(&ask).await.unwrap();
                        if got.is_empty() && store.outbox().await.unwrap().is_empty() {
                            return log;
                        }
                        let results: Vec<Sent> =
                            got.iter().map(|one| sent(one.seq, SendOutcome::Confirmed)).collect();
                        log.extend(got.into_iter().map(|one| (one.message.key.unwrap(), one.message.id)));
                        store.settle_outgoing("", token, &results, true).await.unwrap();
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            let log = task.await.unwrap();
            let keys: std::collections::BTreeSet<&String> = log.iter().map(|(key, _)| key).collect();
            for key in keys {
                let ids: Vec<&String> = log.iter().filter(|(one, _)| one == key).map(|(_, id)| id).collect();
                assert!(ids.is_sorted(), "{key}: {ids:?}");
            }
            all.extend(log);
        }
        assert_eq!(all.len(), 600);
        assert!(scratch.store.outbox().await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn what_a_handler_published_is_there_exactly_when_it_committed() {
    common::with_store(async |scratch| {
        for commit in [false, true] {
            let tx = scratch.store.begin_plain(LIMITS).await.unwrap();
            if commit {
                let outgoing = vec![message("x"), message("y").to("mail")];
                scratch.store.commit(tx, Commit { outgoing, ..Commit::default() }).await.unwrap();
            } else {
                drop(tx);
            }
        }
        assert_eq!(ids(&lease(scratch, scratch.token(), 10).await), ["x"]);
    })
    .await;
}

#[tokio::test]
async fn listeners_are_woken_by_announcements_and_committed_publishes() {
    common::with_store(async |scratch| {
        let wake = Wake::new();
        let mut bell = wake.listener();
        let store = scratch.store.clone();
        let listening = tokio::spawn(async move { store.listen(wake).await });
        bell.heard().await;
        scratch.store.announce().await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), bell.heard()).await.expect("announced");
        publish(scratch, &[message("x")]).await;
        tokio::time::timeout(Duration::from_secs(10), bell.heard()).await.expect("published");
        // The listener's backend dies: it connects again and rings, because it may have missed something.
        scratch
            .sql(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where application_name = '{schema}' and query like 'LISTEN%'",
            )
            .await;
        tokio::time::timeout(Duration::from_secs(10), bell.heard()).await.expect("listening again");
        listening.abort();

        let silent = scratch.store.clone().notify(false);
        silent.announce().await.unwrap();
        let pending = tokio::time::timeout(Duration::from_millis(50), silent.listen(Wake::new())).await;
        assert!(pending.is_err(), "a silent store listens for ever");
    })
    .await;
}
