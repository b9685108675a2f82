//! The broker suite of the test kit, on RabbitMQ.

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

oncebox_testkit::broker_suite!(support::RabbitmqSubject, sqlite::SqliteSubject);
