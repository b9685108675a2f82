//! `/api/v1/…`: what it tells and what it changes.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use serde_json::{Value, json};
use support::receiver::{self, Receiver};
use support::{Place, Service};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_tells_what_waits_what_failed_and_why() {
    let place = Place::new(
        "[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n[handler.ok]\non = [\"page\"]\nsql = \"select :id\"\n\
         [sink.events]\ntype = \"http\"\nurl = \"http://127.0.0.1:1/\"\n",
    );
    let service = place.serve(&[]);
    for number in 0..5 {
        service.send(&format!("m{number}"), "order.placed", "{\"a\":1}").await;
    }
    service.send("m0", "order.placed", "other bytes").await;
    let get = async |path: &str| -> Value {
        let answer = service.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    };
    until("all are dead", || async {
        get("/api/v1/deliveries?state=dead").await["deliveries"].as_array().unwrap().len() == 5
    })
    .await;
    let page = get("/api/v1/deliveries?handler=charge&limit=2&kind=order.placed&scope=default").await;
    let first = &page["deliveries"][0];
    assert_eq!(
        (&first["state"], &first["payload"], &first["attempts"]),
        (&json!("dead"), &json!("{\"a\":1}"), &json!(1))
    );
    assert!(first["history"][0]["error"].as_str().unwrap().contains("no_such"), "{first}");
    let mut seen = page["deliveries"].as_array().unwrap().len();
    let mut next = page["next"].clone();
    while let Some(after) = next.as_i64() {
        let page = get(&format!("/api/v1/deliveries?handler=charge&limit=2&after={after}")).await;
        seen += page["deliveries"].as_array().unwrap().len();
        next = page["next"].clone();
    }
    assert_eq!(seen, 5, "pages cover everything once");
    assert_eq!(get("/api/v1/deliveries?id=m3").await["deliveries"].as_array().unwrap().len(), 1);
    let handlers = get("/api/v1/handlers").await;
    let names: Vec<&str> =
        handlers["handlers"].as_array().unwrap().iter().map(|one| one["handler"].as_str().unwrap()).collect();
    assert_eq!(names, ["charge", "ok"]);
    assert_eq!(get("/api/v1/status").await["handlers"][0]["dead"], 5);
    assert_eq!(get("/api/v1/conflicts").await["conflicts"][0]["payload"], "other bytes");
    assert_eq!(get("/api/v1/sources").await["sources"][0]["source"], "default");
    assert_eq!(get("/api/v1/sinks").await["sinks"][0]["sink"], "events");
    assert_eq!(get("/api/v1/outbox").await["outbox"], json!([]));
    let wrong = service.get("/api/v1/deliveries?stat=dead").await;
    assert!(wrong.status == 400 && wrong.body.contains("did you mean `state`?"), "{}", wrong.body);
    let missing = service.get("/api/v1/nothing").await;
    assert!(missing.status == 404 && missing.json()["error"].is_string(), "{}", missing.body);
    let wrong = service.post("/api/v1/status", &[], "").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET,HEAD")), "{}", wrong.body);
    assert!(wrong.json()["error"].is_string());
    // Nothing of it is a page, and no other page may read it.
    let told = service.get("/api/v1/status").await;
    assert_eq!(told.header("x-content-type-options"), Some("nosniff"));
    assert!(told.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
    assert_eq!(told.header("access-control-allow-origin"), None);
    let duplicates = async || get("/api/v1/duplicates").await;
    service.send("m0", "order.placed", "{\"a\":1}").await;
    until("duplicates are counted", || async {
        let counts = duplicates().await["counts"].clone();
        let count = |name: &str| {
            counts.as_array().unwrap().iter().any(|one| one["name"] == name && one["value"] == 1)
        };
        count("duplicate") && count("conflict")
    })
    .await;
    assert_eq!(duplicates().await["conflicts"][0]["payload"], "other bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_can_neither_post_nor_read() {
    let place = Place::new("");
    let service = place.serve(&[]);
    let pause = async |headers: &[(&str, &str)]| {
        service.request("POST", "/api/v1/sources/default/pause", headers, b"").await.unwrap().status
    };
    for headers in [[("origin", "https://evil.example")], [("sec-fetch-site", "cross-site")]] {
        let message = [("webhook-id", "1"), ("x-kind", "k"), headers[0]];
        assert_eq!(service.post("/in/default", &message, "x").await.status, 403);
        assert_eq!(service.request("GET", "/api/v1/status", &headers, b"").await.unwrap().status, 403);
        assert_eq!(pause(&headers).await, 403);
    }
    // What a form can send is never a change.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for path in ["/api/v1/replays", "/api/v1/discards", "/api/v1/tokens"] {
        let answer = service.request("POST", path, &form, b"all=true").await.unwrap();
        assert_eq!(answer.status, 415, "{path}: {}", answer.body);
    }
    for path in ["/api/v1/sources/default/pause", "/api/v1/outbox/events/replay"] {
        assert_eq!(service.get(path).await.status, 405, "no change by GET");
    }
    assert_eq!(service.send("1", "k", "x").await.status, 202);
}

async fn status(service: &Service, method: &str, path: &str, body: Option<Value>) -> u16 {
    service.ask(method, path, body.as_ref()).await.status
}

/// Actions and their targets, oldest first.
async fn audit(service: &Service) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    let mut next = String::new();
    loop {
        let page = service.get(&format!("/api/v1/audit?limit=2{next}")).await.json();
        for entry in page["audit"].as_array().unwrap() {
            assert_eq!(entry["actor"], "loopback");
            entries.push((
                entry["action"].as_str().unwrap().to_owned(),
                entry["target"].as_str().unwrap().to_owned(),
            ));
        }
        let Some(before) = page["next"].as_i64() else { break };
        next = format!("&before={before}");
    }
    entries.reverse();
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_and_sources_are_paused_and_resumed_and_the_audit_log_says_by_whom() {
    let place = Place::new("[handler.ok]\non = [\"page\"]\nsql = \"select :id\"\n");
    let service = place.serve(&[]);
    let handler = async || service.get("/api/v1/handlers").await.json()["handlers"][0].clone();
    assert_eq!(status(&service, "POST", "/api/v1/handlers/ok/pause", None).await, 200);
    assert_eq!(handler().await["paused"], true);
    service.send("1", "page", "x").await;
    until("it waits", || async { handler().await["waiting"] == 1 }).await;
    assert_eq!(status(&service, "POST", "/api/v1/handlers/ok/resume", None).await, 200);
    until("it goes on", || async { handler().await["waiting"] == 0 }).await;
    let unknown = service.ask("POST", "/api/v1/handlers/nobody/pause", None).await;
    assert!(unknown.status == 404 && unknown.body.contains("no handler `nobody`"), "{}", unknown.body);

    assert_eq!(status(&service, "POST", "/api/v1/sources/default/pause", None).await, 200);
    assert_eq!(service.get("/api/v1/sources").await.json()["sources"][0]["paused"], true);
    let refused = service.send("2", "page", "x").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.body);
    assert!(refused.body.contains("paused"));
    // Another process on the same store hears of it, and so does the next start.
    let other = place.serve(&[]);
    assert_eq!(other.send("2", "page", "x").await.status, 503);
    assert_eq!(status(&service, "POST", "/api/v1/sources/default/resume", None).await, 200);
    assert_eq!(service.send("2", "page", "x").await.status, 202, "at once in this process");
    until("the other one goes on", || async { other.send("2", "page", "x").await.status == 200 }).await;
    assert_eq!(status(&service, "POST", "/api/v1/sources/nobody/pause", None).await, 404);

    let expected = [("pause", "ok"), ("resume", "ok"), ("pause", "default"), ("resume", "default")];
    assert_eq!(
        audit(&service).await,
        expected.map(|(action, target)| (action.to_owned(), target.to_owned()))
    );
}

