//! The store suite of the test kit, on SQLite.

mod support;

oncebox_testkit::store_suite!(support::SqliteSubject);
