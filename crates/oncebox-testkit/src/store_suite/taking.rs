//! Taking messages from a source while the last ones are stored.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::{
    Counter, Error, ErrorKind, Inbox, Incoming, Message, Run, Settle, Source, Store, UNREADABLE, run,
};

use crate::broker::{Manners, MemoryBroker, MemorySource};
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::fixtures::{KIND, assert_once, handler, ids, keyed, message, numbered, start};
use crate::subject::{Subject, recording};
use crate::wait::until;

/// What is taken at once, and so what one statement stores.
const LOT: usize = 1000;

/// A store whose first lot stands still or fails.
fn first_lot<T: Subject>(subject: &T, how: How) -> (Plan, Inbox<Faulty<T::Store>>) {
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how });
    (plan.clone(), Inbox::new(Faulty::new(subject.store(), plan)))
}

fn taking<St: Store>(inbox: &Inbox<St>, broker: &MemoryBroker) -> Run<St, ()> {
    run(inbox.clone()).consume(broker.source("orders")).poll_every(Duration::from_millis(20))
}

fn received<St: Store>(inbox: &Inbox<St>) -> usize {
    usize::try_from(inbox.counters().get("", Counter::Received)).unwrap()
}

/// One lot more is taken while the store is busy and no further one; nothing is acknowledged; order is kept.
pub async fn one_lot_is_taken_ahead_and_stored_in_its_turn<T: Subject>(subject: T) {
    let (plan, inbox) = first_lot(&subject, How::Stall);
    let inbox = inbox.on(KIND, handler("charge", recording::<T>("charge")).ordered());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let messages: Vec<Message> = (0..LOT * 2 + 100).map(|n| keyed(format!("m-{n:05}"), "k")).collect();
    broker.put(messages.clone());
    broker.close();
    let running = start(taking(&inbox, &broker));
    plan.struck().await;
    until("the next lot is taken", || async { broker.deliveries() >= 2 * LOT as u64 }).await;
    assert_eq!((broker.deliveries(), broker.pending()), (2 * LOT as u64, messages.len()));
    plan.heal();
    until("the source has ended", || async { broker.signed_off() == 1 }).await;
    assert_eq!((broker.deliveries(), broker.pending()), (messages.len() as u64, 0));
    until("every effect is there", || async { subject.effects().await.len() == messages.len() }).await;
    running.stop().await;
    let applied = ids(&subject, "charge").await;
    assert!(applied.iter().eq(messages.iter().map(|message| &message.id)), "{applied:?}");
}

/// What was taken ahead is stored when it is time to stop: it need not come again.
pub async fn a_stop_stores_what_was_taken_ahead<T: Subject>(subject: T) {
    let (plan, inbox) = first_lot(&subject, How::Stall);
    let broker = MemoryBroker::new(1, Manners::GOOD);
    broker.put(numbered(LOT + 500));
    let running = start(taking(&inbox, &broker));
    plan.struck().await;
    until("the rest is taken", || async { broker.deliveries() == LOT as u64 + 500 }).await;
    tokio::join!(running.stop(), async { plan.heal() });
    assert_eq!((received(&inbox), broker.pending()), (LOT + 500, 0));
}

/// When messages go back because the store is away, what was taken after them must not be stored before them.
pub async fn what_comes_after_messages_that_go_back_goes_back_too<T: Subject>(subject: T) {
    let (plan, inbox) = first_lot(&subject, How::ErrorForEver);
    let inbox = inbox.on(KIND, handler("charge", recording::<T>("charge")));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let messages = numbered(LOT + 50);
    broker.put(messages.clone());
    let running = start(taking(&inbox, &broker));
    plan.struck().await;
    until("the rest is taken", || async { broker.deliveries() == messages.len() as u64 }).await;
    // Told to stop first, then the store works again: for the first lot that is too late.
    tokio::join!(running.stop(), async { plan.heal() });
    let stored = received(&inbox);
    assert!(stored == 0 || stored >= LOT, "{stored} were stored before the first lot");
    assert_eq!(broker.pending(), messages.len() - stored);
    let running = start(taking(&inbox, &broker));
    until("every effect is there", || async { subject.effects().await.len() >= messages.len() }).await;
    running.stop().await;
    assert_once(&subject, &messages, &["charge"]).await;
}

/// A source that fails once, after two lots, and notes whether that was told before it is asked again.
struct FailsOnce<F> {
    source: MemorySource,
    answers: usize,
    is_told: F,
    was_told: Arc<OnceLock<bool>>,
}