const FAILING: &str =
    "[handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n";

async fn dead(service: &Service, handler: &str) -> usize {
    let page =
        service.get(&format!("/api/v1/deliveries?state=dead&limit=1000&handler={handler}")).await.json();
    page["deliveries"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_replayed_at_a_rate_and_a_replay_can_be_cancelled() {
    let place = Place::new(FAILING);
    let service = place.serve(&[]);
    for number in 0..20 {
        service.send(&format!("m{number}"), "order.placed", "{}").await;
    }
    until("all are dead", || async { dead(&service, "charge").await == 20 }).await;
    assert_eq!(status(&service, "POST", "/api/v1/handlers/charge/pause", None).await, 200);
    let start = async |body: Value| service.ask("POST", "/api/v1/replays", Some(&body)).await;
    for (body, words) in [
        (json!({}), "\"all\\\": true"),
        (json!({ "filter": {} }), "names nothing"),
        (json!({ "filter": { "handler": "charge" }, "all": true }), "two things"),
        (json!({ "filter": { "handlr": "charge" } }), "did you mean `handler`?"),
        (json!({ "all": true, "rate": 0 }), "from 1 to"),
        (json!({ "all": true, "dryrun": true }), "did you mean `dry_run`?"),
        (json!({ "filter": { "deliveries": [] } }), "1 to 1000"),
        (json!([]), "no JSON object"),
    ] {
        let wrong = start(body.clone()).await;
        assert!(wrong.status == 400 && wrong.body.contains(words), "{body}: {}", wrong.body);
    }
    let preview = start(json!({ "filter": { "handler": "charge" }, "dry_run": true })).await;
    assert_eq!((preview.status, preview.json()), (200, json!({ "matched": 20, "matched_is_exact": true })));
    assert_eq!(start(json!({ "filter": { "handler": "x" }, "dry_run": true })).await.json()["matched"], 0);
    assert_eq!(dead(&service, "charge").await, 20, "nothing was changed");

    // One in a second takes long enough to be cancelled.
    let slow = start(json!({ "filter": { "handler": "charge" }, "rate": 1 })).await;
    assert_eq!(slow.status, 201, "{}", slow.body);
    let slow = slow.json();
    assert_eq!(
        (&slow["matched"], &slow["rate"], &slow["actor"]),
        (&json!(20), &json!(1), &json!("loopback"))
    );
    let place_of = format!("/api/v1/replays/{}", slow["replay"]);
    let info = async || service.get(&place_of).await.json();
    until("it has begun", || async { info().await["replayed"].as_u64().unwrap() >= 1 }).await;
    let cancelled = service.ask("POST", &format!("{place_of}/cancel"), None).await;
    assert_eq!(
        (cancelled.status, &cancelled.json()["state"]),
        (200, &json!("cancelled")),
        "{}",
        cancelled.body
    );
    let replayed = info().await["replayed"].as_u64().unwrap();
    assert!(replayed < 20, "{replayed}");
    assert_eq!(dead(&service, "charge").await as u64, 20 - replayed);
    assert!(
        service.get("/api/v1/replays?running=true").await.json()["replays"].as_array().unwrap().is_empty()
    );

    let quick = start(json!({ "all": true })).await.json();
    let place_of = format!("/api/v1/replays/{}", quick["replay"]);
    until("it is done", || async { service.get(&place_of).await.json()["state"] == "done" }).await;
    assert_eq!(service.get(&place_of).await.json()["replayed"], 20 - replayed);
    assert_eq!(dead(&service, "charge").await, 0);
    let all = service.get("/api/v1/replays").await.json();
    assert_eq!(
        (&all["replays"][0]["replay"], all["replays"].as_array().unwrap().len()),
        (&quick["replay"], 2)
    );
    for (method, path) in [("GET", "/api/v1/replays/987"), ("POST", "/api/v1/replays/987/cancel")] {
        assert_eq!(status(&service, method, path, None).await, 404);
    }
    assert_eq!(service.get("/api/v1/replays/x").await.status, 400);
    let actions: Vec<String> =
        audit(&service).await.into_iter().map(|(action, target)| format!("{action} {target}")).collect();
    let expected = [
        "pause charge",
        "replay {\"handler\":\"charge\"}",
        &format!("cancel-replay {}", slow["replay"]),
        "replay {\"all\":true}",
    ];
    assert_eq!(actions, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_discarded_with_a_reason() {
    let place = Place::new(FAILING);
    let service = place.serve(&[]);
    for number in 0..5 {
        service.send(&format!("m{number}"), "order.placed", "{}").await;
    }
    until("all are dead", || async { dead(&service, "charge").await == 5 }).await;
    let discard = async |body: Value| service.ask("POST", "/api/v1/discards", Some(&body)).await;
    for body in [
        json!({ "filter": { "id": "m1" } }),
        json!({ "filter": { "id": "m1" }, "reason": "" }),
        json!({ "reason": "all of them" }),
    ] {
        let wrong = discard(body.clone()).await;
        assert_eq!(wrong.status, 400, "{body}: {}", wrong.body);
    }
    let found = service.get("/api/v1/deliveries?id=m0").await.json()["deliveries"][0]["delivery"].clone();
    let row = json!({ "filter": { "deliveries": [found] }, "reason": "sent by hand" });
    let mut dry = row.clone();
    dry["dry_run"] = json!(true);
    assert_eq!(discard(dry).await.json(), json!({ "matched": 1, "discarded": 0 }));
    assert_eq!(discard(row.clone()).await.json(), json!({ "matched": 1, "discarded": 1 }));
    assert_eq!(discard(row).await.json(), json!({ "matched": 0, "discarded": 0 }), "it is not dead any more");
    let given_up = service.get("/api/v1/deliveries?state=discarded").await.json();
    let history = given_up["deliveries"][0]["history"].as_array().unwrap().clone();
    assert!(history.last().unwrap()["error"].as_str().unwrap().contains("sent by hand"));
    assert_eq!(discard(json!({ "all": true, "reason": "an old test" })).await.json()["discarded"], 4);
    assert_eq!(dead(&service, "charge").await, 0);
    let details =
        service.get("/api/v1/audit").await.json()["audit"][0]["details"].as_str().unwrap().to_owned();
    assert_eq!(
        serde_json::from_str::<Value>(&details).unwrap(),
        json!({ "reason": "an old test", "matched": 4 })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_outgoing_messages_are_sent_again() {
    let receiver = Receiver::start(|_, before| {
        receiver::status(if before == 0 { "400 Bad Request" } else { "200 OK" }, "", "")
    })
    .await;
    let place = Place::new(&format!(
        "[handler.forward]\non = [\"*\"]\nsink = \"events\"\n[sink.events]\ntype = \"http\"\nurl = \"{}\"\nmax_attempts = 1\n",
        receiver.url()
    ));
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    let outbox = async || service.get("/api/v1/outbox").await.json()["outbox"][0].clone();
    until("it was refused", || async { outbox().await["dead"] == 1 }).await;
    let again = service.ask("POST", "/api/v1/outbox/events/replay", None).await;
    assert_eq!(again.json(), json!({ "sink": "events", "replayed": 1 }));
    until("it was sent", || async {
        service.get("/api/v1/outbox").await.json()["outbox"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["waiting"] == 0 && one["dead"] == 0)
    })
    .await;
    assert_eq!(status(&service, "POST", "/api/v1/outbox/nobody/replay", None).await, 404);
}
