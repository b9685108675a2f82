//! Where outgoing messages go.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::Error;
use crate::message::Message;
use crate::retry::Backoff;

/// A broker topic, an exchange, an HTTP endpoint.
pub trait Sink: Send + Sync + 'static {
    /// Sends messages, in order, and answers for each whether the sink has *confirmed* it.
    ///
    /// A message not answered for counts as not sent. `Err` means the sink cannot be reached at all: no message is
    /// blamed, and all of them are tried again later. May be dropped at a time limit: then nothing is taken as sent.
    fn send(
        &self,
        messages: &[Message],
    ) -> impl Future<Output = Result<Vec<Result<(), SendFailure>>, Error>> + Send;

    /// Whether, within one call, nothing of a key is delivered after a message of that key was not.
    ///
    /// When false (the default) the relay hands over one message of each key at a time. When true, the messages of a key
    /// that come after one to be tried again are answered with [`SendFailure::Retry`], which counts as no try of theirs.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Connects and looks for the place it would send to; answers what it found, for people, or `None` when it cannot
    /// look.
    ///
    /// Sends nothing and creates nothing. Fails when the sink would not work, with the address and the remedy. May be
    /// dropped at a time limit.
    fn check(&self) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        async { Ok(None) }
    }
}

/// Why one message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendFailure {
    /// Try again with backoff; dead after the relay's `max_attempts`.
    Retry(String),
    /// It can never be sent: dead at once.
    Permanent(String),
}

/// A sink with the settings of the relay that feeds it.
#[derive(Debug, Clone)]
pub struct Relay<K> {
    pub(crate) sink: K,
    pub(crate) name: String,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) batch: usize,
    pub(crate) timeout: Duration,
    /// A lot was not confirmed in time: messages go one by one until it is known whose fault it is.
    pub(crate) careful: Arc<AtomicBool>,
}

impl<K: Sink> Relay<K> {
    /// A relay for messages that name no sink.
    pub fn new(sink: K) -> Self {
        Self {
            sink,
            name: String::new(),
            max_attempts: 12,
            backoff: Backoff::default(),
            batch: 500,
            timeout: Duration::from_secs(15),
            careful: Arc::default(),
        }
    }

    /// A relay for messages sent with [`Message::to`] this name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// After this many failed tries a message is dead and waits for a person; 12 unless set.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        assert!(attempts > 0, "relay `{}`: max_attempts must be at least 1", self.name);
        self.max_attempts = attempts;
        self
    }

    /// How long to wait between tries of one message; 1 s doubling up to 1 h unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long the sink may take to confirm one call; 15 s unless set, 25 s at most.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let allowed = Duration::from_millis(1)..=Duration::from_secs(25);
        assert!(allowed.contains(&timeout), "relay `{}`: the timeout must be 1 ms to 25 s", self.name);
        self.timeout = timeout;
        self
    }

    /// At most this many messages in one call of the sink; 500 unless set.
    pub fn batch(mut self, messages: usize) -> Self {
        assert!((1..=10_000).contains(&messages), "relay `{}`: a batch has 1 to 10,000 messages", self.name);
        self.batch = messages;
        self
    }
}

impl<K: Sink> From<K> for Relay<K> {
    fn from(sink: K) -> Self {
        Self::new(sink)
    }
}
