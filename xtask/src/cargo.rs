//! Cargo: the commands we run and what it knows about the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::Error;

/// The root folder of this repository.
pub fn root() -> PathBuf {
    // Set by `cargo run`; right even when the checkout was moved after xtask was compiled.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// A cargo command in the root folder, with the cargo that runs us.
pub fn command(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // Ours say nothing about the packages that the command is about.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    command
}

/// What `cargo metadata` says about the workspace and everything it depends on.
///
/// Fails when a manifest is wrong or a dependency cannot be fetched.
pub fn metadata(root: &Path) -> Result<Value, Error> {
    let output = command(root)
        .args(["metadata", "--format-version=1", "--all-features"])
        .output()
        .map_err(|error| Error::Environment(format!("cannot run `cargo metadata`: {error}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Environment(format!("`cargo metadata` failed: {}", why.trim())));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Environment(format!("cannot read the output of `cargo metadata`: {error}")))
}

/// The names of a package's examples, in order.
pub fn examples(metadata: &Value, package: &str) -> Vec<String> {
    let mut names: Vec<String> = array(&metadata["packages"])
        .filter(|candidate| candidate["name"] == package)
        .flat_map(|found| array(&found["targets"]))
        .filter(|target| array(&target["kind"]).any(|kind| kind == "example"))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// Fails with the command to run when rustfmt or clippy is not installed.
pub fn require_components(root: &Path) -> Result<(), Error> {
    let missing: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(subcommand, _)| !answers(root, subcommand))
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" ");
    Err(Error::Environment(format!("not installed: {missing}; run `rustup component add {missing}`")))
}

/// The elements of a JSON array; none when it is something else.
pub(crate) fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn answers(root: &Path, subcommand: &str) -> bool {
    let output = command(root).args([subcommand, "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_examples_of_the_package_are_listed() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "shop", "targets": [
                { "name": "shop", "kind": ["lib"] },
                { "name": "two", "kind": ["example"] },
                { "name": "one", "kind": ["example"] },
            ]},
            { "name": "other", "targets": [{ "name": "three", "kind": ["example"] }]},
        ]});
        assert_eq!(examples(&metadata, "shop"), ["one", "two"]);
    }
}
