//! The fault suite of the test kit on SQLite.

mod support;

oncebox_testkit::fault_suite!(support::SqliteSubject);
