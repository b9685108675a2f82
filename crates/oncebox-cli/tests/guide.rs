//! The guide to the API: its commands run as they stand there, and its table has every operation.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use oncebox_testkit::until;
use support::{Place, text};

const GUIDE: &str = include_str!("../../../guides/api.md");
const DESCRIPTION: &str = include_str!("../../oncebox-server/openapi.json");

#[test]
fn the_table_of_the_guide_has_every_operation_and_its_role() {
    let rows = GUIDE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let operation = cells.next()?.trim_end_matches('`').to_owned();
        operation.contains(" /").then_some((operation, cells.next()?.to_owned()))
    });
    let document: serde_json::Value = serde_json::from_str(DESCRIPTION).unwrap();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(path) = path.strip_prefix("/api/v1") else { continue };
        for (method, operation) in item.as_object().unwrap() {
            let role = operation["security"][0]["token"][0].as_str().unwrap();
            described.insert((format!("{} {path}", method.to_uppercase()), role.to_owned()));
        }
    }
    assert_eq!(rows.collect::<BTreeSet<_>>(), described);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_guide_run_as_they_stand_there() {
    let place = Place::new(
        "[handler.charge-card]\non = [\"order.*\"]\nsql = \"select no_such_timeout(:id)\"\nmax_attempts = 1\n",
    );
    let service = place.serve(&[]);
    let message = [("webhook-id", "order/7"), ("x-kind", "order.placed"), ("x-tenant", "acme")];
    assert_eq!(service.post("/in/default", &message, r#"{"customer":{"id":7}}"#).await.status, 202);
    until("it is dead", || async {
        let page = service.get("/api/v1/deliveries?state=dead").await.json();
        page["deliveries"].as_array().unwrap().len() == 1
    })
    .await;
    let blocks = GUIDE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let script = blocks.collect::<Vec<_>>().concat().replace("127.0.0.1:8420", &service.address.to_string());
    // The service hears of the token within a second or so; until then, everybody may ask.
    let script = script.replace(
        "ask \"$api/status\"",
        "while curl -sf \"$api/status\"; do sleep 0.1; done\nask \"$api/status\"",
    );
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_oncebox"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["60", "bash", "-euxo", "pipefail", "-c", &script])
        .env("PATH", path)
        .current_dir(place.path())
        .output()
        .unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", text(&output.stderr));
    for expected in ["no_such_timeout", "order/7", "\"matched\":1", "\"cancel-replay\"", "\"actor\":\"desk\""]
    {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}
