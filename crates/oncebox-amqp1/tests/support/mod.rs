//! What the tests need to know about AMQP 1.0.

// Part of tests, which clippy sees only in functions marked as such; not every test uses everything.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

pub(crate) mod operate;
pub(crate) mod plain;
#[path = "../../../oncebox-sqlite/tests/support/subject.rs"]
mod sqlite;
mod subject;
pub(crate) mod taking;

pub(crate) use sqlite::SqliteSubject;
pub(crate) use subject::{Amqp1Subject, fresh_name, server};
