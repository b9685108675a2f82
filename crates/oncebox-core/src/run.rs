//! The runner: the background loops of one process.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine::consume::{Mode, consume};
use crate::engine::lanes::{LaneWalker, is_outage};
use crate::engine::outside::OutsideCaller;
use crate::engine::{LEASE, housekeeping, leased, relay};
use crate::error::Error;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::retry::Backoff;
use crate::sink::{Relay, Sink};
use crate::source::Source;
use crate::store::Store;
use crate::wake::Listener;

/// How long a source may take to sign off.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Runs an inbox in this process: its handlers, sources and relays, until stopped.
///
/// Await it. It returns `Err` only when it cannot start (no schema, no permission); a store that goes away later is
/// waited for. Any number of processes may run the same inbox.
pub fn run<St: Store, S: Clone + Send + Sync + 'static>(inbox: Inbox<St, S>) -> Run<St, S> {
    Run {
        inbox,
        sources: Vec::new(),
        stores: false,
        relays: Vec::new(),
        concurrency: 4,
        poll_every: Duration::from_secs(1),
        stop: Box::pin(std::future::pending()),
    }
}

/// A runner being put together; see [`run`].
pub struct Run<St: Store, S> {
    inbox: Inbox<St, S>,
    sources: Vec<StartSource<St, S>>,
    /// Whether a source's messages are to be stored first.
    stores: bool,
    relays: Vec<StartRelay<St, S>>,
    concurrency: usize,
    poll_every: Duration,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

type StartSource<St, S> =
    Box<dyn FnOnce(Inbox<St, S>, watch::Receiver<bool>) -> BoxFuture<'static, ()> + Send>;
type StartRelay<St, S> = Box<
    dyn for<'a> Fn(
            &'a Inbox<St, S>,
            &'a (dyn Fn() -> bool + Send + Sync),
        ) -> BoxFuture<'a, Result<bool, Error>>
        + Send
        + Sync,
>;

