//! The relay when the sink misbehaves: nobody is blocked, nothing spins, nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::admin::{AdminStore, OutgoingFilter, OutgoingInfo, OutgoingState};
use oncebox_core::{Counter, Error, ErrorKind, Inbox, Message, Relay, SendFailure, Sink, Store, run};
use tokio::sync::Notify;

use crate::broker::{Manners, MemoryBroker};
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{HOUR, ids_of, keyed, killed_at, start, ten_seconds};
use crate::subject::Subject;
use crate::wait::until;

/// Messages `00`, `01`, …, with the keys given in turn; an empty one means none.
async fn publish<T: Subject>(subject: &T, count: usize, keys: &[&str]) {
    let messages: Vec<Message> = (0..count)
        .map(|number| {
            let message = Message::new("x", "x").id(format!("{number:02}"));
            match keys[number % keys.len()] {
                "" => message,
                key => message.key(key),
            }
        })
        .collect();
    let mut own = subject.begin().await;
    subject.store().publish(&mut own, &messages).await.unwrap();
    T::commit(own).await;
}

fn ids_sent(broker: &MemoryBroker) -> Vec<String> {
    broker.sent().into_iter().map(|message| message.id).collect()
}

/// The others are sent, and it is tried with pauses until it is dead.
pub async fn an_unsendable_message_neither_blocks_nor_spins<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.refuse([("03".to_owned(), SendFailure::Retry("nacked".to_owned()))]);
    publish(&subject, 10, &[""]).await;
    let relay = || Relay::new(broker.clone()).backoff(ten_seconds()).max_attempts(3);
    run(inbox.clone()).relay(relay()).drain().await.unwrap();
    run(inbox.clone()).relay(relay()).drain().await.unwrap();
    assert_eq!(broker.sent().len(), 9, "all the others");
    assert_eq!(inbox.counters().get("", Counter::SendFailed), 1, "one try until its backoff is over");
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying, status.dead), (1, 1, 0));

    for _ in 0..4 {
        subject.clock().advance(HOUR);
        run(inbox.clone()).relay(relay()).drain().await.unwrap();
    }
    assert_eq!(inbox.counters().get("", Counter::SendFailed), 3, "dead after its last try");
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.dead), (0, 1));
}

/// A sink that hangs on message `03` and confirms every other one.
#[derive(Clone)]
struct Choking(MemoryBroker);

impl Sink for Choking {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.iter().any(|message| message.id == "03") {
            std::future::pending::<()>().await;
        }
        self.0.send(messages).await
    }
}

/// The sink never answers for the lot, so the relay must find out by itself whose fault it is.
pub async fn a_message_that_hangs_the_sink_is_found_and_the_others_go_on<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let sink = Choking(MemoryBroker::new(1, Manners::GOOD));
    publish(&subject, 10, &[""]).await;
    let relay = Relay::new(sink.clone()).backoff(ten_seconds()).timeout(Duration::from_millis(500));
    let lot = run(inbox.clone()).relay(relay.clone()).drain().await;
    assert!(lot.unwrap_err().is_transient(), "nobody is blamed for the lot");
    assert_eq!(inbox.counters().get("", Counter::SendFailed), 0);

    run(inbox.clone()).relay(relay).drain().await.unwrap();
    assert_eq!(ids_sent(&sink.0).len(), 9, "all the others");
    assert_eq!(inbox.counters().get("", Counter::SendFailed), 1);
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying), (1, 1));
}

/// A dead outgoing message is kept until a person sends it again.
pub async fn a_dead_outgoing_message_can_be_sent_again<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.refuse([("01".to_owned(), SendFailure::Permanent("too large".to_owned()))]);
    publish(&subject, 3, &["k"]).await;
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["00", "02"], "the dead hold nobody");
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.dead), (0, 1));

    broker.set_unreachable(false);
    assert_eq!(inbox.store().replay_outgoing("other").await.unwrap(), 0);
    assert_eq!(inbox.store().replay_outgoing("").await.unwrap(), 1);
    run(inbox).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["00", "02", "01"]);
}

