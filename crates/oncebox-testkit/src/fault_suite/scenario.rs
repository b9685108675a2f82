//! One process's life that takes every path through a store. Every step may be taken again after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox_core::admin::DeliveryFilter;
use oncebox_core::store::{Registration, Retention};
use oncebox_core::{
    Attempt, Backoff, Error, ErrorKind, Failure, Inbox, Kinds, Message, Once, Processed, Received, Relay,
    State, Store, handler, run,
};

use crate::fault_suite::journal::Journal;
use crate::faults::{Faulty, Plan};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};

/// Longer than every lease, mark and backoff of the scenario.
pub(crate) const PAST_EVERYTHING: Duration = Duration::from_secs(31);

/// Stored orders: one stumbles at its first attempt, one is dead until mended, one is dead for good.
pub(crate) const ORDERS: [&str; 4] = ["order-1", "order-2-stumble", "order-3-broken", DOOMED];
pub(crate) const DOOMED: &str = "order-4-doomed";
/// Orders handled inline.
pub(crate) const INLINE_ORDERS: [&str; 2] = ["inline-1", "inline-2-stumble"];
/// Stored steps, by key, in order.
pub(crate) const STEPS: [(&str, &[&str]); 2] =
    [("red", &["red-1", "red-2-stumble", "red-3"]), ("blue", &["blue-1", "blue-2"])];
/// Steps handled inline, of one key, in order.
pub(crate) const INLINE_STEPS: (&str, &[&str]) = ("green", &["green-1-stumble", "green-2"]);
/// The id of the caller's own transaction, and of the inbox that remembers nothing.
pub(crate) const IMPORT: &str = "file-1";
pub(crate) const DIRECT: &str = "direct-1";

/// What the handlers share.
pub(crate) struct App<T: Subject> {
    pub(crate) journal: Journal,
    store: Faulty<T::Store>,
    mended: AtomicBool,
}

impl<T: Subject> std::fmt::Debug for App<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("App").field("journal", &self.journal).finish_non_exhaustive()
    }
}

type ScenarioInbox<T> = Inbox<Faulty<<T as Subject>::Store>, Arc<App<T>>>;

/// One process's view of the scenario.
pub(crate) struct Scenario<'a, T: Subject> {
    subject: &'a T,
    store: Faulty<T::Store>,
    app: Arc<App<T>>,
    inbox: ScenarioInbox<T>,
}

impl<'a, T: Subject> Scenario<'a, T> {
    /// As a process starts: nothing is known but what the store and the journal hold.
    pub(crate) fn start(subject: &'a T, store: T::Store, plan: Plan, journal: &Journal) -> Self {
        let store = Faulty::new(store, plan);
        let mended = AtomicBool::new(false);
        let app = Arc::new(App { journal: journal.clone(), store: store.clone(), mended });
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let inbox = Inbox::with_state(store.clone(), app.clone())
            .on("order.placed", handler("charge", charge::<T>).backoff(backoff))
            .on("order.placed", handler("receipt", receipt::<T>).backoff(backoff))
            .on("step.taken", handler("walk", walk::<T>).ordered().backoff(backoff));
        Self { subject, store, app, inbox }
    }

    /// Takes every step once. Safe to call again, in this or another process, after an error or a crash.
    pub(crate) async fn live(&self) -> Result<(), Error> {
        // Handlers see what is received after they are known.
        self.drain().await?;
        self.retire_a_handler().await?;
        self.receive("orders", orders()).await?;
        self.receive("steps", steps()).await?;
        self.process_inline().await?;
        self.import().await?;
        self.process_direct().await?;
        self.drain_later().await?;
        self.redeliver().await?;
        self.pause_and_resume().await?;
        self.drain_later().await?;
        self.mend_and_discard().await?;
        self.look().await
    }

