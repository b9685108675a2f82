//! Handlers: named async functions.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;

use crate::extract::{Call, Extract};
use crate::failure::Failure;
use crate::gate::Gate;
use crate::kinds::{IntoKinds, Kinds};
use crate::retry::Backoff;
use crate::store::{Registration, Store};

/// An async function that handles messages.
///
/// Implemented for every `async fn` of up to eight arguments that are all [`Extract`] and whose result is
/// `Result<(), E>`, `E` being [`Failure`] or any error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for this inbox",
    label = "this function cannot be a handler here",
    note = "a handler is an `async fn` with owned arguments (the store's transaction, `Json<T>`, `Message`, \
            `Batch<T>`, `State<S>`, `Attempt`; at most eight) that returns `Result<(), Failure>`",
    note = "to see which argument is wrong, name them: `handler::<_, (SqliteTx, Json<Order>)>(\"name\", function)`",
    note = "its future must be `Send`: hold nothing like `Rc` or a lock guard across an `.await`",
    note = "see the guide `handlers.md`, section \"when the compiler refuses a handler\""
)]
pub trait Handler<Args, St: Store, S>: Clone + Send + Sync + 'static {
    /// Whether it takes the transaction.
    const TAKES_TX: bool;
    /// Whether it takes a batch.
    const TAKES_BATCH: bool;
    /// What is wrong with its arguments, when the compiler cannot tell.
    const MISTAKE: Option<&'static str>;

    /// Takes the arguments out of the call and starts the function.
    fn call(&self, call: &mut Call<'_, St, S>) -> Result<BoxFuture<'static, Result<(), Failure>>, Failure>;
}

macro_rules! handler_of {
    ($($argument:ident),*) => {
        impl<F, Fut, E, St, S, $($argument),*> Handler<($($argument,)*), St, S> for F
        where
            F: Fn($($argument),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<(), E>> + Send + 'static,
            E: Into<Failure> + 'static,
            St: Store,
            $($argument: Extract<St, S>,)*
        {
            const TAKES_TX: bool = false $(|| $argument::IS_TX)*;
            const TAKES_BATCH: bool = false $(|| $argument::IS_BATCH)*;
            const MISTAKE: Option<&'static str> = mistake(
                0 $(+ $argument::IS_TX as u8)*,
                0 $(+ $argument::IS_BATCH as u8)*,
                0 $(+ $argument::IS_SINGLE as u8)*,
            );

            #[allow(non_snake_case, unused_variables, unused_mut, unused_assignments)]
            fn call(
                &self,
                call: &mut Call<'_, St, S>,
            ) -> Result<BoxFuture<'static, Result<(), Failure>>, Failure> {
                let mut readers = 0 $(+ usize::from($argument::READS_MESSAGES))*;
                $(
                    readers -= usize::from($argument::READS_MESSAGES);
                    let $argument =
                        if readers == 0 { $argument::extract_last(call)? } else { $argument::extract(call)? };
                )*
                let future = self($($argument),*);
                // In place: an async block would have room for the future twice, and copy it with every call.
                Ok(Box::pin(future.map_err(Into::into)))
            }
        }
    };
}

/// Counts of transactions, batches and single-message arguments.
const fn mistake(transactions: u8, batches: u8, singles: u8) -> Option<&'static str> {
    if transactions > 1 {
        Some("it takes its transaction more than once")
    } else if batches > 1 {
        Some("it takes more than one `Batch`")
    } else if batches == 1 && singles > 0 {
        Some("it takes a `Batch` and, beside it, something of a single message")
    } else if batches == 1 && transactions == 0 {
        Some(
            "it takes a `Batch` without a transaction; outside the database, messages are handled one by one",
        )
    } else {
        None
    }
}

handler_of!();
handler_of!(A);
handler_of!(A, B);
handler_of!(A, B, C);
handler_of!(A, B, C, D);
handler_of!(A, B, C, D, G);
handler_of!(A, B, C, D, G, H);
handler_of!(A, B, C, D, G, H, I);
handler_of!(A, B, C, D, G, H, I, J);

/// Names a function as a handler. The name is stored data: it is how the store remembers what is done.
///
/// See [`Inbox::on`](crate::Inbox::on) for an example.
pub fn handler<F, Args>(name: impl Into<String>, function: F) -> NamedHandler<F, Args> {
    NamedHandler { name: name.into(), function, settings: Settings::default(), arguments: PhantomData }
}

/// A named handler with its settings, ready for [`Inbox::on`](crate::Inbox::on).
pub struct NamedHandler<F, Args> {
    name: String,
    function: F,
    settings: Settings,
    arguments: PhantomData<fn(Args)>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) timeout: Duration,
    pub(crate) ordered: bool,
    pub(crate) batch: usize,
    pub(crate) formerly: Vec<String>,
    pub(crate) from_start: bool,
    pub(crate) concurrency: Option<usize>,
    pub(crate) gate: Option<Arc<dyn Gate>>,
}

