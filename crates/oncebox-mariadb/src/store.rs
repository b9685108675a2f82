//! The store handle, its options, and the [`Store`] trait handed on to the files that do the work.

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::admin::{Conflict, DeliveryFilter, DeliveryInfo, HandlerStatus, OutboxStatus};
use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::store::{
    Arrival, AskLease, AskOutgoing, Claim, ClaimedLane, Commit, Count, DeliveryId, InlineBatch, LaneBatch,
    Lease, Leased, Outgoing, Purged, ReadInline, ReadLanes, Registration, Retention, Sent, Settlement, Token,
    TxLimits,
};
use oncebox_core::{Error, Limits, Message, Once, Received, Store, Wake};
use sqlx::{MySqlConnection, MySqlPool};
use tokio::sync::OnceCell;

use crate::error::is_transient;
use crate::migrate::MigrationInfo;
use crate::sql::{Schema, Sql};
use crate::tx::MariaTransaction;

/// A store in a schema of a MariaDB server. Cheap to clone.
///
/// ```no_run
/// # async fn example(pool: sqlx::MySqlPool) -> Result<(), oncebox_core::Error> {
/// use oncebox_mariadb::MariaStore;
///
/// let store = MariaStore::new(pool).schema("billing_inbox")?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MariaStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pool: MySqlPool,
    pub(crate) options: Options,
    pub(crate) sql: Sql,
    pub(crate) seed: Seed,
    /// The last receive met an id it knew, so the next one looks before it writes.
    pub(crate) saw_duplicates: AtomicBool,
    /// The most bytes the server takes in one packet, once somebody has asked.
    pub(crate) packet: OnceCell<usize>,
    /// Sinks whose relay rows are known to exist.
    pub(crate) relays: Mutex<HashSet<String>>,
    /// When orphaned held deliveries of each ordered handler were last looked for.
    pub(crate) healed_at: Mutex<HashMap<String, Instant>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) schema: Schema,
    pub(crate) clock: ClockShift,
    pub(crate) limits: Limits,
    pub(crate) relaxed: bool,
}

impl MariaStore {
    /// A store in the schema (MariaDB says database) `oncebox` of the server this pool connects to. Does not connect
    /// yet.
    ///
    /// Your own tables may be in any other schema of the same server; one transaction covers both. Each transaction
    /// that runs at the same time takes one connection of the pool; waking up takes one more outside of it.
    ///
    /// Registering handlers fails with [`ErrorKind::Invalid`](oncebox_core::ErrorKind::Invalid) when the server's
    /// settings could lose an acknowledged message; see [`MariaStore::allow_relaxed_durability`].
    pub fn new(pool: MySqlPool) -> Self {
        let options = Options {
            schema: Schema::new("oncebox").expect("the default name is allowed"),
            clock: ClockShift::default(),
            limits: Limits::default(),
            relaxed: false,
        };
        Self::build(pool, options)
    }

    /// Uses another schema; two stores in two schemas know nothing of each other.
    ///
    /// Fails when the name is not 1 to 41 lower-case letters, digits and underscores, or begins with a digit.
    pub fn schema(self, name: &str) -> Result<Self, Error> {
        let schema = Schema::new(name)?;
        Ok(self.with(|options| options.schema = schema))
    }

    /// Adds this shift to the database's clock, which is how tests make a day pass.
    pub fn with_clock(self, clock: ClockShift) -> Self {
        self.with(|options| options.clock = clock)
    }

    /// The most payload bytes that `publish` takes; 16 MiB unless set.
    ///
    /// The server's `max_allowed_packet` must be larger; its own default is 16 MiB as well.
    pub fn payload_limit(self, bytes: usize) -> Self {
        self.with(|options| options.limits.payload_bytes = bytes)
    }

    /// Accepts a server whose settings can lose the last commits at power loss, and with them acknowledged messages.
    pub fn allow_relaxed_durability(self) -> Self {
        self.with(|options| options.relaxed = true)
    }

