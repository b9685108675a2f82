//! Deliveries with a row of their own: leases, fences, order, replay.

mod common;

use std::time::Duration;

use common::{LIMITS, MINUTE, message};
use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::store::{
    AskLease, Commit, Connection, Count, DeliveryId, DoneLeases, LAPSED, Lease, Outcome, ParkState,
    Settlement,
};
use oncebox_core::{ErrorKind, Store};

const READY: ParkState = ParkState::Ready(Duration::ZERO);

fn settlement(lease: Lease, outcome: Outcome) -> Settlement {
    Settlement { lease, outcome }
}

#[tokio::test]
async fn an_expired_lease_is_taken_over_and_cannot_settle() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.park("h", READY, vec![message("a")]).await;
        let first = scratch.lease("h", false).await;
        assert_eq!(first.deliveries.len(), 1);
        let lease = first.deliveries[0].lease;
        assert_eq!(lease.attempt, 1);
        assert_eq!(first.deliveries[0].message, message("a"));
        let empty = scratch.lease("h", false).await;
        assert!(empty.deliveries.is_empty());
        assert!(empty.next_due.unwrap() <= MINUTE && empty.next_due.unwrap() > MINUTE / 2);

        scratch.clock.advance(MINUTE / 2);
        assert_eq!(scratch.store.renew("h", &[lease], MINUTE).await.unwrap(), [true]);
        scratch.clock.advance(MINUTE / 2);
        assert!(scratch.lease("h", false).await.deliveries.is_empty(), "renewed");
        scratch.clock.advance(MINUTE);
        let second = scratch.lease("h", false).await.deliveries[0].lease;
        assert_eq!(second.attempt, 2);
        assert_eq!(scratch.store.renew("h", &[lease, second], MINUTE).await.unwrap(), [false, true]);
        let late = [settlement(lease, Outcome::Done)];
        assert_eq!(scratch.store.settle("h", &late).await.unwrap(), [false]);
        assert!(scratch.store.begin_leased("h", &[lease], LIMITS).await.unwrap().is_none());

        let info = &scratch.store.deliveries(&DeliveryFilter::all()).await.unwrap()[0];
        assert_eq!(info.state, DeliveryState::Retrying);
        assert_eq!(info.history.len(), 1);
        assert_eq!((info.history[0].attempt, info.history[0].error.as_str()), (1, LAPSED));

        let retry = [settlement(second, Outcome::Retry(MINUTE, "bad \0 luck".into()))];
        assert_eq!(scratch.store.settle("h", &retry).await.unwrap(), [true]);
        assert_eq!(scratch.store.settle("h", &retry).await.unwrap(), [false]);
        scratch.clock.advance(MINUTE);
        let third = scratch.lease("h", false).await.deliveries[0].lease;
        let back = [settlement(third, Outcome::Returned)];
        assert_eq!(scratch.store.settle("h", &back).await.unwrap(), [true]);
        let again = scratch.lease("h", false).await.deliveries[0].lease;
        assert_eq!(again.attempt, 3, "a returned attempt does not count");
        let dead = [settlement(again, Outcome::Dead("over".into()))];
        assert_eq!(scratch.store.settle("h", &dead).await.unwrap(), [true]);
        let info = &scratch.store.deliveries(&DeliveryFilter::dead("h")).await.unwrap()[0];
        assert_eq!((info.state, info.attempts, info.history.len()), (DeliveryState::Dead, 3, 3));
        assert_eq!(info.history[1].error, "bad \0 luck");
        assert!(scratch.lease("h", false).await.next_due.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_paused_handler_gets_no_lease() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.park("h", READY, vec![message("a")]).await;
        scratch.store.set_paused("h", true).await.unwrap();
        let leased = scratch.lease("h", true).await;
        assert!(leased.deliveries.is_empty() && leased.next_due.is_none());
        scratch.store.set_paused("h", false).await.unwrap();
        assert_eq!(scratch.leased_ids("h", true).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn leased_work_commits_with_its_transaction_or_is_fenced() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.effects().await;
        scratch.park("h", READY, vec![message("a"), message("b")]).await;
        let leases: Vec<Lease> =
            scratch.lease("h", false).await.deliveries.iter().map(|delivery| delivery.lease).collect();
        let mut tx = scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().unwrap();
        sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
        assert!(scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().is_none(), "locked");
        let mut stale = leases.clone();
        stale[0].attempt += 1;
        let done = |leases: Vec<Lease>| Commit {
            done: Some(DoneLeases { handler: "h".into(), leases }),
            ..Commit::default()
        };
        let error = scratch.store.commit(tx, done(stale)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert_eq!(scratch.count_effects().await, 0);
        let mut tx = scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().unwrap();
        sqlx::query(scratch.effect()).execute(&mut *tx).await.unwrap();
        scratch.store.commit(tx, done(leases)).await.unwrap();
        assert_eq!(scratch.count_effects().await, 1);
        assert!(scratch.store.deliveries(&DeliveryFilter::all()).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_next_held_message_of_a_key_becomes_ready_when_the_one_before_ends() {
    common::with_store(async |scratch| {
        scratch.register("h", true).await;
        let of = |id: &str, key: &str| message(id).key(key);
        scratch.park("h", READY, vec![of("a1", "a"), of("b1", "b")]).await;
        scratch.park("h", ParkState::Held, vec![of("a2", "a"), of("b2", "b"), of("a3", "a")]).await;
        let leased = scratch.lease("h", true).await;
        let lease = |id: &str| leased.deliveries.iter().find(|one| one.message.id == id).unwrap().lease;
        // a1 fails for good, b1 only for now.
        let ends = [
            settlement(lease("a1"), Outcome::Dead("no".into())),
            settlement(lease("b1"), Outcome::Retry(MINUTE, "later".into())),
        ];
        assert_eq!(scratch.store.settle("h", &ends).await.unwrap(), [true, true]);
        let next = scratch.lease("h", true).await;
        assert_eq!(next.deliveries.len(), 1);
        assert_eq!(next.deliveries[0].message.id, "a2");
        let tx = scratch.store.begin_leased("h", &[next.deliveries[0].lease], LIMITS).await.unwrap().unwrap();
        let done = DoneLeases { handler: "h".into(), leases: vec![next.deliveries[0].lease] };
        scratch.store.commit(tx, Commit { done: Some(done), ..Commit::default() }).await.unwrap();
        assert_eq!(scratch.leased_ids("h", true).await, ["a3"]);
        scratch.clock.advance(MINUTE * 2);
        assert_eq!(scratch.leased_ids("h", true).await, ["b1", "a3"]);

        // New messages of a busy key are seen to be held, others are not.
        scratch.receive(vec![of("b3", "b"), of("c1", "c")]).await;
        let (_, batch) = scratch.read("h", true).await;
        let held: Vec<(String, bool)> =
            batch.rows.iter().map(|row| (row.message.clone().unwrap().id, row.held)).collect();
        assert!(held.contains(&("b3".into(), true)) && held.contains(&("c1".into(), false)), "{held:?}");
        batch.connection.rollback().await;
        let arrivals = common::arrivals(vec![of("b4", "b"), of("c2", "c")]);
        let inline = oncebox_core::store::ReadInline { arrivals: &arrivals, ordered: &["h"], limits: LIMITS };
        let batch = scratch.store.begin_inline(&inline).await.unwrap();
        assert_eq!(batch.held, [("h".to_owned(), "b".to_owned())]);
        batch.connection.rollback().await;
    })
    .await;
}

#[tokio::test]
async fn held_messages_left_with_nothing_before_them_are_healed() {
    common::with_store(async |scratch| {
        scratch.register("h", true).await;
        let held =
            (0..3).flat_map(|n| [message(format!("x{n}")).key("x"), message(format!("y{n}")).key("y")]);
        scratch.park("h", ParkState::Held, held.collect()).await;
        scratch.park("h", ParkState::Ready(MINUTE), vec![message("z0").key("z")]).await;
        scratch.park("h", ParkState::Held, vec![message("z1").key("z")]).await;
        let mut ids = scratch.leased_ids("h", true).await;
        ids.sort();
        assert_eq!(ids, ["x0", "y0"]);
        assert!(scratch.leased_ids("h", true).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_scheduled_message_waits_for_its_time_and_behind_earlier_ones_of_its_key() {
    common::with_store(async |scratch| {
        scratch.register("h", true).await;
        let micros = scratch.number("select cast(unix_timestamp(now(6)) * 1000000 as signed)").await;
        let soon = jiff::Timestamp::from_microsecond(micros + 60_000_000).unwrap();
        scratch.park("h", ParkState::Ready(MINUTE * 2), vec![message("first").key("k")]).await;
        scratch.park("h", ParkState::Scheduled, vec![message("k").key("k").not_before(soon)]).await;
        scratch.park("h", ParkState::Scheduled, vec![message("j").key("j").not_before(soon)]).await;
        let leased = scratch.lease("h", true).await;
        assert!(leased.deliveries.is_empty());
        assert!(leased.next_due.unwrap() <= MINUTE);
        let found = scratch
            .store
            .deliveries(&{
                let mut filter = DeliveryFilter::all();
                filter.state = Some(DeliveryState::Scheduled);
                filter
            })
            .await
            .unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].due_at, soon);
        scratch.clock.advance(MINUTE);
        assert_eq!(scratch.leased_ids("h", true).await, ["j"]);
        // What is due but waits for its key must not make the engine spin.
        assert!(scratch.lease("h", true).await.next_due.unwrap() > Duration::from_secs(1));
        assert_eq!(scratch.leased_ids("h", false).await, ["k"]);
    })
    .await;
}

#[tokio::test]
async fn a_replay_keeps_the_order_of_each_key() {
    common::with_store(async |scratch| {
        scratch.register("h", true).await;
        scratch.register("free", false).await;
        let of = |id: &str, key: &str| message(id).key(key);
        scratch
            .park("h", ParkState::Dead, vec![of("a1", "a"), of("a2", "a"), of("b1", "b"), message("n")])
            .await;
        scratch.park("h", READY, vec![of("b2", "b")]).await;
        scratch.park("free", ParkState::Dead, vec![of("f1", "a"), of("f2", "a")]).await;
        let mut filter = DeliveryFilter::dead("h");
        filter.error = Some("100%".into());
        assert_eq!(scratch.store.replay(&filter).await.unwrap(), 0);
        filter.error = None;
        filter.limit = Some(3);
        assert_eq!(scratch.store.replay(&filter).await.unwrap(), 3);
        filter.limit = None;
        assert_eq!(scratch.store.replay(&filter).await.unwrap(), 1);
        assert_eq!(scratch.store.replay(&filter).await.unwrap(), 0);
        let mut ids = scratch.leased_ids("h", true).await;
        ids.sort();
        // b1 waits for b2, which was active already.
        assert_eq!(ids, ["a1", "b2", "n"]);
        assert_eq!(scratch.store.replay(&DeliveryFilter::dead("free")).await.unwrap(), 2);
        assert_eq!(scratch.leased_ids("free", false).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn deliveries_are_found_by_every_filter() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.receive(vec![message("a")]).await;
        let mut park = common::parked("h", message("a").key("k"), ParkState::Dead);
        (park.attempts, park.error) = (3, Some("50% of it_failed".into()));
        let tx = scratch.store.begin_plain(LIMITS).await.unwrap();
        let ids = scratch.store.commit(tx, Commit { park: vec![park], ..Commit::default() }).await.unwrap();
        scratch.park("h", READY, (0..150).map(|n| message(format!("m{n}"))).collect()).await;
        let count = async |change: fn(&mut DeliveryFilter)| {
            let mut filter = DeliveryFilter::all();
            change(&mut filter);
            scratch.store.deliveries(&filter).await.unwrap().len()
        };
        assert_eq!(count(|_| ()).await, 100);
        assert_eq!(count(|filter| filter.limit = Some(1000)).await, 151);
        assert_eq!(count(|filter| filter.state = Some(DeliveryState::Dead)).await, 1);
        assert_eq!(count(|filter| filter.state = Some(DeliveryState::Retrying)).await, 0);
        assert_eq!(count(|filter| filter.state = Some(DeliveryState::Waiting)).await, 100);
        assert_eq!(count(|filter| filter.error = Some("% of it_".into())).await, 1);
        assert_eq!(count(|filter| filter.error = Some("%".into())).await, 1);
        assert_eq!(count(|filter| filter.error = Some("5_%".into())).await, 0);
        assert_eq!(count(|filter| filter.key = Some("k".into())).await, 1);
        assert_eq!(count(|filter| filter.message_id = Some("m7".into())).await, 1);
        assert_eq!(count(|filter| filter.scope = Some("else".into())).await, 0);
        assert_eq!(count(|filter| filter.kind = Some("order.placed".into())).await, 100);
        assert_eq!(count(|filter| filter.handler = Some("x".into())).await, 0);
        assert_eq!(count(|filter| filter.since = Some("2200-01-01T00:00:00Z".parse().unwrap())).await, 0);
        assert_eq!(count(|filter| filter.deliveries = vec![DeliveryId(-1)]).await, 0);
        let mut after = DeliveryFilter::all();
        (after.after, after.limit) = (Some(ids[0]), Some(1000));
        assert_eq!(scratch.store.deliveries(&after).await.unwrap().len(), 150);

        let mut letter = DeliveryFilter::all();
        letter.deliveries = ids;
        let found = &scratch.store.deliveries(&letter).await.unwrap()[0];
        assert_eq!((found.attempts, found.history[0].attempt), (3, 3));
        let seen_at = scratch.number("select seen_at from {schema}.seen").await;
        assert_eq!(
            found.received_at.as_microsecond(),
            seen_at,
            "when the message came, not when it was parked"
        );
        assert_eq!(scratch.store.discard(&letter, "not wanted").await.unwrap(), 1);
        assert_eq!(scratch.store.discard(&letter, "not wanted").await.unwrap(), 0);
        let found = &scratch.store.deliveries(&letter).await.unwrap()[0];
        assert_eq!(found.state, DeliveryState::Discarded);
        assert_eq!(found.history[1].error, "discarded: not wanted");
        let status = &scratch.store.handlers().await.unwrap()[0];
        assert_eq!(
            (status.retrying, status.dead, status.waiting),
            (0, 0, 1),
            "none of the 150 has failed yet"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_delivery_is_leased_twice_by_rivals() {
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        scratch.park("h", READY, (0..300).map(|n| message(format!("m{n}"))).collect()).await;
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let (store, token) = (scratch.store.clone(), scratch.token());
                tokio::spawn(async move {
                    let mut got = Vec::new();
                    loop {
                        let ask =
                            AskLease { handler: "h", token, limit: 10, lease_for: MINUTE, ordered: false };
                        let leased = store.lease(&ask).await.unwrap();
                        if leased.deliveries.is_empty() {
                            return got;
                        }
                        got.extend(leased.deliveries.into_iter().map(|one| one.message.id));
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        assert_eq!(all.len(), 300);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 300);
    })
    .await;
}

#[tokio::test]
async fn counters_add_up() {
    common::with_store(async |scratch| {
        let count = |value| Count { handler: "h".into(), name: "done".into(), value };
        scratch.store.add_counts(&[]).await.unwrap();
        scratch.store.add_counts(&[count(2), count(3)]).await.unwrap();
        scratch.clock.advance(MINUTE);
        scratch.store.add_counts(&[count(4)]).await.unwrap();
        assert_eq!(scratch.store.counts().await.unwrap(), [count(9)]);
        assert_eq!(scratch.number("select count(*) from {schema}.counter where minute > 0").await, 2);
    })
    .await;
}