impl<St: Store, S: Clone + Send + Sync + 'static> Run<St, S> {
    /// Stores what the source delivers, acknowledges, and handles it in the background.
    ///
    /// Not with a direct inbox, which stores nothing: the runner does not start then.
    pub fn consume(mut self, source: impl Source) -> Self {
        self.stores = true;
        self.add_source(source, Mode::Stored)
    }

    /// Handles what the source delivers, commits, and acknowledges then.
    pub fn consume_inline(self, source: impl Source) -> Self {
        self.add_source(source, Mode::Inline)
    }

    /// Sends outgoing messages to a sink, or to a [`Relay`] with settings of its own.
    pub fn relay<K: Sink>(mut self, relay: impl Into<Relay<K>>) -> Self {
        let relay = Arc::new(relay.into());
        self.relays.push(Box::new(move |inbox, stop| {
            let relay = relay.clone();
            async move { relay::step(inbox, &relay, stop).await }.boxed()
        }));
        self
    }

    /// At most this many calls of each handler at once (transactions, for handlers that take one); 4 unless set.
    ///
    /// All handlers together also never use more transactions than the store's pool has, and each handler can always
    /// run at least one.
    pub fn concurrency(mut self, calls: usize) -> Self {
        assert!(calls > 0, "concurrency must be at least 1");
        self.concurrency = calls;
        self
    }

    /// How often to look for work without a hint; 1 s unless set.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        assert!(!interval.is_zero(), "poll_every must be longer than nothing");
        self.poll_every = interval;
        self
    }

    /// Stops when this future is ready: sources first, then handlers finish what they are running, then relays.
    pub fn with_graceful_shutdown(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.stop = Box::pin(signal);
        self
    }

    /// Runs what is ready now, in this task, then returns: deliveries due later stay. For tests.
    ///
    /// Handlers and relays only: sources are not asked, so give messages to [`Inbox::receive`].
    pub async fn drain(self) -> Result<(), Error> {
        let inbox = self.inbox;
        inbox.register().await?;
        let mut drainers = Vec::new();
        for handler in inbox.handlers.iter() {
            drainers.push(if handler.takes_tx {
                Drainer::Lanes(LaneWalker::new(inbox.clone(), handler.clone(), 1), handler.clone())
            } else {
                let calls = handler.settings.concurrency.unwrap_or(self.concurrency);
                Drainer::Outside(Box::new(OutsideCaller::new(inbox.clone(), handler.clone(), calls)))
            });
        }
        loop {
            let mut any = false;
            for drainer in &mut drainers {
                any |= drainer.step(&inbox).await?;
            }
            for relay in &self.relays {
                any |= relay(&inbox, &|| false).await?;
            }
            if !any {
                break;
            }
        }
        inbox.shared.counters.flush(&inbox.store).await
    }

    fn add_source(mut self, mut source: impl Source, mode: Mode) -> Self {
        self.sources.push(Box::new(move |inbox, stop| {
            async move {
                consume(&inbox, &mut source, mode, stop).await;
                if tokio::time::timeout(CLOSE_WITHIN, source.close()).await.is_err() {
                    let source = source.name();
                    tracing::warn!(
                        source,
                        "the source did not sign off in time; its broker finds out by itself"
                    );
                }
            }
            .boxed()
        }));
        self
    }

    async fn start(self) -> Result<(), Error> {
        let Self { inbox, sources, stores, relays, concurrency, poll_every, stop } = self;
        if stores {
            inbox.refuse_direct("consume")?;
        }
        inbox.register().await?;
        // Three stages, so that what a source has delivered is handled and what a handler has published is sent.
        let (stop_sources, sources_stop) = watch::channel(false);
        let (stop_handlers, handlers_stop) = watch::channel(false);
        let (stop_relays, relays_stop) = watch::channel(false);
        let mut source_tasks = JoinSet::new();
        for source in sources {
            source_tasks.spawn(source(inbox.clone(), sources_stop.clone()));
        }
        let mut handler_tasks = JoinSet::new();
        let spare = inbox.store.max_transactions().saturating_sub(inbox.handlers.len());
        let extra = Arc::new(Semaphore::new(spare));
        for handler in inbox.handlers.iter() {
            let calls = handler.settings.concurrency.unwrap_or(concurrency);
            let pace = Pace { poll_every, stop: handlers_stop.clone(), in_vain: 0 };
            if handler.takes_tx {
                spawn_lane_walkers(&mut handler_tasks, &inbox, handler, calls, &extra, &pace);
            } else {
                let caller = OutsideCaller::new(inbox.clone(), handler.clone(), calls);
                handler_tasks.spawn(work_outside(inbox.clone(), handler.clone(), caller, pace));
            }
        }
        let mut relay_tasks = JoinSet::new();
        for relay in relays {
            let pace = Pace { poll_every, stop: relays_stop.clone(), in_vain: 0 };
            relay_tasks.spawn(work_relay(inbox.clone(), relay, pace));
        }
        let mut keepers = JoinSet::new();
        let keeper = inbox.clone();
        keepers.spawn(async move { housekeeping::listen(&keeper).await });
        let (keeper, stopped) = (inbox.clone(), relays_stop.clone());
        keepers.spawn(async move { housekeeping::purge(&keeper, stopped).await });
        let (keeper, stopped) = (inbox.clone(), relays_stop);
        let flusher = tokio::spawn(async move { housekeeping::flush_counters(&keeper, stopped).await });

        tracing::info!(handlers = inbox.handlers.len(), "the runner has started");
        stop.await;
        tracing::info!("the runner is stopping");
        stop_sources.send_replace(true);
        join(source_tasks).await;
        stop_handlers.send_replace(true);
        join(handler_tasks).await;
        stop_relays.send_replace(true);
        join(relay_tasks).await;
        keepers.abort_all();
        let _ = flusher.await;
        tracing::info!("the runner has stopped");
        Ok(())
    }
}

impl<St: Store, S: Clone + Send + Sync + 'static> IntoFuture for Run<St, S> {
    type Output = Result<(), Error>;
    type IntoFuture = BoxFuture<'static, Result<(), Error>>;

    fn into_future(self) -> Self::IntoFuture {
        self.start().boxed()
    }
}

impl<St: Store, S> fmt::Debug for Run<St, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Run")
            .field("inbox", &self.inbox)
            .field("sources", &self.sources.len())
            .field("relays", &self.relays.len())
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

async fn join(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            tracing::error!(%error, "a loop of the runner panicked; please report it");
        }
    }
}

enum Drainer<St: Store, S> {
    Lanes(LaneWalker<St, S>, Arc<Registered<St, S>>),
    Outside(Box<OutsideCaller<St, S>>),
}

