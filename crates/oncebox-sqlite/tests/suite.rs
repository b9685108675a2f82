//! The store suite of the test kit, on SQLite.

mod support;

oncebox_testkit::store_suite!(support::SqliteSubject);

/// What a handler gets need not have been received by its own process.
mod read_back {
    oncebox_testkit::store_suite!(crate::support::SubjectBy<false>);
}
