//! The files in `deploy/`: what they name exists, in the binary and on `/metrics` of a running service.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use oncebox_testkit::until;
use serde_json::Value;
use support::receiver::{Receiver, status};
use support::{Place, not_run, text};

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(deploy(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Labels that Prometheus adds, or the format itself.
const FOREIGN: &[&str] = &["instance", "job", "le"];

/// Every metric in an expression, with the labels it is selected by, and every label it is grouped by.
fn named(expression: &str) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let (mut metrics, mut groups) = (Vec::new(), Vec::new());
    let mut rest = expression;
    while let Some(start) = rest.find("oncebox_") {
        let name: String = rest[start..].chars().take_while(|character| is_name(*character)).collect();
        rest = &rest[start + name.len()..];
        let selected =
            rest.strip_prefix('{').and_then(|inside| inside.split_once('}')).map(|(inside, _)| inside);
        let labels = selected
            .into_iter()
            .flat_map(|inside| inside.split("\","))
            .map(|pair| pair.trim().chars().take_while(|character| is_name(*character)).collect());
        metrics.push((name, labels.collect()));
    }
    for word in ["by (", "on ("] {
        for piece in expression.split(word).skip(1) {
            let list = piece.split(')').next().unwrap();
            groups.extend(list.split(',').map(|label| label.trim().to_owned()));
        }
    }
    (metrics, groups)
}

fn dashboard_expressions() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                object.iter().for_each(|(key, value)| match (key.as_str(), value.as_str()) {
                    ("expr", Some(text)) => found.push(text.to_owned()),
                    _ => collect(value, found),
                })
            }
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&read("grafana-dashboard.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let mut found: Vec<String> = Vec::new();
    for query in variables.iter().filter_map(|variable| variable["query"].as_str()) {
        // `label_values(metric, label)` asks for a metric grouped by a label.
        if let Some((metric, label)) =
            query.strip_prefix("label_values(").and_then(|rest| rest.split_once(", "))
        {
            found.push(format!("{metric} by ({label}"));
        }
    }
    collect(&dashboard["panels"], &mut found);
    assert!(found.len() > 20, "{found:?}");
    found
}

fn alert_expressions() -> Vec<String> {
    let rules = read("prometheus-alerts.yml");
    let value = |line: &str, key: &str| {
        line.trim().trim_start_matches("- ").strip_prefix(key).map(|rest| rest.trim().to_owned())
    };
    let of = |key: &str| rules.lines().filter_map(|line| value(line, key)).collect::<Vec<_>>();
    let alerts = of("alert:");
    // Each has everything that the person who is woken needs.
    for key in ["expr:", "for:", "severity:", "summary:", "description:"] {
        assert_eq!(of(key).len(), alerts.len(), "{key}");
    }
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len(), "{alerts:?}");
    let guide = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../guides/operations.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for alert in &alerts {
        assert!(
            guide.contains(&format!("`{alert}`")),
            "guides/operations.md does not say what to do about {alert}"
        );
    }
    of("expr:").iter().map(|text| text.trim_matches(['"', '\'']).replace("\\\"", "\"")).collect()
}

