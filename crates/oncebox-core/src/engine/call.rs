//! One call of a handler: its arguments, its time limit, its panics, and getting its transaction back.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use crate::extract::Call;
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::message::Message;
use crate::store::{Connection, Revoker, Store};
use crate::trace::TraceContext;
use crate::tx::{Home, Returned, Tx, TxContext};

/// An open transaction on its way from one handler call to the next.
pub(crate) struct Open<C> {
    pub(crate) connection: C,
    pub(crate) outgoing: Vec<Message>,
    /// Of this transaction, whichever handler keeps it.
    revoke: Revoker,
    home: Arc<Home<C>>,
}

impl<C: Connection> Open<C> {
    pub(crate) fn new(connection: C) -> Self {
        let revoke = connection.revoker();
        Self { connection, outgoing: Vec::new(), revoke, home: Home::new() }
    }
}

/// Thirty years: as good as no limit.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The time limit of one call after another, on one timer.
///
/// A new timer wakes the thread that watches timers, which costs more than a short statement does. Moving one that is
/// already set further away costs next to nothing.
pub(crate) struct TimeLimit(Pin<Box<Sleep>>);

impl TimeLimit {
    pub(crate) fn new() -> Self {
        Self(Box::pin(tokio::time::sleep(Duration::ZERO)))
    }

    /// Runs a future for at most this long; `None` when that was not enough.
    async fn run<T>(&mut self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        // A limit beyond all clocks is none.
        let now = Instant::now();
        self.0.as_mut().reset(now.checked_add(limit).unwrap_or(now + LONGEST));
        tokio::select! {
            biased;
            done = future => Some(done),
            () = self.0.as_mut() => None,
        }
    }
}

/// Calls a handler inside a transaction. Gives the transaction back, unless the handler kept it.
pub(crate) async fn call_in_tx<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &[&Message],
    attempt: u32,
    open: Open<St::Connection>,
    time: &mut TimeLimit,
) -> (Option<Open<St::Connection>>, Result<(), Failure>) {
    let trace = trace_of(inbox, messages);
    let context = TxContext { limits: inbox.settings.limits, trace: trace.clone() };
    let Open { connection, outgoing, revoke, home } = open;
    let tx = Tx::lend(connection, outgoing, context, &home);
    let result = start_and_wait(inbox, handler, messages, attempt, Some(tx), trace, time).await;
    match home.take() {
        Some(Returned { connection, outgoing }) => {
            (Some(Open { connection, outgoing, revoke, home }), result)
        }
        None => {
            tracing::error!(
                handler = handler.name(),
                "the handler kept its transaction; it is rolled back, and the handler must drop it before it returns"
            );
            revoke().await;
            let kept =
                "the handler kept its transaction after it returned; drop it (do not store or spawn it)";
            (None, Err(Failure::from(kept)))
        }
    }
}

/// Calls a handler that works outside the database.
pub(crate) async fn call_outside<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &[&Message],
    attempt: u32,
) -> Result<(), Failure> {
    let trace = trace_of(inbox, messages);
    start_and_wait(inbox, handler, messages, attempt, None, trace, &mut TimeLimit::new()).await
}

async fn start_and_wait<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &[&Message],
    attempt: u32,
    tx: Option<Tx<St::Connection>>,
    trace: Option<TraceContext>,
    time: &mut TimeLimit,
) -> Result<(), Failure> {
    if let Some(gate) = &handler.settings.gate {
        gate.started(messages.len());
    }
    let first = messages[0];
    let span = tracing::debug_span!(
        "oncebox.attempt",
        handler = handler.name(),
        scope = first.scope,
        id = first.id,
        kind = first.kind,
        messages = messages.len(),
        attempt,
        trace_id = trace.as_ref().map(TraceContext::trace_id),
        span_id = trace.as_ref().map(TraceContext::span_id),
        parent_id = trace.as_ref().and_then(TraceContext::parent_id),
        sampled = trace.as_ref().map(TraceContext::is_sampled),
        failure = tracing::field::Empty,
    );
    let call = Call { messages, attempt, state: &inbox.state, tx };
    if span.is_disabled() {
        return run_call(handler, call, trace, time).await;
    }
    let result = run_call(handler, call, trace, time).instrument(span.clone()).await;
    if let Err(failure) = &result {
        span.record("failure", tracing::field::display(failure));
    }
    result
}

async fn run_call<St: Store, S: Clone + Send + Sync + 'static>(
    handler: &Registered<St, S>,
    mut call: Call<'_, St, S>,
    trace: Option<TraceContext>,
    time: &mut TimeLimit,
) -> Result<(), Failure> {
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| (handler.start)(&mut call)));
    // A transaction that no argument took goes home here.
    drop(call);
    let future = match started {
        Ok(Ok(future)) => future,
        Ok(Err(failure)) => return Err(failure),
        Err(panic) => return Err(panicked(&*panic)),
    };
    let limit: Duration = handler.settings.timeout;
    let running = TraceContext::scope(trace, AssertUnwindSafe(future).catch_unwind());
    match time.run(limit, running).await {
        Some(Ok(result)) => result,
        Some(Err(panic)) => Err(panicked(&*panic)),
        None => Err(Failure::from(format!("the handler took longer than its timeout of {limit:?}"))),
    }
}

fn trace_of<St: Store, S>(inbox: &Inbox<St, S>, messages: &[&Message]) -> Option<TraceContext> {
    TraceContext::extract(&messages[0].headers).map(|trace| trace.child(inbox.shared.seed.next()))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)");
    Failure::from(format!("the handler panicked: {text}"))
}
