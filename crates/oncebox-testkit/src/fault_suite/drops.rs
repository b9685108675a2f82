//! The await-drop sweep: every public future is polled 0, 1, 2, … times and dropped.
//!
//! After each drop no connection has a transaction open, the store works at once, and in the end every message has
//! exactly one effect.

use std::time::Duration;

use oncebox_core::admin::DeliveryFilter;
use oncebox_core::store::Retention;
use oncebox_core::{Attempt, Failure, Inbox, Message, Once, Processed, State, Store, handler, run};

use crate::fault_suite::deadly::{KIND, paying};
use crate::fault_suite::journal::Journal;
use crate::fault_suite::scenario::PAST_EVERYTHING;
use crate::ledger::{Effect, Verdict};
use crate::subject::{Subject, TxOf};
use crate::sweep::poll_then_drop;

/// No future here waits at more places than this.
const MOST_POLLS: usize = 2_000;
/// "At once", on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// `receive`.
pub async fn receive<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let messages = [payment(&format!("a-{polls}")), payment(&format!("b-{polls}"))];
            let ready = poll_then_drop(bench.inbox.receive(&messages), polls).await.is_some();
            bench.works_at_once(polls).await;
            bench.inbox.receive(&messages).await.unwrap();
            bench.drain().await;
            ready
        })
        .await;
    bench.check(&["a", "b"]).await;
}

/// `process`.
pub async fn process<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let message = payment(&format!("a-{polls}"));
            let ready = poll_then_drop(bench.inbox.process(message.clone()), polls).await.is_some();
            bench.works_at_once(polls).await;
            bench.inbox.process(message).await.unwrap();
            ready
        })
        .await;
    bench.drain().await;
    bench.check(&["a"]).await;
}

/// `process_all`, with a failing message among others.
pub async fn process_all<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let names = [format!("a-{polls}"), format!("b-{polls}-stumble"), format!("c-{polls}")];
            let messages: Vec<Message> = names.iter().map(|id| payment(id)).collect();
            let ready = poll_then_drop(bench.inbox.process_all(messages.clone()), polls).await.is_some();
            bench.works_at_once(polls).await;
            bench.inbox.process_all(messages).await.unwrap();
            bench.drain().await;
            ready
        })
        .await;
    bench.check(&["a", "b", "c"]).await;
}

/// The runner's `drain`: lanes, a handler outside the database, and the relay.
pub async fn drain<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let mail = Message::new("mail.due", "").id(format!("mail-{polls}"));
            bench.inbox.receive(&[payment(&format!("a-{polls}")), mail]).await.unwrap();
            let run = run(bench.inbox.clone()).relay(bench.journal.clone());
            let drained = poll_then_drop(run.drain(), polls).await;
            bench.works_at_once(polls).await;
            bench.drain().await;
            drained.is_some()
        })
        .await;
    bench.check(&["a"]).await;
}

/// The runner's `drain` when deliveries have rows of their own.
pub async fn drain_of_retries<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let names = [format!("a-{polls}-stumble"), format!("b-{polls}-stumble")];
            bench.inbox.receive(&[payment(&names[0]), payment(&names[1])]).await.unwrap();
            run(bench.inbox.clone()).drain().await.unwrap();
            bench.subject.clock().advance(PAST_EVERYTHING);
            let run = run(bench.inbox.clone()).relay(bench.journal.clone());
            let drained = poll_then_drop(run.drain(), polls).await;
            bench.works_at_once(polls).await;
            bench.drain().await;
            drained.is_some()
        })
        .await;
    bench.check(&["a", "b"]).await;
}

/// `once` and `publish` in the caller's own transaction, which is then rolled back or dropped.
pub async fn once_and_publish<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let id = format!("a-{polls}");
            let mut own = bench.subject.begin().await;
            let ready =
                poll_then_drop(import::<T>(bench.inbox.store(), &mut own, &id), polls).await.is_some();
            if polls % 2 == 0 {
                T::rollback(own).await;
            } else {
                drop(own);
            }
            bench.works_at_once(polls).await;
            let mut own = bench.subject.begin().await;
            import::<T>(bench.inbox.store(), &mut own, &id).await;
            T::commit(own).await;
            ready
        })
        .await;
    bench.drain().await;
    bench.check(&["a"]).await;
}

