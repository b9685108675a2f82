//! `GET /api/v1/messages`: finding what was received, and seeing what became of it, on every store.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use serde_json::{Value, json};
use support::{Place, Service, not_run};

fn config(store: &str) -> String {
    format!(
        "[store]\n{store}\n[source.default]\ntype = \"http\"\nkey = \"header:x-key\"\n\
         [handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n\
         [handler.ok]\non = [\"*\"]\nsql = \"select :id\"\n"
    )
}

/// A text as a part of an address.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn post(service: &Service, id: &str, kind: &str, key: &str, body: &str) {
    let headers =
        [("x-kind", kind), ("x-key", key), ("x-tenant", "acme"), ("content-type", "application/x-ndjson")];
    let line = json!({ "id": id, "kind": kind, "key": key, "headers": { "x-tenant": key }, "payload": serde_json::from_str::<Value>(body).unwrap() });
    let answer = service.post("/in/default", &headers, line.to_string()).await;
    assert_eq!((answer.status, answer.word()), (207, "new".to_owned()), "{}", answer.body);
}

const IDS: &[&str] = &[
    "plain",
    "with/slash",
    "a b",
    "é",
    "x?y#z&=%",
    "..",
    "quote'\"",
    "\u{1b}[2J",
    "emoji 🎉",
    "back\\slash",
];

async fn messages_are_found_and_told(place: Place) {
    let service = place.serve(&[]);
    for (number, id) in IDS.iter().enumerate() {
        let kind = if number % 2 == 0 { "order.placed" } else { "page.viewed" };
        let body = json!({ "customer": { "id": number }, "name": id }).to_string();
        post(&service, id, kind, &format!("k{}", number % 3), &body).await;
    }
    let get = async |path: &str| -> Value {
        let answer = service.get(&format!("/api/v1/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    };
    let done = async |id: &str, wanted: Value| {
        let path = format!("messages/default/{}", encoded(id));
        until("every handler is done with it", || async {
            let states: Vec<Value> = get(&path).await["handlers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["state"].clone())
                .collect();
            json!(states) == wanted
        })
        .await;
    };
    for (number, id) in IDS.iter().enumerate() {
        done(id, if number % 2 == 0 { json!(["dead", "done"]) } else { json!(["done"]) }).await;
        let whole = get(&format!("messages/default/{}", encoded(id))).await;
        assert_eq!(
            (&whole["id"], &whole["message"]["id"], &whole["scope"]),
            (&json!(id), &json!(id), &json!("default"))
        );
        if number % 2 == 0 {
            let charge = &whole["handlers"][0];
            assert!(charge["history"][0]["error"].as_str().unwrap().contains("no_such"), "{charge}");
            assert!(charge["delivery"].is_i64() && charge["attempts"] == 1, "{charge}");
        }
    }
    assert_eq!(service.get("/api/v1/messages/default/nobody").await.status, 404);
    assert_eq!(service.get("/api/v1/messages/other/plain").await.status, 404);
    assert_eq!(service.get("/api/v1/messages/default/%FF").await.status, 400);
    assert_eq!(service.get("/api/v1/messages/default/%00").await.status, 404);

    let found = async |query: &str| -> Vec<String> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = get(&format!("messages?{query}{cursor}")).await;
            ids.extend(
                page["messages"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()),
            );
            let Some(next) = page["next"].as_str() else { return ids };
            cursor = format!("&cursor={next}");
        }
    };
    let mut newest_first: Vec<String> = IDS.iter().map(|id| (*id).to_owned()).collect();
    newest_first.reverse();
    assert_eq!(found("").await, newest_first);
    assert_eq!(found("limit=3").await, newest_first, "pages cover everything once");
    assert_eq!(found(&format!("id={}", encoded("x?y#z&=%"))).await, ["x?y#z&=%"]);
    assert_eq!(found("kind=page.viewed").await.len(), 5);
    assert_eq!(found("kind=order.*&limit=2").await.len(), 5);
    assert_eq!(found("key=k1").await, ["\u{1b}[2J", "x?y#z&=%", "with/slash"]);
    assert_eq!(found("header=X-Tenant:k1").await.len(), 3);
    assert_eq!(found("header=x-nobody").await.len(), 0);
    assert_eq!(found("payload=/customer/id=4").await, ["x?y#z&=%"]);
    assert_eq!(found(&format!("payload={}", encoded("/name=with/slash"))).await, ["with/slash"]);
    assert_eq!(found("scope=other").await.len(), 0);
    assert_eq!(found("since=2000-01-01T00:00:00Z&until=2100-01-01T00:00:00Z").await.len(), 10);
    assert_eq!(found("until=2000-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(found("since=0001-01-01T00:00:00Z&until=9999-12-30T00:00:00Z").await.len(), 10);
    let next = get("messages?limit=2").await["next"].as_str().unwrap().to_owned();
    let other = service.get(&format!("/api/v1/messages?kind=page.viewed&cursor={next}")).await;
    assert!(other.status == 400 && other.body.contains("not what `next` said"), "{}", other.body);
    let by_time = get("deliveries?until=2000-01-01T00:00:00Z").await;
    assert_eq!(by_time["deliveries"], json!([]));
    assert_eq!(
        get("deliveries?since=2000-01-01T00:00:00Z&until=2100-01-01T00:00:00Z").await["deliveries"]
            .as_array()
            .unwrap()
            .len(),
        5
    );

    // The rest of the API on this store, once.
    let replay = service.ask("POST", "/api/v1/replays", Some(&json!({ "filter": { "key": "k0" } }))).await;
    assert_eq!(replay.status, 201, "{}", replay.body);
    let number = replay.json()["replay"].clone();
    until("the replay is done", || async { get(&format!("replays/{number}")).await["state"] == "done" })
        .await;
    let discarded = json!({ "filter": { "id": "with/slash" }, "reason": "a test" });
    assert_eq!(service.ask("POST", "/api/v1/discards", Some(&discarded)).await.status, 200);
    assert_eq!(get("audit").await["audit"][0]["action"], "replay");
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_and_told_on_sqlite() {
    messages_are_found_and_told(Place::new(&config("url = \"sqlite:shop.db\""))).await;
}

async fn on_server(url: String) {
    let schema = format!("search_{:016x}", oncebox::clock::Seed::from_system().next());
    messages_are_found_and_told(Place::new(&config(&format!("url = \"{url}\"\nschema = \"{schema}\""))))
        .await;
    if url.starts_with("postgres") {
        let pool = sqlx::PgPool::connect(&url).await.unwrap();
        let sql = format!("drop schema {schema} cascade");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    } else {
        let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("drop database {schema}"))).execute(&pool).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_and_told_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else { return not_run("searching", "Postgres") };
    on_server(url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_and_told_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else { return not_run("searching", "MariaDB") };
    on_server(url).await;
}
