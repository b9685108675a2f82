//! Which crate may depend on which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::Problem;
use super::tree::Tree;
use crate::cargo::array;

const CORE: &str = "oncebox-core";
const TESTKIT: &str = "oncebox-testkit";

/// Databases, brokers and HTTP, which the core knows nothing of; `*` stands for any ending.
const NOT_IN_CORE: &[&str] = &[
    "sqlx*",
    "libsqlite3-sys",
    "rusqlite",
    "tokio-postgres",
    "postgres",
    "mysql*",
    "diesel",
    "sea-orm",
    "lapin",
    "amqprs",
    "rdkafka*",
    "rskafka",
    "async-nats",
    "nats",
    "redis",
    "fred",
    "rumqttc*",
    "paho-mqtt",
    "fe2o3*",
    "axum*",
    "actix-web",
    "hyper*",
    "reqwest",
    "ureq",
    "tower-http",
    "warp",
    "http",
];

/// Stores, sources and sinks: each is used without the others.
const DRIVERS: &[&str] = &[
    "oncebox-sqlite",
    "oncebox-postgres",
    "oncebox-mariadb",
    "oncebox-rabbitmq",
    "oncebox-kafka",
    "oncebox-nats",
    "oncebox-redis",
    "oncebox-mqtt",
    "oncebox-amqp1",
    "oncebox-http",
];

/// Who may use the test kit outside tests.
const TESTKIT_USERS: &[&str] =
    &["oncebox-examples", "oncebox-cli", "oncebox-bench", "oncebox-chaos", "xtask"];

/// The packages and their normal dependencies: not those of tests and build scripts.
#[derive(Debug, Default)]
pub(super) struct Graph {
    members: Vec<Member>,
    /// The names a package's code is linked with, by package id; ids, because a name can occur in two versions.
    edges: BTreeMap<String, Vec<String>>,
    names: BTreeMap<String, String>,
}

/// A package of this workspace and what its manifest asks for.
#[derive(Debug)]
struct Member {
    id: String,
    name: String,
    manifest: String,
    dependencies: Vec<String>,
}

impl Graph {
    /// Takes the graph from the output of `cargo metadata`.
    pub(super) fn from_metadata(metadata: &Value, root: &Path) -> Self {
        let mut graph = Self::default();
        let members: BTreeSet<&str> =
            array(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
        for package in array(&metadata["packages"]) {
            let (id, name) = (text(&package["id"]), text(&package["name"]));
            if members.contains(id.as_str()) {
                let dependencies = array(&package["dependencies"])
                    .filter(|dependency| dependency["kind"].is_null())
                    .map(|dependency| text(&dependency["name"]))
                    .collect();
                let manifest = text(&package["manifest_path"]);
                let manifest = Path::new(&manifest)
                    .strip_prefix(root)
                    .map_or(manifest.clone(), |path| path.display().to_string());
                graph.members.push(Member { id: id.clone(), name: name.clone(), manifest, dependencies });
            }
            graph.names.insert(id, name);
        }
        for node in array(&metadata["resolve"]["nodes"]) {
            let normal = array(&node["deps"])
                .filter(|dependency| array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null()))
                .map(|dependency| text(&dependency["pkg"]));
            graph.edges.insert(text(&node["id"]), normal.collect());
        }
        graph
    }

    /// Each package that `member` is linked with, and the chain of names that leads to it.
    fn reachable(&self, member: &Member) -> BTreeMap<&str, Vec<&str>> {
        let mut chains: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut open: Vec<(&str, Vec<&str>)> = vec![(&member.id, Vec::new())];
        while let Some((id, chain)) = open.pop() {
            for next in self.edges.get(id).into_iter().flatten() {
                if chains.contains_key(next.as_str()) {
                    continue;
                }
                let name = self.names.get(next).map_or(next.as_str(), String::as_str);
                let chain: Vec<&str> = chain.iter().copied().chain([name]).collect();
                chains.insert(next, chain.clone());
                open.push((next, chain));
            }
        }
        chains
    }
}

pub(super) fn check(graph: &Graph, tree: &Tree) -> Vec<Problem> {
    let core = graph.members.iter().filter(|member| member.name == CORE);
    let mut problems: Vec<Problem> = core.flat_map(|core| check_core(graph, tree, core)).collect();
    for member in &graph.members {
        for dependency in &member.dependencies {
            let is_driver = |name: &String| DRIVERS.contains(&name.as_str());
            if is_driver(&member.name) && is_driver(dependency) {
                let what = format!("the driver {} depends on the driver {dependency}", member.name);
                problems.push(problem(tree, member, dependency, what, "move what they share to the core"));
            }
            if dependency == TESTKIT && !TESTKIT_USERS.contains(&member.name.as_str()) {
                let what = format!("{} depends on {TESTKIT} outside its tests", member.name);
                problems.push(problem(tree, member, dependency, what, "make it a dev-dependency"));
            }
        }
    }
    problems
}

