use std::time::Duration;

use oncebox_core::admin::{DeliveryFilter, DeliveryInfo, DeliveryState};
use oncebox_core::store::{
    Arrival, AskLease, Commit, Connection, Count, DeliveryId, DoneLeases, LAPSED, Lease, LeasedDelivery,
    Outcome, Park, ParkState, ReadInline, Settlement, Token,
};
use oncebox_core::{ErrorKind, Message, Store};

use crate::{Fixture, LIMITS, SECOND, fixture, moved, text};

fn park(message: Message, state: ParkState) -> Park {
    Park { handler: "h".into(), message, state, attempts: 0, error: None }
}

impl Fixture {
    async fn park(&self, park: Vec<Park>) -> Vec<DeliveryId> {
        let tx = self.store.begin_plain(LIMITS).await.unwrap();
        self.store.commit(tx, Commit { park, ..Commit::default() }).await.unwrap()
    }

    async fn lease(&self, token: i64) -> Vec<LeasedDelivery> {
        self.store.lease(&ask(token)).await.unwrap().deliveries
    }

    async fn settle(&self, lease: Lease, outcome: Outcome) -> bool {
        self.store.settle("h", &[Settlement { lease, outcome }]).await.unwrap()[0]
    }

    async fn all(&self) -> Vec<DeliveryInfo> {
        self.store.deliveries(&DeliveryFilter::all()).await.unwrap()
    }

    async fn states(&self) -> Vec<DeliveryState> {
        self.all().await.iter().map(|delivery| delivery.state).collect()
    }
}

fn ask(token: i64) -> AskLease<'static> {
    AskLease { handler: "h", token: Token(token), limit: 10, lease_for: 30 * SECOND, ordered: true }
}

const NOW: ParkState = ParkState::Ready(Duration::ZERO);

#[tokio::test]
async fn parked_deliveries_become_due_in_their_time() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("ready")]).await;
    fixture.clock.advance(60 * SECOND);
    let later =
        jiff::Timestamp::from_microsecond(jiff::Timestamp::now().as_microsecond() + 100_000_000).unwrap();
    let failed = Park {
        attempts: 3,
        error: Some("no \0 luck".into()),
        ..park(text("ready"), ParkState::Ready(5 * SECOND))
    };
    let ids = fixture
        .park(vec![
            failed,
            park(text("held").key("k"), ParkState::Held),
            park(text("scheduled").not_before(later), ParkState::Scheduled),
            park(text("leased"), ParkState::Leased(Token(9), 8 * SECOND)),
            park(text("dead"), ParkState::Dead),
        ])
        .await;
    assert!(ids.is_sorted() && ids.len() == 5);
    use DeliveryState::{Dead, Held, Retrying, Scheduled, Waiting};
    assert_eq!(fixture.states().await, [Retrying, Held, Scheduled, Waiting, Dead]);
    let first = &fixture.all().await[0];
    assert_eq!(first.history[0].error, "no \u{fffd} luck");
    assert_eq!((first.history[0].attempt, first.attempts), (3, 3));
    assert!(
        first.history[0].at.duration_since(first.received_at).as_secs() >= 59,
        "dated by when it was received"
    );

    // Not ordered: nothing is promoted by the way.
    let unordered = AskLease { ordered: false, ..ask(1) };
    let leased = fixture.store.lease(&unordered).await.unwrap();
    assert_eq!(leased.deliveries.len(), 0);
    let next_due = leased.next_due.unwrap();
    assert!(next_due > 4 * SECOND && next_due <= 5 * SECOND, "{next_due:?}");
    fixture.clock.advance(6 * SECOND);
    let leased = fixture.store.lease(&unordered).await.unwrap();
    assert_eq!(leased.next_due, None);
    assert_eq!(leased.deliveries.len(), 1);
    assert_eq!(leased.deliveries[0].lease, Lease { delivery: ids[0], token: Token(1), attempt: 4 });
    fixture.clock.advance(200 * SECOND);
    let ready: Vec<_> = fixture.store.lease(&unordered).await.unwrap().deliveries;
    // In the order they became due: the other's lease, our own, the scheduled one.
    assert_eq!(ready.iter().map(|one| one.lease.delivery).collect::<Vec<_>>(), [ids[3], ids[0], ids[2]]);
    assert_eq!(ready[2].message, text("scheduled").not_before(later));
}

