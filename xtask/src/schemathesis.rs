//! Schemathesis, which asks a service everything its OpenAPI description allows and much that it does not. A Python
//! program, installed once into an environment of its own outside the checkout; see [`cache_folder`].

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::languages::succeed;
use crate::packages;
use crate::tansu::cache_folder;

/// Names the program for tests; where it is set, they must run.
pub const VARIABLE: &str = "ONCEBOX_TEST_SCHEMATHESIS";

const VERSION: &str = "4.32.5";

/// The program, when it is installed.
///
/// Fails, with the remedy, when it is not.
pub fn program() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(named));
    }
    if note().is_file() {
        return Ok(folder().join("bin/schemathesis"));
    }
    let text = "schemathesis is not installed; `cargo xtask test` installs it";
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// Installs it, unless it is there from the last time.
///
/// Fails when Python is missing and cannot be installed, or the package cannot be fetched.
pub fn require() -> Result<PathBuf, Error> {
    if note().is_file() {
        return Ok(folder().join("bin/schemathesis"));
    }
    packages::require_python()?;
    let package = format!("schemathesis=={VERSION}");
    println!("installing {package} into {}", folder().display());
    let install = || {
        fs::create_dir_all(cache_folder())?;
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder()))?;
        let mut pip = Command::new(folder().join("bin/python"));
        succeed(pip.args(["-m", "pip", "install", "--quiet", &package]))?;
        // Last, so that what was broken off is begun again.
        fs::write(note(), &package)
    };
    install().map_err(|error| Error::Environment(format!("cannot install {package}: {error}")))?;
    Ok(folder().join("bin/schemathesis"))
}

fn folder() -> PathBuf {
    cache_folder().join(format!("schemathesis-{VERSION}"))
}

fn note() -> PathBuf {
    folder().join("installed")
}
