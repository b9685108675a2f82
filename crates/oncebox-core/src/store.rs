//! What a database must do for Oncebox.
//!
//! A store keeps a log of received messages, one cursor per (handler, lane), and a row for each delivery that needs
//! one of its own (retrying, held, scheduled, leased, dead). The engine decides; a store does what it is told, in
//! one transaction where a method says so, and by the database's own clock.
//!
//! The published store suite and fault suite of `oncebox-testkit` are the definition of what these methods mean.

use std::error::Error as StdError;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{Conflict, DeliveryFilter, DeliveryInfo, HandlerStatus, OutboxStatus};
pub use crate::arrival::Arrival;
use crate::error::Error;
use crate::kinds::Kinds;
use crate::message::Message;
pub use crate::packed::{MessageView, Packed};
use crate::responses::Respond;
use crate::wake::Wake;

pub use crate::stored::{StoredMessage, UNREADABLE_HEADER};

/// A database that can hold an inbox and an outbox. Cheap to clone: a handle.
pub trait Store: Clone + Send + Sync + 'static {
    /// The driver's own connection type, as handlers see it (`sqlx::PgConnection`).
    type Driver: Send;
    /// An open transaction on one connection, owned.
    type Connection: Connection<Target = Self::Driver>;

    // ---- receiving

    /// Records what is new and appends it to the log, in one commit; answers per message, in order.
    ///
    /// Identities are distinct within the slice. `seq` order equals commit order. A conflict is kept in the
    /// conflict table in the same commit.
    fn receive(&self, arrivals: &[Arrival]) -> impl Future<Output = Result<Vec<Received>, Error>> + Send;

    // ---- handlers and lanes

    /// Makes handlers known: their kinds, renames (`formerly`), and a cursor per lane for each new one.
    ///
    /// Idempotent, and safe from many processes at once. Fails with `Schema` when the tables are missing or newer,
    /// and with `ReadOnly` on a replica.
    fn register(&self, handlers: &[Registration]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Marks up to `claim.lanes` lanes of a handler that have messages waiting as about to be run by `claim.token`,
    /// durably against the death of this process. Lanes locked or freshly marked by others, and paused handlers,
    /// give nothing. Lanes served longest ago come first.
    fn claim(&self, claim: &Claim<'_>) -> impl Future<Output = Result<Vec<ClaimedLane>, Error>> + Send;

    /// Takes the marks of this token off again, where they are still there.
    fn release(&self, handler: &str, token: Token) -> impl Future<Output = Result<(), Error>> + Send;

    // ---- transactions

    /// Begins a transaction, locks the claimed lanes (`None` when one is no longer ours) and reads their next messages,
    /// at most `read.limit` in all, by lane and `seq`.
    fn begin_lanes(
        &self,
        read: &ReadLanes<'_>,
    ) -> impl Future<Output = Result<Option<LaneBatch<Self::Connection>>, Error>> + Send;

    /// Reads what [`begin_lanes`](Self::begin_lanes) would read once each lane stands where `from` says, while an
    /// earlier batch of the same lanes still runs. Locks nothing, writes nothing and waits for no connection.
    ///
    /// `None` where a store does not do that, or cannot now. Never asked for with `read.ordered`: which keys are held is
    /// only known once the lanes are locked.
    fn read_ahead(
        &self,
        read: &ReadLanes<'_>,
        from: &[(u16, i64)],
    ) -> impl Future<Output = Result<Option<Vec<LaneRow>>, Error>> + Send {
        let _ = (read, from);
        async { Ok(None) }
    }

    /// [`begin_lanes`](Self::begin_lanes) with messages that were read ahead: they are taken when every lane stands
    /// where they begin, and read anew otherwise.
    fn begin_lanes_ahead(
        &self,
        read: &ReadLanes<'_>,
        ahead: Ahead,
    ) -> impl Future<Output = Result<Option<LaneBatch<Self::Connection>>, Error>> + Send {
        let _ = ahead;
        self.begin_lanes(read)
    }

    /// Begins a transaction and locks leased deliveries; `None` when one of them is no longer ours.
    fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> impl Future<Output = Result<Option<Self::Connection>, Error>> + Send;

    /// Begins a transaction and records the arrivals as seen, without a log entry; answers per arrival, in order.
    ///
    /// Waits for a rival that has inserted the same identity and not yet committed.
    fn begin_inline(
        &self,
        inline: &ReadInline<'_>,
    ) -> impl Future<Output = Result<InlineBatch<Self::Connection>, Error>> + Send;

    /// Begins a transaction and nothing else.
    fn begin_plain(&self, limits: TxLimits) -> impl Future<Output = Result<Self::Connection, Error>> + Send;

    /// Writes the outcome as the last statements of the transaction and commits it.
    ///
    /// `Fenced` when a lane or lease is no longer ours or the transaction is no longer the one that was begun
    /// (the handler ended it, or an SQL error it swallowed aborted it): then nothing of it is kept. `Ended` instead
    /// where statements that ran after the handler had ended it were not stopped from committing by themselves. Any
    /// other error leaves the outcome unknown. Answers the ids of `commit.park`, in order.
    ///
    /// A commit of the handler's own must be refused by the database or undone with everything before it: in one
    /// transaction are the ids and effects of many messages, which may only be kept together with their done marks.
    fn commit(
        &self,
        connection: Self::Connection,
        commit: Commit,
    ) -> impl Future<Output = Result<Vec<DeliveryId>, Error>> + Send;

    // ---- deliveries with a row of their own

    /// Leases due deliveries of a handler, counting the attempt durably; none while it is paused.
    ///
    /// A lease that ran out is taken over, and the unfinished attempt noted in the delivery's history as [`LAPSED`].
    /// When `ask.ordered` and nothing is due, held messages with nothing active before them in their key (left by
    /// two commits that did not see each other) become ready.
    fn lease(&self, ask: &AskLease<'_>) -> impl Future<Output = Result<Leased, Error>> + Send;

    /// Prolongs these leases by `lease_for` from now, where they are still held; answers which are.
    fn renew(
        &self,
        handler: &str,
        leases: &[Lease],
        lease_for: Duration,
    ) -> impl Future<Output = Result<Vec<bool>, Error>> + Send;

    /// Ends leases, in one commit; answers which of them were still ours (the others changed nothing).
    fn settle(
        &self,
        handler: &str,
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<Vec<bool>, Error>> + Send;

    // ---- the caller's own transaction

    /// Remembers (handler, id) in the caller's transaction.
    fn once(
        &self,
        tx: &mut Self::Driver,
        handler: &str,
        id: &str,
    ) -> impl Future<Output = Result<Once, Error>> + Send;

    /// Writes outgoing messages to the outbox in the caller's transaction; `NotInTransaction` when there is none.
    fn publish(
        &self,
        tx: &mut Self::Driver,
        messages: &[Message],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    // ---- outbox

    /// Leases lanes of the outbox for one sink and reads what is due in them, in order, at most `ask.limit`.
    ///
    /// A message whose key has an earlier one waiting for its backoff is left out. Called again with the same token
    /// it prolongs the lease of lanes it already has; it may leave it as it is while less than a fifteenth is used up.
    fn lease_outgoing(
        &self,
        ask: &AskOutgoing<'_>,
    ) -> impl Future<Output = Result<Vec<Outgoing>, Error>> + Send;

    /// Removes what was sent, notes what was not, and, with `release`, gives the lanes back.
    fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    // ---- operation

    /// Pauses or resumes a handler for every process; false when the store knows none of that name.
    fn set_paused(&self, handler: &str, paused: bool) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Forgets a handler that no longer exists in code: its cursors and deliveries; false when unknown.
    fn forget(&self, handler: &str) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The deliveries that match, oldest first.
    fn deliveries(
        &self,
        filter: &DeliveryFilter,
    ) -> impl Future<Output = Result<Vec<DeliveryInfo>, Error>> + Send;

    /// Makes matching dead letters wait again, attempts counted from zero, order per key kept; answers how many.
    fn replay(&self, filter: &DeliveryFilter) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Gives matching dead letters up for good, with a reason in their history; answers how many.
    fn discard(
        &self,
        filter: &DeliveryFilter,
        reason: &str,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Makes matching dead outgoing messages of a sink wait again; answers how many.
    fn replay_outgoing(&self, sink: &str) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Known ids that came with other bytes, newest first.
    fn conflicts(&self, limit: usize) -> impl Future<Output = Result<Vec<Conflict>, Error>> + Send;

    /// Every handler the store knows, without scanning the log.
    fn handlers(&self) -> impl Future<Output = Result<Vec<HandlerStatus>, Error>> + Send;

    /// The kinds that each of these handlers wants. Receivers wait for it now and then, so a store that can answer it
    /// without counting what waits should.
    fn wanted_kinds(&self) -> impl Future<Output = Result<Vec<Vec<String>>, Error>> + Send {
        async { Ok(self.handlers().await?.into_iter().map(|handler| handler.kinds).collect()) }
    }

    /// What waits in the outbox, per sink.
    fn outbox(&self) -> impl Future<Output = Result<Vec<OutboxStatus>, Error>> + Send;

    /// Adds to the counters: the running total and this minute's bucket of each.
    fn add_counts(&self, counts: &[Count]) -> impl Future<Output = Result<(), Error>> + Send;

    /// The running totals of all counters.
    fn counts(&self) -> impl Future<Output = Result<Vec<Count>, Error>> + Send;

    /// Removes at most `retention.step` rows of each sort that are done and old enough by the database's clock.
    fn purge(&self, retention: &Retention) -> impl Future<Output = Result<Purged, Error>> + Send;

    // ---- wake-ups and errors

    /// Tells other processes that something was stored; a hint that may get lost.
    fn announce(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Runs until dropped or until listening turns out to be impossible, waking on hints of other processes.
    fn listen(&self, wake: Wake) -> impl Future<Output = Result<(), Error>> + Send;

    /// True when this error of the driver, found in a handler's failure, says nothing about the message:
    /// connection lost, server shutting down, deadlock, serialization failure.
    fn is_transient(&self, error: &(dyn StdError + 'static)) -> bool;

    /// How many transactions can be open at once: the pool's size.
    fn max_transactions(&self) -> usize;
}

/// An open transaction on one connection.
///
/// Dropping it at any point must not give a connection with an open transaction back to the pool.
pub trait Connection: DerefMut + Send + 'static {
    /// Rolls back and gives the connection back, or closes it when that takes longer than a moment.
    fn rollback(self) -> impl Future<Output = ()> + Send;

    /// Rolls back as [`Connection::rollback`] does; true when the handler had already ended the transaction, and what ran
    /// after that may have been committed by itself.
    ///
    /// A store whose database does not commit what comes after such an end need not write this.
    fn rollback_unless_ended(self) -> impl Future<Output = bool> + Send
    where
        Self: Sized,
    {
        async {
            self.rollback().await;
            false
        }
    }

    /// Ends this transaction from outside while somebody else still holds it, as far as the database can.
    fn revoker(&self) -> Revoker;
}

/// Ends a transaction that its handler kept; see [`Connection::revoker`].
pub type Revoker = Box<dyn FnOnce() -> futures_util::future::BoxFuture<'static, ()> + Send>;

/// Marks who is working: random, never the same twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub i64);

/// The number of a delivery's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(pub i64);

/// What became of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Received {
    /// Not seen before in this scope; stored.
    New,
    /// The same id with the same bytes was seen before; nothing was stored.
    Duplicate,
    /// The same id was seen before with other bytes; kept in the list of conflicts.
    Conflict,
}

/// The answer of `once`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Once {
    /// Nobody has committed this (handler, id) before: do the work in this transaction.
    First,
    /// It has been done.
    Again,
}

/// A handler as the store knows it.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// Names it had before; their cursors, deliveries and counters become this handler's.
    pub formerly: Vec<String>,
    /// What it wants.
    pub kinds: Kinds,
    /// Whether a new handler starts with the oldest message in the log instead of the next one.
    pub from_start: bool,
    /// Whether messages of one key are handled in order.
    pub ordered: bool,
}

/// Asks for lanes with work.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The handler's name.
    pub handler: &'a str,
    /// Who asks.
    pub token: Token,
    /// The most lanes.
    pub lanes: usize,
    /// How many messages of each lane will be read; a successor must suspect that many.
    pub limit: usize,
}

/// A mark this old (by the database's clock) whose lane is not locked was left by a process that died.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(3);

/// A lane marked as ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedLane {
    /// Its number.
    pub lane: u16,
    /// A dead process left its mark: one of the next this-many messages may have killed it.
    pub suspects: Option<usize>,
}

/// What to read from claimed lanes.
#[derive(Debug, Clone, Copy)]
pub struct ReadLanes<'a> {
    /// The handler's name.
    pub handler: &'a str,
    /// The token the lanes are marked with.
    pub token: Token,
    /// The lanes, and up to which `seq` to read each.
    pub lanes: &'a [LaneBound],
    /// The most messages in all.
    ///
    /// They come lane by lane in the order given, and of each lane the next ones. How many of which lane is up to the
    /// store, unless every lane has an end: then it is the first of them, in that order.
    pub limit: usize,
    /// Messages of other kinds come without their content.
    pub kinds: &'a Kinds,
    /// Whether to look for held keys.
    pub ordered: bool,
    /// Time limits for the transaction.
    pub limits: TxLimits,
}

/// A lane and where to stop reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBound {
    /// Its number.
    pub lane: u16,
    /// The last `seq` to read; `None` for whatever is there.
    pub upto: Option<i64>,
}