impl<St: Store, S: Clone + Send + Sync + 'static> Drainer<St, S> {
    async fn step(&mut self, inbox: &Inbox<St, S>) -> Result<bool, Error> {
        match self {
            Self::Lanes(walker, handler) => {
                if let Ok(room) = handler.settings.room(handler.settings.batch)
                    && walker.step(room, &|| false).await?
                {
                    // What has a row of its own can wait until the lanes are empty.
                    return Ok(true);
                }
                Ok(leased::step(inbox, handler).await?.any)
            }
            Self::Outside(caller) => {
                let any = caller.fill().await?.any;
                while caller.is_busy() {
                    caller.one_finished().await;
                    caller.write_finished().await?;
                }
                Ok(any)
            }
        }
    }
}

/// Whoever has looked so often for nothing hears hints only now and then: a loop whose handler is paused, or that looks
/// for what must be run again, need not look after every message that comes.
const IN_VAIN: u32 = 3;
const HEAR_EVERY: Duration = Duration::from_millis(10);

/// When to look for work, and when to stop. Each loop has its own.
#[derive(Clone)]
struct Pace {
    poll_every: Duration,
    stop: watch::Receiver<bool>,
    /// How many hints in a row led to nothing.
    in_vain: u32,
}

impl Pace {
    fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for a hint, the next poll, or something that will be due; returns at once when stopping.
    async fn wait(&mut self, bell: &mut Listener, next_due: Option<Duration>) {
        let wait = next_due.map_or(self.poll_every, |due| due.min(self.poll_every));
        let seldom = self.in_vain >= IN_VAIN;
        let hint = async {
            if seldom {
                // A hint that comes meanwhile is heard afterwards.
                tokio::time::sleep(HEAR_EVERY).await;
            }
            bell.heard().await;
        };
        tokio::select! {
            () = hint => self.in_vain = self.in_vain.saturating_add(1),
            () = tokio::time::sleep(wait) => {}
            _ = self.stop.wait_for(|stopping| *stopping) => {}
        }
    }

    /// There was something: the next hint is heard at once.
    fn found(&mut self) {
        self.in_vain = 0;
    }

    /// Waits after an error of the store, longer each time.
    async fn back_off(&mut self, who: &str, failures: &mut u32, seed: u64, error: &Error) {
        *failures += 1;
        if is_outage(error) {
            tracing::warn!(who, %error, "the store did not answer; trying again");
        } else {
            tracing::error!(who, %error, "the store refused; trying again");
        }
        let delay = Backoff::new(Duration::from_millis(50), Duration::from_secs(5)).delay(*failures, seed);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            _ = self.stop.wait_for(|stopping| *stopping) => {}
        }
    }
}

fn spawn_lane_walkers<St: Store, S: Clone + Send + Sync + 'static>(
    tasks: &mut JoinSet<()>,
    inbox: &Inbox<St, S>,
    handler: &Arc<Registered<St, S>>,
    walkers: usize,
    extra: &Arc<Semaphore>,
    pace: &Pace,
) {
    let walkers = walkers.min(inbox.store.max_transactions().max(1));
    for number in 0..walkers {
        let walker = LaneWalker::new(inbox.clone(), handler.clone(), walkers);
        // The first loop of a handler needs nobody's permission, so that no handler starves another.
        let permission = (number > 0).then(|| extra.clone());
        tasks.spawn(work_lanes(inbox.clone(), handler.clone(), walker, permission, pace.clone()));
    }
    tasks.spawn(work_leased(inbox.clone(), handler.clone(), pace.clone()));
}

async fn work_lanes<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: Inbox<St, S>,
    handler: Arc<Registered<St, S>>,
    mut walker: LaneWalker<St, S>,
    permission: Option<Arc<Semaphore>>,
    mut pace: Pace,
) {
    let mut bell = inbox.shared.wake.listener();
    let mut failures = 0;
    while !pace.stopping() {
        let room = match handler.settings.room(handler.settings.batch) {
            Ok(room) => room,
            Err(wait) => {
                pace.wait(&mut bell, Some(wait)).await;
                continue;
            }
        };
        let permit = match &permission {
            Some(extra) => match extra.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    pace.wait(&mut bell, None).await;
                    continue;
                }
            },
            None => None,
        };
        let stop = pace.stop.clone();
        let found = walker.step(room, &|| *stop.borrow()).await;
        drop(permit);
        match found {
            Ok(found) => {
                failures = 0;
                if found {
                    pace.found();
                } else {
                    pace.wait(&mut bell, None).await;
                }
            }
            Err(error) => {
                pace.back_off(handler.name(), &mut failures, inbox.shared.seed.next(), &error).await
            }
        }
    }
}

