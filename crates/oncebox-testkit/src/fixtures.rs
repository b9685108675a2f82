//! What many cases begin with: messages, handlers that fail on purpose, and runners that stop.

use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncebox_core::admin::{DeliveryFilter, DeliveryInfo, DeliveryState};
use oncebox_core::{
    Attempt, Backoff, Error, Failure, Inbox, Message, NamedHandler, Received, Run, Store, run,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ledger::{Effect, Verdict};
use crate::subject::{Subject, TxOf};

/// The kind that most cases use.
pub(crate) const KIND: &str = "order.placed";

/// Longer than any backoff, lease or mark in these cases, shorter than any retention.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A message of the usual kind, whose payload names its id.
pub(crate) fn message(id: impl Into<String>) -> Message {
    let id = id.into();
    Message::new(KIND, format!("{{\"order\":\"{id}\"}}")).id(id)
}

/// The same with a key.
pub(crate) fn keyed(id: impl Into<String>, key: &str) -> Message {
    message(id).key(key)
}

/// Messages `m-000`, `m-001`, ….
pub(crate) fn numbered(count: usize) -> Vec<Message> {
    (0..count).map(|number| message(format!("m-{number:03}"))).collect()
}

/// The ids of messages.
pub(crate) fn ids_of(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.id.as_str()).collect()
}

/// Names a handler whose retries wait for minutes: a slow machine must not make one due by itself.
pub(crate) fn handler<F, Args>(name: &str, function: F) -> NamedHandler<F, Args> {
    let minute = Duration::from_secs(60);
    oncebox_core::handler(name, function).backoff(Backoff::new(10 * minute, 30 * minute))
}

/// Ten seconds, then twice as long each time.
pub(crate) fn ten_seconds() -> Backoff {
    Backoff::new(Duration::from_secs(10), Duration::from_secs(80))
}

/// Makes the handlers of an inbox known, as a first start does.
pub(crate) async fn registered<St, S>(inbox: Inbox<St, S>) -> Inbox<St, S>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    drain(&inbox).await;
    inbox
}

/// Runs what is ready.
pub(crate) async fn drain<St, S>(inbox: &Inbox<St, S>)
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    run(inbox.clone()).drain().await.unwrap();
}

/// Receives messages that are all new.
pub(crate) async fn receive<St, S>(inbox: &Inbox<St, S>, messages: &[Message])
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let answers = inbox.receive(messages).await.unwrap();
    assert_eq!(answers, vec![Received::New; messages.len()]);
}

/// Writes its effect, then fails if `fails` says so: a failure that does not roll back shows as a doubled effect.
pub(crate) fn failing<T: Subject>(
    name: &'static str,
    fails: impl Fn(&Message, u32) -> bool + Clone + Send + Sync + 'static,
) -> impl Fn(TxOf<T>, Message, Attempt) -> BoxFuture<'static, Result<(), Failure>> + Clone + Send + Sync + 'static
{
    move |mut tx, message, Attempt(attempt)| {
        let fails = fails.clone();
        Box::pin(async move {
            T::record(&mut tx, Effect::of(name, &message)).await?;
            if fails(&message, attempt) {
                return Err(Failure::from(format!("{name} failed on purpose, attempt {attempt}")));
            }
            Ok(())
        })
    }
}

/// The message whose first attempt ends the transaction; the ones before and after it share that transaction.
pub(crate) const ENDER: &str = "m-002";
/// The message whose first attempt fails, after [`ENDER`] has run.
pub(crate) const FAILER: &str = "m-004";

/// Writes its effect, then ends the transaction or fails, each at its first attempt and for one message.
///
/// `tells` is whether it returns what the database said when it ended the transaction.
pub(crate) fn ending<T: Subject>(
    name: &'static str,
    tells: bool,
) -> impl Fn(TxOf<T>, Message, Attempt) -> BoxFuture<'static, Result<(), Failure>> + Clone + Send + Sync + 'static
{
    move |mut tx, message, Attempt(attempt)| {
        Box::pin(async move {
            T::record(&mut tx, Effect::of(name, &message)).await?;
            match (message.id.as_str(), attempt) {
                (ENDER, 1) => {
                    let ended = T::end_transaction(&mut tx).await;
                    if tells { Ok(ended?) } else { Ok(()) }
                }
                (FAILER, 1) => Err(Failure::from("failed on purpose")),
                _ => Ok(()),
            }
        })
    }
}