impl Settings {
    /// How many of `wanted` messages may be taken now.
    pub(crate) fn room(&self, wanted: usize) -> Result<usize, Duration> {
        match &self.gate {
            Some(gate) => gate.room(wanted).map(|room| room.clamp(1, wanted.max(1))),
            None => Ok(wanted),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_attempts: 12,
            backoff: Backoff::default(),
            timeout: Duration::from_secs(30),
            ordered: false,
            batch: 500,
            formerly: Vec::new(),
            from_start: false,
            concurrency: None,
            gate: None,
        }
    }
}

impl<F, Args> NamedHandler<F, Args> {
    /// After this many attempts a delivery is a dead letter; 12 unless set.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        assert!(attempts > 0, "handler `{}`: max_attempts must be at least 1", self.name);
        self.settings.max_attempts = attempts;
        self
    }

    /// How long to wait between attempts; 1 s doubling up to 1 h unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// How long one call may take; 30 s unless set. The database gets the same limit, so locks go too.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        assert!(!timeout.is_zero(), "handler `{}`: the timeout must be longer than nothing", self.name);
        self.settings.timeout = timeout;
        self
    }

    /// Handles messages of one key in the order they were received; a failing one holds those behind it.
    pub fn ordered(mut self) -> Self {
        self.settings.ordered = true;
        self
    }

    /// At most this many messages in one transaction (and, with [`Batch`](crate::Batch), in one call); 500 unless set.
    pub fn batch(mut self, messages: usize) -> Self {
        assert!(
            (1..=10_000).contains(&messages),
            "handler `{}`: a batch has 1 to 10,000 messages, not {messages}",
            self.name
        );
        self.settings.batch = messages;
        self
    }

    /// A name this handler had before: what was done under it stays done.
    pub fn formerly(mut self, name: impl Into<String>) -> Self {
        self.settings.formerly.push(name.into());
        self
    }

    /// A new handler starts with the oldest message still in the log instead of the next one received.
    pub fn from_start(mut self) -> Self {
        self.settings.from_start = true;
        self
    }

    /// At most this many calls (or, with a transaction, transactions) at once in this process; the runner's
    /// `concurrency` unless set.
    pub fn concurrency(mut self, calls: usize) -> Self {
        assert!(calls > 0, "handler `{}`: concurrency must be at least 1", self.name);
        self.settings.concurrency = Some(calls);
        self
    }

    /// Asks this gate before taking deliveries: a rate limit, a circuit breaker.
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.settings.gate = Some(gate);
        self
    }
}

impl<F, Args> fmt::Debug for NamedHandler<F, Args> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NamedHandler").field("name", &self.name).finish_non_exhaustive()
    }
}

type Start<St, S> = dyn for<'a> Fn(&mut Call<'a, St, S>) -> Result<BoxFuture<'static, Result<(), Failure>>, Failure>
    + Send
    + Sync;

/// A handler whose function's type has been forgotten.
pub(crate) struct Registered<St: Store, S> {
    pub(crate) registration: Registration,
    pub(crate) settings: Settings,
    pub(crate) takes_tx: bool,
    pub(crate) takes_batch: bool,
    pub(crate) start: Box<Start<St, S>>,
}

impl<St: Store, S> Registered<St, S> {
    /// Checks what can be checked without a store; a mistake panics with the handler's name.
    pub(crate) fn new<F, Args>(kinds: impl IntoKinds, named: NamedHandler<F, Args>) -> Arc<Self>
    where
        F: Handler<Args, St, S>,
    {
        let NamedHandler { name, function, settings, .. } = named;
        assert_name("handler", &name);
        if let Some(mistake) = F::MISTAKE {
            panic!("handler `{name}`: {mistake}");
        }
        settings.formerly.iter().for_each(|former| {
            assert_name("former handler", former);
            assert!(*former != name, "handler `{name}`: `formerly` names the handler itself");
        });
        let mut wanted = Kinds::default();
        for pattern in kinds.into_patterns() {
            if let Err(wrong) = wanted.add(&pattern) {
                panic!("handler `{name}`: {wrong}");
            }
        }
        assert!(wanted.patterns().next().is_some(), "handler `{name}` is registered on no kind");
        Arc::new(Self {
            registration: Registration {
                name,
                formerly: settings.formerly.clone(),
                kinds: wanted,
                from_start: settings.from_start,
                ordered: settings.ordered,
            },
            settings,
            takes_tx: F::TAKES_TX,
            takes_batch: F::TAKES_BATCH,
            start: Box::new(move |call| function.call(call)),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.registration.name
    }

    pub(crate) fn wants(&self, kind: &str) -> bool {
        self.registration.kinds.wants(kind)
    }
}

fn assert_name(what: &str, name: &str) {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/');
    assert!(
        (1..=100).contains(&name.len()) && name.bytes().all(allowed),
        "{what} `{name}`: a name has 1 to 100 letters, digits, `-`, `_`, `.`, `:` or `/`"
    );
}
