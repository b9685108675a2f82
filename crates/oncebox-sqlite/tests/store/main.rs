//! The mechanics of the SQLite store itself; what every store must do is tested by the test kit.
#![allow(clippy::unwrap_used, missing_docs)]

mod cancel;
mod deliveries;
mod findings;
mod lanes;
mod migrations;
mod outbox;
mod purge;
mod receive;
mod recent;
mod runtimes;
mod search;
mod transactions;

use std::time::Duration;

use oncebox_core::clock::ClockShift;
use oncebox_core::store::{
    Arrival, Claim, Commit, LaneBound, LaneRow, MoveLanes, ReadLanes, Registration, Token, TxLimits,
};
use oncebox_core::{Kinds, Message, Store};
use oncebox_sqlite::{SqliteStore, SqliteTransaction};
use sqlx::Row;
use tempfile::TempDir;

pub const LIMITS: TxLimits = TxLimits { statement: Duration::from_secs(10) };
pub const SECOND: Duration = Duration::from_secs(1);

pub struct Fixture {
    pub store: SqliteStore,
    pub clock: ClockShift,
    pub directory: TempDir,
}

pub fn path(directory: &TempDir) -> String {
    directory.path().join("oncebox.db").display().to_string()
}

/// A migrated database with an `effect` table.
pub async fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let clock = ClockShift::default();
    // What is told of reading, is told of reading from the file.
    let store = SqliteStore::open(&path(&directory)).await.unwrap().with_clock(clock.clone()).remember(0);
    store.migrate().await.unwrap();
    sqlx::raw_sql("create table effect (id integer primary key, note text unique)")
        .execute(store.pool())
        .await
        .unwrap();
    Fixture { store, clock, directory }
}

impl Fixture {
    pub async fn register(&self, name: &str, ordered: bool) {
        self.store.register(&[registration(name, ordered)]).await.unwrap();
    }

    /// Another handle on the same file, as another process would have it.
    pub async fn other(&self) -> SqliteStore {
        SqliteStore::open(&path(&self.directory)).await.unwrap().with_clock(self.clock.clone())
    }

    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query(sql).fetch_one(self.store.pool()).await.unwrap().try_get(0).unwrap()
    }

    pub async fn receive(&self, messages: Vec<Message>) {
        let arrivals: Vec<Arrival> = Arrival::all(&messages).collect();
        self.store.receive(&arrivals).await.unwrap();
    }

    /// Claims every lane of a handler that has work and reads it.
    pub async fn batch(&self, handler: &str, token: Token) -> (SqliteTransaction, Vec<LaneRow>) {
        let claimed = self.store.claim(&Claim { handler, token, lanes: 32, limit: 1000 }).await.unwrap();
        let lanes: Vec<LaneBound> =
            claimed.iter().map(|claimed| LaneBound { lane: claimed.lane, upto: None }).collect();
        let read = ReadLanes {
            handler,
            token,
            lanes: &lanes,
            limit: 1000,
            kinds: &every_kind(),
            ordered: true,
            limits: LIMITS,
        };
        let batch = self.store.begin_lanes(&read).await.unwrap().unwrap();
        (batch.connection, batch.rows)
    }
}

pub fn registration(name: &str, ordered: bool) -> Registration {
    Registration { name: name.into(), formerly: vec![], kinds: every_kind(), from_start: true, ordered }
}

pub fn every_kind() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.add("*").unwrap();
    kinds
}

pub fn text(id: &str) -> Message {
    Message::new("test", format!("body of {id}")).id(id).scope("tests")
}

/// Moves the lanes of these rows past them.
pub fn moved(handler: &str, token: Token, rows: &[LaneRow]) -> Commit {
    let mut positions: std::collections::BTreeMap<u16, i64> = Default::default();
    for row in rows {
        let position = positions.entry(row.lane).or_default();
        *position = row.seq.max(*position);
    }
    let lanes =
        MoveLanes { handler: handler.into(), token, positions: positions.into_iter().collect(), keep: false };
    Commit { lanes: Some(lanes), ..Commit::default() }
}
