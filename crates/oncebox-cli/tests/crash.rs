//! The crash test: processes killed with SIGKILL and frozen with SIGSTOP in a storm of duplicates, then every
//! effect counted in a table without a unique key. It is the `demo` command with more of everything; for a long run
//! see guides/crash-safety.md.

#![allow(clippy::print_stderr)]

use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;

fn oncebox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncebox")).args(arguments).output().expect("the binary runs")
}

/// Many kills and some freezes; half of the messages are delivered 1 to 20 times, the others once.
fn storm(store: Option<&str>, seed: &str, crashes: u64, pauses: u64) {
    let (kills, freezes) = (crashes.to_string(), pauses.to_string());
    let mut arguments = vec![
        "demo",
        "--json",
        "--messages",
        "3000",
        "--copies",
        "20",
        "--crashes",
        &kills,
        "--pauses",
        &freezes,
        "--processes",
        "3",
        "--seed",
        seed,
    ];
    if let Some(store) = store {
        arguments.extend(["--store", store]);
    }
    let output = oncebox(&arguments);
    let shown =
        || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "seed {seed}: {}", shown());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let figure = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("`{name}` in {}", shown()));
    assert_eq!(figure("lost"), 0);
    assert_eq!(figure("doubled"), 0);
    assert_eq!((figure("crashes"), figure("pauses")), (crashes, pauses));
    assert_eq!((figure("messages"), figure("effects")), (3000, 3000));
    // Most of the killed had unacknowledged deliveries, and more than a few: a kill of an idle process proves nothing.
    assert!(figure("crashes_holding") * 2 >= crashes, "kills hit no work under way: {}", shown());
    assert!(figure("redelivered") > 500, "kills and freezes hit no work under way: {}", shown());
    // And many kills fell while effects were made, not only while messages came in.
    assert!(figure("crashes_handling") >= crashes / 5, "kills fell only beside the handling: {}", shown());
    // What they had was made again, beside what was planned: at least each message once.
    assert!(figure("deliveries") >= 3000 + figure("redelivered"), "{}", shown());
}

#[test]
fn fifty_kills_on_sqlite_lose_nothing_and_double_nothing() {
    storm(None, "7", 50, 4);
}

#[test]
fn fifty_kills_on_postgres_lose_nothing_and_double_nothing() {
    storm_on_server("Postgres", "ONCEBOX_TEST_POSTGRES", "8", 50, 4);
}

#[test]
fn fifty_kills_on_mariadb_lose_nothing_and_double_nothing() {
    storm_on_server("MariaDB", "ONCEBOX_TEST_MARIADB", "9", 50, 4);
}

/// Frozen processes hold their transactions and wake up in the midst of the traffic of others.
#[test]
fn eight_freezes_on_postgres_lose_nothing_and_double_nothing() {
    storm_on_server("Postgres", "ONCEBOX_TEST_POSTGRES", "21", 4, 8);
}

fn storm_on_server(name: &str, variable: &str, seed: &str, crashes: u64, pauses: u64) {
    match std::env::var(variable) {
        Ok(url) => storm(Some(&url), seed, crashes, pauses),
        Err(_) => {
            // Not through `eprintln!`, which the test harness would swallow.
            let _ = writeln!(
                std::io::stderr(),
                "not run: the crash test on {name}; `cargo xtask test` starts a server for it"
            );
        }
    }
}
