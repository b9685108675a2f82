//! `oncebox bench --source`: every figure is there, nothing stays behind on the broker, and errors say what to do.

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

/// Runs it, and checks that each figure is there.
#[cfg(any(
    feature = "amqp1",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
fn every_figure_is_positive(broker: &str, source: &str) {
    use serde_json::Value;

    let output = bench(source);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&report["broker"], &report["store"]), (&Value::from(broker), &Value::from("sqlite")));
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
}

/// A server for the test; `None` when it is not installed.
#[cfg(any(feature = "amqp1", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn started<T>(server: std::io::Result<T>) -> Option<T> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

#[cfg(feature = "nats")]
#[test]
fn nats_is_measured_and_keeps_nothing() {
    let Some(server) = started(xtask::nats::PrivateNats::start()) else { return };
    every_figure_is_positive("nats", &server.url());
    let streams = server.folder().join("data/jetstream/$G/streams");
    let left: Vec<_> = std::fs::read_dir(&streams).into_iter().flatten().collect();
    assert!(left.is_empty(), "streams were left behind: {left:?}");
}

#[cfg(feature = "redis")]
#[test]
fn redis_is_measured_and_keeps_nothing() {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    let Some(server) = started(xtask::redis::PrivateRedis::start()) else { return };
    every_figure_is_positive("redis", &server.url());
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("Redis is there");
    stream.write_all(b"DBSIZE\r\n").expect("it listens");
    let mut keys = String::new();
    BufReader::new(stream).read_line(&mut keys).expect("it answers");
    assert_eq!(keys, ":0\r\n", "keys were left behind");
}

#[cfg(feature = "mqtt")]
#[test]
fn mqtt_is_measured_and_keeps_nothing() {
    use xtask::mosquitto::PrivateMosquitto;
    use xtask::server::StopMode;

    let Some(mut server) = started(PrivateMosquitto::start()) else { return };
    every_figure_is_positive("mqtt", &server.url());
    // Stopped in order, it writes its sessions to a file, with the names of their subscriptions as they are.
    server.restart(StopMode::Fast).expect("Mosquitto starts again");
    let saved = std::fs::read(server.folder().join("data/mosquitto.db")).expect("it has saved its sessions");
    let name = b"oncebox";
    assert!(!saved.windows(name.len()).any(|part| part == name), "sessions were left behind");
}

/// On Tansu, which is built only by `cargo xtask test --all`.
#[cfg(feature = "kafka")]
#[test]
fn kafka_is_measured_and_keeps_nothing() {
    let server = xtask::tansu::PrivateTansu::start();
    let Some(server) = xtask::server::if_installed(server, xtask::steps::ALL_VARIABLE) else { return };
    every_figure_is_positive("kafka", &format!("kafka://{}", server.url()));
    assert_eq!(server.topics().expect("Tansu is there"), [""; 0], "topics were left behind");
}

#[cfg(feature = "kafka")]
#[test]
fn a_kafka_that_is_away_is_named() {
    let error = error_of(&bench("kafka://127.0.0.1:1"));
    assert!(error.contains("Kafka cannot be reached at 127.0.0.1:1"), "{error}");
}

/// One server for both protocols, because it takes long to start.
#[cfg(any(feature = "amqp1", feature = "rabbitmq"))]
#[test]
fn rabbitmq_is_measured_by_both_protocols_and_keeps_nothing() {
    let Some(server) = started(xtask::rabbitmq::PrivateRabbitmq::start()) else { return };
    #[cfg(feature = "rabbitmq")]
    every_figure_is_positive("rabbitmq", &server.url());
    #[cfg(feature = "amqp1")]
    every_figure_is_positive("amqp1", &server.url().replacen("amqp://", "amqp1://", 1));
    let left = server.control(&["list_queues", "--silent", "name"]).expect("RabbitMQ is there");
    assert_eq!(left.trim(), "", "queues were left behind");
}

#[cfg(feature = "nats")]
#[test]
fn a_broker_that_is_away_is_named() {
    // Nobody listens on port 1.
    let error = error_of(&bench("nats://user:secret@127.0.0.1:1"));
    assert!(error.contains("NATS cannot be reached at 127.0.0.1:1"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[cfg(all(feature = "amqp1", feature = "mqtt", feature = "redis"))]
#[test]
fn each_broker_that_is_away_is_named_without_its_password() {
    for scheme in ["redis", "mqtt", "amqp1"] {
        let error = error_of(&bench(&format!("{scheme}://user:secret@127.0.0.1:1")));
        assert!(error.contains("cannot be reached at 127.0.0.1:1"), "{scheme}: {error}");
        assert!(!error.contains("secret"), "{scheme}: {error}");
    }
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