async fn work_leased<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: Inbox<St, S>,
    handler: Arc<Registered<St, S>>,
    mut pace: Pace,
) {
    let mut bell = inbox.shared.wake.listener();
    let mut failures = 0;
    while !pace.stopping() {
        match leased::step(&inbox, &handler).await {
            Ok(found) => {
                failures = 0;
                if found.any {
                    pace.found();
                } else {
                    pace.wait(&mut bell, found.next_due).await;
                }
            }
            Err(error) => {
                pace.back_off(handler.name(), &mut failures, inbox.shared.seed.next(), &error).await
            }
        }
    }
}

async fn work_outside<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: Inbox<St, S>,
    handler: Arc<Registered<St, S>>,
    mut caller: OutsideCaller<St, S>,
    mut pace: Pace,
) {
    let mut bell = inbox.shared.wake.listener();
    let mut failures = 0;
    loop {
        let stopping = pace.stopping();
        if stopping && !caller.is_busy() {
            return;
        }
        let step = async {
            let found = if stopping { None } else { Some(caller.fill().await?) };
            caller.renew().await?;
            Ok::<_, Error>(found)
        };
        let found = match step.await {
            Ok(found) => found,
            Err(error) => {
                pace.back_off(handler.name(), &mut failures, inbox.shared.seed.next(), &error).await;
                if !caller.is_busy() {
                    continue;
                }
                None
            }
        };
        let next_due = found.as_ref().and_then(|found| found.next_due);
        if found.is_some_and(|found| found.any) {
            pace.found();
            if !caller.is_busy() {
                continue;
            }
        }
        let finished = if caller.is_busy() {
            let renew_at = Instant::now() + LEASE / 3;
            // Only the waiting is given up when something else happens, never a write that is under way.
            tokio::select! {
                () = caller.one_finished() => {}
                () = pace.wait(&mut bell, next_due), if !stopping => {}
                () = tokio::time::sleep_until(renew_at) => {}
            }
            caller.write_finished().await
        } else {
            pace.wait(&mut bell, next_due).await;
            Ok(())
        };
        match finished {
            Ok(()) => failures = 0,
            Err(error) => {
                pace.back_off(handler.name(), &mut failures, inbox.shared.seed.next(), &error).await
            }
        }
    }
}

async fn work_relay<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: Inbox<St, S>,
    relay: StartRelay<St, S>,
    mut pace: Pace,
) {
    let mut bell = inbox.shared.wake.listener();
    let mut failures = 0;
    loop {
        let stop = pace.stop.clone();
        // The last round after the stop sends what the handlers published while they finished.
        let last = pace.stopping();
        match relay(&inbox, &|| !last && *stop.borrow()).await {
            Ok(found) => {
                failures = 0;
                if last {
                    return;
                }
                if found {
                    pace.found();
                } else {
                    pace.wait(&mut bell, None).await;
                }
            }
            Err(_) if last => return,
            Err(error) => pace.back_off("relay", &mut failures, inbox.shared.seed.next(), &error).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::Wake;

    #[tokio::test]
    async fn hints_that_lead_to_nothing_are_heard_less_often_and_never_lost() {
        let (_stop, stop) = watch::channel(false);
        let mut pace = Pace { poll_every: Duration::from_secs(600), stop, in_vain: 0 };
        let wake = Wake::new();
        let mut bell = wake.listener();
        for _ in 0..2 {
            for _ in 0..IN_VAIN {
                wake.ring();
                assert!(pace.wait(&mut bell, None).now_or_never().is_some(), "the first are heard at once");
            }
            for _ in 0..3 {
                wake.ring();
                assert!(pace.wait(&mut bell, None).now_or_never().is_none(), "there is no end of hints");
                let heard = pace.wait(&mut bell, None);
                tokio::time::timeout(Duration::from_secs(30), heard).await.expect("the hint is heard later");
            }
            pace.found();
        }
    }
}
