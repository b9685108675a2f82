//! What the examples in other languages need: a Python environment and Node modules, installed under `target/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::packages;

/// The Python with the examples' packages.
pub const PYTHON_VARIABLE: &str = "ONCEBOX_TEST_PYTHON";
/// The folder with the examples' Node modules.
pub const NODE_PATH_VARIABLE: &str = "ONCEBOX_TEST_NODE_PATH";

/// Where the languages' packages are.
#[derive(Debug)]
pub struct Languages {
    python: PathBuf,
    node_modules: PathBuf,
}

impl Languages {
    /// Installs what the examples ask for, unless it is there from the last time.
    ///
    /// Fails when a language is missing and cannot be installed, or its packages cannot be fetched.
    pub fn prepare(root: &Path) -> Result<Self, Error> {
        let (sources, installed) = (root.join("examples/languages"), root.join("target/languages"));
        packages::require_python()?;
        packages::require_node()?;
        let wanted = sources.join("python/requirements.txt");
        let python = installed.join("python");
        once(&wanted, &python, |folder| {
            succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
            let mut pip = Command::new(folder.join("bin/python"));
            succeed(pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&wanted))
        })?;
        let wanted = sources.join("node/package.json");
        let node = installed.join("node");
        once(&wanted, &node, |folder| {
            fs::create_dir_all(folder)?;
            fs::copy(&wanted, folder.join("package.json"))?;
            let quiet = ["install", "--silent", "--no-package-lock", "--no-audit", "--no-fund"];
            succeed(Command::new("npm").args(quiet).current_dir(folder))
        })?;
        Ok(Self { python: python.join("bin/python"), node_modules: node.join("node_modules") })
    }

    /// Tells a program where they are.
    pub fn announce_to(&self, command: &mut Command) {
        command.env(PYTHON_VARIABLE, &self.python).env(NODE_PATH_VARIABLE, &self.node_modules);
    }
}

/// Installs into the folder, and notes for what, so that it is done again only when something else is wanted.
fn once(wanted: &Path, folder: &Path, install: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Error> {
    let explain = |error: io::Error| {
        Error::Environment(format!("cannot install what {} asks for: {error}", wanted.display()))
    };
    let text = fs::read_to_string(wanted).map_err(explain)?;
    let note = folder.join("installed");
    if fs::read_to_string(&note).is_ok_and(|noted| noted == text) {
        return Ok(());
    }
    println!("installing what {} asks for", wanted.display());
    install(folder).map_err(explain)?;
    fs::write(note, text).map_err(explain)
}

/// Runs a program that has nothing to say when all goes well.
pub(crate) fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let (program, why) = (command.get_program().display(), String::from_utf8_lossy(&output.stderr));
    Err(io::Error::other(format!("`{program}` ended with {}: {}", output.status, why.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_installed_again_only_when_something_else_is_wanted() {
        let machine = tempfile::tempdir().unwrap();
        let (wanted, folder) = (machine.path().join("wanted"), machine.path().join("folder"));
        let mut times = 0;
        for text in ["one", "one", "two"] {
            fs::write(&wanted, text).unwrap();
            once(&wanted, &folder, |folder| {
                times += 1;
                fs::create_dir_all(folder)
            })
            .unwrap();
        }
        assert_eq!(times, 2);
        fs::write(&wanted, "three").unwrap();
        let error = once(&wanted, &folder, |_| Err(io::Error::other("no network"))).unwrap_err();
        assert!(error.to_string().contains("no network"), "{error}");
        assert_eq!(fs::read_to_string(folder.join("installed")).unwrap(), "two", "a failure is tried again");
    }
}
