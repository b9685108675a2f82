//! The store's handle, its options, and the [`Store`] methods, which live in the other files.

use std::error::Error as StdError;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::admin::{Conflict, DeliveryFilter, DeliveryInfo, HandlerStatus, OutboxStatus};
use oncebox_core::clock::ClockShift;
use oncebox_core::recent::Recent;
use oncebox_core::store::{
    Arrival, AskLease, AskOutgoing, Claim, ClaimedLane, Commit, Count, DeliveryId, InlineBatch, LaneBatch,
    Lease, Leased, Outgoing, Purged, ReadInline, ReadLanes, Received, Registration, Retention, Sent,
    Settlement, Token, TxLimits,
};
use oncebox_core::{Error, Limits, Message, Once, Store, Wake};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection, SqlitePool};

use crate::error::{classify, is_busy, is_transient};
use crate::purge::Walks;
use crate::rows::get;
use crate::sql::{DEFAULT_PREFIX, Sql, query};
use crate::tx::SqliteTransaction;
use crate::tx::writer::{PRAGMAS, Writer};

/// How long one statement waits for the write lock of another process.
const BUSY: Duration = Duration::from_secs(10);
const CONNECTIONS: u32 = 8;
/// How many bytes of received messages are remembered.
const REMEMBER: usize = 16 * 1024 * 1024;

/// An inbox and an outbox in a SQLite file. Cheap to clone: a handle.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(crate) pool: SqlitePool,
    pub(crate) writer: Writer,
    pub(crate) sql: Arc<Sql>,
    pub(crate) clock: ClockShift,
    pub(crate) payload_limit: usize,
    pub(crate) relaxed: bool,
    pub(crate) walks: Arc<Walks>,
    pub(crate) recent: Arc<Recent>,
    remember: usize,
}

impl SqliteStore {
    /// Opens a file, or a `sqlite:` URL, with settings that lose nothing: WAL, `synchronous = full`.
    ///
    /// A file that is not there is created, readable for its owner only. Fails with
    /// [`ErrorKind::Invalid`](oncebox_core::ErrorKind::Invalid) for `:memory:`, which would forget every message
    /// with the process and gives each connection another database; use a file in a temporary directory instead.
    pub async fn open(path_or_url: &str) -> Result<Self, Error> {
        if path_or_url.contains(":memory:") || path_or_url.contains("mode=memory") {
            return Err(Error::invalid(
                "a SQLite database in memory forgets what it acknowledged; use a file (for tests: in a temporary \
                 directory)",
            ));
        }
        let options = if path_or_url.starts_with("sqlite:") {
            SqliteConnectOptions::from_str(path_or_url)
                .map_err(|error| Error::invalid(format!("the SQLite address cannot be read: {error}")))?
        } else {
            SqliteConnectOptions::new().filename(path_or_url)
        };
        let writable = !path_or_url.contains("mode=ro") && !path_or_url.contains("immutable=");
        if writable {
            create(options.get_filename())?;
        }
        let options = options
            .busy_timeout(BUSY)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .statement_cache_capacity(256)
            .row_buffer_size(256)
            .disable_statement_logging();
        let options = PRAGMAS.into_iter().fold(options, |options, (name, value)| options.pragma(name, value));
        if writable {
            use_wal(&options).await?;
        }
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_lazy_with(options);
        Ok(Self::new(pool))
    }

    /// Works through a pool made by the application, on its file.
    ///
    /// Registering handlers fails with [`ErrorKind::Invalid`](oncebox_core::ErrorKind::Invalid) unless its
    /// connections use WAL and `synchronous = full` (or `extra`), because otherwise an acknowledged message could be
    /// lost; see [`SqliteStore::allow_relaxed_durability`].
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            writer: Writer::new(pool.clone()),
            pool,
            sql: Arc::new(Sql::new(DEFAULT_PREFIX).expect("the default prefix is allowed")),
            clock: ClockShift::default(),
            payload_limit: Limits::default().payload_bytes,
            relaxed: false,
            walks: Arc::default(),
            recent: Arc::new(Recent::new(REMEMBER)),
            remember: REMEMBER,
        }
    }

    /// Uses tables whose names begin with this instead of `oncebox_`.
    ///
    /// Fails with [`ErrorKind::Invalid`](oncebox_core::ErrorKind::Invalid) unless it is made of `a-z`, `0-9` and
    /// `_`, at most 41 bytes.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        self.sql = Arc::new(Sql::new(prefix)?);
        // Other tables have another log.
        Ok(self.remember_anew())
    }

    /// Shifts the clock of this store, for tests.
    pub fn with_clock(mut self, clock: ClockShift) -> Self {
        self.clock = clock;
        self
    }

    /// The most bytes of a payload that [`Store::publish`] accepts; 16 MiB unless set.
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// How many bytes of messages that this process has received itself are remembered, so that its handlers need not read
    /// them back from the file; 16 MiB unless set, 0 for none.
    ///
    /// Clones share what they remember. Ordered handlers, retries and messages for later always read from the file.
    pub fn remember(mut self, bytes: usize) -> Self {
        self.remember = bytes;
        self.remember_anew()
    }

    fn remember_anew(mut self) -> Self {
        self.recent = Arc::new(Recent::new(self.remember));
        self
    }

    /// Accepts a pool whose settings can lose the last commits at power loss, and with them acknowledged messages.
    pub fn allow_relaxed_durability(mut self) -> Self {
        self.relaxed = true;
        self
    }

    /// The pool, for the application's own queries.
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Closes the pool and the store's own connections, after whoever is writing has finished.
    ///
    /// Waits until the application has given back every connection it took from the pool.
    pub async fn close(&self) {
        self.writer.close().await;
        self.pool.close().await;
    }

    /// The shift to bind as `?1`.
    pub(crate) fn shift(&self) -> i64 {
        self.clock.micros()
    }

    pub(crate) async fn read_clock(&self) -> Result<jiff::Timestamp, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        crate::rows::timestamp(self.now(&mut connection).await?)
    }

    /// The database's clock, shifted.
    pub(crate) async fn now(&self, connection: &mut SqliteConnection) -> Result<i64, Error> {
        let row = query(&self.sql.clock).bind(self.shift()).fetch_one(connection).await.map_err(classify)?;
        get(&row, 0)
    }
}

