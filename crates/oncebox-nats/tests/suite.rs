//! The broker suite of the test kit, on NATS JetStream with either kind of stream.

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

mod limits {
    oncebox_testkit::broker_suite!(super::support::Limits, super::sqlite::SqliteSubject);
}

mod work_queue {
    oncebox_testkit::broker_suite!(super::support::WorkQueue, super::sqlite::SqliteSubject);
}
