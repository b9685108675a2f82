//! Tansu, a server that speaks Kafka's protocol.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use xtask::tansu::PrivateTansu;

/// A server for all tests of this process, or one for one test.
pub(crate) enum Tansu {
    Shared(&'static PrivateTansu),
    Own(PrivateTansu),
}

impl Tansu {
    pub(crate) fn server(&self) -> &PrivateTansu {
        match self {
            Self::Shared(server) => server,
            Self::Own(server) => server,
        }
    }
}

/// The server that the tests of this process share; `None`, with a word about it, when Tansu is not built.
pub(crate) fn tansu() -> Option<&'static PrivateTansu> {
    static SHARED: OnceLock<Option<PrivateTansu>> = OnceLock::new();
    SHARED.get_or_init(start).as_ref()
}

/// The same for one test.
pub(crate) fn start() -> Option<PrivateTansu> {
    told(PrivateTansu::start())
}

/// The same, whose clients go through a proxy at this port.
pub(crate) fn tansu_behind(port: u16) -> Option<PrivateTansu> {
    told(PrivateTansu::start_behind(port))
}

fn told(started: io::Result<PrivateTansu>) -> Option<PrivateTansu> {
    // Built only by `cargo xtask test --all`.
    xtask::server::if_installed(started, xtask::steps::ALL_VARIABLE)
}

/// A name that no other test of this process has.
pub(crate) fn fresh(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
