//! What the suites of the test kit need to know about this store.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod subject;

// Not every test that shares this one asks for both.
#[allow(unused_imports)]
pub(crate) use subject::{SqliteSubject, SubjectBy};