impl<F: Fn() -> bool + Send + Sync + 'static> Source for FailsOnce<F> {
    type Receipt = u64;

    fn name(&self) -> &str {
        self.source.name()
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<u64>>, Error> {
        match self.answers {
            0 | 1 => {
                let answer = self.source.next(most).await;
                self.answers += 1;
                answer
            }
            2 => {
                self.answers += 1;
                Err(Error::new(ErrorKind::Unavailable, "the connection was lost"))
            }
            _ => {
                self.was_told.get_or_init(&self.is_told);
                self.source.next(most).await
            }
        }
    }

    async fn settle(&mut self, settled: Vec<(u64, Settle)>) -> Result<(), Error> {
        self.source.settle(settled).await
    }
}

/// An error comes after what was taken before it, and is told before the source is asked again.
pub async fn an_error_while_messages_are_taken_ahead_is_told_in_its_turn<T: Subject>(subject: T) {
    let (plan, inbox) = first_lot(&subject, How::Stall);
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let was_told = Arc::new(OnceLock::new());
    let of_status = inbox.clone();
    let source = FailsOnce {
        source: broker.source("orders"),
        answers: 0,
        is_told: move || of_status.sources().iter().any(|status| status.error.is_some()),
        was_told: was_told.clone(),
    };
    broker.put(numbered(10));
    let running = start(run(inbox.clone()).consume(source));
    plan.struck().await;
    broker.put((10..20).map(|number| message(format!("m-{number:03}"))));
    until("the next lot is taken", || async { broker.deliveries() == 20 }).await;
    plan.heal();
    until("both lots are stored", || async { received(&inbox) == 20 && broker.pending() == 0 }).await;
    until("it is asked again", || async { was_told.get().is_some() }).await;
    running.stop().await;
    assert_eq!(was_told.get(), Some(&true));
}

/// A source that is paused while its messages are stored is not asked for more.
pub async fn nothing_is_taken_ahead_from_a_source_that_is_told_to_pause<T: Subject>(subject: T) {
    let (plan, inbox) = first_lot(&subject, How::Stall);
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let messages = numbered(20);
    broker.put(messages[..10].to_vec());
    let running = start(taking(&inbox, &broker));
    plan.struck().await;
    inbox.pause_source("orders");
    broker.put(messages[10..].to_vec());
    plan.heal();
    until("what was in hand is stored", || async { broker.pending() == 10 }).await;
    assert_eq!((received(&inbox), broker.deliveries()), (10, 10));
    inbox.resume_source("orders");
    until("the rest is stored", || async { broker.pending() == 0 }).await;
    running.stop().await;
    assert_eq!((received(&inbox), broker.deliveries()), (20, 20));
}

/// A lot with a message that no store can hold. The others are stored, and it is where an operator looks.
pub async fn a_message_that_the_store_refuses_is_kept_and_harms_no_other<T: Subject>(subject: T) {
    let plan = Plan::none();
    plan.refuse("receive", "m-00002");
    let inbox = Inbox::new(Faulty::new(subject.store(), plan));
    let inbox = inbox.on(KIND, handler("charge", recording::<T>("charge")));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let (good, bad) = with_a_bad_one();
    broker.put(good.iter().chain([&bad]).cloned());
    broker.close();
    let running = start(taking(&inbox, &broker));
    until("every effect is there", || async { subject.effects().await.len() >= good.len() }).await;
    until("all are settled", || async { broker.pending() == 0 }).await;
    running.stop().await;
    assert_once(&subject, &good, &["charge"]).await;
    assert_eq!(broker.rejected(), []);
    let filter = DeliveryFilter::all().handler(UNREADABLE).state(DeliveryState::Dead);
    let kept = subject.store().deliveries(&filter).await.unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!((&kept[0].message.id, &kept[0].message.payload), (&bad.id, &bad.payload));
    assert!(kept[0].history[0].error.contains("refused on purpose"), "{kept:?}");
}

/// Inline: a store that refuses the message refuses the dead letter too. It is given back as rejected, it alone.
pub async fn a_message_that_cannot_be_kept_either_is_rejected<T: Subject>(subject: T) {
    let plan = Plan::none();
    plan.refuse("begin_inline", "m-00002");
    let inbox = Inbox::new(Faulty::new(subject.store(), plan));
    let inbox = inbox.on(KIND, handler("charge", recording::<T>("charge")));
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let (good, bad) = with_a_bad_one();
    broker.put(good.iter().chain([&bad]).cloned());
    broker.close();
    let running = start(run(inbox.clone()).consume_inline(broker.source("orders")));
    until("all are settled", || async { broker.pending() == 0 }).await;
    running.stop().await;
    assert_once(&subject, &good, &["charge"]).await;
    let rejected: Vec<String> = broker.rejected().into_iter().map(|message| message.id).collect();
    assert_eq!(rejected, [bad.id]);
}

/// Five messages, and the third of them apart.
fn with_a_bad_one() -> (Vec<Message>, Message) {
    let mut good: Vec<Message> = (0..5).map(|n| keyed(format!("m-{n:05}"), "k")).collect();
    let bad = good.remove(2);
    (good, bad)
}
