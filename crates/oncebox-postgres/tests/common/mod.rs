//! A schema of its own for each test, in the database named by `ONCEBOX_TEST_POSTGRES`.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::io::Write;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use oncebox_core::clock::{ClockShift, Seed};
use oncebox_core::store::{
    Arrival, AskLease, Claim, Commit, LaneBatch, LaneBound, Leased, MoveLanes, Park, ParkState, ReadLanes,
    Registration, Token, TxLimits,
};
use oncebox_core::{Kinds, Message, Received, Store};
use oncebox_postgres::{PgStore, PgTransaction};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Row};

pub const LIMITS: TxLimits = TxLimits { statement: Duration::from_secs(10) };
pub const MINUTE: Duration = Duration::from_secs(60);
pub const DAY: Duration = Duration::from_secs(24 * 3600);

pub struct Scratch {
    pub pool: PgPool,
    pub store: PgStore,
    pub clock: ClockShift,
    pub schema: String,
    pub seed: Seed,
}

/// Runs a test in a fresh migrated schema, and drops the schema whatever happens.
pub async fn with_store(test: impl AsyncFnOnce(&Scratch)) {
    with_schema(async |scratch| {
        scratch.store.migrate().await.unwrap();
        test(scratch).await;
    })
    .await;
}

/// Runs a test with a schema name that does not exist yet.
pub async fn with_schema(test: impl AsyncFnOnce(&Scratch)) {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
        // Straight to stderr, because the test harness would swallow `eprintln`.
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let _ = writeln!(
            std::io::stderr(),
            "not run: {name} (ONCEBOX_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it)"
        );
        return;
    };
    let seed = Seed::from_system();
    let schema = format!("t_{:016x}", seed.next());
    let options: PgConnectOptions = url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(Duration::from_secs(20))
        .connect_with(options.application_name(&schema))
        .await
        .unwrap();
    let clock = ClockShift::default();
    // What is told of reading, is told of reading from the server.
    let store = PgStore::new(pool.clone()).schema(&schema).unwrap().with_clock(clock.clone()).remember(0);
    let scratch = Scratch { pool, store, clock, schema, seed };
    let result = AssertUnwindSafe(test(&scratch)).catch_unwind().await;
    scratch.pool.close().await;
    let cleaner = PgPool::connect(&url).await.unwrap();
    sqlx::query(AssertSqlSafe(format!("drop schema if exists {} cascade", scratch.schema)))
        .execute(&cleaner)
        .await
        .unwrap();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

impl Scratch {
    pub fn token(&self) -> Token {
        Token(self.seed.next() as i64)
    }

