//! What a database must be able to do beside Oncebox, to be compared with it.

use std::future::Future;

use oncebox::Store;
use sqlx::Connection;

use crate::bench::report::ServerCost;
use crate::bench::round::CALLERS;
use crate::target::Target;

/// The driver's own connection, as a handler has it.
pub(crate) type Driver<T> = <<T as Target>::Store as Store>::Driver;

/// The floor and the plain recipe on one database. All tables live beside the store's own and start empty.
pub(crate) trait Yard: Target<Store: Store<Driver: Connection>> {
    /// How many callers the recipe ingests with, one by one.
    const RECIPE_CALLERS: usize = CALLERS;

    /// Tables for the floor and the recipe; each handler's effect is one row in `effect`.
    fn lay_out(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// A connection of the floor's or the recipe's own: a pool would ask the server before and after each use whether it is
    /// alive.
    fn connect(&self) -> impl Future<Output = Result<Driver<Self>, sqlx::Error>> + Send;

    /// One statement that inserts these rows into a table with one unique index.
    fn floor_insert(
        &self,
        connection: &mut Driver<Self>,
        rows: &[Row],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// One transaction with the handler's statement once per id.
    fn floor_loop(
        &self,
        connection: &mut Driver<Self>,
        ids: &[String],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// One transaction with the handler's set-based statement.
    fn floor_batch(
        &self,
        connection: &mut Driver<Self>,
        ids: Vec<String>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// One row, `on conflict do nothing`, committed by itself.
    fn recipe_ingest(
        &self,
        connection: &mut Driver<Self>,
        row: &Row,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Fills the recipe's table with unprocessed rows, quickly.
    fn recipe_fill(
        &self,
        connection: &mut Driver<Self>,
        rows: &[Row],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// One batch of up to 1,000 rows: lock, handler, mark, commit. Answers how many.
    fn recipe_process(
        &self,
        connection: &mut Driver<Self>,
        set_based: bool,
    ) -> impl Future<Output = Result<usize, sqlx::Error>> + Send;

    /// The handler's statement, in Oncebox's transaction.
    fn effect(
        tx: &mut Driver<Self>,
        schema: &str,
        id: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The handler's set-based statement, in Oncebox's transaction.
    fn effects_of(
        tx: &mut Driver<Self>,
        schema: &str,
        ids: Vec<String>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether this id has had its effect.
    fn has_effect(&self, id: &str) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// How many effects there are.
    fn effect_rows(&self) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// What the server has counted so far, where it can tell.
    fn server_cost(&self) -> impl Future<Output = Result<Option<ServerCost>, sqlx::Error>> + Send;
}

/// A message as the floor and the recipe store it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) payload: Vec<u8>,
}