/// A transaction and the messages it may run.
#[derive(Debug)]
pub struct LaneBatch<C> {
    /// The transaction, holding the lanes' locks.
    pub connection: C,
    /// By lane (in the order asked for) and `seq`.
    pub rows: Vec<LaneRow>,
}

/// Messages that were read before their lanes were locked.
#[derive(Debug, Clone)]
pub struct Ahead {
    /// Where each lane must stand for them to be its next ones.
    pub from: Vec<(u16, i64)>,
    /// By lane (in the order asked for) and `seq`.
    pub rows: Vec<LaneRow>,
}

/// One message of a lane.
#[derive(Debug, Clone)]
pub struct LaneRow {
    /// The lane.
    pub lane: u16,
    /// The position within it.
    pub seq: i64,
    /// The message; `None` when its kind is not wanted.
    pub message: Option<LaneMessage>,
    /// It is not due yet, by the database's clock.
    pub scheduled: bool,
    /// An earlier message of its key is retrying or held; only looked for when asked.
    pub held: bool,
    /// What is wrong with the row, when not all of it could be read: it becomes a dead letter without being run.
    pub unreadable: Option<String>,
}

impl LaneRow {
    /// A copy of the message, which keeps no other one in memory, however long it is kept itself.
    pub fn to_message(&self) -> Option<Message> {
        self.message.clone().map(|message| match message {
            LaneMessage::Whole(message) => message,
            LaneMessage::Packed(packed, index) => packed.copied(index),
        })
    }
}

