//! `GET /api/v1/events`: what it tells, to how many, and that it ends when it must.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Connection, DEADLINE, Place, Service};

/// Opens the stream.
async fn listen(service: &Service, token: &str) -> Connection {
    let mut connection = service.connect().await;
    let authorization = format!("authorization: Bearer {token}\r\n");
    connection.send("GET", "/api/v1/events", &authorization, b"").await;
    assert_eq!(connection.status().await, 200);
    connection
}

/// The data of the next event of this name for which `is_it` says yes; `None` at the end of the stream.
async fn event(connection: &mut Connection, name: &str, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    // A stream that stays open has something to say every ten seconds, so a line alone is no sign of the right one.
    let found = tokio::time::timeout(DEADLINE, find(connection, name, is_it)).await;
    found.unwrap_or_else(|_| panic!("waited {DEADLINE:?} in vain for an event `{name}`, or for the end"))
}

async fn find(connection: &mut Connection, name: &str, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    let mut current = String::new();
    loop {
        let mut line = String::new();
        if !connection.line(&mut line).await {
            return None;
        }
        if let Some(word) = line.strip_prefix("event: ") {
            current = word.trim().to_owned();
        }
        if let Some(data) = line.strip_prefix("data: ").filter(|_| current == name) {
            let data: Value = serde_json::from_str(data).unwrap();
            if is_it(&data) {
                return Some(data);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_is_told_as_it_changes() {
    let place =
        Place::new("[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n");
    let service = place.serve(&[]);
    let mut stream = listen(&service, "none").await;
    let first = event(&mut stream, "status", |_| true).await.unwrap();
    assert_eq!(first["handlers"][0]["handler"], "charge");
    // The second one says that the service has begun to look.
    event(&mut stream, "status", |_| true).await.unwrap();
    service.send("m1", "order.placed", "{}").await;
    let failed = event(&mut stream, "status", |status| status["handlers"][0]["dead"] == 1).await;
    assert!(failed.is_some());
    service.ask("POST", "/api/v1/handlers/charge/pause", None).await;
    let paused = event(&mut stream, "handler", |_| true).await.unwrap();
    assert_eq!(paused, json!({ "handler": "charge", "paused": true }));
    service.ask("POST", "/api/v1/sources/default/pause", None).await;
    let source = event(&mut stream, "source", |_| true).await.unwrap();
    assert_eq!((&source["source"], &source["paused"]), (&json!("default"), &json!(true)));
    service.ask("POST", "/api/v1/replays", Some(&json!({ "all": true }))).await;
    let replay = event(&mut stream, "replay", |replay| replay["state"] == "done").await.unwrap();
    assert_eq!(replay["replayed"], 1);
    service.ask("POST", "/api/v1/handlers/charge/resume", None).await;
    let entry = event(&mut stream, "audit", |entry| entry["action"] == "resume").await.unwrap();
    assert_eq!(entry["target"], "charge");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_is_revoked_and_when_the_service_stops() {
    let place = Place::new("[run]\nshutdown = \"50s\"\n");
    let mut service = place.serve(&[]);
    let made = service.ask("POST", "/api/v1/tokens", Some(&json!({ "name": "boss", "role": "admin" }))).await;
    let boss = made.json()["token"].as_str().unwrap().to_owned();
    let reader = json!({ "name": "reader", "role": "read" });
    let made = service.ask_as(&boss, "POST", "/api/v1/tokens", Some(&reader)).await;
    let reader = made.json()["token"].as_str().unwrap().to_owned();
    let mut other = listen(&service, &boss).await;
    // The second one says that the service has begun to look: what was there before is not told.
    for _ in 0..2 {
        event(&mut other, "status", |_| true).await.unwrap();
    }
    let mut one = listen(&service, &reader).await;
    assert_eq!(service.ask_as(&boss, "DELETE", "/api/v1/tokens/reader", None).await.status, 204);
    assert_eq!(event(&mut one, "never", |_| true).await, None, "the stream of the revoked token has ended");
    event(&mut other, "audit", |entry| entry["action"] == "revoke-token").await.unwrap();

    let asked_at = std::time::Instant::now();
    service.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(event(&mut other, "never", |_| true).await, None);
    assert!(service.ended().success(), "{}", service.log());
    assert!(asked_at.elapsed() < std::time::Duration::from_secs(20), "nobody waited for the listener");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_listeners() {
    let place = Place::new("");
    let service = place.serve(&[]);
    let mut all = Vec::new();
    for _ in 0..64 {
        all.push(listen(&service, "none").await);
    }
    let refused = service.get("/api/v1/events").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.body);
    all.pop();
    oncebox_testkit::until("a place is free", || async {
        service.head("GET", "/api/v1/events", &[], b"").await == 200
    })
    .await;
}

/// Each of them would keep its place until the service stops.
#[tokio::test(flavor = "multi_thread")]
async fn listeners_that_never_read_are_ended_and_their_places_are_free() {
    // A status of many bytes, so that what the system keeps for them is soon full.
    let kinds: Vec<String> = (0..150).map(|number| format!("\"{number:03}-{}\"", "k".repeat(200))).collect();
    let place = Place::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\nwrite_timeout = \"2s\"\n\
         [handler.charge]\non = [{}]\nsql = \"select :id\"\n",
        kinds.join(", ")
    ));
    let service = place.serve(&[]);
    let mut all = Vec::new();
    for _ in 0..64 {
        let mut listener = service.connect_narrow().await;
        listener.send("GET", "/api/v1/events", "", b"").await;
        assert_eq!(listener.status().await, 200, "the last thing that is read");
        all.push(listener);
    }
    let place_left = async || service.head("GET", "/api/v1/events", &[], b"").await == 200;
    assert!(!place_left().await, "all places are taken");
    let mut paused = false;
    oncebox_testkit::until("a place is free", || {
        paused = !paused;
        let path = format!("/api/v1/handlers/charge/{}", if paused { "pause" } else { "resume" });
        let (service, place_left) = (&service, &place_left);
        async move {
            let changed = service.ask("POST", &path, None).await;
            assert_eq!(changed.status, 200, "{}", changed.body);
            place_left().await
        }
    })
    .await;
    drop(all);
}
