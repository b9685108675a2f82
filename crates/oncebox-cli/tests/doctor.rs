//! `oncebox doctor`: each finding of the command itself, made and found; what a store finds is tested with the stores.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use oncebox_testkit::until;
use serde_json::Value;
use support::{Place, text};

fn doctor(place: &Place, arguments: &[&str]) -> Output {
    place.command(&[&["doctor"], arguments].concat()).stdin(Stdio::null()).output().unwrap()
}

/// The findings with their severities, and whether all is good.
fn findings(place: &Place) -> (Vec<(String, String)>, bool) {
    let output = doctor(place, &["--json"]);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let good = report["good"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!good)));
    let word = |one: &Value, name: &str| {
        assert!(!one["remedy"].as_str().unwrap().is_empty());
        one[name].as_str().unwrap().to_owned()
    };
    let all =
        report["findings"].as_array().unwrap().iter().map(|one| (word(one, "code"), word(one, "severity")));
    (all.collect(), good)
}

fn has(found: &[(String, String)], code: &str, severity: &str) -> bool {
    found.iter().any(|(own, how)| own == code && how == severity)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_service_is_found() {
    let place = Place::new(
        "[source.default]\ntype = \"http\"\n[handler.view]\non = [\"page.*\"]\nsql = \"select :id\"\n",
    );
    let service = place.serve(&[]);
    assert_eq!(service.send("m1", "page.viewed", "x").await.status, 202);
    until("it is done", || async { text(&place.run(&["show", "m1"]).stdout).contains("view: done") }).await;
    let (found, good) = findings(&place);
    assert!(good && has(&found, "no-token", "note"), "{found:?}");
    let output = doctor(&place, &["--store", "sqlite:oncebox.db"]);
    assert_eq!(text(&output.stdout), "nothing is wrong\n");

    assert_eq!(service.send("m2", "nobody.wants", "x").await.status, 202);
    assert!(place.run(&["pause", "--source", "default"]).status.success());
    assert!(place.run(&["pause", "--source", "elsewhere"]).status.success());
    until("the counters are written", || async { has(&findings(&place).0, "unrouted", "warning") }).await;
    let (found, good) = findings(&place);
    assert!(
        !good && has(&found, "source-paused", "warning") && has(&found, "source-paused", "note"),
        "{found:?}"
    );
    assert!(
        found.windows(2).all(|pair| pair[0].1 != "note" || pair[1].1 == "note"),
        "worst first: {found:?}"
    );
    service.stop();

    // The same store with a configuration that has forgotten a handler.
    let path = place.path().join("oncebox.toml");
    std::fs::write(&path, "[handler.other]\non = [\"page.*\"]\nsql = \"select :id\"\n").unwrap();
    let (found, _) = findings(&place);
    assert!(has(&found, "handler-unknown", "note"), "{found:?}");
    let mut send = place.command(&["send", "page.viewed", "--id", "m3"]);
    assert!(send.stdin(Stdio::null()).status().unwrap().success());
    let (found, _) = findings(&place);
    assert!(has(&found, "handler-unknown", "warning"), "{found:?}");

    std::fs::write(&path, "[http]\ntoken = \"canary-0123456789-0123456789\"\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let (found, good) = findings(&place);
    assert!(!good && has(&found, "config-readable", "fault") && found[0].0 == "config-readable", "{found:?}");
    assert!(
        has(&found, "handler-unknown", "warning") && !has(&found, "no-token", "note"),
        "the rest is examined too"
    );
    let output = doctor(&place, &[]);
    assert!(
        text(&output.stdout).contains("chmod 600 oncebox.toml") && !text(&output.stdout).contains("canary")
    );

    std::fs::write(&path, "[http]\nlisten = \"0.0.0.0:8420\"\n").unwrap();
    let (found, good) = findings(&place);
    assert!(!good && found == [("config-invalid".to_owned(), "fault".to_owned())], "{found:?}");
    assert!(text(&doctor(&place, &[]).stdout).contains("`token` in [http] is required"));
}

#[test]
fn what_cannot_be_examined_is_an_error() {
    let place = Place::empty();
    for (arguments, expected) in [
        (&[][..], "there is no file `oncebox.db`"),
        (&["--config", "none.toml"][..], "cannot be read"),
        (&["--store", "sqlite:a.db", "--config", "none.toml"][..], "cannot be used with"),
    ] {
        let output = doctor(&place, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
}
