//! The configurations in the guides to brokers are read by the service as they stand there.

#![cfg(all(
    feature = "rabbitmq",
    feature = "kafka-tls",
    feature = "nats",
    feature = "redis",
    feature = "mqtt",
    feature = "amqp1"
))]
#![allow(clippy::unwrap_used)]

use std::path::Path;

use oncebox_server::Config;

fn blocks(guide: &str) -> Vec<String> {
    let after = guide.split("```toml\n").skip(1);
    after.map(|text| text.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_configurations_in_the_guides_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guides/brokers");
    let mut read = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let guide = std::fs::read_to_string(&path).unwrap();
        // Later blocks go on where the first one ends.
        let text = blocks(&guide).concat();
        assert!(text.contains("[source.orders]") && text.contains("[sink.events]"), "{name}: {text}");
        let config = Config::parse(&name, &text, &|_| Some("from-the-environment".to_owned()));
        let config = config.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((config.sources.len(), config.sinks.len()), (1, 1), "{name}");
        read += 1;
    }
    assert_eq!(read, 6);
}

#[test]
fn a_mistake_in_the_section_of_a_broker_has_its_place_and_the_nearest_word() {
    for (line, expected) in [
        ("quue = \"orders\"", "x.toml:4:1: unknown key `quue` in [source.a]; did you mean `queue`?"),
        ("prefetch = \"canary\"", "x.toml:4:1: `prefetch`: it must be u16"),
        ("heartbeat = 5", "x.toml:4:1: `heartbeat`: it must be"),
        ("id = \"heder:x\"", "is no place to read from"),
        ("declare = \"quorom\"", "x.toml:4:1: `declare`"),
        ("password = \"${NOT_SET}\"", "the environment variable `NOT_SET` is not set"),
    ] {
        let text =
            format!("[source.a]\ntype = \"rabbitmq\"\nurl = \"amqp://localhost\"\n{line}\nqueue = \"q\"\n");
        let error = Config::parse("x.toml", &text, &|_| None).unwrap_err();
        let told: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|told| told.contains(expected)), "{line}: {told:?}");
        assert!(!told.iter().any(|told| told.contains("canary\", expected")), "{told:?}");
    }
}