/// A message of a lane as its store has it.
#[derive(Debug, Clone)]
pub enum LaneMessage {
    /// On its own.
    Whole(Message),
    /// This one of many, which are kept together. It is taken out just before its handler is called: memory that is used
    /// at once and given back at once is the fastest.
    Packed(Arc<Packed>, usize),
}

impl LaneMessage {
    /// The message itself.
    pub fn into_message(self) -> Message {
        match self {
            Self::Whole(message) => message,
            Self::Packed(packed, index) => packed.message(index),
        }
    }

    /// Makes it one of its own.
    pub(crate) fn take_out(&mut self) {
        if let Self::Packed(packed, index) = self {
            *self = Self::Whole(packed.message(*index));
        }
    }

    /// How many bytes its texts, headers and payload have.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Whole(message) => message.size(),
            Self::Packed(packed, index) => packed.size_of(*index),
        }
    }
}

impl From<Message> for LaneMessage {
    fn from(message: Message) -> Self {
        Self::Whole(message)
    }
}

/// What to record for an inline transaction.
#[derive(Debug, Clone, Copy)]
pub struct ReadInline<'a> {
    /// The messages.
    pub arrivals: &'a [Arrival],
    /// Ordered handlers whose held keys matter.
    pub ordered: &'a [&'a str],
    /// Time limits for the transaction.
    pub limits: TxLimits,
}

