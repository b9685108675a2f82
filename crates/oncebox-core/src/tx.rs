//! The transaction a handler gets.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::limits::Limits;
use crate::message::Message;
use crate::store::Connection;
use crate::trace::TraceContext;

const HAS_STATE: &str = "a transaction has its connection until it is dropped";

/// The transaction in which a handler works: its SQL, its outgoing messages and the done mark commit together.
///
/// It dereferences to the driver's connection: `sqlx::query(…).execute(&mut *tx)`. Drop it or let it go out of scope
/// when you are done; Oncebox takes it back and commits. There is no `commit` here on purpose. A handler that keeps
/// it (in a static, in a spawned task) fails with an error that says so, and the transaction is rolled back.
#[derive(Debug)]
pub struct Tx<C: Connection> {
    // Empty only inside `drop`.
    state: Option<Box<TxState<C>>>,
    home: Arc<Home<C>>,
}

/// An open transaction and what goes with it from one call to the next: in a box, because it changes hands often.
#[derive(Debug)]
pub(crate) struct TxState<C> {
    pub(crate) connection: C,
    pub(crate) outgoing: Vec<Message>,
    /// For `publish`.
    pub(crate) limits: Limits,
    /// Of the message being handled, for `publish`.
    pub(crate) trace: Option<Arc<TraceContext>>,
}

/// Where the transaction goes when the handler drops it.
#[derive(Debug)]
pub(crate) struct Home<C>(Mutex<Option<Box<TxState<C>>>>);

impl<C: Connection> Tx<C> {
    /// Sends a message once this transaction has committed, and never if it does not.
    ///
    /// Answers the message's id, under which every copy is sent. Fails when the message breaks a limit. The message
    /// is written to the outbox together with those of the whole batch, just before the commit. A trace context the
    /// message does not carry itself is taken from the message being handled.
    pub async fn publish(&mut self, mut message: Message) -> Result<String, Error> {
        let state = self.state.as_mut().expect(HAS_STATE);
        state.limits.check(&message)?;
        if let Some(trace) = &state.trace {
            trace.inject(&mut message.headers);
        }
        let id = message.id.clone();
        state.outgoing.push(message);
        Ok(id)
    }

    /// A home serves one state after another.
    pub(crate) fn lend(state: Box<TxState<C>>, home: &Arc<Home<C>>) -> Self {
        Self { state: Some(state), home: home.clone() }
    }
}

impl<C> Home<C> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    /// The transaction, when the handler has given it back.
    pub(crate) fn take(&self) -> Option<Box<TxState<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<C: Connection> Deref for Tx<C> {
    type Target = C::Target;

    fn deref(&self) -> &Self::Target {
        &self.state.as_ref().expect(HAS_STATE).connection
    }
}

impl<C: Connection> DerefMut for Tx<C> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.state.as_mut().expect(HAS_STATE).connection
    }
}

impl<C: Connection> Drop for Tx<C> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            *self.home.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }
}