    pub async fn sql(&self, text: &str) {
        let text = text.replace("{schema}", &self.schema);
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&self.pool).await.unwrap();
    }

    pub async fn number(&self, text: &str) -> i64 {
        let text = text.replace("{schema}", &self.schema);
        sqlx::query(AssertSqlSafe(text)).fetch_one(&self.pool).await.unwrap().get(0)
    }

    /// A table for effects, without any key that would hide a double.
    pub async fn effects(&self) {
        self.sql("create table {schema}.effect (id text not null)").await;
    }

    pub async fn count_effects(&self) -> i64 {
        self.number("select count(*) from {schema}.effect").await
    }

    pub fn effect(&self) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("insert into {}.effect (id) values ('x')", self.schema))
    }

    pub async fn register(&self, name: &str, ordered: bool) {
        self.store.register(&[registration(name, ordered)]).await.unwrap();
    }

    pub async fn receive(&self, messages: Vec<Message>) -> Vec<Received> {
        self.store.receive(&arrivals(messages)).await.unwrap()
    }

    /// Claims every lane with work and reads it.
    pub async fn read(&self, handler: &str, ordered: bool) -> (Token, LaneBatch<PgTransaction>) {
        self.read_if_any(handler, ordered).await.expect("there is work")
    }

    async fn read_if_any(&self, handler: &str, ordered: bool) -> Option<(Token, LaneBatch<PgTransaction>)> {
        let token = self.token();
        let claim = Claim { handler, token, lanes: 32, limit: 100 };
        let lanes: Vec<LaneBound> = self
            .store
            .claim(&claim)
            .await
            .unwrap()
            .iter()
            .map(|claimed| LaneBound { lane: claimed.lane, upto: None })
            .collect();
        if lanes.is_empty() {
            return None;
        }
        let kinds = everything();
        let read =
            ReadLanes { handler, token, lanes: &lanes, limit: 1000, kinds: &kinds, ordered, limits: LIMITS };
        Some((token, self.store.begin_lanes(&read).await.unwrap().expect("the lanes are ours")))
    }

    /// Moves the cursors behind everything that was read.
    pub async fn process_all(&self, handler: &str) {
        while let Some((token, batch)) = self.read_if_any(handler, false).await {
            let commit = Commit { lanes: Some(moved(handler, token, &batch)), ..Commit::default() };
            self.store.commit(batch.connection, commit).await.unwrap();
            self.store.release(handler, token).await.unwrap();
        }
    }

    /// Gives these messages rows of their own, in a transaction of their own.
    pub async fn park(&self, handler: &str, state: ParkState, messages: Vec<Message>) -> Vec<i64> {
        let park = messages.into_iter().map(|message| parked(handler, message, state)).collect();
        let tx = self.store.begin_plain(LIMITS).await.unwrap();
        let ids = self.store.commit(tx, Commit { park, ..Commit::default() }).await.unwrap();
        ids.into_iter().map(|id| id.0).collect()
    }

    pub async fn lease(&self, handler: &str, ordered: bool) -> Leased {
        let ask = AskLease { handler, token: self.token(), limit: 100, lease_for: MINUTE, ordered };
        self.store.lease(&ask).await.unwrap()
    }

    pub async fn leased_ids(&self, handler: &str, ordered: bool) -> Vec<String> {
        let leased = self.lease(handler, ordered).await;
        leased.deliveries.into_iter().map(|delivery| delivery.message.id).collect()
    }

    /// Returns when no connection of this test holds a transaction open.
    ///
    /// Closing a connection, or giving it back after a commit, takes a moment. The server ends what is forgotten only after
    /// twice that time.
    pub async fn until_no_transaction_is_open(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.open_transactions().await > 0 {
            assert!(Instant::now() < deadline, "a transaction is left open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Connections of this test that hold a transaction open.
    async fn open_transactions(&self) -> i64 {
        let text = "select count(*) from pg_stat_activity \
                    where application_name = $1 and state like 'idle in transaction%'";
        sqlx::query(text).bind(&self.schema).fetch_one(&self.pool).await.unwrap().get(0)
    }
}

pub fn everything() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.add("*").unwrap();
    kinds
}

pub fn registration(name: &str, ordered: bool) -> Registration {
    Registration {
        name: name.to_owned(),
        formerly: Vec::new(),
        kinds: everything(),
        from_start: false,
        ordered,
    }
}

pub fn message(id: impl Into<String>) -> Message {
    Message::new("order.placed", "body").id(id).scope("orders")
}

pub fn arrivals(messages: Vec<Message>) -> Vec<Arrival> {
    Arrival::all(&messages).collect()
}

pub fn parked(handler: &str, message: Message, state: ParkState) -> Park {
    Park { handler: handler.to_owned(), message, state, attempts: 0, error: None }
}

pub fn moved(handler: &str, token: Token, batch: &LaneBatch<PgTransaction>) -> MoveLanes {
    let mut positions: Vec<(u16, i64)> = Vec::new();
    for row in &batch.rows {
        match positions.iter_mut().find(|(lane, _)| *lane == row.lane) {
            Some((_, position)) => *position = row.seq,
            None => positions.push((row.lane, row.seq)),
        }
    }
    MoveLanes { handler: handler.to_owned(), token, positions, keep: false }
}