/// What must be true after [`ending`] had each of these messages once: nothing is lost, and who misbehaved is seen.
pub(crate) async fn assert_nothing_lost<T: Subject>(
    subject: &T,
    inbox: &Inbox<T::Store>,
    name: &'static str,
    messages: &[Message],
    tells: bool,
) {
    let waiting = deliveries(inbox.store(), name).await;
    let mut failed: Vec<&str> = waiting.iter().map(|info| info.message.id.as_str()).collect();
    failed.sort_unstable();
    assert_eq!(failed, [ENDER, FAILER]);
    for info in &waiting {
        assert_eq!((info.state, info.attempts, info.history.len()), (DeliveryState::Retrying, 1, 1));
    }
    subject.clock().advance(HOUR);
    drain(inbox).await;
    assert_eq!(deliveries(inbox.store(), name).await.len(), 0);
    if tells || !T::FACTS.commits_outside_transaction {
        return assert_once(subject, messages, &[name]).await;
    }
    // What ran between the end of the transaction and the commit that noticed it was committed by itself, and once more
    // when it ran in a transaction of its own. Who ran before is not touched, and nobody runs a third time.
    let written = ids(subject, name).await;
    for message in messages {
        let count = written.iter().filter(|id| **id == message.id).count();
        let most = if message.id.as_str() > ENDER { 2 } else { 1 };
        assert!((1..=most).contains(&count), "{} has {count} effects", message.id);
    }
}

/// Writes one effect per message with the attempt as its note.
pub(crate) async fn record_attempt<T: Subject>(
    tx: &mut TxOf<T>,
    name: &str,
    message: &Message,
    attempt: u32,
) -> Result<(), Failure> {
    let effect = Effect { note: attempt.to_string(), ..Effect::of(name, message) };
    T::record(tx, effect).await?;
    Ok(())
}

/// The ids in the ledger that a handler wrote, in order.
pub(crate) async fn ids<T: Subject>(subject: &T, handler: &str) -> Vec<String> {
    let effects = subject.effects().await;
    effects.into_iter().filter(|effect| effect.handler == handler).map(|effect| effect.id).collect()
}

/// The notes in the ledger that a handler wrote, in order.
pub(crate) async fn notes<T: Subject>(subject: &T, handler: &str) -> Vec<String> {
    let effects = subject.effects().await;
    effects.into_iter().filter(|effect| effect.handler == handler).map(|effect| effect.note).collect()
}

/// The ids of one key that a handler wrote, in order.
pub(crate) async fn ids_of_key<T: Subject>(subject: &T, handler: &str, key: &str) -> Vec<String> {
    let effects = subject.effects().await;
    let of_key = effects.into_iter().filter(|effect| effect.handler == handler && effect.note == key);
    of_key.map(|effect| effect.id).collect()
}

/// Each of these messages has exactly one effect of each of these handlers, and nothing else has any.
pub(crate) async fn assert_once<T: Subject>(subject: &T, messages: &[Message], handlers: &[&str]) {
    Verdict::of(&subject.effects().await, ids_of(messages), handlers).assert_clean();
}

/// Every delivery of a handler that has a row.
pub(crate) async fn deliveries<St: Store>(store: &St, handler: &str) -> Vec<DeliveryInfo> {
    let mut filter = DeliveryFilter::all();
    filter.handler = Some(handler.to_owned());
    filter.limit = Some(1000);
    store.deliveries(&filter).await.unwrap()
}

/// The only delivery of a handler that has a row.
pub(crate) async fn delivery<St: Store>(store: &St, handler: &str) -> DeliveryInfo {
    let mut all = deliveries(store, handler).await;
    assert_eq!(all.len(), 1, "deliveries with a row: {all:?}");
    all.remove(0)
}

/// The ids of a handler's deliveries in this state, oldest first.
pub(crate) async fn in_state<St: Store>(store: &St, handler: &str, state: DeliveryState) -> Vec<String> {
    let all = deliveries(store, handler).await;
    all.into_iter().filter(|info| info.state == state).map(|info| info.message.id).collect()
}

/// Polls a future until `reached` is ready, then drops it as the death of a process would.
///
/// # Panics
/// When the future ends first.
pub(crate) async fn killed_at<Fut: Future>(work: Fut, reached: impl Future<Output = ()>) {
    tokio::select! {
        _ = work => panic!("the work ended before the point at which it was to be killed"),
        () = reached => {}
    }
}

/// A runner in the background.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    /// Stops it gracefully and waits for its end.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }

    /// Drops it in the middle of whatever it does, as the death of its process would.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Starts a runner in the background.
pub(crate) fn start<St, S>(run: Run<St, S>) -> Running
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let (stop, stopped) = oneshot::channel();
    let run = run.with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    Running { stop, task: tokio::spawn(run.into_future()) }
}