#[tokio::test]
async fn a_lapsed_lease_is_taken_over_noted_and_fenced() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.park(vec![park(text("a"), NOW)]).await;
    let first = fixture.lease(1).await.remove(0).lease;
    assert_eq!(first.attempt, 1);
    assert_eq!(fixture.lease(2).await.len(), 0);
    assert_eq!(fixture.store.renew("h", &[first], 40 * SECOND).await.unwrap(), [true]);
    fixture.clock.advance(35 * SECOND);
    assert_eq!(fixture.lease(2).await.len(), 0, "renewed");
    fixture.clock.advance(10 * SECOND);
    let second = fixture.lease(2).await.remove(0).lease;
    assert_eq!(second.attempt, 2);
    let delivery = fixture.all().await.remove(0);
    assert_eq!(delivery.history.len(), 1);
    assert_eq!((delivery.history[0].attempt, delivery.history[0].error.as_str()), (1, LAPSED));
    assert_eq!(delivery.state, DeliveryState::Retrying);

    // The first one comes back.
    for outcome in
        [Outcome::Done, Outcome::Retry(SECOND, "x".into()), Outcome::Dead("x".into()), Outcome::Returned]
    {
        assert!(!fixture.settle(first, outcome).await);
    }
    assert_eq!(fixture.store.renew("h", &[first, second], SECOND).await.unwrap(), [false, true]);
    let both = [first, second].map(|lease| Settlement { lease, outcome: Outcome::Returned });
    assert_eq!(fixture.store.settle("h", &both).await.unwrap(), [false, true]);
    let second = fixture.lease(3).await.remove(0).lease;
    assert!(fixture.store.begin_leased("h", &[first], LIMITS).await.unwrap().is_none());
    let mut tx = fixture.store.begin_leased("h", &[second], LIMITS).await.unwrap().unwrap();
    sqlx::query("insert into effect (note) values ('a')").execute(&mut *tx).await.unwrap();
    let done = |leases| Some(DoneLeases { handler: "h".into(), leases });
    let error =
        fixture.store.commit(tx, Commit { done: done(vec![first]), ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let tx = fixture.store.begin_leased("h", &[second], LIMITS).await.unwrap().unwrap();
    fixture.store.commit(tx, Commit { done: done(vec![second]), ..Commit::default() }).await.unwrap();
    assert_eq!(fixture.all().await.len(), 0);
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
}

#[tokio::test]
async fn each_outcome_leaves_its_delivery_where_it_belongs() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.park(["done", "retry", "dead", "returned"].map(|id| park(text(id), NOW)).to_vec()).await;
    let leases = fixture.lease(1).await;
    let outcomes = [
        Outcome::Done,
        Outcome::Retry(9 * SECOND, "e1".into()),
        Outcome::Dead("e2".into()),
        Outcome::Returned,
    ];
    let settlements: Vec<_> = leases
        .iter()
        .zip(outcomes)
        .map(|(leased, outcome)| Settlement { lease: leased.lease, outcome })
        .collect();
    assert_eq!(fixture.store.settle("h", &settlements).await.unwrap(), [true; 4]);
    assert_eq!(fixture.store.settle("h", &settlements).await.unwrap(), [false; 4]);
    let all = fixture.all().await;
    let shown: Vec<_> =
        all.iter().map(|one| (one.message.id.as_str(), one.state, one.attempts, one.history.len())).collect();
    use DeliveryState::{Dead, Retrying, Waiting};
    assert_eq!(shown, [("retry", Retrying, 1, 1), ("dead", Dead, 1, 1), ("returned", Waiting, 0, 0)]);
    assert_eq!(all[0].history[0].error, "e1");
    assert_eq!(fixture.lease(2).await.len(), 1);
    fixture.clock.advance(10 * SECOND);
    assert_eq!(fixture.lease(2).await[0].lease.attempt, 2);
}

