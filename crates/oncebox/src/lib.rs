#![doc = include_str!("../../../README.md")]
//!
//! # The crate's parts
//!
//! - An [`Inbox`] holds the handlers; [`handler`] names an async function as one; [`run`] works in the background.
//! - [`Json`], [`Message`], [`Batch`], [`State`], [`Attempt`] and the store's transaction are handler arguments.
//! - [`Failure`] is what a handler returns; [`Error`] is the library's own.
//! - [`Source`] and [`Sink`] connect brokers; [`Relay`] has the settings of an outbox relay.
//! - `SqliteStore` (feature `sqlite`, on by default) and `PgStore` (feature `postgres`) are the stores.
//! - [`admin`] has what an operator reads; [`Store`] has the calls: list, replay, discard, pause.

#[doc(inline)]
pub use oncebox_core::{
    Attempt, Backoff, Batch, Call, Counter, Counters, Error, ErrorKind, Extract, Failure, Handler, Headers, Inbox,
    Incoming, Json, Limits, Message, NamedHandler, Once, Processed, Received, Relay, Run, SendFailure, Settle, Sink,
    Source, State, Store, TraceContext, Tx, admin, clock, handler, run, store,
};

#[cfg(feature = "postgres")]
#[doc(inline)]
pub use oncebox_postgres::{self as postgres, PgStore, PgTx};
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use oncebox_sqlite::{self as sqlite, SqliteStore, SqliteTx};
