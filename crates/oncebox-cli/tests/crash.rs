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

/// The benchmark cannot rot: a small run of it gives every figure.
#[test]
fn bench_prints_every_figure() {
    let mut stores = vec![None];
    stores.extend(std::env::var("ONCEBOX_TEST_POSTGRES").ok().map(Some));
    stores.extend(std::env::var("ONCEBOX_TEST_MARIADB").ok().map(Some));
    for store in stores {
        let mut arguments = vec!["bench", "--json", "--messages", "1000", "--rounds", "1"];
        if let Some(store) = &store {
            arguments.extend(["--store", store.as_str()]);
        }
        let output = oncebox(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let is_postgres = store.as_ref().is_some_and(|url| url.starts_with("postgres"));
        for (group, names) in [
            ("floor", &["insert", "handler_loop", "handler_batch"][..]),
            ("recipe", &["ingest", "process", "process_batch"]),
            (
                "oncebox",
                &["ingest_batch", "ingest_single", "ingest_duplicates", "process", "process_batch", "inline"],
            ),
            ("latency_ms", &["p50", "p99"]),
        ] {
            for name in names {
                assert!(
                    report[group][name].as_f64().is_some_and(|figure| figure > 0.0),
                    "{group}.{name}: {report}"
                );
            }
        }
        // SQLite tells nothing of this, and only Postgres has dead tuples.
        let costs =
            ["inline_statements", "inline_commits", "stored_statements", "stored_commits", "wal_bytes"];
        for name in costs {
            assert_eq!(report["cost"][name].is_number(), store.is_some(), "cost.{name}: {report}");
        }
        assert_eq!(report["cost"]["dead_tuples"].is_number(), is_postgres, "{report}");
        let may_ask = std::fs::File::options().write(true).open("/dev/cpu_dma_latency").is_ok();
        assert_eq!(report["awake"], may_ask, "{report}");
    }
}

/// The same for the service.
#[test]
fn bench_of_http_prints_every_figure() {
    let mut stores = vec![None];
    stores.extend(std::env::var("ONCEBOX_TEST_POSTGRES").ok().map(Some));
    stores.extend(std::env::var("ONCEBOX_TEST_MARIADB").ok().map(Some));
    for store in stores {
        let few = ["--messages", "2000", "--waiting", "5000", "--rounds", "1"];
        let mut arguments = ["bench", "--http", "--json"].iter().chain(&few).copied().collect::<Vec<_>>();
        if let Some(store) = &store {
            arguments.extend(["--store", store.as_str()]);
        }
        let output = oncebox(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!((&report["messages"], &report["waiting"]), (&Value::from(2000), &Value::from(5000)));
        for place in [
            "/commit",
            "/library/ingest_batch",
            "/http/single",
            "/http/ndjson",
            "/ratios/ndjson_to_library",
            "/ratios/single_to_commit",
            "/memory_mib/rest",
            "/memory_mib/waiting",
            "/memory_mib/waiting_restarted",
            "/start_ms/empty",
            "/start_ms/waiting",
            "/binary_mib",
        ] {
            let figure = report.pointer(place).and_then(Value::as_f64);
            assert!(figure.is_some_and(|figure| figure > 0.0), "{place}: {report}");
        }
    }
}
