//! The transaction a handler gets.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::limits::Limits;
use crate::message::Message;
use crate::store::Connection;
use crate::trace::TraceContext;

/// The transaction in which a handler works: its SQL, its outgoing messages and the done mark commit together.
///
/// It dereferences to the driver's connection: `sqlx::query(…).execute(&mut *tx)`. Drop it or let it go out of scope
/// when you are done; Oncebox takes it back and commits. There is no `commit` here on purpose. A handler that keeps
/// it (in a static, in a spawned task) fails with an error that says so, and the transaction is rolled back.
#[derive(Debug)]
pub struct Tx<C: Connection> {
    // Empty only inside `drop`.
    connection: Option<C>,
    outgoing: Vec<Message>,
    context: TxContext,
    home: Arc<Home<C>>,
}

/// What `publish` needs to know.
#[derive(Debug, Clone)]
pub(crate) struct TxContext {
    pub(crate) limits: Limits,
    pub(crate) trace: Option<TraceContext>,
}

/// Where the transaction goes when the handler drops it.
#[derive(Debug)]
pub(crate) struct Home<C>(Mutex<Option<Returned<C>>>);

#[derive(Debug)]
pub(crate) struct Returned<C> {
    pub(crate) connection: C,
    pub(crate) outgoing: Vec<Message>,
}

impl<C: Connection> Tx<C> {
    /// Sends a message once this transaction has committed, and never if it does not.
    ///
    /// Answers the message's id, under which every copy is sent. Fails when the message breaks a limit. The message
    /// is written to the outbox together with those of the whole batch, just before the commit. A trace context the
    /// message does not carry itself is taken from the message being handled.
    pub async fn publish(&mut self, mut message: Message) -> Result<String, Error> {
        self.context.limits.check(&message)?;
        if let Some(trace) = &self.context.trace {
            trace.inject(&mut message.headers);
        }
        let id = message.id.clone();
        self.outgoing.push(message);
        Ok(id)
    }

    /// A home serves one loan after another.
    pub(crate) fn lend(
        connection: C,
        outgoing: Vec<Message>,
        context: TxContext,
        home: &Arc<Home<C>>,
    ) -> Self {
        Self { connection: Some(connection), outgoing, context, home: home.clone() }
    }
}

impl<C> Home<C> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    /// The transaction, when the handler has given it back.
    pub(crate) fn take(&self) -> Option<Returned<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<C: Connection> Deref for Tx<C> {
    type Target = C::Target;

    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("a transaction has its connection until it is dropped")
    }
}

impl<C: Connection> DerefMut for Tx<C> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("a transaction has its connection until it is dropped")
    }
}

impl<C: Connection> Drop for Tx<C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let returned = Returned { connection, outgoing: std::mem::take(&mut self.outgoing) };
            *self.home.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(returned);
        }
    }
}
