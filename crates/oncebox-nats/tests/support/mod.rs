//! A private NATS server, and what the suites of the test kit need to know about it.

// Part of tests, which clippy sees only in functions marked as such. Each test binary uses its own part.
#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unreachable_pub, unused_imports)]

#[path = "../../../oncebox-redis/tests/support/log.rs"]
mod log;
mod plain;
mod subject;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use log::Log;
pub use plain::Plain;
pub use subject::{Limits, WorkQueue};
use xtask::nats::PrivateNats;

/// The server that the tests of this process share; `None` when NATS is not installed. It ends with the process.
pub async fn shared_server() -> Option<Arc<PrivateNats>> {
    static SERVER: OnceLock<Option<Arc<PrivateNats>>> = OnceLock::new();
    let start = || SERVER.get_or_init(|| started(PrivateNats::start()).map(Arc::new)).clone();
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A server of a test's own, started so.
pub async fn own_server(
    start: impl FnOnce() -> std::io::Result<PrivateNats> + Send + 'static,
) -> Option<PrivateNats> {
    tokio::task::spawn_blocking(move || started(start())).await.unwrap()
}

fn started(server: std::io::Result<PrivateNats>) -> Option<PrivateNats> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

/// A number that nothing else in this process has.
pub fn fresh_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}
