//! Oncebox on MariaDB: the inbox and the outbox in a schema beside your own tables.
//!
//! ```no_run
//! use oncebox_core::{Message, Once, Store};
//! use oncebox_mariadb::MariaStore;
//! use sqlx::mysql::MySqlPoolOptions;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = MySqlPoolOptions::new().max_connections(16).connect("mysql://app:secret@localhost/shop").await?;
//! let store = MariaStore::new(pool.clone());
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
//! Needs MariaDB 10.6 or newer, with InnoDB; tested on 10.11. Other processes' messages are found by asking every few
//! milliseconds ([`Store::listen`](oncebox_core::Store::listen)), because MariaDB has no notifications.

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
pub use store::MariaStore;
pub use tx::MariaTransaction;

/// The transaction a handler gets: `async fn charge(mut tx: MariaTx, …)`.
///
/// It dereferences to [`sqlx::MySqlConnection`].
pub type MariaTx = oncebox_core::Tx<MariaTransaction>;
