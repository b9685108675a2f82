//! What the tests share: two servers, and the plain client to look behind the back of the source and the sink.

// Part of tests, which clippy sees only in functions marked as such; and no test file uses all of it.
#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unused_imports)]

mod client;
mod left;
mod mock;
#[path = "../../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod subject;
mod tansu;

pub(crate) use client::{Plain, delivery};
pub(crate) use mock::Mock;
pub(crate) use sqlite::SqliteSubject;
pub(crate) use subject::{MockSubject, TansuSubject};
pub(crate) use tansu::{start as own_tansu, tansu_behind};