impl Store for SqliteStore {
    type Driver = SqliteConnection;
    type Connection = SqliteTransaction;

    async fn receive(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        self.receive_arrivals(arrivals).await
    }

    async fn register(&self, handlers: &[Registration]) -> Result<(), Error> {
        self.register_handlers(handlers).await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        self.claim_lanes(claim).await
    }

    async fn release(&self, handler: &str, token: Token) -> Result<(), Error> {
        self.release_lanes(handler, token).await
    }

    async fn begin_lanes(&self, read: &ReadLanes<'_>) -> Result<Option<LaneBatch<SqliteTransaction>>, Error> {
        self.read_claimed(read).await
    }

    async fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<SqliteTransaction>, Error> {
        self.begin_leases(handler, leases, limits).await
    }

    async fn begin_inline(&self, inline: &ReadInline<'_>) -> Result<InlineBatch<SqliteTransaction>, Error> {
        self.receive_inline(inline).await
    }

    async fn begin_plain(&self, limits: TxLimits) -> Result<SqliteTransaction, Error> {
        self.begin(limits).await
    }

    async fn commit(&self, connection: SqliteTransaction, commit: Commit) -> Result<Vec<DeliveryId>, Error> {
        self.commit_transaction(connection, commit).await
    }

    async fn lease(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        self.lease_due(ask).await
    }

    async fn renew(&self, handler: &str, leases: &[Lease], lease_for: Duration) -> Result<Vec<bool>, Error> {
        self.renew_leases(handler, leases, lease_for).await
    }

    async fn settle(&self, handler: &str, settlements: &[Settlement]) -> Result<Vec<bool>, Error> {
        self.settle_leases(handler, settlements).await
    }

    async fn once(&self, tx: &mut SqliteConnection, handler: &str, id: &str) -> Result<Once, Error> {
        self.remember_once(tx, handler, id).await
    }

    async fn publish(&self, tx: &mut SqliteConnection, messages: &[Message]) -> Result<(), Error> {
        self.publish_in(tx, messages).await
    }

    async fn lease_outgoing(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        self.lease_relay(ask).await
    }

    async fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        self.settle_relay(sink, token, results, release).await
    }

    async fn set_paused(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        self.pause(handler, paused).await
    }

    async fn forget(&self, handler: &str) -> Result<bool, Error> {
        self.forget_handler(handler).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        self.list_deliveries(filter).await
    }

    async fn replay(&self, filter: &DeliveryFilter) -> Result<u64, Error> {
        self.replay_dead(filter).await
    }

    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        self.discard_dead(filter, reason).await
    }

    async fn replay_outgoing(&self, sink: &str) -> Result<u64, Error> {
        self.replay_dead_outgoing(sink).await
    }

    async fn conflicts(&self, limit: usize) -> Result<Vec<Conflict>, Error> {
        self.list_conflicts(limit).await
    }

    async fn handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        self.list_handlers().await
    }

    async fn wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        self.list_wanted_kinds().await
    }

    async fn outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        self.list_outbox().await
    }

    async fn add_counts(&self, counts: &[Count]) -> Result<(), Error> {
        self.add_to_counts(counts).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.list_counts().await
    }

    async fn purge(&self, retention: &Retention) -> Result<Purged, Error> {
        self.purge_step(retention).await
    }

    /// Nothing to do: a listener sees every commit.
    async fn announce(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn listen(&self, wake: Wake) -> Result<(), Error> {
        self.listen_for_changes(wake).await
    }

    fn is_transient(&self, error: &(dyn StdError + 'static)) -> bool {
        is_transient(error)
    }

    /// One: SQLite has one writer at a time.
    fn max_transactions(&self) -> usize {
        1
    }
}

/// Refuses an empty, over-long or NUL-carrying text.
pub(crate) fn check_text(what: &str, text: &str, longest: usize) -> Result<(), Error> {
    if text.is_empty() || text.len() > longest || text.contains('\0') {
        return Err(Error::invalid(format!(
            "the {what} has {} bytes; give it 1 to {longest} bytes without NUL",
            text.len()
        )));
    }
    Ok(())
}

/// Creates the file for its owner only; SQLite gives its other files the same permissions.
fn create(path: &Path) -> Result<(), Error> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            let text = format!("the SQLite file `{}` cannot be created", path.display());
            Err(Error::caused(oncebox_core::ErrorKind::Unavailable, text, error))
        }
    }
}

/// Turns WAL on, which the file remembers. SQLite does not wait for a lock to do that, so ask again.
async fn use_wal(options: &SqliteConnectOptions) -> Result<(), Error> {
    let mut connection = options.connect().await.map_err(classify)?;
    let asked = Instant::now();
    loop {
        match connection.execute("pragma journal_mode = wal").await {
            Ok(_) => break,
            Err(error) if is_busy(&error) && asked.elapsed() < BUSY => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => return Err(classify(error)),
        }
    }
    connection.close().await.map_err(classify)
}
