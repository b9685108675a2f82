//! The benchmark cannot rot: a small run of it on each store gives every figure.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn oncebox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncebox")).args(arguments).output().expect("the binary runs")
}

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
        let name = store.as_ref().map_or("sqlite", |_| if is_postgres { "postgres" } else { "mariadb" });
        assert_eq!((&report["store"], &report["messages"]), (&name.into(), &1000.into()), "{report}");
        for (group, names) in [
            ("floor", &["insert", "insert_later", "handler_loop", "handler_batch"][..]),
            ("recipe", &["ingest", "ingest_batch", "process", "process_batch"]),
            (
                "oncebox",
                &[
                    "ingest_batch",
                    "ingest_single",
                    "ingest_some_duplicates",
                    "ingest_duplicates",
                    "process",
                    "process_others",
                    "process_batch",
                    "process_batch_others",
                    "inline",
                ],
            ),
            (
                "ratios",
                &[
                    "ingest_batch_to_floor",
                    "ingest_batch_to_recipe",
                    "ingest_batch_to_recipe_single",
                    "ingest_single_to_recipe",
                    "ingest_some_duplicates_to_floor",
                    "process_to_floor",
                    "process_to_recipe",
                    "process_others_to_floor",
                    "process_others_to_recipe",
                    "process_batch_to_floor",
                    "process_batch_to_recipe",
                    "process_batch_others_to_floor",
                    "process_batch_others_to_recipe",
                ],
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
        // One round, so the ratio is that of its two rates, which are rounded.
        let of = |place: &str| report.pointer(place).and_then(Value::as_f64).expect("a figure");
        let ratio = of("/oncebox/ingest_batch") / of("/floor/insert");
        assert!((ratio - of("/ratios/ingest_batch_to_floor")).abs() < 0.002, "{report}");
        // SQLite tells nothing of this, and only Postgres has dead tuples.
        let costs =
            ["inline_statements", "inline_commits", "stored_statements", "stored_commits", "wal_bytes"];
        for name in costs {
            assert_eq!(report["cost"][name].is_number(), store.is_some(), "cost.{name}: {report}");
        }
        assert_eq!(report["cost"]["dead_tuples"].is_number(), is_postgres, "{report}");
        if is_postgres {
            let cost = |name: &str| report["cost"][name].as_f64().expect("a number");
            // Commits and WAL are those of all who use the server meanwhile.
            assert!((1.0..1.1).contains(&cost("inline_statements")), "{report}");
            // A few for each batch.
            for name in ["stored_statements", "dead_tuples"] {
                assert!(cost(name) > 0.0 && cost(name) < 0.5, "{name}: {report}");
            }
            assert!(cost("stored_commits") > 0.0 && cost("wal_bytes") > 210.0, "{report}");
        }
        let may_ask = std::fs::File::options().write(true).open("/dev/cpu_dma_latency").is_ok();
        assert_eq!(report["awake"], may_ask, "{report}");
    }
}

#[test]
fn an_interrupt_removes_what_was_made() {
    let folder = tempfile::tempdir().expect("a folder");
    for more in [&[][..], &["--http"]] {
        let store = format!("sqlite:{}", folder.path().join("bench.db").display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_oncebox"))
            .args(["bench", "--json", "--messages", "200000", "--store", &store])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !folder.path().join("bench.db-wal").exists() {
            assert!(Instant::now() < deadline, "no database was made");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        kill(pid, Signal::SIGINT).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(130), "{more:?}");
        let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").flatten().collect();
        assert!(left.is_empty(), "{more:?}: {left:?}");
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