#[tokio::test]
async fn the_next_held_message_of_a_key_follows_the_one_that_is_finished() {
    let fixture = fixture().await;
    fixture.register("h", true).await;
    let message = |id: &str| text(id).key("k");
    fixture
        .park(vec![
            park(message("1"), NOW),
            park(message("2"), ParkState::Held),
            park(message("3"), ParkState::Held),
            park(text("x").key("other"), ParkState::Dead),
            park(message("4"), ParkState::Held),
        ])
        .await;
    // A later message of the key must wait; another key need not.
    fixture.receive(vec![message("5"), text("y").key("free"), text("z")]).await;
    let (tx, rows) = fixture.batch("h", Token(1)).await;
    let held: Vec<_> = rows.iter().filter(|row| row.held).map(|row| row.to_message().unwrap().id).collect();
    assert_eq!(held, ["5"]);
    tx.rollback().await;
    let arrivals = [Arrival::new(message("6")), Arrival::new(text("7").key("free"))];
    let inline = ReadInline { arrivals: &arrivals, ordered: &["g", "h"], limits: LIMITS };
    let batch = fixture.store.begin_inline(&inline).await.unwrap();
    assert_eq!(batch.held, [("h".to_owned(), "k".to_owned())]);
    batch.connection.rollback().await;

    let mut order = Vec::new();
    let outcomes =
        [Outcome::Done, Outcome::Dead("x".into()), Outcome::Retry(Duration::ZERO, "y".into()), Outcome::Done];
    for outcome in outcomes {
        let mut leased = fixture.lease(1).await;
        assert_eq!(leased.len(), 1, "{order:?}");
        let leased = leased.remove(0);
        order.push(leased.message.id.clone());
        assert!(fixture.settle(leased.lease, outcome).await);
    }
    assert_eq!(order, ["1", "2", "3", "3"]);
    let last = fixture.lease(1).await.remove(0);
    assert_eq!(last.message.id, "4");
    let tx = fixture.store.begin_leased("h", &[last.lease], LIMITS).await.unwrap().unwrap();
    let done = Some(DoneLeases { handler: "h".into(), leases: vec![last.lease] });
    fixture.store.commit(tx, Commit { done, ..Commit::default() }).await.unwrap();
    assert_eq!(fixture.states().await, [DeliveryState::Dead; 2]);
}

#[tokio::test]
async fn a_scheduled_message_waits_behind_earlier_ones_of_its_key_and_a_stuck_one_gets_free() {
    let fixture = fixture().await;
    fixture.register("h", true).await;
    let soon = jiff::Timestamp::now();
    fixture
        .park(vec![
            park(text("1").key("k"), ParkState::Ready(50 * SECOND)),
            park(text("2").key("k").not_before(soon), ParkState::Scheduled),
            park(text("3").not_before(soon), ParkState::Scheduled),
        ])
        .await;
    fixture.clock.advance(SECOND);
    let leased = fixture.lease(1).await;
    assert_eq!(leased.len(), 1);
    assert_eq!(leased[0].message.id, "3");
    let nothing = fixture.store.lease(&ask(1)).await.unwrap();
    assert!(nothing.deliveries.is_empty());
    assert!(
        nothing.next_due.unwrap() > 20 * SECOND,
        "does not spin on the blocked one: {:?}",
        nothing.next_due
    );

    fixture.store.forget("h").await.unwrap();
    fixture.register("h", true).await;
    fixture
        .park(vec![park(text("a").key("k"), ParkState::Held), park(text("b").key("k"), ParkState::Held)])
        .await;
    fixture.park(vec![park(text("c").key("k").not_before(soon), ParkState::Scheduled)]).await;
    let leased = fixture.lease(1).await;
    assert_eq!(leased.len(), 1);
    assert_eq!(leased[0].message.id, "a");
    let status = fixture.store.handlers().await.unwrap().remove(0);
    assert_eq!((status.retrying, status.held, status.scheduled, status.dead), (0, 1, 1, 0));
}

