//! What the suites of the test kit need to know about this store.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod sessions;
mod subject;

#[allow(unused_imports, reason = "not every test file that shares this one asks")]
pub(crate) use subject::{MariaSubject, Owner, SubjectBy, Way, deadlock};
