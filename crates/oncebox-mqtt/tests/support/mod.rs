//! What the tests need to know about MQTT.

// Part of tests, which clippy sees only in functions marked as such; not every test uses everything.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

pub(crate) mod plain;
#[path = "../../../oncebox-sqlite/tests/support/subject.rs"]
mod sqlite;
mod subject;

pub(crate) use plain::{Observer, Plain};
pub(crate) use sqlite::SqliteSubject;
pub(crate) use subject::{MosquittoSubject, fresh_name, quality, server};
