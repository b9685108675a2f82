//! What a suite needs to know about a store: how to get a fresh one, and a table of the user's to write effects into.

use std::error::Error as StdError;
use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use oncebox_core::admin::AdminStore;
use oncebox_core::clock::ClockShift;
use oncebox_core::{Failure, Message, Store, Tx};

use crate::ledger::Effect;

/// The driver's connection type of a subject.
pub type DriverOf<T> = <<T as Subject>::Store as Store>::Driver;
/// The transaction that handlers on a subject take.
pub type TxOf<T> = Tx<<<T as Subject>::Store as Store>::Connection>;

/// A store under test, with a schema and a ledger table of its own.
///
/// The ledger is the user's table: `(number autoincrement, id, handler, note)` **without** any unique key on the id,
/// so that a doubled effect shows. Everything is removed when the subject is dropped.
pub trait Subject: Sized + Send + Sync + 'static {
    /// The store.
    type Store: AdminStore;
    /// A transaction of the user's own, as the driver hands it out.
    type Own: DerefMut<Target = DriverOf<Self>> + Send;

    /// Where the two kinds of store differ, declared.
    const FACTS: Facts;

    /// False when processes cannot wake each other, behind a pooler for example; then runners only poll.
    const HINTS: bool = true;

    /// A fresh, migrated store; `None` when the server for it is not there (and the reason has been printed).
    fn create() -> impl Future<Output = Option<Self>> + Send;

    /// The store, with a pool of several connections and this subject's clock.
    fn store(&self) -> Self::Store;

    /// The same store through a pool of one connection.
    fn store_with_one_connection(&self) -> impl Future<Output = Self::Store> + Send;

    /// A store on the same tables as a new process would open it, for tests that restart.
    fn reopen(&self) -> impl Future<Output = Self::Store> + Send;

    /// Moves the database's clock of every store of this subject.
    fn clock(&self) -> ClockShift;

    /// What a child process needs to open the same tables; see [`Subject::attach`].
    fn address(&self) -> String;

    /// Opens what another process's subject has created, without removing it on drop.
    fn attach(address: &str) -> impl Future<Output = Self> + Send;

    /// Writes an effect to the ledger through the transaction.
    fn record(
        tx: &mut DriverOf<Self>,
        effect: Effect,
    ) -> impl Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send;

    /// Every committed effect, in the order written.
    fn effects(&self) -> impl Future<Output = Vec<Effect>> + Send;

    /// A statement that the database refuses.
    fn fail(
        tx: &mut DriverOf<Self>,
    ) -> impl Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send;

    /// A statement after which the transaction is over although the handler was not told to end it: a raw
    /// `commit`, or on SQLite an `insert or rollback`.
    fn end_transaction(
        tx: &mut DriverOf<Self>,
    ) -> impl Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send;

    /// A violation that the database reports only at commit (a deferred constraint).
    fn fail_at_commit(
        tx: &mut DriverOf<Self>,
    ) -> impl Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send;

    /// A single statement that keeps the server busy for about this long.
    fn work_for(
        tx: &mut DriverOf<Self>,
        time: Duration,
    ) -> impl Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send;

    /// Spoils every row of the log, the deliveries and the outbox with this message id, as the user's own SQL could: the
    /// headers become `{oops` and `not_before` the largest number there is.
    fn spoil(&self, id: &str) -> impl Future<Output = ()> + Send;

    /// Writes what only a newer version can read into the rows of this replay and of every delivery of this message:
    /// the replay's filter gets the field `colour`, the deliveries the state 99.
    fn write_as_newer(&self, replay: i64, message: &str) -> impl Future<Output = ()> + Send;

    /// Begins a transaction of the user's own.
    fn begin(&self) -> impl Future<Output = Self::Own> + Send;

    /// Commits it.
    fn commit(own: Self::Own) -> impl Future<Output = ()> + Send;

    /// Rolls it back.
    fn rollback(own: Self::Own) -> impl Future<Output = ()> + Send;

    /// Calls `once` on a plain connection, outside any transaction, and gives back its answer's text.
    fn once_outside_transaction(&self) -> impl Future<Output = String> + Send;

    /// Calls `publish` on a plain connection, outside any transaction, and gives back its answer's text.
    fn publish_outside_transaction(&self, message: Message) -> impl Future<Output = String> + Send;

    /// How many connections to this subject's database have a transaction open and nothing to do.
    ///
    /// Waits a bounded time for it to become zero, because closing a connection takes the server a moment.
    fn stuck_transactions(&self) -> impl Future<Output = usize> + Send;
}

/// What a database does differently, declared instead of guessed.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// A failed statement aborts the whole transaction (Postgres), instead of only being undone itself (SQLite).
    pub error_aborts_transaction: bool,
    /// Two handler transactions can be open at once.
    pub parallel_transactions: bool,
    /// What a handler runs after it has ended its transaction commits by itself (Postgres).
    pub commits_outside_transaction: bool,
}

/// A handler that writes one effect per message, under its own name.
pub fn recording<T: Subject>(
    name: &'static str,
) -> impl Fn(TxOf<T>, Message) -> futures_util::future::BoxFuture<'static, Result<(), Failure>> + Clone + Send + Sync
{
    move |mut tx, message| {
        Box::pin(async move {
            T::record(&mut tx, Effect::of(name, &message)).await?;
            Ok(())
        })
    }
}