/// `replay` of a dead letter.
pub async fn replay<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let id = format!("a-{polls}-broken");
            let dead = bench.dead_letter(&id).await;
            bench.journal.note("mended", &id, "");
            let store = bench.inbox.store();
            let ready = poll_then_drop(store.replay(&dead), polls).await.is_some();
            bench.works_at_once(polls).await;
            store.replay(&dead).await.unwrap();
            bench.drain().await;
            ready
        })
        .await;
    bench.check(&["a"]).await;
}

/// `discard` of a dead letter.
pub async fn discard<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let dead = bench.dead_letter(&format!("a-{polls}-broken")).await;
            let store = bench.inbox.store();
            let ready = poll_then_drop(store.discard(&dead, "given up"), polls).await.is_some();
            bench.works_at_once(polls).await;
            store.discard(&dead, "given up").await.unwrap();
            assert!(store.deliveries(&dead).await.unwrap().is_empty(), "still dead");
            ready
        })
        .await;
    bench.drain().await;
    bench.check(&[]).await;
}

/// `set_paused`: whether or not it was heard, the handler can be resumed.
pub async fn set_paused<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench
        .sweep(async |polls| {
            let store = bench.inbox.store();
            let ready = poll_then_drop(store.set_paused("pay", true), polls).await.is_some();
            bench.works_at_once(polls).await;
            bench.inbox.receive(&[payment(&format!("a-{polls}"))]).await.unwrap();
            assert!(store.set_paused("pay", false).await.unwrap());
            bench.drain().await;
            ready
        })
        .await;
    bench.check(&["a"]).await;
}

/// `purge`, with something to remove.
pub async fn purge<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    let retention = Retention::default();
    bench
        .sweep(async |polls| {
            bench.inbox.receive(&[payment(&format!("a-{polls}"))]).await.unwrap();
            bench.drain().await;
            bench.subject.clock().advance(retention.keep + PAST_EVERYTHING);
            let waiting = payment(&format!("b-{polls}"));
            bench.inbox.receive(&[waiting]).await.unwrap();
            let store = bench.inbox.store();
            let ready = poll_then_drop(store.purge(&retention), polls).await.is_some();
            bench.works_at_once(polls).await;
            bench.drain().await;
            ready
        })
        .await;
    bench.check(&["a", "b"]).await;
}

/// What an operator reads.
pub async fn reads<T: Subject>(subject: T) {
    let bench = Bench::start(subject).await;
    bench.dead_letter("dead-broken").await;
    let store = bench.inbox.store();
    bench
        .sweep(async |polls| {
            let all = DeliveryFilter::all();
            let ready = [
                poll_then_drop(store.handlers(), polls).await.is_some(),
                poll_then_drop(store.deliveries(&all), polls).await.is_some(),
                poll_then_drop(store.outbox(), polls).await.is_some(),
                poll_then_drop(store.counts(), polls).await.is_some(),
                poll_then_drop(store.conflicts(10), polls).await.is_some(),
            ];
            bench.works_at_once(polls).await;
            ready.iter().all(|ready| *ready)
        })
        .await;
    bench.drain().await;
    bench.check(&[]).await;
}

/// A store with handlers on it, and how far the sweep has come.
struct Bench<T: Subject> {
    subject: T,
    journal: Journal,
    inbox: Inbox<T::Store, Journal>,
    reached: std::sync::atomic::AtomicUsize,
}

impl<T: Subject> Bench<T> {
    async fn start(subject: T) -> Self {
        let journal = Journal::create();
        let inbox = Inbox::with_state(subject.store(), journal.clone())
            .on(KIND, handler("pay", paying_in_the_end::<T>))
            .on("mail.due", handler("mail", mailing));
        run(inbox.clone()).drain().await.unwrap();
        Self { subject, journal, inbox, reached: 0.into() }
    }

