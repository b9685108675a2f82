//! A private Redis server, and what the suites of the test kit need to know about it.

// Part of tests, which clippy sees only in functions marked as such. Each test binary uses its own part.
#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unreachable_pub, unused_imports)]

mod log;
mod plain;
mod subject;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use log::Log;
pub use plain::Plain;
pub use subject::RedisSubject;
use xtask::redis::PrivateRedis;

/// The server that the tests of this process share; `None` when Redis is not installed. It ends with the process.
pub async fn shared_server() -> Option<Arc<PrivateRedis>> {
    static SERVER: OnceLock<Option<Arc<PrivateRedis>>> = OnceLock::new();
    let start = || SERVER.get_or_init(|| started(PrivateRedis::start()).map(Arc::new)).clone();
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A server of a test's own, started so.
pub async fn own_server(
    start: impl FnOnce() -> std::io::Result<PrivateRedis> + Send + 'static,
) -> Option<PrivateRedis> {
    tokio::task::spawn_blocking(move || started(start())).await.unwrap()
}

fn started(server: std::io::Result<PrivateRedis>) -> Option<PrivateRedis> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

/// A name that nothing else on the server has.
pub fn fresh_name(what: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
