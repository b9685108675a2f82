//! The store handle, its options, and the [`Store`] trait handed on to the files that do the work.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::admin::{Conflict, DeliveryFilter, DeliveryInfo, HandlerStatus, OutboxStatus};
use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::recent::Recent;
use oncebox_core::store::{
    Ahead, Arrival, AskLease, AskOutgoing, Claim, ClaimedLane, Commit, Count, DeliveryId, InlineBatch,
    LaneBatch, LaneRow, Lease, Leased, Outgoing, Purged, ReadInline, ReadLanes, Registration, Retention,
    Sent, Settlement, Token, TxLimits,
};
use oncebox_core::{Error, Limits, Message, Once, Received, Store, Wake};
use sqlx::{PgConnection, PgPool};

use crate::error::is_transient;
use crate::migrate::MigrationInfo;
use crate::outbox::Reading;
use crate::sql::{Prepared, Schema, Sql};
use crate::tx::PgTransaction;

/// A store in a schema of a Postgres database. Cheap to clone.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), oncebox_core::Error> {
/// use oncebox_postgres::PgStore;
///
/// let store = PgStore::new(pool).schema("billing_inbox")?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PgStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pool: PgPool,
    pub(crate) options: Options,
    pub(crate) sql: Sql,
    pub(crate) seed: Seed,
    /// The channel of wake-ups, one for each schema.
    pub(crate) channel: String,
    /// The last receive brought nothing new, so the next one looks before it writes.
    pub(crate) only_duplicates: AtomicBool,
    /// For how many more groups to expect duplicates.
    pub(crate) careful: AtomicU32,
    /// What this process has just received.
    pub(crate) recent: Recent,
    /// Sinks whose relay rows are known to exist, and how their messages are read next.
    pub(crate) relays: Mutex<HashMap<String, Reading>>,
    /// When `publish` last gave a hint.
    pub(crate) hinted_at: Mutex<Option<Instant>>,
    /// When orphaned held deliveries of each ordered handler were last looked for.
    pub(crate) healed_at: Mutex<HashMap<String, Instant>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) schema: Schema,
    pub(crate) clock: ClockShift,
    pub(crate) notify: bool,
    pub(crate) pooler: bool,
    pub(crate) relaxed: bool,
    pub(crate) limits: Limits,
    pub(crate) remember: usize,
}

impl PgStore {
    /// A store in the schema `oncebox` of the database this pool connects to. Does not connect yet.
    ///
    /// Each transaction that runs at the same time takes one connection of the pool; waking up takes one more
    /// outside of it.
    pub fn new(pool: PgPool) -> Self {
        let options = Options {
            schema: Schema::new("oncebox").expect("the default name is allowed"),
            clock: ClockShift::default(),
            notify: true,
            pooler: false,
            relaxed: false,
            limits: Limits::default(),
            remember: 16 * 1024 * 1024,
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

    /// Turns wake-ups through LISTEN and NOTIFY on (as it is unless set) or off.
    ///
    /// Polling finds everything without them. Behind a pooler, where LISTEN does nothing, see
    /// [`PgStore::behind_pooler`].
    pub fn notify(self, notify: bool) -> Self {
        self.with(|options| options.notify = notify)
    }

    /// Works through a pooler in transaction mode, which gives each transaction to another session.
    ///
    /// Every statement then runs in a transaction and is prepared for itself, which costs round trips, and wake-ups
    /// are off, so the runners poll. Queries of your own need [`persistent(false)`](sqlx::query::Query::persistent)
    /// behind a pooler that does not know prepared statements. Migrate through it or past it, as you like.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use oncebox_postgres::PgStore;
    /// use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
    ///
    /// let options: PgConnectOptions = "postgres://shop@pooler:6432/shop".parse()?;
    /// let pool = PgPoolOptions::new().max_connections(16).connect_with(options).await?;
    /// let store = PgStore::new(pool).behind_pooler();
    /// # Ok(())
    /// # }
    /// ```
    pub fn behind_pooler(self) -> Self {
        self.with(|options| {
            options.pooler = true;
            options.notify = false;
        })
    }

    /// Accepts a server whose settings can lose the last commits in a crash, and with them acknowledged messages.
    pub fn allow_relaxed_durability(self) -> Self {
        self.with(|options| options.relaxed = true)
    }

    /// The most payload bytes that `publish` takes; 16 MiB unless set.
    pub fn payload_limit(self, bytes: usize) -> Self {
        self.with(|options| options.limits.payload_bytes = bytes)
    }

    /// How many bytes of messages that this process has received itself are remembered, so that its handlers need not read
    /// them back from the server; 16 MiB unless set, 0 for none.
    ///
    /// Ordered handlers, retries and messages for later always read from the server.
    pub fn remember(self, bytes: usize) -> Self {
        self.with(|options| options.remember = bytes)
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
    /// Makes a schema for comparison and rolls it back, so it needs the right to create one. Tables and functions of
    /// your own in the schema are left out.
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

    fn build(pool: PgPool, options: Options) -> Self {
        let prepared = if options.pooler { Prepared::EachTime } else { Prepared::Kept };
        let inner = Inner {
            sql: Sql::render(&options.schema, prepared),
            channel: format!("oncebox.{}", options.schema.name()),
            seed: Seed::from_system(),
            only_duplicates: AtomicBool::new(false),
            careful: AtomicU32::new(0),
            recent: Recent::new(options.remember),
            relays: Mutex::default(),
            hinted_at: Mutex::default(),
            healed_at: Mutex::default(),
            pool,
            options,
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    /// The shift to bind in every statement that asks for the time.
    pub(crate) fn shift(&self) -> i64 {
        self.options.clock.micros()
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PgStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

// Boxed one by one: the engine holds several of these futures within each other, and unboxed they would together be too
// large for the stack of a thread in a debug build.
impl Store for PgStore {
    type Driver = PgConnection;
    type Connection = PgTransaction;

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

    async fn begin_lanes(&self, read: &ReadLanes<'_>) -> Result<Option<LaneBatch<PgTransaction>>, Error> {
        Box::pin(self.inner.begin_lanes(read)).await
    }

    async fn read_ahead(
        &self,
        read: &ReadLanes<'_>,
        from: &[(u16, i64)],
    ) -> Result<Option<Vec<LaneRow>>, Error> {
        Box::pin(self.inner.read_ahead(read, from)).await
    }

    async fn begin_lanes_ahead(
        &self,
        read: &ReadLanes<'_>,
        ahead: Ahead,
    ) -> Result<Option<LaneBatch<PgTransaction>>, Error> {
        Box::pin(self.inner.begin_lanes_ahead(read, ahead)).await
    }

    async fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<PgTransaction>, Error> {
        Box::pin(self.inner.begin_leased(handler, leases, limits)).await
    }

    async fn begin_inline(&self, inline: &ReadInline<'_>) -> Result<InlineBatch<PgTransaction>, Error> {
        Box::pin(self.inner.begin_inline(inline)).await
    }

    async fn begin_plain(&self, limits: TxLimits) -> Result<PgTransaction, Error> {
        Box::pin(self.inner.begin_plain(limits)).await
    }

    async fn commit(&self, connection: PgTransaction, commit: Commit) -> Result<Vec<DeliveryId>, Error> {
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

    async fn once(&self, tx: &mut PgConnection, handler: &str, id: &str) -> Result<Once, Error> {
        Box::pin(self.inner.once(tx, handler, id)).await
    }

    async fn publish(&self, tx: &mut PgConnection, messages: &[Message]) -> Result<(), Error> {
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

    async fn announce(&self) -> Result<(), Error> {
        Box::pin(self.inner.announce()).await
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
