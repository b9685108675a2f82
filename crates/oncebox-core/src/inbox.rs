//! The inbox: received messages and the handlers that want them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};

use crate::clock::Seed;
use crate::counters::Counters;
use crate::engine::inline;
use crate::engine::receive::{MOST_MESSAGES, Ready, Receiver, pieces};
use crate::error::{Error, ErrorKind};
use crate::handler::{Handler, NamedHandler, Registered};
use crate::kinds::IntoKinds;
use crate::limits::Limits;
use crate::message::Message;
use crate::source::SourceStatus;
use crate::store::{Received, Retention, Store};
use crate::trace::TraceContext;
use crate::wake::Wake;

/// Received messages and the handlers that want them. A handle: cheap to clone.
///
/// Build it once at start. A mistake in the registration (two handlers of one name, a bad kind pattern) panics there,
/// with the handler's name. See the `oncebox` crate for a whole example.
pub struct Inbox<St: Store, S = ()> {
    pub(crate) store: St,
    pub(crate) state: S,
    pub(crate) handlers: Arc<Vec<Arc<Registered<St, S>>>>,
    pub(crate) settings: InboxSettings,
    pub(crate) shared: Arc<Shared<St>>,
    /// Set once this list of handlers is known to the store.
    registered: Arc<OnceCell<()>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct InboxSettings {
    pub(crate) limits: Limits,
    pub(crate) retention: Retention,
    pub(crate) remembers: bool,
    /// Of a million traces that begin here, how many are written down; nothing when none begin.
    pub(crate) traces: Option<u32>,
}

/// What all clones of an inbox share.
pub(crate) struct Shared<St: Store> {
    pub(crate) receiver: Receiver<St>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) wake: Wake,
    pub(crate) seed: Seed,
    sources: Mutex<Vec<SourceStatus>>,
    /// Names of sources from which nothing is taken now.
    paused_sources: watch::Sender<BTreeSet<String>>,
}

impl<St: Store> Shared<St> {
    /// Notes how a source is doing.
    pub(crate) fn note_source(&self, name: &str, note: impl FnOnce(&mut SourceStatus)) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let place = sources.iter().position(|status| status.name == name).unwrap_or_else(|| {
            sources.push(SourceStatus::new(name));
            sources.len() - 1
        });
        note(&mut sources[place]);
    }

    /// The names of paused sources, to look at and to wait for a change of.
    pub(crate) fn paused_sources(&self) -> watch::Receiver<BTreeSet<String>> {
        self.paused_sources.subscribe()
    }

    /// There may be work for any process.
    pub(crate) fn ring_everywhere(&self) {
        self.wake.ring();
        self.receiver.announce();
    }
}

impl<St: Store> Inbox<St> {
    /// An inbox without state.
    pub fn new(store: St) -> Self {
        Self::with_state(store, ())
    }

    /// No inbox at all: the same handlers, one transaction per message, nothing remembered.
    ///
    /// For sources that never deliver twice, or handlers that do not mind. [`Inbox::process`] and `consume_inline`
    /// work; a failure goes back to the caller or the source, and [`Inbox::receive`] is refused.
    pub fn direct(store: St) -> Self {
        Self::direct_with_state(store, ())
    }
}

