//! `GET /api/v1/…`: what it tells, to whom.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use serde_json::{Value, json};
use support::Place;

const TOKEN: &str = "canary-0123456789-0123456789";

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
    assert_eq!(service.get("/api/v1/nothing").await.status, 404);
    assert_eq!(service.post("/api/v1/status", &[], "").await.status, 405);
}

/// Security rule 15: every place, with the token, with another one, with none.
#[tokio::test(flavor = "multi_thread")]
async fn rule_15_every_place_of_the_api_wants_the_token() {
    let place = Place::new("[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"${ONCEBOX_TOKEN}\"\n")
        .variable("ONCEBOX_TOKEN", TOKEN);
    let service = place.serve(&[]);
    for path in ["status", "handlers", "deliveries", "outbox", "conflicts", "sources", "sinks"] {
        let ask = async |value: Option<&str>| {
            let headers: Vec<(&str, &str)> = value.iter().map(|value| ("authorization", *value)).collect();
            service.request("GET", &format!("/api/v1/{path}"), &headers, b"").await.unwrap().status
        };
        assert_eq!(ask(None).await, 401, "{path}");
        assert_eq!(ask(Some("Bearer canary-0123456789-0123456780")).await, 401, "{path}");
        assert_eq!(ask(Some(&format!("Bearer {TOKEN}"))).await, 200, "{path}");
    }
}

/// Security rule 16.
#[tokio::test(flavor = "multi_thread")]
async fn rule_16_a_web_page_can_neither_post_nor_read() {
    let place = Place::new("");
    let service = place.serve(&[]);
    for headers in [[("origin", "https://evil.example")], [("sec-fetch-site", "cross-site")]] {
        let message = [("webhook-id", "1"), ("x-kind", "k"), headers[0]];
        assert_eq!(service.post("/in/default", &message, "x").await.status, 403);
        assert_eq!(service.request("GET", "/api/v1/status", &headers, b"").await.unwrap().status, 403);
    }
    assert_eq!(service.send("1", "k", "x").await.status, 202);
}
