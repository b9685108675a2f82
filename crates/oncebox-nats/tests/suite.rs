//! The broker suite of the test kit, on NATS JetStream.

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

oncebox_testkit::broker_suite!(support::NatsSubject, sqlite::SqliteSubject);
