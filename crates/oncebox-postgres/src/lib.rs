//! Oncebox on Postgres: the inbox and the outbox in a schema of your own database.
//!
//! ```no_run
//! use oncebox_core::{Message, Once, Store};
//! use oncebox_postgres::PgStore;
//! use sqlx::postgres::PgPoolOptions;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PgPoolOptions::new().max_connections(16).connect("postgres://localhost/shop").await?;
//! let store = PgStore::new(pool.clone());
//! store.migrate().await?;
//!
//! // In a transaction of your own: the first time only.
//! let mut tx = pool.begin().await?;
//! if store.once(&mut tx, "import-csv", "2026-05.csv").await? == Once::First {
//!     sqlx::query("insert into import (name) values ('2026-05.csv')").execute(&mut *tx).await?;
//!     store.publish(&mut tx, &[Message::new("csv.imported", "2026-05.csv")]).await?;
//! }
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Needs Postgres 14 or newer. Works through a pooler in transaction mode (no session state, no advisory locks); tell
//! it so with [`PgStore::behind_pooler`].
//!
//! The schema also has the SQL functions `once`, `publish` and `receive`, for callers in other languages and with other
//! drivers.

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
pub use store::PgStore;
pub use tx::PgTransaction;

/// The transaction a handler gets: `async fn charge(mut tx: PgTx, …)`.
///
/// It dereferences to [`sqlx::PgConnection`].
pub type PgTx = oncebox_core::Tx<PgTransaction>;
