//! Asking this process to stop: Ctrl-C, `kill`, a closed terminal.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Turns the first SIGINT, SIGTERM or SIGHUP into a request that [`check`] reports, so that `Drop` cleans up.
///
/// The second one ends the process at once. Even then no Postgres is left, because its guard notices.
pub fn install() -> Result<(), Error> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Error::Interrupted.exit_code()));
        }
    })
    .map_err(|error| Error::Environment(format!("cannot listen for signals: {error}")))
}

/// Fails with [`Error::Interrupted`] once somebody asked to stop.
pub fn check() -> Result<(), Error> {
    if REQUESTED.load(Ordering::SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
}