/// An inline transaction.
#[derive(Debug)]
pub struct InlineBatch<C> {
    /// The transaction.
    pub connection: C,
    /// Per arrival, in order.
    pub received: Vec<Received>,
    /// Per arrival: not due yet, by the database's clock.
    pub scheduled: Vec<bool>,
    /// (handler, key) pairs that have an earlier message retrying or held.
    pub held: Vec<(String, String)>,
}

/// Server-side limits, so that locks go away even when the client does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxLimits {
    /// The longest a single statement, or a pause between two, may take.
    pub statement: Duration,
}

/// What is written with the handler's own work.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// The lanes to move; empty for other transactions.
    pub lanes: Option<MoveLanes>,
    /// Leased deliveries that are done with: removed, and the next held message of their key made ready.
    pub done: Option<DoneLeases>,
    /// Deliveries that get a row of their own.
    pub park: Vec<Park>,
    /// Messages for the outbox.
    pub outgoing: Vec<Message>,
    /// The response to the request this transaction belongs to; only a
    /// [`ResponseStore`](crate::responses::ResponseStore) is given one.
    pub respond: Option<Respond>,
}

/// Moves the cursors of a handler.
#[derive(Debug, Clone)]
pub struct MoveLanes {
    /// The handler's name.
    pub handler: String,
    /// The token the lanes are marked with.
    pub token: Token,
    /// (lane, new position); the mark is checked for each.
    pub positions: Vec<(u16, i64)>,
    /// Keep the marks for the next batch of the same size, instead of taking them off.
    pub keep: bool,
}