impl<St: Store, S: Clone + Send + Sync + 'static> Inbox<St, S> {
    /// An inbox whose handlers can take [`State<S>`](crate::State).
    pub fn with_state(store: St, state: S) -> Self {
        let counters = Arc::new(Counters::default());
        let wake = Wake::new();
        Self {
            shared: Arc::new(Shared {
                receiver: Receiver::new(store.clone(), counters.clone(), wake.clone()),
                counters,
                wake,
                seed: Seed::from_system(),
                sources: Mutex::default(),
                paused_sources: watch::Sender::default(),
            }),
            store,
            state,
            handlers: Arc::default(),
            registered: Arc::default(),
            settings: InboxSettings {
                limits: Limits::default(),
                retention: Retention::default(),
                remembers: true,
                traces: None,
            },
        }
    }

    /// See [`Inbox::direct`].
    pub fn direct_with_state(store: St, state: S) -> Self {
        let mut inbox = Self::with_state(store, state);
        inbox.settings.remembers = false;
        inbox
    }

    /// Adds a handler for a kind, a list of kinds, or kinds with a trailing `*`.
    ///
    /// # Panics
    /// On a name used twice, a pattern with `*` elsewhere than at its end, or a function that takes a batch together
    /// with something of a single message or without a transaction.
    pub fn on<F, Args>(mut self, kinds: impl IntoKinds, handler: NamedHandler<F, Args>) -> Self
    where
        F: Handler<Args, St, S>,
    {
        let registered = Registered::new(kinds, handler);
        let known = self.handlers.iter().any(|known| known.name() == registered.name());
        assert!(
            !known,
            "handler `{}` is registered twice; give `on` a list of kinds instead",
            registered.name()
        );
        Arc::make_mut(&mut self.handlers).push(registered);
        self.registered = Arc::default();
        self
    }

    /// Sets the payload limit.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// How long a message id still blocks duplicates; 14 days unless set. Keep it longer than the source redelivers.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.settings.retention.keep = keep;
        self
    }

    /// How long the payload of a message that every handler is done with stays readable; 14 days unless set.
    pub fn keep_payload(mut self, keep: Duration) -> Self {
        self.settings.retention.payload = keep;
        self
    }

    /// Makes receiving and sending steps of a message's trace, in spans of their own, and begins a trace for a message
    /// that comes without one.
    ///
    /// `share` of these new traces are marked to be written down: 1.0 for all of them, 0.01 for one of a hundred. A
    /// trace that comes with a message keeps its own mark. A message is stored with the span of its receiving as its
    /// `traceparent`, so what a handler does appears below it. Without this call a message keeps the one it came with.
    pub fn traces(mut self, share: f64) -> Self {
        self.settings.traces = Some((share.clamp(0.0, 1.0) * 1_000_000.0) as u32);
        self
    }

    /// Makes the handlers known to the store: a new one gets every message received from now on.
    ///
    /// `receive`, `process` and `run` do it by themselves the first time; call it at start to fail early when the
    /// schema is missing.
    pub async fn register(&self) -> Result<(), Error> {
        self.register_now().await?;
        // Already set when another clone was quicker.
        let _ = self.registered.set(());
        Ok(())
    }

    async fn register_now(&self) -> Result<(), Error> {
        let handlers: Vec<_> = self.handlers.iter().map(|handler| handler.registration.clone()).collect();
        self.store.register(&handlers).await
    }

    async fn register_once(&self) -> Result<(), Error> {
        if !self.handlers.is_empty() {
            self.registered.get_or_try_init(|| async { self.register_now().await }).await?;
        }
        Ok(())
    }

    /// Stores messages for the handlers and answers per message: new, duplicate or conflict.
    ///
    /// What is answered has been committed: acknowledge it. On `Err` nothing may be acknowledged; calling again with
    /// the same messages is safe. A message that breaks a limit fails the whole call before anything is stored.
    /// Calls that arrive at the same time share one statement, run by a task on the runtime of one of them: in a program
    /// with several runtimes, have each that lives be driven (a `current_thread` one by its `block_on`).
    pub async fn receive(&self, messages: &[Message]) -> Result<Vec<Received>, Error> {
        self.refuse_direct("receive")?;
        self.check(messages)?;
        if self.settings.traces.is_none() {
            return self.receive_checked(messages).await;
        }
        let mut messages = messages.to_vec();
        // Ends with the answer.
        let _spans: Vec<_> = messages.iter_mut().filter_map(|message| self.receive_span(message)).collect();
        self.receive_checked(&messages).await
    }

    /// The same for messages that are checked already.
    pub(crate) async fn receive_checked(&self, messages: &[Message]) -> Result<Vec<Received>, Error> {
        let mut received = Vec::with_capacity(messages.len());
        // Packed when their turn has come, so that a large call is not in memory twice.
        for piece in pieces(messages, MOST_MESSAGES) {
            received.extend(self.receive_ready(Ready::new(piece)).await?);
        }
        Ok(received)
    }

    /// The same for messages that are ready to be stored.
    pub(crate) async fn receive_ready(&self, ready: Ready) -> Result<Vec<Received>, Error> {
        self.refuse_direct("receive")?;
        self.register_once().await?;
        self.shared.receiver.receive(ready, self.routes()).await
    }

    /// A span which the message carries on from now on; none unless traces are wanted.
    pub(crate) fn receive_span(&self, message: &mut Message) -> Option<tracing::Span> {
        let sampled = self.settings.traces?;
        let seed = &self.shared.seed;
        let trace = match TraceContext::extract(&message.headers) {
            Some(trace) => trace.child(seed.next()),
            None => TraceContext::begin(seed, sampled),
        };
        trace.replace(&mut message.headers);
        Some(tracing::debug_span!(
            "oncebox.receive",
            scope = message.stored_scope(),
            id = message.id,
            kind = message.kind,
            trace_id = trace.trace_id(),
            span_id = trace.span_id(),
            parent_id = trace.parent_id(),
            sampled = trace.is_sampled(),
        ))
    }

    /// Handles one message now, in one transaction, and remembers it.
    ///
    /// A handler that fails here gets its delivery stored, and the runner goes on with it: that is no error. On
    /// `Err` nothing is known to be committed: do not acknowledge, call again.
    pub async fn process(&self, message: Message) -> Result<Processed, Error> {
        let results = self.process_all(vec![message]).await?;
        results.into_iter().next().ok_or_else(|| Error::new(ErrorKind::Store, "a message got no answer"))
    }

    /// Handles many messages now, sharing transactions where all goes well; answers in order.
    pub async fn process_all(&self, messages: Vec<Message>) -> Result<Vec<Processed>, Error> {
        self.check(&messages)?;
        if self.settings.remembers {
            self.register_once().await?;
        }
        inline::process(self, &messages).await
    }

    /// This process's counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// How the sources of this process's runner are doing.
    pub fn sources(&self) -> Vec<SourceStatus> {
        self.shared.sources.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes nothing more from the source of this name, in this process, until [`Inbox::resume_source`].
    ///
    /// What was taken before is finished and acknowledged; everything else stays at its other side. The name may be one
    /// that no runner has yet. [`AdminStore::set_source_paused`](crate::admin::AdminStore::set_source_paused) is how all
    /// processes hear of it; whoever runs them reads it there and calls this.
    pub fn pause_source(&self, name: &str) {
        self.shared.paused_sources.send_if_modified(|paused| paused.insert(name.to_owned()));
    }

    /// Lets a paused source go on. Does nothing when it is not paused.
    pub fn resume_source(&self, name: &str) {
        self.shared.paused_sources.send_if_modified(|paused| paused.remove(name));
    }

    /// The sources that are paused in this process, in order of names.
    pub fn paused_sources(&self) -> Vec<String> {
        self.shared.paused_sources.borrow().iter().cloned().collect()
    }

    /// Whether this source is paused in this process.
    pub fn is_source_paused(&self, name: &str) -> bool {
        self.shared.paused_sources.borrow().contains(name)
    }

    /// The store behind it.
    pub fn store(&self) -> &St {
        &self.store
    }

    pub(crate) fn refuse_direct(&self, what: &str) -> Result<(), Error> {
        if self.settings.remembers {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a direct inbox cannot `{what}`: it stores nothing; build it with `Inbox::new`"
        )))
    }

    fn check(&self, messages: &[Message]) -> Result<(), Error> {
        messages.iter().try_for_each(|message| self.settings.limits.check(message))
    }

    /// The kinds this process's own handlers want.
    pub(crate) fn routes(&self) -> Vec<crate::kinds::Kinds> {
        self.handlers.iter().map(|handler| handler.registration.kinds.clone()).collect()
    }
}

/// What became of a message handled inline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Processed {
    /// Handled; everything is committed.
    Done,
    /// Stored: a handler failed, works outside the database, must wait for its key or time, or none wants the kind.
    Stored,
    /// The same id with the same bytes was seen before.
    Duplicate,
    /// The same id was seen before with other bytes; kept in the list of conflicts.
    Conflict,
    /// Only with [`Inbox::direct`]: a handler failed and nothing was kept.
    Failed(String),
}

impl<St: Store, S: Clone> Clone for Inbox<St, S> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            state: self.state.clone(),
            handlers: self.handlers.clone(),
            settings: self.settings,
            shared: self.shared.clone(),
            registered: self.registered.clone(),
        }
    }
}

impl<St: Store, S> fmt::Debug for Inbox<St, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.handlers.iter().map(|handler| handler.name()).collect();
        formatter.debug_struct("Inbox").field("handlers", &names).finish_non_exhaustive()
    }
}
