//! The broker suite of the test kit, on RabbitMQ with either kind of queue.

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

mod classic {
    oncebox_testkit::broker_suite!(super::support::Classic, super::sqlite::SqliteSubject);
}

mod quorum {
    oncebox_testkit::broker_suite!(super::support::Quorum, super::sqlite::SqliteSubject);
}