    /// Goes on until nothing is left to do.
    ///
    /// # Panics
    /// When the store fails, or something is still left after many rounds.
    pub(crate) async fn finish(&self) {
        self.redeliver().await.expect("the store has been healed");
        for _ in 0..20 {
            self.drain_later().await.expect("the store has been healed");
            self.mend_and_discard().await.expect("the store has been healed");
            if self.is_idle().await {
                return;
            }
        }
        let left = self.store.deliveries(&DeliveryFilter::all()).await;
        let (handlers, outbox) = (self.store.handlers().await, self.store.outbox().await);
        panic!("stuck after 20 rounds; deliveries {left:#?}, handlers {handlers:#?}, outbox {outbox:#?}");
    }

    async fn is_idle(&self) -> bool {
        use oncebox_core::admin::DeliveryState::Discarded;
        let left = self.store.deliveries(&DeliveryFilter::all()).await.unwrap();
        let handlers = self.store.handlers().await.unwrap();
        let outbox = self.store.outbox().await.unwrap();
        left.iter().all(|delivery| delivery.state == Discarded)
            && handlers
                .iter()
                .all(|known| known.waiting + known.retrying + known.held + known.scheduled + known.dead == 0)
            && outbox.iter().all(|sink| sink.waiting + sink.retrying + sink.dead == 0)
    }

    async fn drain(&self) -> Result<(), Error> {
        run(self.inbox.clone()).relay(Relay::new(self.app.journal.clone())).drain().await
    }

    async fn drain_later(&self) -> Result<(), Error> {
        self.subject.clock().advance(PAST_EVERYTHING);
        self.drain().await
    }

    /// A message is noted as acknowledged only when the store has answered for it.
    async fn receive(&self, batch: &str, messages: Vec<Message>) -> Result<(), Error> {
        if self.app.journal.ids("acknowledged").contains(batch) {
            return Ok(());
        }
        let mut twice = messages.clone();
        twice.push(messages[0].clone());
        let answers = self.inbox.receive(&twice).await?;
        assert_eq!(answers.len(), twice.len());
        assert_eq!(answers.last(), Some(&Received::Duplicate), "a copy in the same call");
        self.app.journal.note("acknowledged", batch, "");
        Ok(())
    }

    /// The source delivers everything once more, and one id with other bytes.
    async fn redeliver(&self) -> Result<(), Error> {
        let known: Vec<Message> = orders().into_iter().chain(steps()).chain(inline_orders()).collect();
        let answers = self.inbox.receive(&known).await?;
        assert!(
            answers.iter().all(|answer| *answer == Received::Duplicate),
            "an acknowledged message was forgotten: {answers:?}"
        );
        let answers = self.inbox.receive(&[order(ORDERS[0], "other bytes")]).await?;
        assert_eq!(answers, [Received::Conflict]);
        Ok(())
    }

    async fn process_inline(&self) -> Result<(), Error> {
        for message in inline_orders() {
            let processed = self.inbox.process(message).await?;
            assert_ne!(processed, Processed::Conflict);
        }
        let (key, ids) = INLINE_STEPS;
        self.inbox.process_all(ids.iter().map(|id| step(key, id)).collect()).await?;
        Ok(())
    }

    /// The caller's own transaction.
    async fn import(&self) -> Result<(), Error> {
        let mut own = self.subject.begin().await;
        // Dropped on an error, as by any caller that uses `?`.
        if self.store.once(&mut own, "import", IMPORT).await? == Once::Again {
            T::rollback(own).await;
            return Ok(());
        }
        let message = Message::new("file.imported", IMPORT);
        let effect = Effect { id: IMPORT.to_owned(), handler: "import".to_owned(), note: message.id.clone() };
        T::record(&mut own, effect).await.unwrap();
        self.store.publish(&mut own, &[message]).await?;
        T::commit(own).await;
        Ok(())
    }

    /// An inbox that remembers nothing, with a handler that does so itself.
    async fn process_direct(&self) -> Result<(), Error> {
        let inbox = Inbox::direct_with_state(self.store.clone(), self.app.clone())
            .on("direct.asked", handler("direct", direct::<T>));
        match inbox.process(Message::new("direct.asked", "").id(DIRECT)).await? {
            Processed::Done => Ok(()),
            other => Err(Error::new(ErrorKind::Unavailable, format!("not done: {other:?}"))),
        }
    }

