//! A private RabbitMQ server, and what the suites of the test kit need to know about it.

// Part of tests, which clippy sees only in functions marked as such. Each test binary uses its own part.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, unused_imports)]

mod plain;
mod subject;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use plain::Plain;
pub use subject::{Classic, Quorum};
use xtask::rabbitmq::PrivateRabbitmq;

/// The server that the tests of this process share; `None` when RabbitMQ is not installed.
///
/// It listens for TLS too, and ends with the process.
pub async fn shared_server() -> Option<Arc<PrivateRabbitmq>> {
    static SERVER: OnceLock<Option<Arc<PrivateRabbitmq>>> = OnceLock::new();
    let start = || SERVER.get_or_init(|| started(PrivateRabbitmq::start_tls()).map(Arc::new)).clone();
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A server of a test's own, with these settings.
pub async fn own_server(settings: &'static str) -> Option<PrivateRabbitmq> {
    let start = move || started(PrivateRabbitmq::start_with(settings));
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A server of a test's own that wants a certificate from each client.
pub async fn own_mutual_tls_server() -> Option<PrivateRabbitmq> {
    tokio::task::spawn_blocking(|| started(PrivateRabbitmq::start_mutual_tls())).await.unwrap()
}

fn started(server: std::io::Result<PrivateRabbitmq>) -> Option<PrivateRabbitmq> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

/// A name that nothing else on the server has.
pub fn fresh_name(what: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
