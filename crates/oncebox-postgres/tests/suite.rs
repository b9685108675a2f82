//! The store suite of the test kit, on Postgres, and what only Postgres can get wrong.

mod support;

oncebox_testkit::store_suite!(support::PgSubject);