    async fn retire_a_handler(&self) -> Result<(), Error> {
        let mut kinds = Kinds::default();
        kinds.add("old.kind").unwrap();
        let retired = Registration {
            name: "retired".to_owned(),
            formerly: Vec::new(),
            kinds,
            from_start: false,
            ordered: false,
        };
        self.store.register(&[retired]).await?;
        self.store.forget("retired").await?;
        Ok(())
    }

    async fn pause_and_resume(&self) -> Result<(), Error> {
        self.store.set_paused("charge", true).await?;
        self.store.set_paused("charge", false).await?;
        Ok(())
    }

    /// Dead letters: one is replayed once its cause is gone, one is given up.
    async fn mend_and_discard(&self) -> Result<(), Error> {
        self.app.mended.store(true, Ordering::SeqCst);
        let mut broken = DeliveryFilter::dead("charge");
        broken.message_id = Some(ORDERS[2].to_owned());
        self.store.replay(&broken).await?;
        self.drain().await?;
        let mut doomed = DeliveryFilter::dead("charge");
        doomed.message_id = Some(DOOMED.to_owned());
        self.store.discard(&doomed, "it cannot be done").await?;
        Ok(())
    }

    /// Everything an operator may ask for, and retention, which must not touch anything this young.
    async fn look(&self) -> Result<(), Error> {
        self.store.purge(&Retention::default()).await?;
        self.store.replay_outgoing("").await?;
        self.store.conflicts(10).await?;
        self.store.handlers().await?;
        self.store.deliveries(&DeliveryFilter::all()).await?;
        self.store.outbox().await?;
        self.store.counts().await?;
        Ok(())
    }
}

fn order(id: &str, payload: &str) -> Message {
    Message::new("order.placed", payload.to_owned()).id(id)
}

fn step(key: &str, id: &str) -> Message {
    Message::new("step.taken", id.to_owned()).id(id).key(key)
}

fn orders() -> Vec<Message> {
    ORDERS.iter().map(|id| order(id, id)).collect()
}

fn inline_orders() -> Vec<Message> {
    INLINE_ORDERS.iter().map(|id| order(id, id)).collect()
}

fn steps() -> Vec<Message> {
    STEPS.iter().flat_map(|(key, ids)| ids.iter().map(|id| step(key, id))).collect()
}

/// Writes its effect and publishes a message with a fresh id, which it notes in the ledger: the sink may see that id
/// if, and only if, the ledger does.
async fn charge<T: Subject>(
    State(app): State<Arc<App<T>>>,
    Attempt(attempt): Attempt,
    mut tx: TxOf<T>,
    message: Message,
) -> Result<(), Failure> {
    let outgoing = tx.publish(Message::new("order.paid", message.id.clone())).await?;
    let effect = Effect { id: message.id.clone(), handler: "charge".to_owned(), note: outgoing };
    T::record(&mut tx, effect).await?;
    if message.id == DOOMED || (message.id.contains("broken") && !app.mended.load(Ordering::SeqCst)) {
        return Err(Failure::permanent("this order cannot be charged"));
    }
    stumble(&message, attempt)
}

/// Works outside the database.
async fn receipt<T: Subject>(
    State(app): State<Arc<App<T>>>,
    Attempt(attempt): Attempt,
    message: Message,
) -> Result<(), Failure> {
    app.journal.note("receipt", &message.id, "");
    stumble(&message, attempt)
}

async fn walk<T: Subject>(
    Attempt(attempt): Attempt,
    mut tx: TxOf<T>,
    message: Message,
) -> Result<(), Failure> {
    T::record(&mut tx, Effect::of("walk", &message)).await?;
    stumble(&message, attempt)
}

async fn direct<T: Subject>(
    State(app): State<Arc<App<T>>>,
    mut tx: TxOf<T>,
    message: Message,
) -> Result<(), Failure> {
    if app.store.once(&mut tx, "direct", &message.id).await? == Once::First {
        T::record(&mut tx, Effect::of("direct", &message)).await?;
    }
    Ok(())
}

fn stumble(message: &Message, attempt: u32) -> Result<(), Failure> {
    if message.id.contains("stumble") && attempt == 1 {
        return Err(Failure::from("stumbled at the first attempt"));
    }
    Ok(())
}
