//! The store suite through PgBouncer in transaction mode, under a runtime role; needs `ONCEBOX_TEST_PGBOUNCER`.

#![allow(clippy::unwrap_used)]

// Shared with the other suites, which use more of it.
#[allow(dead_code)]
mod support;

use oncebox_testkit::store_suite;
use support::{SubjectBy, Way};

/// Each transaction may run in another session than the last.
#[derive(Debug)]
struct Pooler;

impl Way for Pooler {
    const RUNTIME_ROLE: bool = true;
    const POOLER: bool = true;
}

store_suite!(SubjectBy<Pooler>);