#[tokio::test]
async fn replay_keeps_the_order_of_a_key_and_discard_is_final() {
    let fixture = fixture().await;
    fixture.register("h", true).await;
    let dead = |id: &str, key: Option<&str>| {
        let mut message = text(id);
        message.key = key.map(str::to_owned);
        Park { attempts: 12, error: Some(format!("100% of {id}_x")), ..park(message, ParkState::Dead) }
    };
    fixture
        .park(vec![
            dead("1", Some("a")),
            dead("2", Some("a")),
            dead("3", Some("b")),
            dead("4", None),
            park(text("5").key("b"), ParkState::Ready(SECOND)),
            dead("6", Some("a")),
        ])
        .await;
    let by_error = |error: &str| {
        let mut filter = DeliveryFilter::dead("h");
        filter.error = Some(error.into());
        filter
    };
    assert_eq!(fixture.store.deliveries(&by_error("%")).await.unwrap().len(), 5);
    assert_eq!(fixture.store.deliveries(&by_error("% of 6_")).await.unwrap().len(), 1);
    assert_eq!(fixture.store.deliveries(&by_error("6%")).await.unwrap().len(), 0);
    assert_eq!(fixture.store.discard(&by_error("of 6_"), "not needed").await.unwrap(), 1);
    let mut limited = DeliveryFilter::dead("h");
    limited.limit = Some(1);
    assert_eq!(fixture.store.replay(&limited).await.unwrap(), 1);
    assert_eq!(fixture.store.replay(&DeliveryFilter::all()).await.unwrap(), 3);
    assert_eq!(fixture.store.replay(&DeliveryFilter::all()).await.unwrap(), 0);
    use DeliveryState::{Discarded, Held, Waiting};
    assert_eq!(fixture.states().await, [Waiting, Held, Held, Waiting, Waiting, Discarded]);
    let all = fixture.all().await;
    assert_eq!(all[5].history.last().unwrap().error, "discarded: not needed");
    assert!(all[..4].iter().all(|one| one.attempts == 0 && one.history.len() == 1));
}

#[tokio::test]
async fn filters_and_pages_narrow_the_list() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    let ids = fixture.park((0..150).map(|n| park(text(&n.to_string()).key(n % 3), NOW)).collect()).await;
    let count = async |change: &dyn Fn(&mut DeliveryFilter)| {
        let mut filter = DeliveryFilter::all();
        change(&mut filter);
        fixture.store.deliveries(&filter).await.unwrap().len()
    };
    assert_eq!(count(&|_| ()).await, 100);
    assert_eq!(count(&|filter| filter.limit = Some(1000)).await, 150);
    assert_eq!(count(&|filter| filter.after = Some(ids[139])).await, 10);
    assert_eq!(count(&|filter| filter.key = Some("1".into())).await, 50);
    assert_eq!(count(&|filter| filter.message_id = Some("01".into())).await, 0);
    assert_eq!(count(&|filter| filter.message_id = Some("1".into())).await, 1);
    assert_eq!(count(&|filter| filter.scope = Some("other".into())).await, 0);
    assert_eq!(count(&|filter| filter.kind = Some("test".into())).await, 100);
    assert_eq!(count(&|filter| filter.handler = Some("g".into())).await, 0);
    assert_eq!(count(&|filter| filter.deliveries = vec![ids[3], ids[5], DeliveryId(-1)]).await, 2);
    assert_eq!(count(&|filter| filter.state = Some(DeliveryState::Waiting)).await, 100);
    assert_eq!(count(&|filter| filter.state = Some(DeliveryState::Retrying)).await, 0);
    assert_eq!(
        count(&|filter| filter.since = Some(jiff::Timestamp::now() + jiff::SignedDuration::from_secs(9)))
            .await,
        0
    );
}

#[tokio::test]
async fn a_message_is_parked_once_per_handler_and_rows_move_with_the_lanes() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("a")]).await;
    let (tx, rows) = fixture.batch("h", Token(1)).await;
    let both = Commit {
        park: vec![park(text("a"), NOW)],
        outgoing: vec![text("out")],
        ..moved("h", Token(1), &rows)
    };
    assert_eq!(fixture.store.commit(tx, both).await.unwrap().len(), 1);
    let status = fixture.store.handlers().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying, status.dead), (0, 0, 0));
    let tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    let again =
        Commit { park: vec![park(text("a"), NOW)], outgoing: vec![text("ghost")], ..Commit::default() };
    assert_eq!(fixture.store.commit(tx, again).await.unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(fixture.number("select count(*) from oncebox_outbox").await, 1);
}

#[tokio::test]
async fn counters_add_up() {
    let fixture = fixture().await;
    let count = |name: &str, value| Count { handler: "h".into(), name: name.into(), value };
    for _ in 0..3 {
        fixture.store.add_counts(&[count("done", 2), count("failed", 1), count("done", 1)]).await.unwrap();
        fixture.clock.advance(60 * SECOND);
    }
    assert_eq!(fixture.store.counts().await.unwrap(), [count("done", 9), count("failed", 3)]);
    assert_eq!(
        fixture
            .number("select count(*) from oncebox_counter where name = 'done' and minute > 0 and value = 3")
            .await,
        3
    );
}
