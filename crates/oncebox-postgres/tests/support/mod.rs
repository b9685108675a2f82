//! What the suites of the test kit need to know about this store.

mod subject;

pub(crate) use subject::PgSubject;
