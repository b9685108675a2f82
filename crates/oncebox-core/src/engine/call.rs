//! One call of a handler: its arguments, its time limit, its panics, and getting its transaction back.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Instrument;

use crate::extract::Call;
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::message::Message;
use crate::store::{Connection, Revoker, Store};
use crate::trace::TraceContext;
use crate::tx::{Returned, Tx, TxContext};

/// An open transaction on its way from one handler call to the next.
pub(crate) struct Open<C> {
    pub(crate) connection: C,
    pub(crate) outgoing: Vec<Message>,
}

/// Calls a handler inside a transaction. Gives the transaction back, unless the handler kept it.
pub(crate) async fn call_in_tx<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &[&Message],
    attempt: u32,
    open: Open<St::Connection>,
) -> (Option<Open<St::Connection>>, Result<(), Failure>) {
    let trace = trace_of(inbox, messages);
    let context = TxContext { limits: inbox.settings.limits, trace: trace.clone() };
    let revoke: Revoker = open.connection.revoker();
    let (tx, home) = Tx::lend(open.connection, open.outgoing, context);
    let result = start_and_wait(inbox, handler, messages, attempt, Some(tx), trace).await;
    match home.take() {
        Some(Returned { connection, outgoing }) => (Some(Open { connection, outgoing }), result),
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
    start_and_wait(inbox, handler, messages, attempt, None, trace).await
}

async fn start_and_wait<St: Store, S: Clone + Send + Sync + 'static>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    messages: &[&Message],
    attempt: u32,
    tx: Option<Tx<St::Connection>>,
    trace: Option<TraceContext>,
) -> Result<(), Failure> {
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
    );
    let mut call = Call { messages, attempt, state: &inbox.state, tx };
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| (handler.start)(&mut call)));
    // A transaction that no argument took goes home here.
    drop(call);
    let future = match started {
        Ok(Ok(future)) => future,
        Ok(Err(failure)) => return Err(failure),
        Err(panic) => return Err(panicked(&*panic)),
    };
    let limit: Duration = handler.settings.timeout;
    let result = tokio::time::timeout(limit, AssertUnwindSafe(future).catch_unwind()).instrument(span).await;
    match result {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(panicked(&*panic)),
        Err(_) => Err(Failure::from(format!("the handler took longer than its timeout of {limit:?}"))),
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