/// The order of a key holds for retries too, and only for that key.
pub async fn messages_behind_an_unsent_one_of_their_key_wait<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.refuse([("02".to_owned(), SendFailure::Retry("nacked".to_owned()))]);
    publish(&subject, 9, &["a", "b", ""]).await;
    let relay = || Relay::new(broker.clone()).backoff(ten_seconds());
    broker.refuse([("00".to_owned(), SendFailure::Retry("nacked".to_owned()))]);
    run(inbox.clone()).relay(relay()).drain().await.unwrap();
    let mut sent = ids_sent(&broker);
    sent.sort_unstable();
    assert_eq!(sent, ["01", "02", "04", "05", "07", "08"]);

    broker.set_unreachable(false);
    subject.clock().advance(HOUR);
    run(inbox).relay(relay()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker)[6..], ["00", "03", "06"]);
}

/// A sink that keeps the order within a call: what comes after a refused message of its key is not sent.
#[derive(Clone)]
struct Orderly(MemoryBroker);

impl Sink for Orderly {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        let mut answers = Vec::new();
        let mut stuck = Vec::new();
        for message in messages {
            if message.key.is_some() && stuck.contains(&message.key) {
                answers.push(Err(SendFailure::Retry("not tried".to_owned())));
                continue;
            }
            answers.extend(self.0.send(std::slice::from_ref(message)).await?);
            if answers.last().is_some_and(Result::is_err) {
                stuck.push(message.key.clone());
            }
        }
        Ok(answers)
    }

    fn keeps_order(&self) -> bool {
        true
    }
}

/// Those behind a message that fails until it is dead were never tried, so they do not die with it.
pub async fn messages_behind_a_failing_one_of_their_key_outlive_it<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.refuse([("00".to_owned(), SendFailure::Retry("nacked".to_owned()))]);
    publish(&subject, 4, &["a", "b"]).await;
    let relay = || Relay::new(Orderly(broker.clone())).backoff(ten_seconds()).max_attempts(3);
    for _ in 0..3 {
        run(inbox.clone()).relay(relay()).drain().await.unwrap();
        subject.clock().advance(HOUR);
    }
    run(inbox.clone()).relay(relay()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["01", "03", "02"]);
    assert_eq!(inbox.counters().get("", Counter::SendFailed), 3, "only the first message was tried in vain");
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.dead), (0, 1));
}

/// A sink that cannot be reached says nothing about the messages.
pub async fn a_sink_that_is_away_blames_no_message<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.set_unreachable(true);
    publish(&subject, 5, &[""]).await;
    for _ in 0..3 {
        let tried = run(inbox.clone()).relay(Relay::new(broker.clone()).max_attempts(1)).drain().await;
        assert!(tried.is_err());
        subject.clock().advance(HOUR);
    }
    let status = inbox.store().outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying, status.dead), (5, 0, 0));
    broker.set_unreachable(false);
    run(inbox).relay(Relay::new(broker.clone()).max_attempts(1)).drain().await.unwrap();
    assert_eq!(broker.sent().len(), 5);
}

