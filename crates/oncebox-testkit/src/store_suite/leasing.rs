//! The calls for deliveries with a row of their own, one by one: leases, fences, held keys, filters, counters.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncebox_core::admin::{AdminStore, DeliveryFilter, DeliveryState};
use oncebox_core::clock::ClockShift;
use oncebox_core::store::{
    Arrival, AskLease, Claim, Commit, Connection, Count, DeliveryId, DoneLeases, LAPSED, LaneBatch,
    LaneBound, Lease, Leased, Outcome, Park, ParkState, ReadInline, ReadLanes, Registration, Retention,
    Settlement, Token, TxLimits,
};
use oncebox_core::{ErrorKind, Kinds, Message, Store};

use crate::fixtures::{self, HOUR};
use crate::ledger::Effect;
use crate::subject::Subject;

const LIMITS: TxLimits = TxLimits { statement: Duration::from_secs(10) };
const MINUTE: Duration = Duration::from_secs(60);
const READY: ParkState = ParkState::Ready(Duration::ZERO);

/// A store whose methods are called here as the engine calls them.
struct Scratch<T: Subject> {
    subject: T,
    store: T::Store,
    tokens: AtomicI64,
}

impl<T: Subject> Scratch<T> {
    fn on(subject: T) -> Self {
        Self { store: subject.store(), subject, tokens: AtomicI64::new(1) }
    }

    fn clock(&self) -> ClockShift {
        self.subject.clock()
    }

    fn token(&self) -> Token {
        Token(self.tokens.fetch_add(1, Ordering::SeqCst))
    }

    async fn register(&self, name: &str, ordered: bool) {
        let (name, formerly) = (name.to_owned(), Vec::new());
        let registration = Registration { name, formerly, kinds: everything(), from_start: false, ordered };
        self.store.register(&[registration]).await.unwrap();
    }

    async fn receive(&self, messages: Vec<Message>) {
        self.store.receive(&arrivals(messages)).await.unwrap();
    }

    /// Claims every lane with work and reads it.
    async fn read(&self, handler: &str, ordered: bool) -> LaneBatch<<T::Store as Store>::Connection> {
        let token = self.token();
        let claimed = self.store.claim(&Claim { handler, token, lanes: 32, limit: 100 }).await.unwrap();
        let lanes: Vec<LaneBound> =
            claimed.iter().map(|claimed| LaneBound { lane: claimed.lane, upto: None }).collect();
        let kinds = everything();
        let read =
            ReadLanes { handler, token, lanes: &lanes, limit: 1000, kinds: &kinds, ordered, limits: LIMITS };
        self.store.begin_lanes(&read).await.unwrap().expect("the lanes are ours")
    }

    /// Gives these messages rows of their own, in a transaction of their own.
    async fn park(&self, handler: &str, state: ParkState, messages: Vec<Message>) {
        let park = messages.into_iter().map(|message| parked(handler, message, state)).collect();
        let tx = self.store.begin_plain(LIMITS).await.unwrap();
        self.store.commit(tx, Commit { park, ..Commit::default() }).await.unwrap();
    }

    async fn lease(&self, handler: &str, ordered: bool) -> Leased {
        let ask = AskLease { handler, token: self.token(), limit: 100, lease_for: MINUTE, ordered };
        self.store.lease(&ask).await.unwrap()
    }

    async fn leased_ids(&self, handler: &str, ordered: bool) -> Vec<String> {
        let leased = self.lease(handler, ordered).await;
        leased.deliveries.into_iter().map(|delivery| delivery.message.id).collect()
    }
}

fn message(id: impl Into<String>) -> Message {
    fixtures::message(id).scope("orders")
}

fn everything() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.add("*").unwrap();
    kinds
}

fn arrivals(messages: Vec<Message>) -> Vec<Arrival> {
    Arrival::all(&messages).collect()
}

fn parked(handler: &str, message: Message, state: ParkState) -> Park {
    Park { handler: handler.to_owned(), message, state, attempts: 0, error: None }
}

fn settlement(lease: Lease, outcome: Outcome) -> Settlement {
    Settlement { lease, outcome }
}

