//! The broker suite against RabbitMQ 3.10 with its plugin for AMQP 1.0, with SQLite.

mod support;

oncebox_testkit::broker_suite!(support::Amqp1Subject, support::SqliteSubject);