/// Whoever takes rows and skips locked ones would send 3 and 4 before 1 and 2.
pub async fn two_relays_at_once_keep_the_order_of_each_key<T: Subject>(subject: T) {
    let keys = ["a", "b", "c", "d", "e", "f"];
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let relay = || Relay::new(broker.clone()).batch(5);
    let poll = Duration::from_millis(10);
    let one = start(run(Inbox::new(subject.store())).relay(relay()).poll_every(poll));
    let two = start(run(Inbox::new(subject.reopen().await)).relay(relay()).poll_every(poll));
    for lot in 0..30 {
        let messages: Vec<Message> =
            keys.iter().map(|key| Message::new("x", "x").id(format!("{key}-{lot:02}")).key(key)).collect();
        loop {
            let mut own = subject.begin().await;
            match subject.store().publish(&mut own, &messages).await {
                Ok(()) => break T::commit(own).await,
                // At strict isolation levels the database may ask any caller for his transaction again.
                Err(error) if error.kind() == ErrorKind::Contention => T::rollback(own).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
    until("everything is sent", || async { broker.sent().len() >= 180 }).await;
    one.stop().await;
    two.stop().await;
    let sent = ids_sent(&broker);
    assert_eq!(sent.len(), 180, "no relay died, so nothing is sent twice");
    for key in keys {
        let of_key: Vec<&String> = sent.iter().filter(|id| id.starts_with(key)).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

/// Sends nothing, for ever.
struct Hanging(Arc<Notify>);

impl Sink for Hanging {
    async fn send(&self, _: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// No transaction is open meanwhile, and the lanes of a relay that died are taken over.
pub async fn a_relay_holds_no_transaction_while_the_sink_works<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store_with_one_connection().await);
    publish(&subject, 5, &["k"]).await;
    let entered = Arc::new(Notify::new());
    let hanging = run(inbox.clone()).relay(Hanging(entered.clone())).drain();
    let meanwhile = async {
        entered.notified().await;
        assert_eq!(subject.stuck_transactions().await, 0);
        let waiting = inbox.store().outbox().await.unwrap().remove(0).waiting;
        assert_eq!(waiting, 5, "the only connection is free");
    };
    killed_at(hanging, meanwhile).await;

    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(broker.sent(), [], "the dead relay's lanes are still its own");
    subject.clock().advance(HOUR);
    run(inbox).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_sent(&broker), ["00", "01", "02", "03", "04"]);
}

/// What was sent and could not be written is sent again, the order of each key holds, and each message counts once.
pub async fn a_store_that_fails_while_the_relay_sends_loses_nothing<T: Subject>(subject: T) {
    for (call, side) in [(1, Side::Before), (2, Side::Before), (1, Side::After), (2, Side::After)] {
        publish(&subject, 15, &["a", "b", ""]).await;
        let broker = MemoryBroker::new(1, Manners::GOOD);
        let fault = Fault { method: "settle_outgoing", call, side, how: How::ErrorOnce };
        let plan = Plan::with(fault);
        let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
        let relay = || Relay::new(broker.clone()).batch(3);
        // The second call may be the one that gives lanes back, whose failure is nobody's.
        let first = run(inbox.clone()).relay(relay()).drain().await;
        assert!(plan.has_struck() && (call == 2 || first.is_err()), "{fault:?}");
        subject.clock().advance(HOUR);
        run(inbox.clone()).relay(relay()).drain().await.unwrap();

        let mut sent = ids_sent(&broker);
        let mut seen = BTreeSet::new();
        sent.retain(|id| seen.insert(id.clone()));
        assert_eq!(sent.len(), 15, "{fault:?}");
        let number = |id: &&String| id.parse::<usize>().unwrap();
        for key in 0..2 {
            let of_key: Vec<&String> = sent.iter().filter(|id| number(id) % 3 == key).collect();
            assert!(of_key.is_sorted(), "{fault:?}: {of_key:?}");
        }
        assert!(inbox.store().outbox().await.unwrap().iter().all(|sink| sink.waiting == 0), "{fault:?}");
        let counted = inbox.counters().get("", Counter::Sent);
        // After its effect nobody knows that it was written, so what it wrote is not counted.
        assert!(if side == Side::Before { counted == 15 } else { counted <= 15 }, "{fault:?}: {counted}");
    }
}

/// In any order: only messages of one key have one.
fn assert_each_sent_once(broker: &MemoryBroker, count: usize) {
    let mut sent = ids_sent(broker);
    sent.sort_unstable();
    assert_eq!(sent, (0..count).map(|number| format!("{number:02}")).collect::<Vec<_>>());
}

/// A sink that begins only when the next lease has been read, so that the lease holds what the sink has in hand.
#[derive(Clone)]
struct Behind {
    broker: MemoryBroker,
    lease: Plan,
    keeps_order: bool,
    /// The lease is answered as soon as the first lot is sent.
    heals: bool,
}

impl Behind {
    /// The lease asked for while the first lot is sent.
    fn new(keeps_order: bool) -> Self {
        let second = Fault { method: "lease_outgoing", call: 2, side: Side::After, how: How::Stall };
        Self {
            broker: MemoryBroker::new(1, Manners::GOOD),
            lease: Plan::with(second),
            keeps_order,
            heals: true,
        }
    }
}

impl Sink for Behind {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        self.lease.struck().await;
        let answers = self.broker.send(messages).await;
        if self.heals {
            self.lease.heal();
        }
        answers
    }

    fn keeps_order(&self) -> bool {
        self.keeps_order
    }
}

/// What was in hand is not sent again with it, and it waits with a message of its key that failed meanwhile.
pub async fn what_is_leased_ahead_is_sent_once_and_in_order<T: Subject>(subject: T) {
    for keeps_order in [false, true] {
        let sink = Behind::new(keeps_order);
        sink.broker.refuse([("00".to_owned(), SendFailure::Retry("nacked".to_owned()))]);
        publish(&subject, 40, &["a", "b"]).await;
        let inbox = Inbox::new(Faulty::new(subject.store(), sink.lease.clone()));
        let relay = || Relay::new(sink.clone()).backoff(ten_seconds()).batch(2);
        run(inbox.clone()).relay(relay()).drain().await.unwrap();
        let number = |id: &String| id.parse::<usize>().unwrap();
        let of_b: Vec<usize> = (0..20).map(|turn| 2 * turn + 1).collect();
        assert_eq!(ids_sent(&sink.broker).iter().map(number).collect::<Vec<_>>(), of_b, "{keeps_order}");

        sink.broker.set_unreachable(false);
        subject.clock().advance(HOUR);
        run(inbox.clone()).relay(relay()).drain().await.unwrap();
        let sent: Vec<usize> = ids_sent(&sink.broker)[20..].iter().map(number).collect();
        assert_eq!(sent, (0..20).map(|turn| 2 * turn).collect::<Vec<_>>(), "{keeps_order}");
        assert!(inbox.store().outbox().await.unwrap().iter().all(|sink| sink.waiting == 0));
        assert_eq!(inbox.counters().get("", Counter::Sent), 40);
    }
}

/// A lease answers with what the store had when it was asked: by now that may be sent, and written down as sent.
pub async fn what_was_written_while_a_lease_is_under_way_is_not_sent_again<T: Subject>(subject: T) {
    let sink = Behind { heals: false, ..Behind::new(false) };
    let plan = sink.lease.clone();
    publish(&subject, 30, &["a", "b", ""]).await;
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let sending = run(inbox.clone()).relay(Relay::new(sink.clone()).batch(3)).drain();
    let written = async {
        plan.struck().await;
        until("the first lot is written", || async { inbox.counters().get("", Counter::Sent) == 3 }).await;
        plan.heal();
    };
    let (sent, ()) = tokio::join!(sending, written);
    sent.unwrap();
    assert_each_sent_once(&sink.broker, 30);
    assert!(inbox.store().outbox().await.unwrap().is_empty());
}

/// A sink that is faster than the store waits for it: what is sent and not written is sent again by the next process.
pub async fn a_store_that_is_slow_to_write_bounds_what_is_sent<T: Subject>(subject: T) {
    let broker = MemoryBroker::new(1, Manners::GOOD);
    publish(&subject, 99, &[""]).await;
    let first = Fault { method: "settle_outgoing", call: 1, side: Side::Before, how: How::Stall };
    let plan = Plan::with(first);
    let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
    let sending = run(inbox.clone()).relay(Relay::new(broker.clone()).batch(2)).drain();
    let watching = async {
        plan.struck().await;
        // The first lease is one lot, the second eight.
        until("the second lease is sent", || async { broker.sent().len() >= 18 }).await;
        // Time enough to send everything, were nobody to wait.
        for _ in 0..50 {
            subject.store().outbox().await.unwrap();
        }
        assert_eq!(broker.sent().len(), 18);
        plan.heal();
    };
    let (sent, ()) = tokio::join!(sending, watching);
    sent.unwrap();
    assert_each_sent_once(&broker, 99);
}

/// The sink is served all the same, and nothing is left of the lease that nobody heard of.
pub async fn a_lease_ahead_that_fails_is_asked_for_again<T: Subject>(subject: T) {
    for side in [Side::Before, Side::After] {
        let broker = MemoryBroker::new(1, Manners::GOOD);
        publish(&subject, 30, &["a", "b", ""]).await;
        let plan = Plan::with(Fault { method: "lease_outgoing", call: 2, side, how: How::ErrorOnce });
        let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
        let relay = || Relay::new(broker.clone()).batch(2);
        run(inbox.clone()).relay(relay()).drain().await.unwrap();
        assert!(plan.has_struck(), "{side:?}");
        publish(&subject, 1, &[""]).await;
        run(inbox).relay(relay()).drain().await.unwrap();
        let sent = ids_sent(&broker);
        assert_eq!(sent.len(), 31, "{side:?}");
        assert_eq!(BTreeSet::from_iter(&sent).len(), 30, "{side:?}");
    }
}

/// The lanes are ours from when the store gave them, not from when we heard of it: what might end too late is not begun.
pub async fn a_lease_of_the_outbox_counts_from_when_it_was_asked_for<T: Subject>(subject: T) {
    let broker = MemoryBroker::new(1, Manners::GOOD);
    // Of the thirty seconds of a lease, less than three are left to begin another call of the sink.
    let relay = |batch| Relay::new(broker.clone()).timeout(Duration::from_secs(25)).batch(batch);
    let leases = async |batch, plan: Plan| {
        publish(&subject, 2, &["k"]).await;
        let inbox = Inbox::new(Faulty::new(subject.store(), plan.clone()));
        let late = async {
            plan.struck().await;
            tokio::time::sleep(Duration::from_millis(3100)).await;
            plan.heal();
        };
        let sending = run(inbox).relay(relay(batch)).drain();
        tokio::select! {
            sent = sending => sent.unwrap(),
            () = async { late.await; std::future::pending().await } => unreachable!(),
        }
        plan.calls()["lease_outgoing"]
    };
    let stalled =
        |call| Plan::with(Fault { method: "lease_outgoing", call, side: Side::After, how: How::Stall });
    let usual = leases(10, Plan::none()).await;
    assert_eq!(leases(10, stalled(1)).await, usual + 1, "the second message is leased again");
    // The second lease is the one made ahead.
    let usual = leases(1, Plan::none()).await;
    assert_eq!(leases(1, stalled(2)).await, usual + 1, "what was leased ahead is leased again");
    assert_eq!(ids_sent(&broker), ["00", "01"].repeat(4));
}

/// A sink that takes its time for messages `03` and `07`.
struct Pondering(MemoryBroker);

impl Sink for Pondering {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        if messages.iter().any(|message| ["03", "07"].contains(&message.id.as_str())) {
            tokio::time::sleep(Duration::from_millis(1600)).await;
        }
        self.0.send(messages).await
    }
}

/// The first lease is too old for the last of its messages when the one made ahead of it still holds.
pub async fn what_a_lease_was_too_short_for_goes_before_what_was_leased_ahead<T: Subject>(subject: T) {
    let broker = MemoryBroker::new(1, Manners::GOOD);
    publish(&subject, 20, &["k"]).await;
    let relay = Relay::new(Pondering(broker.clone())).timeout(Duration::from_secs(25)).batch(1);
    run(Inbox::new(subject.store())).relay(relay).drain().await.unwrap();
    let numbers: Vec<String> = (0..20).map(|number| format!("{number:02}")).collect();
    assert_eq!(ids_sent(&broker), numbers);
}

/// Somebody's own SQL wrote it. It is not sent, and the others of its key are.
pub async fn an_outgoing_row_that_cannot_be_read_is_dead_and_the_others_are_sent<T: Subject>(subject: T) {
    let store = subject.store();
    let mut own = subject.begin().await;
    let messages: Vec<Message> = ["before", "bad", "after"].map(|id| keyed(id, "one lane")).into();
    store.publish(&mut own, &messages).await.unwrap();
    T::commit(own).await;
    subject.spoil("bad").await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(store.clone())).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(ids_of(&broker.sent()), ["before", "after"]);
    let status = store.outbox().await.unwrap();
    assert_eq!(status.iter().map(|sink| sink.dead).sum::<u64>(), 1, "{status:?}");
}

/// They are not in hand, so that what is leased ahead of the others stays small.
pub async fn rows_that_cannot_be_read_make_no_lease_larger<T: Subject>(subject: T) {
    publish(&subject, 90, &[""]).await;
    for number in (0..90).filter(|number| number % 3 != 0) {
        subject.spoil(&format!("{number:02}")).await;
    }
    let (plan, broker) = (Plan::none(), MemoryBroker::new(1, Manners::GOOD));
    let store = Faulty::new(subject.store(), plan.clone());
    run(Inbox::new(store)).relay(Relay::new(broker.clone()).batch(1)).drain().await.unwrap();
    assert_eq!(broker.sent().len(), 30);
    // Eight lots, and those that are still in hand when they are asked for.
    assert!(plan.largest_lease() <= 20, "{} were leased at once", plan.largest_lease());
}

/// So that nobody has to look into the tables for it.
pub async fn an_outgoing_message_says_why_it_was_not_sent_and_when_it_is_tried_next<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let store = inbox.store();
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.refuse([
        ("00".to_owned(), SendFailure::Retry("nacked".to_owned())),
        ("01".to_owned(), SendFailure::Permanent("too large".to_owned())),
    ]);
    publish(&subject, 2, &["k", ""]).await;
    let mut own = subject.begin().await;
    let elsewhere = Message::new("y", "y").id("02").to("elsewhere");
    store.publish(&mut own, &[elsewhere]).await.unwrap();
    T::commit(own).await;
    let before = store.clock().await.unwrap();
    run(inbox.clone()).relay(Relay::new(broker).backoff(ten_seconds())).drain().await.unwrap();

    let all = store.outgoing(&OutgoingFilter::default()).await.unwrap();
    let shown =
        |one: &OutgoingInfo| (one.id.clone(), one.sink.clone(), one.state, one.attempts, one.error.clone());
    let expected = [
        ("00", "", OutgoingState::Retrying, 1, Some("nacked")),
        ("01", "", OutgoingState::Dead, 1, Some("too large")),
        ("02", "elsewhere", OutgoingState::Waiting, 0, None),
    ]
    .map(|(id, sink, state, attempts, error)| {
        (id.to_owned(), sink.to_owned(), state, attempts, error.map(str::to_owned))
    });
    assert_eq!(all.iter().map(shown).collect::<Vec<_>>(), expected);
    assert!(all[0].due_at > before && all[0].created_at <= before, "{:?}", all[0]);
    assert_eq!((all[0].kind.as_str(), all[0].key.as_deref()), ("x", Some("k")));

    let ids = async |change: &dyn Fn(&mut OutgoingFilter)| {
        let mut filter = OutgoingFilter::default();
        change(&mut filter);
        let found = store.outgoing(&filter).await.unwrap();
        found.into_iter().map(|one| one.id).collect::<Vec<String>>().join(" ")
    };
    assert_eq!(ids(&|filter| filter.state = Some(OutgoingState::Dead)).await, "01");
    assert_eq!(ids(&|filter| filter.state = Some(OutgoingState::Retrying)).await, "00");
    assert_eq!(ids(&|filter| filter.state = Some(OutgoingState::Waiting)).await, "02");
    assert_eq!(ids(&|filter| filter.sink = Some(String::new())).await, "00 01");
    assert_eq!(ids(&|filter| filter.limit = Some(2)).await, "00 01");
    assert_eq!(ids(&|filter| filter.after = Some(all[0].seq)).await, "01 02");
}
