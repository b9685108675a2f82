//! Oncebox on SQLite: the inbox and the outbox live in one file, beside the tables of your application.
//!
//! ```
//! use oncebox_sqlite::SqliteStore;
//!
//! # async fn example() -> Result<(), oncebox_core::Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("oncebox.db").display().to_string();
//! let store = SqliteStore::open(&path).await?;
//! store.migrate().await?;
//! # store.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! SQLite has one writer at a time. The writers of one process wait for each other in a fair queue; other processes
//! are waited for with SQLite's busy timeout. A handler's transaction holds the write lock while it runs, so keep
//! such handlers short.
//!
//! The store writes through connections of its own, which it takes out of the pool for good (two of them, opened by
//! the pool, so that `after_connect` applies) and on which it sets SQLite's progress handler, commit hook and
//! rollback hook.
//!
//! All times come from SQLite's clock, which is this machine's and counts milliseconds.

mod admin;
mod deliveries;
mod error;
mod findings;
mod lanes;
mod lookup;
mod migrate;
mod operate;
mod outbox;
mod purge;
mod receive;
mod records;
mod replays;
mod responses;
mod rows;
mod search;
mod sql;
mod store;
mod tx;
mod wake;

pub use migrate::{MigrationInfo, migration_sql};
pub use store::SqliteStore;
pub use tx::{SqliteTransaction, SqliteTx};
