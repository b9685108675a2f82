//! The broker suite, on both servers.

mod support;

/// librdkafka's mock cluster.
mod mock {
    use super::support::{MockSubject, SqliteSubject};

    oncebox_testkit::broker_suite!(MockSubject, SqliteSubject);
}

/// Tansu, when it is built.
mod tansu {
    use super::support::{SqliteSubject, TansuSubject};

    oncebox_testkit::broker_suite!(TansuSubject, SqliteSubject);
}