    /// Calls `case` with 0, 1, 2, … polls until it says that the future was ready.
    async fn sweep(&self, case: impl AsyncFn(usize) -> bool) {
        for polls in 0..MOST_POLLS {
            let ready = case(polls).await;
            assert_eq!(self.subject.stuck_transactions().await, 0, "after {polls} polls");
            self.reached.store(polls, std::sync::atomic::Ordering::SeqCst);
            if ready {
                assert!(polls > 0, "a future that is never pending needs no sweep");
                return;
            }
        }
        panic!("not ready after {MOST_POLLS} polls");
    }

    /// A new message goes all the way, whatever the dropped future held.
    async fn works_at_once(&self, polls: usize) {
        let message = payment(&format!("next-{polls}"));
        let processed = tokio::time::timeout(AT_ONCE, self.inbox.process(message)).await;
        match processed {
            Ok(processed) => assert_eq!(processed.unwrap(), Processed::Done, "after {polls} polls"),
            Err(_) => panic!("the store was blocked for {AT_ONCE:?} after {polls} polls"),
        }
    }

    /// Runs everything, also what a dropped future has left marked or leased.
    async fn drain(&self) {
        for _ in 0..4 {
            self.subject.clock().advance(PAST_EVERYTHING);
            run(self.inbox.clone()).relay(self.journal.clone()).drain().await.unwrap();
        }
    }

    async fn dead_letter(&self, id: &str) -> DeliveryFilter {
        self.inbox.process(payment(id)).await.unwrap();
        let mut filter = DeliveryFilter::dead("pay");
        filter.message_id = Some(id.to_owned());
        assert_eq!(self.inbox.store().deliveries(&filter).await.unwrap().len(), 1, "a dead letter");
        filter
    }

    /// Exactly one effect for each message named `<name>-<polls>…`, and for those of [`Bench::works_at_once`].
    async fn check(&self, names: &[&str]) {
        let effects: Vec<Effect> = self.subject.effects().await;
        let short = |id: &str| id.split('-').take(2).collect::<Vec<_>>().join("-");
        let shortened: Vec<Effect> =
            effects.iter().cloned().map(|effect| Effect { id: short(&effect.id), ..effect }).collect();
        let reached = self.reached.load(std::sync::atomic::Ordering::SeqCst);
        let expected: Vec<String> = (0..=reached)
            .flat_map(|polls| names.iter().chain(&["next"]).map(move |name| format!("{name}-{polls}")))
            .collect();
        Verdict::of(&shortened, expected.iter().map(String::as_str), &["pay"]).assert_clean();
        let committed = effects.into_iter().map(|effect| (effect.note, effect.id)).collect();
        assert_eq!(self.journal.sent(), committed, "sent (left) and committed (right) outgoing messages");
        assert_eq!(self.subject.stuck_transactions().await, 0);
    }
}

fn payment(id: &str) -> Message {
    Message::new(KIND, "").id(id)
}

async fn paying_in_the_end<T: Subject>(
    State(journal): State<Journal>,
    Attempt(attempt): Attempt,
    tx: TxOf<T>,
    message: Message,
) -> Result<(), Failure> {
    let id = message.id.clone();
    paying::<T>(tx, message).await?;
    if id.contains("stumble") && attempt == 1 {
        return Err(Failure::from("stumbled at the first attempt"));
    }
    if id.contains("broken") && !journal.ids("mended").contains(&id) {
        return Err(Failure::permanent("broken until mended"));
    }
    Ok(())
}

async fn mailing(State(journal): State<Journal>, message: Message) -> Result<(), Failure> {
    journal.note("mail", &message.id, "");
    Ok(())
}

/// The caller's own work: once, an effect, an outgoing message.
async fn import<T: Subject>(store: &T::Store, own: &mut T::Own, id: &str) {
    assert_eq!(store.once(own, "pay", id).await.unwrap(), Once::First);
    let message = Message::new("payment.made", id.to_owned());
    let effect = Effect { id: id.to_owned(), handler: "pay".to_owned(), note: message.id.clone() };
    T::record(own, effect).await.unwrap();
    store.publish(own, &[message]).await.unwrap();
}
