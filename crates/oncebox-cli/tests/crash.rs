//! The crash test: processes killed with SIGKILL and frozen with SIGSTOP in a storm of duplicates, then every
//! effect counted in a table without a unique key. It is the `demo` command with more of everything; for a long run
//! give that command a larger `--crashes`, `--messages` and a `--seed` of your own.

#![allow(clippy::print_stderr)]

use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;

fn oncebox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncebox")).args(arguments).output().expect("the binary runs")
}

/// Fifty kills and some freezes, each message delivered 1 to 20 times.
fn storm(store: Option<&str>, seed: &str) {
    let mut arguments = vec![
        "demo",
        "--json",
        "--messages",
        "3000",
        "--copies",
        "20",
        "--crashes",
        "50",
        "--pauses",
        "4",
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
    assert_eq!(figure("crashes"), 50);
    assert_eq!((figure("messages"), figure("effects")), (3000, 3000));
    assert!(figure("deliveries") > 20_000 && figure("duplicates") == figure("deliveries") - 3000);
}

#[test]
fn fifty_kills_on_sqlite_lose_nothing_and_double_nothing() {
    storm(None, "7");
}

#[test]
fn fifty_kills_on_postgres_lose_nothing_and_double_nothing() {
    storm_on_server("Postgres", "ONCEBOX_TEST_POSTGRES", "8");
}

#[test]
fn fifty_kills_on_mariadb_lose_nothing_and_double_nothing() {
    storm_on_server("MariaDB", "ONCEBOX_TEST_MARIADB", "9");
}

fn storm_on_server(name: &str, variable: &str, seed: &str) {
    match std::env::var(variable) {
        Ok(url) => storm(Some(&url), seed),
        Err(_) => {
            // Not through `eprintln!`, which the test harness would swallow.
            let _ = writeln!(
                std::io::stderr(),
                "not run: the crash test on {name}; `cargo xtask test` starts a server for it"
            );
        }
    }
}

#[test]
fn wrong_arguments_name_the_thing_and_the_remedy() {
    for (arguments, expected) in [
        (&["demo", "--store", "oracle:x"][..], "use `sqlite:FILE`, `postgres://"),
        (&["demo", "--messages", "0"][..], "--messages"),
        (&["bench", "--store", "mongodb://user:secret@host/db"][..], "use `sqlite:FILE`"),
        (&["demo", "--store", "postgres://user:secret@127.0.0.1:1/db"][..], "cannot be reached"),
        (&["demo", "--store", "mysql://user:secret@127.0.0.1:1/db"][..], "cannot be reached"),
    ] {
        let output = oncebox(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("secret"), "a password is never shown: {text}");
    }
}
