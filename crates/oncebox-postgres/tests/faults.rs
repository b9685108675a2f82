//! The fault suite of the test kit on Postgres; needs `ONCEBOX_TEST_POSTGRES`.

mod support;

oncebox_testkit::fault_suite!(support::PgSubject);