    /// Creates the schema and its tables, or brings them up to date. Safe from many processes at once.
    ///
    /// Fails with [`ErrorKind::Schema`](oncebox_core::ErrorKind::Schema) when the schema is newer than this
    /// library, or an applied migration differs from the one this library has.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.inner.migrate().await
    }

    /// Every migration this library knows, and when it was applied; changes nothing.
    pub async fn migration_status(&self) -> Result<Vec<MigrationInfo>, Error> {
        self.inner.migration_status().await
    }

    /// What differs between the schema and what its migrations make: a line for each thing that is missing, was
    /// changed or was added to one of the store's tables; empty when it is as migrated.
    ///
    /// Makes a schema for comparison and removes it, so it needs the rights to create and drop one. Tables of your own
    /// in the schema are left out.
    pub async fn drift(&self) -> Result<Vec<String>, Error> {
        self.inner.drift().await
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    fn with(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = self.inner.options.clone();
        change(&mut options);
        Self::build(self.inner.pool.clone(), options)
    }

    fn build(pool: MySqlPool, options: Options) -> Self {
        let inner = Inner {
            sql: Sql::render(&options.schema),
            seed: Seed::from_system(),
            saw_duplicates: AtomicBool::new(false),
            packet: OnceCell::new(),
            relays: Mutex::default(),
            healed_at: Mutex::default(),
            pool,
            options,
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    /// The shift for every statement that asks for the time.
    pub(crate) fn shift(&self) -> i64 {
        self.options.clock.micros()
    }
}

impl fmt::Debug for MariaStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MariaStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

// Every future is boxed: the engine's own futures hold those of the store, and grow and are moved with them.
impl Store for MariaStore {
    type Driver = MySqlConnection;
    type Connection = MariaTransaction;

    async fn receive(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        Box::pin(self.inner.receive(arrivals)).await
    }

    async fn register(&self, handlers: &[Registration]) -> Result<(), Error> {
        Box::pin(self.inner.register(handlers)).await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        Box::pin(self.inner.claim(claim)).await
    }

    async fn release(&self, handler: &str, token: Token) -> Result<(), Error> {
        Box::pin(self.inner.release(handler, token)).await
    }

    async fn begin_lanes(&self, read: &ReadLanes<'_>) -> Result<Option<LaneBatch<MariaTransaction>>, Error> {
        Box::pin(self.inner.begin_lanes(read)).await
    }

    async fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<MariaTransaction>, Error> {
        Box::pin(self.inner.begin_leased(handler, leases, limits)).await
    }

    async fn begin_inline(&self, inline: &ReadInline<'_>) -> Result<InlineBatch<MariaTransaction>, Error> {
        Box::pin(self.inner.begin_inline(inline)).await
    }

    async fn begin_plain(&self, limits: TxLimits) -> Result<MariaTransaction, Error> {
        Box::pin(self.inner.begin_plain(limits)).await
    }

    async fn commit(&self, connection: MariaTransaction, commit: Commit) -> Result<Vec<DeliveryId>, Error> {
        Box::pin(self.inner.commit(connection, commit)).await
    }

    async fn lease(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        Box::pin(self.inner.lease(ask)).await
    }

    async fn renew(&self, handler: &str, leases: &[Lease], lease_for: Duration) -> Result<Vec<bool>, Error> {
        Box::pin(self.inner.renew(handler, leases, lease_for)).await
    }

    async fn settle(&self, handler: &str, settlements: &[Settlement]) -> Result<Vec<bool>, Error> {
        Box::pin(self.inner.settle(handler, settlements)).await
    }

    async fn once(&self, tx: &mut MySqlConnection, handler: &str, id: &str) -> Result<Once, Error> {
        Box::pin(self.inner.once(tx, handler, id)).await
    }

    async fn publish(&self, tx: &mut MySqlConnection, messages: &[Message]) -> Result<(), Error> {
        Box::pin(self.inner.publish(tx, messages)).await
    }

    async fn lease_outgoing(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        Box::pin(self.inner.lease_outgoing(ask)).await
    }

    async fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        Box::pin(self.inner.settle_outgoing(sink, token, results, release)).await
    }

    async fn set_paused(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        Box::pin(self.inner.set_paused(handler, paused)).await
    }

    async fn forget(&self, handler: &str) -> Result<bool, Error> {
        Box::pin(self.inner.forget(handler)).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        Box::pin(self.inner.deliveries(filter)).await
    }

    async fn replay(&self, filter: &DeliveryFilter) -> Result<u64, Error> {
        Box::pin(self.inner.replay(filter)).await
    }

    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        Box::pin(self.inner.discard(filter, reason)).await
    }

    async fn replay_outgoing(&self, sink: &str) -> Result<u64, Error> {
        Box::pin(self.inner.replay_outgoing(sink)).await
    }

    async fn conflicts(&self, limit: usize) -> Result<Vec<Conflict>, Error> {
        Box::pin(self.inner.conflicts(limit)).await
    }

    async fn handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        Box::pin(self.inner.handlers()).await
    }

    async fn wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        Box::pin(self.inner.wanted_kinds()).await
    }

    async fn outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        Box::pin(self.inner.outbox()).await
    }

    async fn add_counts(&self, counts: &[Count]) -> Result<(), Error> {
        Box::pin(self.inner.add_counts(counts)).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        Box::pin(self.inner.counts()).await
    }

    async fn purge(&self, retention: &Retention) -> Result<Purged, Error> {
        Box::pin(self.inner.purge(retention)).await
    }

    /// Nothing to do: a listener sees every commit that brings something.
    async fn announce(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn listen(&self, wake: Wake) -> Result<(), Error> {
        Box::pin(self.inner.listen(wake)).await
    }

    fn is_transient(&self, error: &(dyn StdError + 'static)) -> bool {
        is_transient(error)
    }

    fn max_transactions(&self) -> usize {
        usize::try_from(self.inner.pool.options().get_max_connections()).unwrap_or(usize::MAX)
    }
}