/// The families of `/metrics`, and the labels that the samples of each name have.
fn printed(metrics: &str) -> (BTreeSet<String>, BTreeMap<String, BTreeSet<String>>) {
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let own = labels.entry(name.to_owned()).or_default();
        if line.contains('{') {
            own.extend(rest.split("\",").filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned())));
        }
    }
    (families.map(str::to_owned).collect(), labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboard_and_alerts_name_what_the_service_prints_and_all_of_it() {
    let receiver = Receiver::start(|_, _| status("200 OK", "", "")).await;
    let place = Place::new(&format!(
        "[handler.sql]\non = [\"*\"]\nsql = \"select :id\"\n[handler.post]\non = [\"*\"]\nhttp = \"{0}\"\n\
         [handler.forward]\non = [\"*\"]\nsink = \"out\"\n[handler.bad]\non = [\"*\"]\nsql = \"select no_such_function()\"\n\
         [sink.out]\ntype = \"http\"\nurl = \"{0}\"\n{1}",
        receiver.url(),
        if cfg!(feature = "nats") {
            "[source.default]\ntype = \"http\"\n[source.broker]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nstream = \"S\"\nconsumer = \"c\"\n"
        } else {
            ""
        }
    ));
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    until("there has been some traffic", || async {
        let text = service.get("/metrics").await.body;
        ["done_total{handler=\"forward\"} 1", "sent_total{sink=\"out\"} 1", "failed_total{handler=\"bad\"} 1"]
            .iter()
            .all(|line| text.contains(&format!("oncebox_{line}\n")))
    })
    .await;
    let metrics = service.get("/metrics").await.body;
    service.stop();
    let (families, labels) = printed(&metrics);
    let family_of = |name: &str| {
        let short = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        [Some(name), short].into_iter().flatten().find(|name| families.contains(*name)).map(str::to_owned)
    };
    let mut used = BTreeSet::new();
    for (is_alert, expression) in dashboard_expressions()
        .into_iter()
        .map(|expression| (false, expression))
        .chain(alert_expressions().into_iter().map(|expression| (true, expression)))
    {
        let (metrics, groups) = named(&expression);
        assert!(!metrics.is_empty(), "{expression}");
        for (name, selected) in metrics {
            let family = family_of(&name).unwrap_or_else(|| panic!("{name} is not printed: {expression}"));
            if !is_alert {
                used.insert(family);
            }
            // A source on a broker has samples only in builds with one.
            let Some(known) = labels.get(&name) else {
                assert!(name.starts_with("oncebox_source_"), "{name} has no samples");
                continue;
            };
            for label in selected.iter().chain(&groups).filter(|label| !FOREIGN.contains(&label.as_str())) {
                assert!(known.contains(label), "{name} has no label `{label}`: {expression}");
            }
        }
    }
    let missing: Vec<&String> = families.difference(&used).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
    // And the guide explains each.
    let guide = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../guides/operations.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for family in &families {
        assert!(guide.contains(&format!("`{family}`")), "guides/operations.md does not explain {family}");
    }
}

/// The unit with the binary that was just built.
#[test]
fn the_unit_is_valid_and_hardened() {
    let unit = read("oncebox.service");
    for line in [
        "Type=exec",
        "DynamicUser=yes",
        "StateDirectory=oncebox",
        "Restart=on-failure",
        "NoNewPrivileges=yes",
    ] {
        assert!(unit.lines().any(|own| own == line), "{line}");
    }
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/oncebox ")).unwrap();
    let command = start.split(' ').next().unwrap();
    let help = Command::new(env!("CARGO_BIN_EXE_oncebox")).args([command, "--help"]).output().unwrap();
    for option in start.split(' ').filter(|word| word.starts_with("--")) {
        assert!(text(&help.stdout).contains(option), "`oncebox {command}` has no {option}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncebox.service");
    std::fs::write(&path, unit.replace("/usr/local/bin/oncebox", env!("CARGO_BIN_EXE_oncebox"))).unwrap();
    let analyze = |arguments: &[&str]| Command::new("systemd-analyze").args(arguments).arg(&path).output();
    match analyze(&["verify", "--man=no"]) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            not_run("the check of the unit", "systemd")
        }
        verified => {
            let verified = verified.unwrap();
            assert!(verified.status.success() && verified.stderr.is_empty(), "{}", text(&verified.stderr));
            let judged = analyze(&["security", "--offline=true", "--threshold=20"]).unwrap();
            assert!(judged.status.success(), "{}{}", text(&judged.stdout), text(&judged.stderr));
        }
    }
}

#[test]
fn the_image_is_built_from_what_is_there_and_runs_as_nobody_special() {
    let file = read("Dockerfile");
    let of = |word: &str| {
        let lines =
            file.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned));
        lines.collect::<Vec<_>>()
    };
    let user = of("USER");
    assert!(user.last().is_some_and(|user| user != "0" && user != "root"), "{user:?}");
    for image in of("FROM") {
        let image = image.split(' ').next().unwrap();
        assert!(!image.contains('/') && !image.contains("latest") && image.contains(':'), "{image}");
    }
    let cargo =
        std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let feature = file.split("--features ").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(cargo.contains(&format!("\n{feature} = [")), "{feature}");
    let rust = std::fs::read_to_string(deploy("../Cargo.toml")).unwrap();
    let version = rust.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(
        file.contains(&format!("FROM rust:{version}-")),
        "the compiler is at least the one that is needed"
    );
    assert_eq!(of("EXPOSE"), ["8420"]);
    assert_eq!(of("ENTRYPOINT"), ["[\"oncebox\"]"]);
}