/// Ends leases inside a transaction.
#[derive(Debug, Clone)]
pub struct DoneLeases {
    /// The handler's name.
    pub handler: String,
    /// The leases; each is checked.
    pub leases: Vec<Lease>,
}

/// A delivery that gets a row of its own.
#[derive(Debug, Clone)]
pub struct Park {
    /// The handler's name.
    pub handler: String,
    /// The message; the row keeps its own copy.
    pub message: Message,
    /// What it waits for.
    pub state: ParkState,
    /// How many attempts were made.
    pub attempts: u32,
    /// The error of the last attempt, for the history.
    pub error: Option<String>,
}

/// What a parked delivery waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkState {
    /// Its next attempt, after this long.
    Ready(Duration),
    /// An earlier message of its key.
    Held,
    /// The message's own `not_before`.
    Scheduled,
    /// Running now, leased to this token for this long.
    Leased(Token, Duration),
    /// A person.
    Dead,
}

/// Proof that a delivery is ours: its row, the token, and the attempt that was counted for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The row.
    pub delivery: DeliveryId,
    /// Who leased it.
    pub token: Token,
    /// Which attempt this is, from 1.
    pub attempt: u32,
}

/// Asks for due deliveries.
#[derive(Debug, Clone, Copy)]
pub struct AskLease<'a> {
    /// The handler's name.
    pub handler: &'a str,
    /// Who asks.
    pub token: Token,
    /// The most deliveries.
    pub limit: usize,
    /// How long the lease holds without [`Store::renew`].
    pub lease_for: Duration,
    /// Whether a scheduled message must wait behind earlier ones of its key.
    pub ordered: bool,
}

