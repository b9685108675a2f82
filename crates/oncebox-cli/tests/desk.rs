//! The commands through a service say and do the same as on its store; messages are found whatever became of them; replays
//! can be stopped.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Child, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oncebox_testkit::until;
use serde_json::Value;
use support::{Place, Service, text};

const CONFIG: &str = "[source.default]\ntype = \"http\"\nkeep_headers = [\"x-tenant\"]\n[source.shop]\ntype = \"http\"\n\
    [handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n\
    [handler.view]\non = [\"page.*\"]\nsql = \"select :id\"\n";

fn run(place: &Place, arguments: &[&str]) -> Output {
    place.command(arguments).stdin(Stdio::null()).output().unwrap()
}

fn json(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let output = run(place, arguments);
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn shown(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// The last line that says where to go on.
fn go_on(output: &Output) -> String {
    text(&output.stderr).lines().last().unwrap().split(' ').next_back().unwrap().to_owned()
}

async fn dead_letters(place: &Place, service: &Service, count: usize) {
    for number in 0..count {
        let answer = service.send(&format!("m{number}"), "order.placed", "{\"a\":1}").await;
        assert!(answer.status == 202, "{}", answer.body);
    }
    until("all are dead", || async { json(place, &["list", "--state", "dead", "--json"]).len() == count })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_says_and_does_the_same_as_its_store() {
    let place = Place::new(CONFIG);
    let service = place.serve(&[]);
    let server = format!("http://{}", service.address);
    dead_letters(&place, &service, 5).await;
    let through = |arguments: &[&str]| run(&place, &[arguments, &["--server", &server]].concat());

    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["list", "--state", "dead", "--since", "1h", "--error", "no_such"],
        &["list", "--json", "--handler", "charge", "--kind", "order.placed", "--limit", "3"],
        &["list", "--state", "held"],
        &["search", "--kind", "order.*", "--payload", "/a=1"],
        &["search", "--json", "--scope", "default"],
        &["show", "m1"],
        &["show", "m1", "--json", "--scope", "default"],
        &["show", "m1", "--raw"],
        &["show", "nobody"],
        &["replay", "--handler", "charge", "--dry-run"],
        &["replay", "--state", "held"],
        &["pause", "nobody"],
    ] {
        until(&format!("{arguments:?} says the same"), || async {
            let (own, served) = (run(&place, arguments), through(arguments));
            (own.status.code(), shown(&own)) == (served.status.code(), shown(&served))
        })
        .await;
    }

    assert_eq!(text(&through(&["pause", "charge"]).stdout), "paused charge\n");
    assert_eq!(json(&place, &["status", "--json"])[0]["handlers"][0]["paused"], true);
    let output = through(&["discard", "m0", "--reason", "a test"]);
    assert_eq!(text(&output.stdout), "discarded 1\n", "{}", shown(&output));
    let output = through(&["replay", "--state", "dead", "--yes", "--rate", "100/s"]);
    assert_eq!(text(&output.stdout), "replayed 4\n", "{}", shown(&output));
    assert_eq!(text(&through(&["resume", "charge"]).stdout), "resumed charge\n");
    assert_eq!(text(&through(&["pause", "shop", "--source"]).stdout), "paused shop\n");
    let output = through(&["send", "page.viewed", "--id", "s1", "--source", "shop"]);
    assert!(shown(&output).contains("paused"), "{}", shown(&output));
    assert_eq!(text(&run(&place, &["resume", "shop", "--source"]).stdout), "resumed shop\n");
    until("the source goes on", || async {
        through(&["send", "page.viewed", "--id", "s1", "--key", "k", "--source", "shop"]).status.success()
    })
    .await;
    let file = place.path().join("body");
    std::fs::write(&file, b"\xff\x00").unwrap();
    let send = ["send", "page.viewed", "body", "--id", "s2", "--key", "k", "--source", "shop"];
    let words = [through(&send), run(&place, &send)].map(|output| text(&output.stdout));
    assert!(words[0].contains("new") && words[1].contains("duplicate"), "{words:?}");
    std::fs::write(&file, "other").unwrap();
    let output = through(&send);
    assert!(output.status.code() == Some(1) && shown(&output).contains("conflict"), "{}", shown(&output));
    assert_eq!(run(&place, &["show", "s2", "--raw"]).stdout, b"\xff\x00");

    let audit = through(&["audit", "--json"]);
    let actions: Vec<(String, bool)> = text(&audit.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|one| (one["action"].as_str().unwrap().to_owned(), one["actor"].as_str().unwrap().contains('@')))
        .collect();
    // What the command does on the store itself is by a user, what it asks of the service by whoever the service knows.
    let expected = [
        ("send", true),
        ("resume", true),
        ("pause", false),
        ("resume", false),
        ("replay", false),
        ("discard", false),
        ("pause", false),
    ];
    assert_eq!(actions, expected.map(|(action, user)| (action.to_owned(), user)));
    assert_eq!(shown(&audit), shown(&run(&place, &["audit", "--json"])));
    let page = run(&place, &["audit", "--limit", "2"]);
    let rest = json(&place, &["audit", "--json", "--before", &go_on(&page)]);
    assert_eq!(rest.len(), expected.len() - 2, "{}", shown(&page));
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_service_refuses_is_said_with_the_remedy() {
    const TOKEN: &str = "canary-0123456789-0123456789";
    let place = Place::new("[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"canary-0123456789-0123456789\"\n");
    let service = place.serve(&[]);
    let server = format!("http://{}", service.address);
    let made = run(&place, &["token", "create", "desk", "--role", "read"]);
    let read = text(&made.stdout).trim().to_owned();
    let ask = |token: Option<&str>, arguments: &[&str]| {
        let mut command = place.command(&[arguments, &["--server", &server]].concat());
        command.env_remove("ONCEBOX_TOKEN").envs(token.map(|token| ("ONCEBOX_TOKEN", token)));
        command.stdin(Stdio::null()).output().unwrap()
    };
    until("the token is known", || async { ask(Some(&read), &["status"]).status.success() }).await;
    assert!(ask(Some(TOKEN), &["status"]).status.success());
    assert!(ask(None, &["status", "--token", TOKEN]).status.success());
    for (token, arguments, expected) in [
        (None, &["status"][..], "put one into ONCEBOX_TOKEN"),
        (Some("wrong"), &["status"][..], "wrong, was revoked or has expired"),
        (Some("canary\nline"), &["status"][..], "check ONCEBOX_TOKEN"),
        (Some(&read[..]), &["pause", "charge"][..], "role operate or admin"),
        (Some(&read[..]), &["send", "a.b"][..], "role ingest or admin"),
        (Some(TOKEN), &["send", "a.b", "--source", "other"][..], "no http source `other`"),
        (Some(TOKEN), &["status", "--store", "sqlite:oncebox.db"][..], "leave one of them out"),
    ] {
        let output = ask(token, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", shown(&output));
        assert!(shown(&output).contains(expected), "{arguments:?}: {}", shown(&output));
        assert!(!shown(&output).contains("canary") && !shown(&output).contains(&read), "{}", shown(&output));
    }
    let metrics = format!("{server}/health");
    for (server, expected) in [
        ("http://127.0.0.1:1", "is it running"),
        ("127.0.0.1:8420", "write it as in"),
        ("ftp://127.0.0.1", "write it as in"),
        ("http://name:secret@127.0.0.1:1", "a token with ONCEBOX_TOKEN"),
        (metrics.as_str(), "check `--server`"),
    ] {
        let output = run(&place, &["status", "--server", server]);
        assert_eq!(output.status.code(), Some(2), "{server}: {}", shown(&output));
        assert!(
            shown(&output).contains(expected) && !shown(&output).contains("secret"),
            "{}",
            shown(&output)
        );
    }
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_is_shown_whatever_became_of_it() {
    let place = Place::new(CONFIG);
    let service = place.serve(&[]);
    let tenant = [("webhook-id", "done"), ("x-kind", "page.viewed"), ("x-tenant", "acme")];
    service.post("/in/default", &tenant, "{\"n\":{\"m\":7}}").await;
    service.post("/in/default", &tenant, "other\u{1b}[2J").await;
    service.send("dead", "order.placed", "\u{1b}[2J").await;
    service.send("unwanted", "other.kind", "x").await;
    let is = |id: &str, word: &str| shown(&run(&place, &["show", id])).contains(word);
    until("one is done, one is dead", || async {
        is("done", "handler   view: done") && is("dead", "handler   charge: dead")
    })
    .await;
    assert!(is("done", "header    x-tenant: acme") && is("done", "with other bytes: other\\u{1b}[2J"));
    assert!(is("dead", "payload   \\u{1b}[2J") && is("unwanted", "none wants this kind"));
    assert_eq!(run(&place, &["show", "dead", "--raw"]).stdout, b"\x1b[2J");
    assert_eq!(json(&place, &["show", "done", "--json"])[0]["conflicts"][0]["payload"], "other\u{1b}[2J");

    run(&place, &["pause", "view"]);
    for (id, path) in [("late", "/in/default"), ("twice", "/in/default"), ("twice", "/in/shop")] {
        let headers = [("webhook-id", id), ("x-kind", "page.viewed")];
        assert_eq!(service.post(path, &headers, path).await.status, 202);
    }
    assert!(is("late", "handler   view: waiting"), "{}", shown(&run(&place, &["show", "late"])));
    let output = run(&place, &["show", "twice"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(shown(&output).contains("--scope default") && shown(&output).contains("--scope shop"));
    assert_eq!(run(&place, &["show", "twice", "--scope", "shop", "--raw"]).stdout, b"/in/shop");
    run(&place, &["resume", "view"]);
    until("all are done", || async { is("late", "view: done") }).await;

    let found = |arguments: &[&str]| -> Vec<String> {
        let all = json(&place, &[&["search", "--json"], arguments].concat());
        all.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(found(&["--header", "X-Tenant=acme"]), ["done"]);
    assert_eq!(found(&["--header", "x-tenant", "--payload", "/n/m=7"]), ["done"]);
    assert_eq!(found(&["--id", "twice", "--scope", "shop"]), ["twice"]);
    assert_eq!(found(&["--until", "1h"]), [""; 0]);
    assert_eq!(found(&["--since", "1h", "--kind", "page.*"]).len(), 4);
    let everything = found(&[]);
    let page = run(&place, &["search", "--limit", "2"]);
    assert_eq!(everything[2..], found(&["--cursor", &go_on(&page)]), "{}", shown(&page));
    let page = run(&place, &["search", "--limit", "2", "--server", &format!("http://{}", service.address)]);
    let server = format!("http://{}", service.address);
    assert_eq!(everything[2..], found(&["--cursor", &go_on(&page), "--server", &server]), "{}", shown(&page));

    let purge = |more: &[&str]| run(&place, &[&["purge", "--keep-payload", "0s"], more].concat());
    let foretold = text(&purge(&["--dry-run"]).stdout);
    assert_eq!(foretold, "would remove 0 ids, 6 messages, 0 other rows\n");
    let output = purge(&[]);
    assert_eq!(output.status.code(), Some(1), "nobody was there to agree: {}", shown(&output));
    assert!(is("done", "x-tenant"), "nothing was changed");
    assert_eq!(text(&purge(&["--yes"]).stdout), foretold.replace("would remove", "removed"));
    assert!(is("done", "purged, or handled inline"), "{}", shown(&run(&place, &["show", "done"])));
    assert!(is("dead", "payload   \\u{1b}[2J"), "a dead letter keeps its message");
    assert_eq!(run(&place, &["show", "done", "--raw"]).status.code(), Some(1));
    assert_eq!(json(&place, &["audit", "--json", "--limit", "1"])[0]["action"], "purge");
    service.stop();
}

fn interrupted(mut child: Child) -> Output {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    child.wait().unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_a_replay() {
    let place = Place::new(CONFIG);
    let service = place.serve(&[]);
    dead_letters(&place, &service, 30).await;
    run(&place, &["pause", "charge"]);
    let server = format!("http://{}", service.address);
    let dead = || json(&place, &["list", "--state", "dead", "--json"]).len();
    for target in [&["--server", &server][..], &["--store", "sqlite:oncebox.db"][..]] {
        let before = dead();
        let arguments = [&["replay", "--state", "dead", "--yes", "--rate", "1/s"], target].concat();
        let mut command = place.command(&arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        until("it has begun", || async { dead() < before }).await;
        let output = interrupted(child);
        assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
        assert!(text(&output.stderr).contains("is cancelled"), "{}", shown(&output));
        let after = dead();
        assert!(
            after > 0 && text(&output.stdout) == format!("replayed {}\n", before - after),
            "{}",
            shown(&output)
        );
        assert_eq!(json(&place, &["audit", "--json", "--limit", "1"])[0]["action"], "cancel-replay");
    }
    service.stop();
}
