//! Where messages come from.

use std::future::Future;

use crate::error::Error;
use crate::message::Message;

/// A broker queue, a subscription, a webhook: something that delivers at least once.
pub trait Source: Send + 'static {
    /// What the source needs to settle a message.
    type Receipt: Send;

    /// The source's name; the scope of its message ids.
    fn name(&self) -> &str;

    /// Waits for a message, then hands over it and what else has already arrived, at most `most`.
    ///
    /// May be dropped while it waits: then it must not have taken anything. An empty answer means the source has
    /// ended. After an error it is called again, later: reconnecting is the source's own business.
    fn next(
        &mut self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Incoming<Self::Receipt>>, Error>> + Send;

    /// Tells the source what became of messages; called once for each message handed over.
    ///
    /// Fails when the source could not be told: the messages will come again, and be duplicates.
    fn settle(
        &mut self,
        settled: Vec<(Self::Receipt, Settle)>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// A message with what is needed to settle it.
#[derive(Debug)]
pub struct Incoming<R> {
    /// The message; an empty scope becomes the source's name.
    pub message: Message,
    /// For [`Source::settle`].
    pub receipt: R,
}

/// What became of a message from a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// It is durably stored or handled: acknowledge it.
    Accept,
    /// It could not be stored now: let it come again.
    Return,
    /// It can never be stored (it breaks a limit): the source's own dead-letter place, if it has one.
    Reject,
}
