//! The broker suite of the test kit, on Redis Streams.

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

oncebox_testkit::broker_suite!(support::RedisSubject, sqlite::SqliteSubject);