/// By renewing, taking over, settling late and every outcome there is.
pub async fn an_expired_lease_is_taken_over_and_cannot_settle<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
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

    scratch.clock().advance(MINUTE / 2);
    assert_eq!(scratch.store.renew("h", &[lease], MINUTE).await.unwrap(), [true]);
    scratch.clock().advance(MINUTE / 2);
    assert!(scratch.lease("h", false).await.deliveries.is_empty(), "renewed");
    scratch.clock().advance(MINUTE);
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
    scratch.clock().advance(MINUTE);
    let third = scratch.lease("h", false).await.deliveries[0].lease;
    let back = [settlement(third, Outcome::Returned)];
    assert_eq!(scratch.store.settle("h", &back).await.unwrap(), [true]);
    let again = scratch.lease("h", false).await.deliveries[0].lease;
    assert_eq!(again.attempt, 3, "a returned attempt does not count");
    let dead = [settlement(again, Outcome::Dead("over".into()))];
    assert_eq!(scratch.store.settle("h", &dead).await.unwrap(), [true]);
    let info = &scratch.store.deliveries(&DeliveryFilter::dead("h")).await.unwrap()[0];
    assert_eq!((info.state, info.attempts, info.history.len()), (DeliveryState::Dead, 3, 3));
    // A NUL is kept, or replaced where the database cannot hold one.
    let error = &info.history[1].error;
    assert!(error.starts_with("bad ") && error.ends_with(" luck"), "{error:?}");
    assert!(scratch.lease("h", false).await.next_due.is_none());
}

/// And is not told that something would be due.
pub async fn a_paused_handler_gets_no_lease<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", false).await;
    scratch.park("h", READY, vec![message("a")]).await;
    scratch.store.set_paused("h", true).await.unwrap();
    let leased = scratch.lease("h", true).await;
    assert!(leased.deliveries.is_empty() && leased.next_due.is_none());
    scratch.store.set_paused("h", false).await.unwrap();
    assert_eq!(scratch.leased_ids("h", true).await, ["a"]);
}

/// One stale lease among several spoils the commit.
pub async fn leased_work_commits_with_its_transaction_or_is_fenced<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", false).await;
    scratch.park("h", READY, vec![message("a"), message("b")]).await;
    let leases: Vec<Lease> =
        scratch.lease("h", false).await.deliveries.iter().map(|delivery| delivery.lease).collect();
    let mut tx = scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().unwrap();
    T::record(&mut tx, Effect::of("h", &message("a"))).await.unwrap();
    if T::FACTS.parallel_transactions {
        assert!(scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().is_none(), "locked");
    }
    let mut stale = leases.clone();
    stale[0].attempt += 1;
    let done = |leases: Vec<Lease>| Commit {
        done: Some(DoneLeases { handler: "h".into(), leases }),
        ..Commit::default()
    };
    let error = scratch.store.commit(tx, done(stale)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(scratch.subject.effects().await.len(), 0);
    let mut tx = scratch.store.begin_leased("h", &leases, LIMITS).await.unwrap().unwrap();
    T::record(&mut tx, Effect::of("h", &message("a"))).await.unwrap();
    scratch.store.commit(tx, done(leases)).await.unwrap();
    assert_eq!(scratch.subject.effects().await.len(), 1);
    assert!(scratch.store.deliveries(&DeliveryFilter::all()).await.unwrap().is_empty());
}

/// Whichever way it ends; a retry keeps its key.
pub async fn the_next_held_message_of_a_key_becomes_ready_when_the_one_before_ends<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
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
    scratch.clock().advance(MINUTE * 2);
    assert_eq!(scratch.leased_ids("h", true).await, ["b1", "a3"]);

    // New messages of a busy key are seen to be held, others are not.
    scratch.receive(vec![of("b3", "b"), of("c1", "c")]).await;
    let batch = scratch.read("h", true).await;
    let held: Vec<(String, bool)> =
        batch.rows.iter().map(|row| (row.to_message().unwrap().id, row.held)).collect();
    assert!(held.contains(&("b3".into(), true)) && held.contains(&("c1".into(), false)), "{held:?}");
    batch.connection.rollback().await;
    let arrivals = arrivals(vec![of("b4", "b"), of("c2", "c")]);
    let inline = ReadInline { arrivals: &arrivals, ordered: &["h"], limits: LIMITS };
    let batch = scratch.store.begin_inline(&inline).await.unwrap();
    assert_eq!(batch.held, [("h".to_owned(), "b".to_owned())]);
    batch.connection.rollback().await;
}

