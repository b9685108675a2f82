//! Answers are bounded, in bytes as well as in number, and one row that cannot be read takes no others with it.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;

use oncebox_testkit::until;
use serde_json::{Value, json};
use support::{Place, Service, receiver::Receiver, text};

const DEAD: &str = "[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n";

fn list<'a>(page: &'a Value, name: &str) -> &'a Vec<Value> {
    page[name].as_array().unwrap()
}

/// How many entries each page has, following `next`.
async fn pages(service: &Service, path: &str, name: &str, cursor: &str) -> Vec<usize> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let answer = service.get(&format!("/api/v1/{path}{next}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let page = answer.json();
        all.push(list(&page, name).len());
        next = match &page["next"] {
            Value::Null => return all,
            Value::String(text) => format!("&{cursor}={text}"),
            number => format!("&{cursor}={number}"),
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_payloads_ends_early_and_says_where_to_go_on() {
    let place = Place::new(DEAD);
    let service = place.serve(&[]);
    for fill in ["a", "b"] {
        let body = fill.repeat(1024 * 1024);
        for number in 0..10 {
            let answer = service.send(&format!("m{number}"), "order.placed", &body).await;
            assert_eq!(answer.status, if fill == "a" { 202 } else { 422 }, "{}", answer.body);
        }
    }
    until("all are dead", || async { list_dead(&place) == 10 }).await;
    assert_eq!(pages(&service, "deliveries?state=dead", "deliveries", "after").await, [8, 2]);
    assert_eq!(pages(&service, "messages?limit=1000", "messages", "cursor").await, [8, 2]);
    assert_eq!(pages(&service, "conflicts?limit=1000", "conflicts", "cursor").await, [8, 2]);
    let first = service.get("/api/v1/duplicates").await.json();
    assert!(list(&first, "conflicts").len() == 8 && first["next"].is_string());
    let rest = service.get(&format!("/api/v1/conflicts?cursor={}", first["next"].as_str().unwrap())).await;
    assert_eq!(list(&rest.json(), "conflicts").len(), 2);
    // The commands go on by themselves.
    let server = format!("http://{}", service.address);
    let listed = place.run(&["list", "--json", "--server", &server]);
    assert_eq!(text(&listed.stdout).lines().count(), 10, "{}", text(&listed.stderr));
    let mut many = vec!["discard", "--reason", "large", "--server", &server];
    let ids: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    many.extend(ids.iter().map(String::as_str));
    let discarded = place.command(&many).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&discarded.stdout), "discarded 10\n", "{}", text(&discarded.stderr));
}

fn list_dead(place: &Place) -> usize {
    text(&place.run(&["list", "--state", "dead", "--json"]).stdout).lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_at_most_a_hundred_conflicts_in_an_answer_unless_more_are_asked_for() {
    let place = Place::new("");
    let service = place.serve(&[]);
    for fill in ["a", "b"] {
        let line =
            |number: usize| json!({ "id": format!("m{number}"), "kind": "k", "payload": fill }).to_string();
        let lines: Vec<String> = (0..101).map(line).collect();
        let headers = [("content-type", "application/x-ndjson")];
        assert_eq!(service.post("/in/default", &headers, lines.join("\n")).await.status, 207);
    }
    assert_eq!(pages(&service, "conflicts?", "conflicts", "cursor").await, [100, 1]);
    assert_eq!(
        pages(&service, "conflicts?limit=7", "conflicts", "cursor").await,
        [[7; 14].as_slice(), &[3]].concat()
    );
    assert_eq!(pages(&service, "conflicts?limit=1000", "conflicts", "cursor").await, [101]);
    assert_eq!(list(&service.get("/api/v1/duplicates").await.json(), "conflicts").len(), 100);
    let wrong = service.get("/api/v1/conflicts?cursor=AAAA").await;
    assert!(wrong.status == 400 && wrong.body.contains("what `next` said"), "{}", wrong.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_another_version_is_shown_and_the_others_go_on() {
    let place = Place::new(DEAD);
    let service = place.serve(&[]);
    assert_eq!(service.send("m1", "order.placed", "{}").await.status, 202);
    until("it is dead", || async { list_dead(&place) == 1 }).await;
    let pool = place.open().await;
    let sql = "insert into oncebox_replay (filter, rate, actor, state, matched, replayed, started_at, position, upto, paid_at)
        values ('{\"colour\":\"red\"}', null, 'ann', 0, 7, 0, 0, 0, 100, 0)";
    sqlx::query(sql).execute(&pool).await.unwrap();
    let started = service.ask("POST", "/api/v1/replays", Some(&json!({ "all": true }))).await;
    assert_eq!(started.status, 201, "{}", started.body);
    let id = started.json()["replay"].as_i64().unwrap();
    until("the other one is done", || async {
        service.get(&format!("/api/v1/replays/{id}")).await.json()["state"] == "done"
    })
    .await;
    let all = service.get("/api/v1/replays").await;
    assert_eq!(all.status, 200, "{}", all.body);
    let strange =
        list(&all.json(), "replays").iter().find(|one| one["state"] == "unreadable").cloned().unwrap();
    assert_eq!((&strange["actor"], &strange["matched"]), (&json!("ann"), &json!(7)));
    until("it is said once", || async {
        service.log().matches("another version wrote this replay").count() == 1
    })
    .await;
    let number = strange["replay"].as_i64().unwrap();
    let cancelled = service.ask("POST", &format!("/api/v1/replays/{number}/cancel"), None).await;
    assert_eq!((cancelled.status, &cancelled.json()["state"]), (200, &json!("cancelled")));
}

#[tokio::test(flavor = "multi_thread")]
async fn why_an_outgoing_message_is_dead_is_told() {
    let receiver = Receiver::always("400 Bad Request\r\ncontent-length: 8\r\n\r\nnot this").await;
    let place = Place::new(&format!(
        "[handler.forward]\non = [\"*\"]\nsink = \"events\"\n[sink.events]\ntype = \"http\"\nurl = \"{}\"\n",
        receiver.url()
    ));
    let service = place.serve(&[]);
    assert_eq!(service.send("m1", "order.placed", "{}").await.status, 202);
    until("it is dead", || async {
        list(&service.get("/api/v1/outbox?state=dead").await.json(), "messages").len() == 1
    })
    .await;
    let page = service.get("/api/v1/outbox?sink=events").await.json();
    let one = &page["messages"][0];
    assert_eq!((&one["state"], &one["attempts"], &one["due_at"]), (&json!("dead"), &json!(1), &Value::Null));
    assert!(one["error"].as_str().unwrap().contains("400"), "{one}");
    assert_eq!((&page["outbox"][0]["dead"], &page["next"]), (&json!(1), &Value::Null));
    assert_eq!(list(&service.get("/api/v1/outbox?state=waiting").await.json(), "messages").len(), 0);
    let wrong = service.get("/api/v1/outbox?state=ded").await;
    assert!(wrong.status == 400 && wrong.body.contains("did you mean `dead`?"), "{}", wrong.body);

    let server = format!("http://{}", service.address);
    let (direct, through) = (place.run(&["outbox"]), place.run(&["outbox", "--server", &server]));
    assert_eq!(text(&direct.stdout), text(&through.stdout));
    assert!(
        text(&direct.stdout).contains("400") && text(&direct.stdout).contains("dead"),
        "{}",
        text(&direct.stdout)
    );
    let nothing = place.run(&["outbox", "--state", "waiting"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", text(&nothing.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_says_what_the_doctor_finds() {
    let place = Place::new(DEAD);
    let service = place.serve(&[]);
    assert_eq!(service.send("m1", "order.placed", "{}").await.status, 202);
    until("it is dead", || async { list_dead(&place) == 1 }).await;
    let found = service.get("/api/v1/findings").await;
    assert_eq!(found.status, 200, "{}", found.body);
    let found = found.json();
    let codes: Vec<&str> = list(&found, "findings").iter().map(|one| one["code"].as_str().unwrap()).collect();
    assert_eq!((codes, &found["good"]), (vec!["dead-letters", "no-token"], &json!(false)));
    let server = format!("http://{}", service.address);
    let (direct, through) =
        (place.run(&["doctor", "--json"]), place.run(&["doctor", "--json", "--server", &server]));
    assert_eq!(text(&direct.stdout), text(&through.stdout), "{}", text(&through.stderr));
    assert_eq!((direct.status.code(), through.status.code()), (Some(1), Some(1)));
    service.stop();
    let away = place.run(&["doctor", "--server", &server]);
    assert!(
        away.status.code() == Some(2) && text(&away.stderr).contains("is it running"),
        "{}",
        text(&away.stderr)
    );
    let twice = place.run(&["doctor", "--server", &server, "--config", "oncebox.toml"]);
    assert_eq!(twice.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_puts_into_a_store_is_counted() {
    let place = Place::new("");
    let service = place.serve(&[]);
    service.stop();
    for (body, word) in [("a", "new"), ("a", "duplicate"), ("b", "conflict")] {
        let file = place.path().join(body);
        std::fs::write(&file, body).unwrap();
        let sent = place.run(&["send", "order.placed", file.to_str().unwrap(), "--id", "m1"]);
        assert!(text(&sent.stdout).contains(word), "{}", text(&sent.stderr));
    }
    let status = text(&place.run(&["status"]).stdout);
    assert!(status.starts_with("received 1, duplicates 1, conflicts 1, unrouted 0\n"), "{status}");
}
