//! Why a command of xtask ended before it had a result.

use std::fmt;

/// What stopped a command; a step or check that merely failed is a result, not an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The machine or the call is not as needed; the text says what to do.
    Environment(String),
    /// A person or the system asked to stop.
    Interrupted,
}

impl Error {
    /// The exit code of the process: 2 for the environment, 130 (as shells do) when interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Environment(_) => 2,
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(what) => out.write_str(what),
            Self::Interrupted => out.write_str("interrupted; everything that was started has been stopped"),
        }
    }
}

impl std::error::Error for Error {}