/// A process that died at the wrong moment must not leave a key blocked.
pub async fn held_messages_left_with_nothing_before_them_are_healed<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", true).await;
    let held = (0..3).flat_map(|n| [message(format!("x{n}")).key("x"), message(format!("y{n}")).key("y")]);
    scratch.park("h", ParkState::Held, held.collect()).await;
    scratch.park("h", ParkState::Ready(MINUTE), vec![message("z0").key("z")]).await;
    scratch.park("h", ParkState::Held, vec![message("z1").key("z")]).await;
    let mut ids = scratch.leased_ids("h", true).await;
    ids.sort();
    assert_eq!(ids, ["x0", "y0"]);
    assert!(scratch.leased_ids("h", true).await.is_empty());
}

/// And nobody is told to come back at once for what cannot run.
pub async fn a_scheduled_message_waits_for_its_time_and_behind_earlier_ones_of_its_key<T: Subject>(
    subject: T,
) {
    let scratch = Scratch::on(subject);
    scratch.register("h", true).await;
    let micros = jiff::Timestamp::now().as_microsecond();
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
    scratch.clock().advance(MINUTE);
    assert_eq!(scratch.leased_ids("h", true).await, ["j"]);
    // What is due but waits for its key must not make the engine spin.
    assert!(scratch.lease("h", true).await.next_due.unwrap() > Duration::from_secs(1));
    assert_eq!(scratch.leased_ids("h", false).await, ["k"]);
}

/// Only where the handler is ordered.
pub async fn a_replay_keeps_the_order_of_each_key<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", true).await;
    scratch.register("free", false).await;
    let of = |id: &str, key: &str| message(id).key(key);
    scratch.park("h", ParkState::Dead, vec![of("a1", "a"), of("a2", "a"), of("b1", "b"), message("n")]).await;
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
}

/// Signs that SQL would take for a pattern are letters like any other.
pub async fn deliveries_are_found_by_every_filter<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", false).await;
    scratch.receive(vec![message("a")]).await;
    scratch.clock().advance(MINUTE);
    let mut park = parked("h", message("a").key("k"), ParkState::Dead);
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
    let came = scratch.store.message("orders", "a").await.unwrap().unwrap().received_at;
    assert_eq!(found.received_at, came, "when the message came, not when it was parked");
    assert_eq!(scratch.store.discard(&letter, "not wanted").await.unwrap(), 1);
    assert_eq!(scratch.store.discard(&letter, "not wanted").await.unwrap(), 0);
    let found = &scratch.store.deliveries(&letter).await.unwrap()[0];
    assert_eq!(found.state, DeliveryState::Discarded);
    assert_eq!(found.history[1].error, "discarded: not wanted");
    let status = &scratch.store.handlers().await.unwrap()[0];
    assert_eq!((status.retrying, status.dead, status.waiting), (0, 0, 1), "none of the 150 has failed yet");
}

/// Six of them, ten rows at a time.
pub async fn no_delivery_is_leased_twice_by_rivals<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    scratch.register("h", false).await;
    scratch.park("h", READY, (0..300).map(|n| message(format!("m{n}"))).collect()).await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (store, token) = (scratch.store.clone(), scratch.token());
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let ask = AskLease { handler: "h", token, limit: 10, lease_for: MINUTE, ordered: false };
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
}

/// In a bucket per minute, and in a total that stays.
pub async fn counters_add_up<T: Subject>(subject: T) {
    let scratch = Scratch::on(subject);
    let count = |value| Count { handler: "h".into(), name: "done".into(), value };
    scratch.store.add_counts(&[]).await.unwrap();
    scratch.store.add_counts(&[count(2), count(3)]).await.unwrap();
    scratch.clock().advance(MINUTE);
    scratch.store.add_counts(&[count(4)]).await.unwrap();
    assert_eq!(scratch.store.counts().await.unwrap(), [count(9)]);
    scratch.clock().advance(72 * HOUR);
    let buckets = scratch.store.purge(&Retention::default()).await.unwrap().others;
    assert_eq!((buckets, scratch.store.counts().await.unwrap()), (2, vec![count(9)]), "a bucket per minute");
}