fn check_core(graph: &Graph, tree: &Tree, core: &Member) -> Vec<Problem> {
    let reachable = graph.reachable(core);
    let denied = reachable.values().filter(|chain| {
        let name = chain.last().copied().unwrap_or_default();
        NOT_IN_CORE.iter().any(|pattern| matches(pattern, name))
    });
    let problems = denied.map(|chain| {
        let what = format!("the core depends on a database, broker or HTTP crate: {}", chain.join(" → "));
        let first = chain.first().copied().unwrap_or_default();
        problem(tree, core, first, what, "put what needs it into a driver")
    });
    problems.collect()
}

fn problem(tree: &Tree, member: &Member, dependency: &str, what: String, remedy: &str) -> Problem {
    let manifest = tree.text(&member.manifest).unwrap_or_default();
    let named = manifest.lines().position(|line| {
        let name = line.trim_start().trim_start_matches('"').strip_prefix(dependency);
        name.is_some_and(|rest| rest.starts_with(['.', ' ', '=', '"']))
    });
    Problem {
        file: member.manifest.clone(),
        line: named.map_or(1, |at| at + 1),
        what,
        remedy: remedy.to_owned(),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `(package, dependency, kind)`; the packages called `oncebox…` are the workspace's own.
    fn graph(edges: &[(&str, &str, Option<&str>)]) -> Graph {
        let names: BTreeSet<&str> = edges.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        let of = |name: &str| edges.iter().filter(|(from, ..)| *from == name).copied().collect::<Vec<_>>();
        let packages: Vec<Value> = names
            .iter()
            .map(|name| {
                let declared: Vec<Value> =
                    of(name).iter().map(|(_, to, kind)| json!({ "name": to, "kind": kind })).collect();
                let manifest = format!("/repo/crates/{name}/Cargo.toml");
                json!({ "id": format!("id {name}"), "name": name, "manifest_path": manifest, "dependencies": declared })
            })
            .collect();
        let nodes: Vec<Value> = names
            .iter()
            .map(|name| {
                let deps: Vec<Value> = of(name)
                    .iter()
                    .map(
                        |(_, to, kind)| json!({ "pkg": format!("id {to}"), "dep_kinds": [{ "kind": kind }] }),
                    )
                    .collect();
                json!({ "id": format!("id {name}"), "deps": deps })
            })
            .collect();
        let members: Vec<String> = names
            .iter()
            .filter(|name| name.starts_with("oncebox"))
            .map(|name| format!("id {name}"))
            .collect();
        let metadata = json!({
            "packages": packages, "workspace_members": members, "resolve": { "nodes": nodes },
        });
        Graph::from_metadata(&metadata, Path::new("/repo"))
    }

    fn found(edges: &[(&str, &str, Option<&str>)]) -> Vec<String> {
        let manifest = "[dependencies]\nserde.workspace = true\ntelemetry = \"1\"\n";
        let tree = Tree::from([("crates/oncebox-core/Cargo.toml", manifest)]);
        check(&graph(edges), &tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_database_crate_below_the_core_is_found() {
        let edges = [
            ("oncebox-core", "telemetry", None),
            ("telemetry", "sqlx-core", None),
            ("sqlx-core", "oh", None),
        ];
        assert_eq!(
            found(&edges),
            ["crates/oncebox-core/Cargo.toml:3: the core depends on a database, broker or HTTP crate: \
              telemetry → sqlx-core; put what needs it into a driver"]
        );
    }

    #[test]
    fn what_only_tests_of_the_core_need_is_not_found() {
        let edges = [
            ("oncebox-core", "reqwest", Some("dev")),
            ("oncebox-core", "serde", None),
            ("serde", "hyper", Some("build")),
            ("oncebox-sqlite", "sqlx", None),
        ];
        assert_eq!(found(&edges), [] as [String; 0]);
    }

    #[test]
    fn a_driver_that_depends_on_a_driver_is_found() {
        let edges =
            [("oncebox-sqlite", "oncebox-postgres", None), ("oncebox-nats", "oncebox-kafka", Some("dev"))];
        assert_eq!(
            found(&edges),
            [
                "crates/oncebox-sqlite/Cargo.toml:1: the driver oncebox-sqlite depends on the driver oncebox-postgres; \
              move what they share to the core"
            ]
        );
    }

    #[test]
    fn the_test_kit_outside_tests_is_found() {
        let edges = [
            ("oncebox", "oncebox-testkit", None),
            ("oncebox-sqlite", "oncebox-testkit", Some("dev")),
            ("oncebox-examples", "oncebox-testkit", None),
        ];
        assert_eq!(
            found(&edges),
            ["crates/oncebox/Cargo.toml:1: oncebox depends on oncebox-testkit outside its tests; \
              make it a dev-dependency"]
        );
    }
}
