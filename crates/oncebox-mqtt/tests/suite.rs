//! The broker suite against Mosquitto, with SQLite.

mod support;

oncebox_testkit::broker_suite!(support::MosquittoSubject, support::SqliteSubject);
