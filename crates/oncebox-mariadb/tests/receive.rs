//! Receiving: verdicts, conflicts, bytes, and rivals.

mod common;

use sqlx::Executor;

use std::collections::HashMap;

use common::{arrivals, message};
use oncebox_core::store::ReadInline;
use oncebox_core::store::{Commit, Connection};
use oncebox_core::{Message, Received, Store};
use oncebox_mariadb::MariaStore;
use sqlx::mysql::MySqlPoolOptions;

#[tokio::test]
async fn each_id_is_new_once_and_other_bytes_are_a_conflict() {
    common::with_store(async |scratch| {
        assert_eq!(scratch.receive(vec![]).await, []);
        let got = scratch.receive(vec![message("b"), message("a"), message("c").key("k")]).await;
        assert_eq!(got, [Received::New; 3]);
        let other = Message::new("order.placed", "other").id("b").scope("orders").header("h", vec![0, 255]);
        let got = scratch.receive(vec![message("a"), other.clone(), message("d")]).await;
        assert_eq!(got, [Received::Duplicate, Received::Conflict, Received::New]);
        // Twice only duplicates: the second receive looks before it writes.
        for _ in 0..3 {
            let got = scratch.receive(vec![message("a"), other.clone()]).await;
            assert_eq!(got, [Received::Duplicate, Received::Conflict]);
        }
        let got = scratch.receive(vec![message("a"), message("e")]).await;
        assert_eq!(got, [Received::Duplicate, Received::New]);
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, 5);
        let conflicts = scratch.store.conflicts(10).await.unwrap();
        assert_eq!(conflicts.len(), 1);
        assert_eq!(conflicts[0].message, other);
        // Another scope is another id.
        assert_eq!(scratch.receive(vec![message("a").scope("else")]).await, [Received::New]);
    })
    .await;
}

#[tokio::test]
async fn seq_follows_the_order_of_arrival_and_bytes_come_out_as_they_went_in() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        let at = "2200-01-01T00:00:00.000001Z".parse().unwrap();
        let messages: Vec<Message> = (0..50_u8)
            .map(|n| {
                Message::new("kind", vec![n, 0, 255])
                    .id(format!("id-{n} \u{e9}\n"))
                    .scope("s")
                    .key("one")
                    .header("name", vec![0, 159, n])
                    .not_before(at)
            })
            .collect();
        scratch.receive(messages.clone()).await;
        let (_, batch) = scratch.read("h", false).await;
        let read: Vec<Message> = batch.rows.iter().map(|row| row.to_message().unwrap()).collect();
        assert_eq!(read, messages);
        assert!(batch.rows.iter().all(|row| row.scheduled && !row.held));
        batch.connection.rollback().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rivals_with_the_same_ids_in_opposite_order_do_not_deadlock() {
    common::with_store(async |scratch| {
        for level in ["read committed", "repeatable read", "serializable"] {
            let options = scratch.pool.connect_options().as_ref().clone();
            let pool = MySqlPoolOptions::new()
                .max_connections(4)
                .after_connect(move |connection, _| {
                    let set = format!("set session transaction isolation level {level}");
                    Box::pin(async move { connection.execute(sqlx::AssertSqlSafe(set)).await.map(drop) })
                })
                .connect_lazy_with(options);
            let mut new: HashMap<String, usize> = HashMap::new();
            let rounds = if level == "read committed" { 200 } else { 50 };
            for round in 0..rounds {
                let ids: Vec<String> = (0..20).map(|n| format!("{level}-{round}-{n}")).collect();
                let forward: Vec<Message> = ids[..15].iter().map(message).collect();
                let backward: Vec<Message> = ids[5..].iter().rev().map(message).collect();
                let tasks: Vec<_> = [forward, backward]
                    .into_iter()
                    .map(|messages| {
                        let store = MariaStore::new(pool.clone()).schema(&scratch.schema).unwrap();
                        tokio::spawn(async move {
                            let arrivals = arrivals(messages);
                            let got = store.receive(&arrivals).await.unwrap();
                            arrivals
                                .into_iter()
                                .zip(got)
                                .filter(|(_, got)| *got == Received::New)
                                .map(|(arrival, _)| arrival.to_message().id)
                                .collect::<Vec<String>>()
                        })
                    })
                    .collect();
                for task in tasks {
                    for id in task.await.unwrap() {
                        *new.entry(id).or_default() += 1;
                    }
                }
            }
            assert_eq!(new.len(), rounds * 20);
            assert!(new.values().all(|count| *count == 1));
            pool.close().await;
        }
        let gaps = "select count(*) from {schema}.log l join {schema}.seen s using (identity) \
                    where s.seq <> l.seq or s.lane <> l.lane";
        assert_eq!(scratch.number(gaps).await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, 300 * 20);
    })
    .await;
}

#[tokio::test]
async fn inline_records_what_is_seen_and_forgets_it_when_rolled_back() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        let known = arrivals(vec![message("known")]);
        scratch.store.receive(&known).await.unwrap();
        let conflict = Message::new("order.placed", "other").id("known").scope("orders");
        let later = message("later").not_before("2200-01-01T00:00:00Z".parse().unwrap());
        let arrivals = arrivals(vec![message("new"), conflict, later]);
        let inline = ReadInline { arrivals: &arrivals, ordered: &[], limits: common::LIMITS };
        for commit in [false, true] {
            let mut batch = scratch.store.begin_inline(&inline).await.unwrap();
            assert_eq!(batch.received, [Received::New, Received::Conflict, Received::New]);
            assert_eq!(batch.scheduled, [false, false, true]);
            sqlx::query(scratch.effect()).execute(&mut *batch.connection).await.unwrap();
            if commit {
                scratch.store.commit(batch.connection, Commit::default()).await.unwrap();
            } else {
                batch.connection.rollback().await;
            }
        }
        let batch = scratch.store.begin_inline(&inline).await.unwrap();
        assert_eq!(batch.received, [Received::Duplicate, Received::Conflict, Received::Duplicate]);
        batch.connection.rollback().await;
        assert_eq!(scratch.count_effects().await, 1);
        assert_eq!(scratch.store.conflicts(10).await.unwrap().len(), 1);
        scratch.until_no_transaction_is_open().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_waits_for_a_rival_and_takes_over_when_it_rolls_back() {
    common::with_store(async |scratch| {
        let arrivals = arrivals(vec![message("x")]);
        let inline = ReadInline { arrivals: &arrivals, ordered: &[], limits: common::LIMITS };
        for (commit, expected) in [(false, Received::New), (true, Received::Duplicate)] {
            let first = scratch.store.begin_inline(&inline).await.unwrap();
            let (store, rival) = (scratch.store.clone(), arrivals.clone());
            let waiting = tokio::spawn(async move {
                let inline = ReadInline { arrivals: &rival, ordered: &[], limits: common::LIMITS };
                let batch = store.begin_inline(&inline).await.unwrap();
                let received = batch.received.clone();
                batch.connection.rollback().await;
                received
            });
            while scratch.waiting_transactions().await == 0 {
                tokio::task::yield_now().await;
            }
            if commit {
                scratch.store.commit(first.connection, Commit::default()).await.unwrap();
            } else {
                first.connection.rollback().await;
            }
            assert_eq!(waiting.await.unwrap(), [expected]);
        }
    })
    .await;
}
