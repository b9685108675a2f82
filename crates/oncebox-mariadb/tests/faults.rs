//! The fault suite of the test kit on MariaDB; needs `ONCEBOX_TEST_MARIADB`.

// A failed expectation of the subject is a panic, as in any test.
#![allow(clippy::unwrap_used)]

// Shared with the store suite, which uses more of it.
#[allow(dead_code)]
mod support;

oncebox_testkit::fault_suite!(support::MariaSubject);
