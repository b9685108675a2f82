//! One call of a handler: its arguments, its time limit, its panics, and getting its transaction back.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use crate::extract::Call;
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::limits::Limits;
use crate::message::Message;
use crate::store::{Connection, Revoker, Store};
use crate::trace::TraceContext;
use crate::tx::{Home, Tx, TxState};

/// An open transaction on its way from one handler call to the next.
pub(crate) struct Open<C> {
    pub(crate) state: Box<TxState<C>>,
    /// Of this transaction, whichever handler keeps it.
    revoke: Revoker,
    home: Arc<Home<C>>,
}

impl<C: Connection> Open<C> {
    pub(crate) fn new(connection: C, limits: Limits) -> Self {
        let revoke = connection.revoker();
        let state = Box::new(TxState { connection, outgoing: Vec::new(), limits, trace: None });
        Self { state, revoke, home: Home::new() }
    }
}

/// Thirty years: as good as no limit.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The time limit of one call after another, on one timer.
///
/// A new timer wakes the thread that watches timers, which costs more than a short statement does. So this one is left as
/// it is while it rings early enough: too early, perhaps, for a call that has ended long ago. Then it is set for the one
/// that runs.
pub(crate) struct TimeLimit {
    timer: Pin<Box<Sleep>>,
    /// Whom it wakes.
    wakes: Option<Waker>,
}

impl TimeLimit {
    pub(crate) fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(Duration::ZERO)), wakes: None }
    }

    /// Runs a future for at most this long; `None` when that was not enough.
    async fn run<T>(&mut self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let now = Instant::now();
        // A limit beyond all clocks is none.
        let end = now.checked_add(limit).unwrap_or(now + LONGEST);
        if !(now..=end).contains(&self.timer.deadline()) {
            self.set(end);
        }
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_end(end, context).map(|()| None),
        })
        .await
    }

    fn set(&mut self, end: Instant) {
        self.timer.as_mut().reset(end);
        self.wakes = None;
    }

    /// Looks at the timer only where it has something new to say, or somebody new to wake.
    fn poll_end(&mut self, end: Instant, context: &mut Context<'_>) -> Poll<()> {
        let is_set = self.wakes.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_set && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        // Without a budget: a handler that has used up the task's would leave the timer without anybody to wake.
        while unconstrained(self.timer.as_mut()).poll_unpin(context).is_ready() {
            if Instant::now() >= end {
                return Poll::Ready(());
            }
            self.set(end);
        }
        self.wakes = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Calls a handler inside a transaction. Gives the transaction back, unless the handler kept it.
pub(crate) async fn call_in_tx<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &mut Vec<Message>,
    attempt: u32,
    open: Open<St::Connection>,
    time: &mut TimeLimit,
) -> (Option<Open<St::Connection>>, Result<(), Failure>) {
    let trace = trace_of(inbox, messages);
    let Open { mut state, revoke, home } = open;
    state.trace.clone_from(&trace);
    let tx = Tx::lend(state, &home);
    let result = start_and_wait(inbox, handler, messages, attempt, Some(tx), trace, time).await;
    match home.take() {
        Some(state) => (Some(Open { state, revoke, home }), result),
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
    messages: &mut Vec<Message>,
    attempt: u32,
) -> Result<(), Failure> {
    let trace = trace_of(inbox, messages);
    start_and_wait(inbox, handler, messages, attempt, None, trace, &mut TimeLimit::new()).await
}

async fn start_and_wait<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &mut Vec<Message>,
    attempt: u32,
    tx: Option<Tx<St::Connection>>,
    trace: Option<Arc<TraceContext>>,
    time: &mut TimeLimit,
) -> Result<(), Failure> {
    if let Some(gate) = &handler.settings.gate {
        gate.started(messages.len());
    }
    let first = &messages[0];
    let span = tracing::debug_span!(
        "oncebox.attempt",
        handler = handler.name(),
        scope = first.scope,
        id = first.id,
        kind = first.kind,
        messages = messages.len(),
        attempt,
        trace_id = trace.as_deref().map(TraceContext::trace_id),
        span_id = trace.as_deref().map(TraceContext::span_id),
        parent_id = trace.as_deref().and_then(TraceContext::parent_id),
        sampled = trace.as_deref().map(TraceContext::is_sampled),
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
    trace: Option<Arc<TraceContext>>,
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

fn trace_of<St: Store, S>(inbox: &Inbox<St, S>, messages: &[Message]) -> Option<Arc<TraceContext>> {
    let trace = TraceContext::extract(&messages[0].headers)?;
    Some(Arc::new(trace.child(inbox.shared.seed.next())))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)");
    Failure::from(format!("the handler panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(60);

    #[tokio::test(start_paused = true)]
    async fn only_a_call_that_takes_too_long_is_ended() {
        let mut time = TimeLimit::new();
        let began = Instant::now();
        // Together they take longer than each of them may.
        for call in 0..4 {
            let work = tokio::time::sleep(SHORT * 2 / 3);
            assert!(time.run(SHORT, work).await.is_some(), "call {call} was ended");
        }
        assert!(began.elapsed() >= 2 * SHORT);
        let began = Instant::now();
        assert!(time.run(SHORT, std::future::pending::<()>()).await.is_none());
        assert!(began.elapsed() >= SHORT);
        assert!(time.run(Duration::MAX, tokio::task::yield_now()).await.is_some());
        // Now the timer is set for a time that is much too late.
        assert!(time.run(SHORT, std::future::pending::<()>()).await.is_none());
    }

    #[tokio::test]
    async fn a_call_that_never_lets_go_of_its_task_is_ended_too() {
        let busy = async {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        let ended: Option<()> = TimeLimit::new().run(SHORT, busy).await;
        assert!(ended.is_none());
    }

    #[tokio::test]
    async fn a_call_that_moves_to_another_task_is_ended_there() {
        let mut time = TimeLimit::new();
        assert!(time.run(SHORT, tokio::task::yield_now()).await.is_some());
        let elsewhere =
            tokio::spawn(async move { time.run(SHORT, std::future::pending::<()>()).await.is_none() });
        assert!(elsewhere.await.unwrap());
    }
}
