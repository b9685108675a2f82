//! Keeps the processors awake while something is measured.
//!
//! A short statement takes about as long as a processor needs to wake up, many times longer on a virtual machine. Who
//! waits a little longer in between is then measured as much slower, and no two runs agree. Linux keeps the processors
//! awake for as long as a program asks for it; usually only root may. Not for the service, which is measured as it runs.

use std::fs::File;
use std::io::Write;

/// Where Linux takes the longest time, in microseconds, that a processor may need to wake up.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Until it is dropped.
#[derive(Debug)]
pub(super) struct Awake(Option<File>);

impl Awake {
    pub(super) fn ask() -> Self {
        Self(ask(LATENCY).ok())
    }

    pub(super) fn is_granted(&self) -> bool {
        self.0.is_some()
    }
}

fn ask(path: &str) -> std::io::Result<File> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}
