//! What a handler may take as arguments, in any order.

use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::message::Message;
use crate::store::Store;
use crate::tx::Tx;

/// A handler argument.
///
/// Oncebox implements it for the transaction of the store (`PgTx`, `SqliteTx`), [`Json`], [`Message`], [`Batch`],
/// [`State`] and [`Attempt`]. Implement it for a type of your own to read something from the message:
///
/// ```
/// use oncebox_core::{Call, Extract, Failure, Store};
///
/// struct Tenant(String);
///
/// impl<St: Store, S> Extract<St, S> for Tenant {
///     fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
///         let tenant = call.message().headers.text("tenant").ok_or("the message has no `tenant` header")?;
///         Ok(Tenant(tenant.to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler on this store",
    label = "not a handler argument here",
    note = "arguments are the store's own transaction (`PgTx` for `PgStore`, `SqliteTx` for `SqliteStore`), \
            `Json<T>`, `Message`, `Batch<T>`, `State<S>` with the inbox's own state, and `Attempt`",
    note = "see the guide `handlers.md`, section \"when the compiler refuses a handler\""
)]
pub trait Extract<St: Store, S>: Sized + Send {
    /// True for the transaction: decides whether the handler runs inside one.
    const IS_TX: bool = false;
    /// True for [`Batch`]: decides whether the handler gets many messages in one call.
    const IS_BATCH: bool = false;
    /// True for what is read from one message, and so makes no sense beside a [`Batch`].
    const IS_SINGLE: bool = false;

    /// False for what never looks at the messages. The last argument that does may get them instead of a copy; for those
    /// after it they are gone.
    const READS_MESSAGES: bool = true;

    /// Takes the argument out of the call; a failure here is the attempt's failure.
    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure>;

    /// The same where nobody reads the messages afterwards, for what need not copy them then.
    #[doc(hidden)]
    fn extract_last(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Self::extract(call)
    }
}

/// One call of a handler, from which its arguments are taken.
#[derive(Debug)]
pub struct Call<'a, St: Store, S> {
    pub(crate) messages: &'a mut Vec<Message>,
    pub(crate) attempt: u32,
    pub(crate) state: &'a S,
    pub(crate) tx: Option<Tx<St::Connection>>,
}

impl<St: Store, S> Call<'_, St, S> {
    /// The message; the first one when the handler takes a [`Batch`].
    pub fn message(&self) -> &Message {
        &self.messages[0]
    }

    /// Every message of the call.
    pub fn messages(&self) -> &[Message] {
        self.messages
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The inbox's state.
    pub fn state(&self) -> &S {
        self.state
    }
}

/// The payload read as JSON.
///
/// A payload that cannot be read as `T` never can be, so it becomes a dead letter at once, to be replayed once the
/// type has been mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// Many messages in one call and one transaction: JSON payloads as `T`, or the whole messages as [`Message`].
///
/// When the call fails, the batch is split until the message that fails is alone; the others go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<T>(pub Vec<T>);

/// The state given to [`Inbox::with_state`](crate::Inbox::with_state).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State<S>(pub S);

/// Which attempt this is, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt(pub u32);

impl<St, S> Extract<St, S> for Tx<St::Connection>
where
    St: Store,
{
    const IS_TX: bool = true;
    const READS_MESSAGES: bool = false;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        call.tx.take().ok_or_else(|| Failure::permanent("a handler takes its transaction once"))
    }
}

impl<St: Store, S, T: DeserializeOwned + Send> Extract<St, S> for Json<T> {
    const IS_SINGLE: bool = true;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        call.message().decode().map(Json).map_err(Failure::permanent)
    }
}

impl<St: Store, S> Extract<St, S> for Message {
    const IS_SINGLE: bool = true;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(call.message().clone())
    }

    fn extract_last(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(call.messages.swap_remove(0))
    }
}

impl<St: Store, S, T: DeserializeOwned + Send> Extract<St, S> for Batch<T> {
    const IS_BATCH: bool = true;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        let bodies: Result<Vec<T>, _> = call.messages.iter().map(|message| message.decode()).collect();
        bodies.map(Batch).map_err(Failure::permanent)
    }
}

impl<St: Store, S> Extract<St, S> for Batch<Message> {
    const IS_BATCH: bool = true;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(Batch(call.messages.clone()))
    }

    fn extract_last(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(Batch(std::mem::take(call.messages)))
    }
}

impl<St: Store, S: Clone + Send> Extract<St, S> for State<S> {
    const READS_MESSAGES: bool = false;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(State(call.state.clone()))
    }
}

impl<St: Store, S> Extract<St, S> for Attempt {
    const READS_MESSAGES: bool = false;

    fn extract(call: &mut Call<'_, St, S>) -> Result<Self, Failure> {
        Ok(Attempt(call.attempt))
    }
}
