//! `oncebox bench --source`: every figure is there, nothing stays behind on the broker, and errors say what to do.

#![allow(clippy::print_stderr)]

use std::process::{Command, Output};

fn bench(source: &str) -> Output {
    let few = ["bench", "--messages", "1000", "--rounds", "1", "--json", "--source", source];
    Command::new(env!("CARGO_BIN_EXE_oncebox")).args(few).output().expect("the binary runs")
}

fn error_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[cfg(feature = "nats")]
#[test]
fn every_figure_of_a_broker_is_positive() {
    use std::io::ErrorKind;

    use serde_json::Value;
    use xtask::nats::PrivateNats;

    let server = match PrivateNats::start() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("not run: {error}");
            return;
        }
        server => server.expect("NATS starts"),
    };
    let output = bench(&server.url());
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&report["broker"], &report["store"]), (&Value::from("nats"), &Value::from("sqlite")));
    assert_eq!(report["messages"], 1000);
    let figures = [
        ("client", &["consume", "publish"][..]),
        ("oncebox", &["ingest_batch", "source_to_stored", "source_to_effect", "outbox_to_confirmed"]),
        ("ratios", &["source_to_stored", "outbox_to_confirmed"]),
    ];
    for (group, names) in figures {
        assert_eq!(report[group].as_object().map(serde_json::Map::len), Some(names.len()), "{report}");
        for name in names {
            assert!(
                report[group][*name].as_f64().is_some_and(|figure| figure > 0.0),
                "{group}.{name}: {report}"
            );
        }
    }
    let streams = server.folder().join("data/jetstream/$G/streams");
    let left: Vec<_> = std::fs::read_dir(&streams).into_iter().flatten().collect();
    assert!(left.is_empty(), "streams were left behind: {left:?}");
}

#[cfg(feature = "nats")]
#[test]
fn a_broker_that_is_away_is_named() {
    // Nobody listens on port 1.
    let error = error_of(&bench("nats://user:secret@127.0.0.1:1"));
    assert!(error.contains("NATS cannot be reached at 127.0.0.1:1"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[cfg(not(feature = "kafka"))]
#[test]
fn a_broker_that_was_not_built_in_names_its_feature() {
    let error = error_of(&bench("kafka://127.0.0.1:1"));
    assert!(error.contains("--features kafka"), "{error}");
}

#[test]
fn an_unknown_broker_is_refused_without_showing_the_url() {
    let error = error_of(&bench("smtp://user:secret@localhost"));
    assert!(error.contains("`smtp:`") && error.contains("nats://"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}
