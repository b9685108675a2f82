//! The commands of the person on call, on the store itself: what they say, what they change, and how they exit.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Output, Stdio};

use oncebox_testkit::until;
use serde_json::Value;
use support::{Place, not_run, text};

/// Runs a command with `--store` (and `--schema`), feeding it nothing.
struct Desk {
    place: Place,
    target: Vec<String>,
}

impl Desk {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut all: Vec<&str> = arguments.to_vec();
        all.extend(self.target.iter().map(String::as_str));
        self.place.command(&all).stdin(Stdio::null()).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(arguments);
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn shown(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

async fn dead_letters_are_found_replayed_and_discarded(desk: Desk) {
    let service = desk.place.serve(&[]);
    for number in 0..5 {
        assert_eq!(service.send(&format!("m{number}"), "order.placed", "{\"a\":1}").await.status, 202);
    }
    until("all are dead", || async { desk.json(&["list", "--state", "dead", "--json"]).len() == 5 }).await;

    let output = desk.run(&["list", "--handler", "charge", "--kind", "order.placed", "--since", "1h"]);
    assert!(
        output.status.success() && shown(&output).contains("m3") && shown(&output).contains("dead"),
        "{}",
        shown(&output)
    );
    for nothing in [
        ["--kind", "x"],
        ["--key", "x"],
        ["--error", "never heard of"],
        ["--state", "held"],
        ["--scope", "x"],
    ] {
        let output = desk.run(&[&["list"], &nothing[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{nothing:?}: {}", shown(&output));
        assert!(shown(&output).contains("see `oncebox search`"), "{nothing:?}: {}", shown(&output));
    }
    for misspelt in [
        &["list", "--handler", "chrage"][..],
        &["replay", "--handler", "chrage", "--yes"][..],
        &["discard", "--handler", "chrage", "--reason", "a test", "--yes"][..],
        &["pause", "chrage"][..],
        &["resume", "chrage"][..],
    ] {
        let output = desk.run(misspelt);
        assert_eq!(output.status.code(), Some(1), "{misspelt:?}: {}", shown(&output));
        let told = "the store knows no handler `chrage`; it knows: charge\n";
        assert!(shown(&output).contains(told), "{misspelt:?}: {}", shown(&output));
    }
    let output = desk.run(&["show", "m1"]);
    for word in ["m1 in default", "handler   charge: dead, 1 attempt", "{\"a\":1}", "failed  1", "no_such"] {
        assert!(shown(&output).contains(word), "{word}: {}", shown(&output));
    }
    assert_eq!(desk.json(&["show", "m1", "--json"])[0]["message"]["payload"], "{\"a\":1}");
    assert_eq!(desk.run(&["show", "nobody"]).status.code(), Some(1));
    let status = &desk.json(&["status", "--json"])[0];
    assert_eq!(
        (&status["handlers"][0]["dead"], &status["handlers"][0]["handler"]),
        (&Value::from(5), &Value::from("charge"))
    );
    assert!(shown(&desk.run(&["status"])).contains("charge"));

    let output = desk.run(&["discard", "m0", "--reason", "a test"]);
    assert_eq!(text(&output.stdout), "discarded 1\n", "{}", shown(&output));
    assert_eq!(
        desk.json(&["list", "--state", "discarded", "--json"])[0]["history"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["error"]
            .as_str()
            .map(|error| error.contains("a test")),
        Some(true)
    );
    let output = desk.run(&["replay", "--handler", "charge", "--dry-run"]);
    assert!(output.status.success() && shown(&output).contains("4 dead letters"), "{}", shown(&output));
    let output = desk.run(&["replay", "--handler", "charge"]);
    assert_eq!(output.status.code(), Some(1), "nobody was there to agree: {}", shown(&output));
    assert!(shown(&output).contains("--yes"), "{}", shown(&output));
    assert_eq!(desk.run(&["replay"]).status.code(), Some(2), "everything is never meant by accident");
    assert_eq!(desk.run(&["replay", "--state", "held"]).status.code(), Some(2));
    assert_eq!(desk.json(&["list", "--state", "dead", "--json"]).len(), 4);

    let output = desk.run(&["pause", "charge"]);
    assert_eq!(text(&output.stdout), "paused charge\n", "{}", shown(&output));
    assert_eq!(desk.json(&["status", "--json"])[0]["handlers"][0]["paused"], true);
    let output = desk.run(&["replay", "--state", "dead", "--yes", "--rate", "3/s"]);
    assert_eq!(text(&output.stdout), "replayed 4\n", "{}", shown(&output));
    assert_eq!(desk.json(&["list", "--state", "dead", "--json"]).len(), 0);
    let output = desk.run(&["replay", "m1"]);
    assert_eq!(output.status.code(), Some(1), "it is not dead now");
    assert!(shown(&output).contains("`m1` has no such dead letter"), "{}", shown(&output));
    let output = desk.run(&["resume", "charge"]);
    assert_eq!(text(&output.stdout), "resumed charge\n");
    until("they have failed once more", || async {
        desk.json(&["list", "--state", "dead", "--json"]).len() == 4
    })
    .await;
    let output = desk.run(&["pause", "nobody", "--source"]);
    assert_eq!(text(&output.stdout), "paused nobody\n");
    assert!(text(&output.stderr).contains("whether there is a source `nobody`"), "{}", shown(&output));
    let output = desk.run(&["audit", "--before", "1"]);
    assert!(shown(&output).contains("nothing was changed before entry 1"), "{}", shown(&output));

    let file = desk.place.path().join("body.json");
    std::fs::write(&file, "{}").unwrap();
    let send =
        ["send", "page.viewed", file.to_str().unwrap(), "--id", "s1", "--key", "k", "--source", "shop"];
    assert_eq!(desk.json(&send)[0]["status"], "new");
    assert_eq!(desk.json(&send)[0]["status"], "duplicate");
    std::fs::write(&file, "{ }").unwrap();
    assert_eq!(
        (desk.run(&send).status.code(), &desk.json(&send)[0]["status"]),
        (Some(1), &Value::from("conflict"))
    );
    let output = desk.run(&["purge", "--keep", "1d", "--keep-payload", "1d"]);
    assert_eq!(text(&output.stdout), "removed 0 ids, 0 messages, 0 other rows\n", "{}", shown(&output));
    service.stop();
}

fn config(store: &str) -> String {
    format!(
        "[store]\n{store}\n[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_found_replayed_and_discarded_on_sqlite() {
    let place = Place::new(&config("url = \"sqlite:shop.db\""));
    dead_letters_are_found_replayed_and_discarded(Desk {
        place,
        target: vec!["--store".to_owned(), "sqlite:shop.db".to_owned()],
    })
    .await;
}

async fn on_server(url: String) {
    let schema = format!("desk_{:016x}", oncebox::clock::Seed::from_system().next());
    let place = Place::new(&config(&format!("url = \"{url}\"\nschema = \"{schema}\"")));
    let target = vec!["--store".to_owned(), url.clone(), "--schema".to_owned(), schema.clone()];
    dead_letters_are_found_replayed_and_discarded(Desk { place, target }).await;
    if url.starts_with("postgres") {
        let pool = sqlx::PgPool::connect(&url).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("drop schema {schema} cascade")))
            .execute(&pool)
            .await
            .unwrap();
    } else {
        let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("drop database {schema}"))).execute(&pool).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_found_replayed_and_discarded_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else { return not_run("the commands", "Postgres") };
    on_server(url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_found_replayed_and_discarded_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else { return not_run("the commands", "MariaDB") };
    on_server(url).await;
}

#[test]
fn wrong_arguments_name_the_thing_and_the_remedy() {
    let place = Place::empty();
    std::fs::write(place.path().join("notes.txt"), "these are notes, and this is no database of anybody's")
        .unwrap();
    std::fs::create_dir(place.path().join("folder")).unwrap();
    for (arguments, expected) in [
        (&["status"][..], "there is no file `oncebox.db`; name the store with `--store"),
        (&["migrate", "status"][..], "there is no file `oncebox.db`; `oncebox migrate up` makes it"),
        (&["list", "--store", "oracle:x"][..], "begins with `oracle:`; use `sqlite:FILE`"),
        (&["list", "--store", "notes.txt"][..], "does not begin with the name of a store; use `sqlite:FILE`"),
        (&["list", "--store", "sqlite:notes.txt"][..], "`notes.txt` cannot be opened"),
        (&["doctor", "--store", "sqlite:folder"][..], "`folder` is a folder"),
        (&["migrate", "--store", "sqlite:none/x.db"][..], "a folder that you may write to"),
        (&["send", "order.placed", "none.json", "--store", "sqlite:new.db"][..], "there is no file `new.db`"),
        (&["man", "notes.txt"][..], "the pages cannot be written to `notes.txt`"),
        (&["list", "--state", "deaf"][..], "use one of waiting"),
        (&["list", "--since", "5x"][..], "as in 1h"),
        (&["replay", "--rate", "0"][..], "as in 100/s"),
        (&["discard", "m1"][..], "--reason"),
        (
            &["status", "--store", "postgres://user:secret@127.0.0.1:1/db"][..],
            "Postgres at 127.0.0.1:1 cannot be",
        ),
        (&["migrate", "--store", "postgres://user:secret@127.0.0.1:1/db"][..], "Connection refused"),
        (
            &["status", "--store", "mysql://user:secret@127.0.0.1:1/db"][..],
            "MariaDB at 127.0.0.1:1 cannot be",
        ),
        (
            &["status", "--store", "postgres://user:secret@"][..],
            "write it as in postgres://user@host/database",
        ),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", shown(&output));
        assert!(shown(&output).contains(expected), "{arguments:?}: {}", shown(&output));
        assert!(!shown(&output).contains("secret"));
    }
    assert!(!place.database().exists(), "looking makes nothing");
}

#[test]
fn a_store_tells_what_it_cannot_do_and_the_remedy() {
    let place = Place::empty();
    assert!(place.run(&["migrate"]).status.success());
    for (arguments, expected) in [
        (&["list", "--schema", "other_"][..], "`--schema` names others"),
        (&["list", "--since", "1h", "--until", "2h"][..], "swap them"),
        (&["search", "--since", "1h", "--until", "2h"][..], "swap them"),
        (&["send", "order.placed", "none.json"][..], "`none.json` cannot be read"),
        (&["token", "create", "desk", "--role", "read", "--expires-in", "0s"][..], "at least a second"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", shown(&output));
        assert!(shown(&output).contains(expected), "{arguments:?}: {}", shown(&output));
    }
    let output = place.run(&["token", "revoke", "desk"]);
    assert!(output.status.code() == Some(1) && shown(&output).contains("see `oncebox token list`"));
    assert!(text(&place.run(&["--help"]).stdout).starts_with("Makes each message count"));
}
