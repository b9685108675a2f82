//! What scripts and shells see: JSON that is JSON, no escape codes in a pipe, completions, pages for `man`.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Stdio};

use oncebox_testkit::until;
use serde_json::Value;
use support::{Place, text};

#[tokio::test(flavor = "multi_thread")]
async fn every_reading_command_prints_json_and_no_escape_codes_into_a_pipe() {
    let place =
        Place::new("[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n");
    let service = place.serve(&[]);
    service.send("m1", "order.placed", "\u{1b}[31m").await;
    assert!(place.run(&["pause", "charge"]).status.success());
    assert!(place.run(&["resume", "charge"]).status.success());
    until("it is dead", || async { text(&place.run(&["show", "m1"]).stdout).contains("dead") }).await;
    assert!(place.run(&["token", "create", "desk", "--role", "read"]).status.success());
    for arguments in [
        &["status"][..],
        &["list"],
        &["search"],
        &["show", "m1"],
        &["audit"],
        &["token", "list"],
        &["doctor"],
        &["check"],
        &["migrate", "status"],
    ] {
        let plain = place.run(arguments);
        assert!(!plain.stdout.is_empty(), "{arguments:?}: {}", text(&plain.stderr));
        let output = place.run(&[arguments, &["--json"]].concat());
        assert!(!output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stderr));
        for line in text(&output.stdout).lines() {
            assert!(
                serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()),
                "{arguments:?}: {line}"
            );
        }
        for stdout in [plain.stdout, output.stdout] {
            assert!(!stdout.contains(&0x1b), "{arguments:?}");
        }
    }
    service.stop();
}

#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    let place = Place::empty();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = place.run(&["completions", shell]);
        let script = text(&output.stdout);
        assert!(output.status.success() && script.contains("replay") && script.contains("doctor"), "{shell}");
        assert!(!script.contains("demo-runner"), "{shell}: what is hidden is left out");
    }
    let script = text(&place.run(&["completions", "bash"]).stdout);
    let asked =
        "COMP_WORDS=(oncebox doc); COMP_CWORD=1; _oncebox oncebox doc oncebox; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["-c", &format!("{script}\n{asked}")]).stdin(Stdio::null()).output();
    let bash = bash.unwrap();
    assert_eq!(text(&bash.stdout), "doctor\n", "{}", text(&bash.stderr));
}

#[test]
fn there_is_a_page_for_every_command() {
    let place = Place::empty();
    let page = text(&place.run(&["man"]).stdout);
    assert!(page.contains(".TH oncebox 1") && page.contains("doctor") && !page.contains("demo-runner"));
    assert!(place.run(&["man", "pages/man1"]).status.success());
    let has = |name: &str| place.path().join("pages/man1").join(name).exists();
    for name in ["oncebox.1", "oncebox-replay.1", "oncebox-doctor.1", "oncebox-token-create.1"] {
        assert!(has(name), "{name}");
    }
    assert!(!has("oncebox-demo-runner.1"));

    const GUIDE: &str = include_str!("../../../guides/cli.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("oncebox\\-")?.strip_suffix("(1)"));
    let commands: Vec<&str> = commands.filter(|name| *name != "help").collect();
    assert!(commands.len() > 15, "{commands:?}");
    for name in commands {
        assert!(GUIDE.contains(&format!("| `oncebox {name}` |")), "the guide's table has no {name}");
    }
}
