//! Where messages come from.

use std::future::Future;

use crate::error::Error;
use crate::mapping::Mapped;
use crate::message::Message;

/// A broker queue, a subscription, a webhook: something that delivers at least once.
pub trait Source: Send + 'static {
    /// What the source needs to settle a message.
    type Receipt: Send;

    /// The source's name; the scope of its message ids.
    fn name(&self) -> &str;

    /// Waits for a message, then hands over it and what else has already arrived, at most `most`.
    ///
    /// May be dropped while it waits: then it must not have taken anything. It is called again before what it has handed
    /// over is settled, as the next messages are taken while the last ones are stored; settling keeps to the order of
    /// taking. An empty answer means the source has ended. After an error it is called again, later: reconnecting is the
    /// source's own business.
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

    /// How many messages wait at the other side, where it can tell; asked now and then, for [`SourceStatus`].
    ///
    /// May be dropped at a time limit.
    fn lag(&mut self) -> impl Future<Output = Result<Option<u64>, Error>> + Send {
        async { Ok(None) }
    }

    /// Whether it is connected now, where it can tell without asking; asked with [`Source::lag`], for [`SourceStatus`].
    ///
    /// For sources that cannot tell a lag: otherwise one on which nothing comes looks as if it were away.
    fn connected(&self) -> Option<bool> {
        None
    }

    /// Signs off at a graceful stop, after the last [`Source::settle`]: returns when the other side knows what was settled
    /// and that nobody reads here any more, so that whoever reads next need not wait.
    ///
    /// Nothing depends on it: a process that dies never gets here, and what the other side does not know comes again. May
    /// be dropped at a time limit.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Connects and looks for what it would read; answers what it found, for people, or `None` when it cannot look.
    ///
    /// Takes no message, creates nothing and disturbs nobody who reads already. Fails when the source would not work,
    /// with the address and the remedy. May be dropped at a time limit.
    fn check(&mut self) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        async { Ok(None) }
    }
}

/// A message with what is needed to settle it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming<R> {
    /// The message; an empty scope becomes the source's name.
    pub message: Message,
    /// For [`Source::settle`].
    pub receipt: R,
    /// Why it cannot be taken in as it is (it has no id, say): then it is kept as a dead letter of [`UNREADABLE`].
    pub fault: Option<String>,
}

impl<R> Incoming<R> {
    /// A message that can be taken in.
    pub fn new(message: Message, receipt: R) -> Self {
        Self { message, receipt, fault: None }
    }

    /// What [`Mapping::read`](crate::mapping::Mapping::read) made of a delivery.
    pub fn mapped(mapped: Mapped, receipt: R) -> Self {
        Self { message: mapped.message, receipt, fault: mapped.fault }
    }
}

/// The name under which messages that could not be read are kept as dead letters, with their exact payload.
///
/// A message without an id, say, or one that breaks a limit. To run them after all, register a handler of this name
/// and replay them.
pub const UNREADABLE: &str = "unreadable";

/// How a source is doing in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The source's name.
    pub name: String,
    /// False from a failure on until the source has answered again.
    pub connected: bool,
    /// The last failure, until the source has answered again.
    pub error: Option<String>,
    /// How many messages wait at the other side, where it can tell.
    pub lag: Option<u64>,
    /// How many messages it has delivered to this process, duplicates counted.
    pub delivered: u64,
}

impl SourceStatus {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), connected: false, error: None, lag: None, delivered: 0 }
    }
}

/// What became of a message from a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// It is durably stored or handled: acknowledge it.
    Accept,
    /// It could not be stored now: let it come again.
    Return,
    /// It can never be stored, not even as unreadable (the store refuses its size, say): the source's own dead-letter
    /// place, if it has one.
    Reject,
}
