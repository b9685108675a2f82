//! The OpenAPI description against the running service: Schemathesis asks everything that it allows and much that it
//! does not. No answer may be an error of the server, and each must be one that the description names.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::process::Command;

use oncebox_testkit::until;
use support::{Place, not_run, text};

const TOKEN: &str = "canary-0123456789-0123456789";

const CONFIG: &str = "[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"${ONCEBOX_TOKEN}\"\nmax_wrong_tokens = 0\n\
    [source.default]\ntype = \"http\"\n[source.spare]\ntype = \"http\"\n\
    [handler.charge]\non = [\"order.*\"]\nsql = \"select no_such(:id)\"\nmax_attempts = 1\n\
    [sink.events]\ntype = \"http\"\nurl = \"http://127.0.0.1:1/\"\n";

/// Names that exist, so that not every answer is 404; and what a description cannot say: that an empty filter needs
/// `all`, which cursor belongs to a search, and where a source looks for the id of a message.
const SETTINGS: &str = r#"
[auth.openapi.token]
bearer = "canary-0123456789-0123456789"

[[operations]]
include-path-regex = "^/api/v1/handlers/"
parameters = { name = "charge" }

[[operations]]
include-path-regex = "^/api/v1/sources/"
parameters = { name = "spare" }

[[operations]]
include-path = "/api/v1/outbox/{sink}/replay"
parameters = { sink = "events" }

[[operations]]
include-path = "/api/v1/messages/{scope}/{id}"
parameters = { scope = "default", id = "m1" }

[[operations]]
include-name = "GET /api/v1/messages"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "GET /api/v1/conflicts"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /api/v1/replays"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /api/v1/discards"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /in/{source}"
parameters = { source = "default" }
checks.positive_data_acceptance.enabled = false
"#;

async fn the_service_answers_as_its_description_says(place: Place) {
    let program = match xtask::schemathesis::program() {
        Ok(program) => program,
        Err(missing) => return eprintln!("not run: {missing}"),
    };
    let service = place.serve(&[]);
    let token = format!("Bearer {TOKEN}");
    let send = async |id: &str| {
        let headers = [("webhook-id", id), ("x-kind", "order.placed"), ("authorization", token.as_str())];
        assert_eq!(service.post("/in/default", &headers, "{}").await.status, 202);
    };
    send("m1").await;
    send("m2").await;
    until("there are dead letters", || async {
        let page = service.ask_as(TOKEN, "GET", "/api/v1/deliveries?state=dead", None).await.json();
        page["deliveries"].as_array().unwrap().len() == 2
    })
    .await;
    std::fs::write(place.path().join("schemathesis.toml"), SETTINGS).unwrap();
    let document = service.ask_as(TOKEN, "GET", "/api/v1/openapi.json", None).await;
    std::fs::write(place.path().join("openapi.json"), &document.body).unwrap();
    let output = Command::new(program)
        .args(["run", "openapi.json", "--url", &format!("http://{}", service.address)])
        // A stream that never ends has no answer to check.
        .args(["--exclude-path", "/api/v1/events", "--max-examples", "20", "--seed", "7", "--no-color"])
        .args(["--generation-database", "none", "--request-timeout", "30"])
        .current_dir(place.path())
        .output()
        .unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}\n{}\n{}", text(&output.stderr), service.log());
    assert!(told.contains("Tested: 30") && !told.contains("Unresolvable references"), "{told}");
    service.stop();
}

async fn on(store: &str) {
    let place = Place::new(&format!("[store]\n{store}\n{CONFIG}")).variable("ONCEBOX_TOKEN", TOKEN);
    the_service_answers_as_its_description_says(place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_answers_as_its_description_says_on_sqlite() {
    on("url = \"sqlite:oncebox.db\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_answers_as_its_description_says_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else { return not_run("schemathesis", "Postgres") };
    let schema = schema();
    on(&format!("url = \"{url}\"\nschema = \"{schema}\"")).await;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let sql = format!("drop schema if exists {schema} cascade");
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_answers_as_its_description_says_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else { return not_run("schemathesis", "MariaDB") };
    let schema = schema();
    on(&format!("url = \"{url}\"\nschema = \"{schema}\"")).await;
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    let sql = format!("drop database if exists {schema}");
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
}

fn schema() -> String {
    format!("asked_{:016x}", oncebox::clock::Seed::from_system().next())
}
