//! Each language's program is run against a real database, together with a runner and its relay.

#![allow(clippy::unwrap_used)]

mod scenario;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use scenario::Program;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("languages").join(name)
}

/// What `cargo xtask test` has installed for a language.
fn installed(variable: &str, language: &str) -> Option<OsString> {
    let found = std::env::var_os(variable);
    if found.is_none() {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text = format!("not run: {language} ({variable} is not set; `cargo xtask test` sets it)\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_has_each_effect_once() {
    let programs = PathBuf::from(std::env::var_os("ONCEBOX_TEST_POSTGRES_BIN").unwrap_or_default());
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new("/bin/sh");
        // psql takes the address as an argument only, which the caller knows as a variable.
        command.args(["-c", r#"exec "$0" -X -A -t -q "$DATABASE_URL" "$@""#]).arg(programs.join("psql"));
        let value = if action == "charge" { format!("cents={argument}") } else { format!("body={argument}") };
        command.args(["-v", &format!("order_id={order}"), "-v", &value, "-f"]);
        command.arg(file(&format!("psql/{action}.sql")));
        command
    };
    scenario::play(Program { name: "psql", run: Box::new(run) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_has_each_effect_once() {
    let Some(python) = installed("ONCEBOX_TEST_PYTHON", "python") else { return };
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new(&python);
        command.arg(file("python/shop_postgres.py")).args([action, order, argument]);
        command
    };
    scenario::play(Program { name: "python", run: Box::new(run) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_has_each_effect_once() {
    let Some(modules) = installed("ONCEBOX_TEST_NODE_PATH", "node") else { return };
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new("node");
        command.arg(file("node/shop_postgres.js")).args([action, order, argument]).env("NODE_PATH", &modules);
        command
    };
    scenario::play(Program { name: "node", run: Box::new(run) }).await;
}