/// What was leased.
#[derive(Debug, Default)]
pub struct Leased {
    /// The deliveries, in the order they became due.
    pub deliveries: Vec<LeasedDelivery>,
    /// When nothing was due: how long until something is.
    pub next_due: Option<Duration>,
}

/// A delivery leased to us.
#[derive(Debug, Clone)]
pub struct LeasedDelivery {
    /// The lease.
    pub lease: Lease,
    /// The message.
    pub message: Message,
    /// Whether its last error is one of [`is_suspect`], so that it must be run alone.
    pub suspect: bool,
    /// What is wrong with the row, when not all of it could be read: it is dead without being run.
    pub unreadable: Option<String>,
}

/// The note in the history of an attempt whose process died or lost its lease.
pub const LAPSED: &str = "the attempt did not finish: its process died or lost the lease";

/// The note in the history of a message that was in a batch whose process died.
pub const SUSPECTED: &str = "the process died while it ran a batch with this message";

/// True when a delivery's last error says that it may have killed a process.
pub fn is_suspect(last_error: Option<&str>) -> bool {
    matches!(last_error, Some(LAPSED | SUSPECTED))
}

/// How a lease ends.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of an attempt.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Finished: the row goes away, and the next held message of its key becomes ready.
    Done,
    /// Failed; next attempt after this long.
    Retry(Duration, String),
    /// Failed for good; the next held message of its key becomes ready.
    Dead(String),
    /// Not attempted after all: the attempt is not counted and it is due at once.
    Returned,
}

/// Asks for outgoing messages.
#[derive(Debug, Clone, Copy)]
pub struct AskOutgoing<'a> {
    /// The sink's name; empty for the relay without one.
    pub sink: &'a str,
    /// Who asks.
    pub token: Token,
    /// The most messages.
    pub limit: usize,
    /// How long the lanes stay ours.
    pub lease_for: Duration,
}

/// An outgoing message.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The row.
    pub seq: i64,
    /// How often sending has failed.
    pub attempts: u32,
    /// The message.
    pub message: Message,
    /// What is wrong with the row, when not all of it could be read: it is dead without being sent.
    pub unreadable: Option<String>,
}

/// What became of an outgoing message.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The row.
    pub seq: i64,
    /// The outcome.
    pub outcome: SendOutcome,
}

/// The outcome of sending one message.
#[derive(Debug, Clone)]
pub enum SendOutcome {
    /// Confirmed by the sink.
    Confirmed,
    /// Not confirmed; try again after this long.
    Retry(Duration, String),
    /// Refused for good; a person must look.
    Dead(String),
}

/// An amount to add to a counter, or its total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The handler; empty for the inbox as a whole.
    pub handler: String,
    /// What is counted.
    pub name: String,
    /// How many.
    pub value: i64,
}

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long a message id still blocks duplicates.
    pub keep: Duration,
    /// How long the payload of a message that every handler is done with stays in the log.
    pub payload: Duration,
    /// The most rows of each sort removed in one call.
    pub step: usize,
}

impl Default for Retention {
    fn default() -> Self {
        let two_weeks = Duration::from_secs(14 * 24 * 3600);
        Self { keep: two_weeks, payload: two_weeks, step: 1000 }
    }
}

/// What a purge removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Remembered ids.
    pub ids: u64,
    /// Messages in the log.
    pub messages: u64,
    /// History, discarded deliveries, conflicts, expired responses and counter buckets.
    pub others: u64,
    /// A step was full: call again.
    pub more: bool,
}
