//! Tokens and roles: who may do what, how a token comes and goes, and what never shows.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use serde_json::{Value, json};
use support::{Place, Service, text};

const CONFIGURED: &str = "canary-0123456789-0123456789";

fn with_token() -> Place {
    guessed(0)
}

/// With a token, and so many wrong ones that may be tried in a minute.
fn guessed(most: usize) -> Place {
    let http = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"${{ONCEBOX_TOKEN}}\"\nmax_wrong_tokens = {most}\n"
    );
    Place::new(&http).variable("ONCEBOX_TOKEN", CONFIGURED)
}

async fn create(service: &Service, by: &str, body: Value) -> Value {
    let answer = service.ask_as(by, "POST", "/api/v1/tokens", Some(&body)).await;
    assert_eq!(answer.status, 201, "{body}: {}", answer.body);
    answer.json()
}

async fn token(service: &Service, name: &str, role: &str) -> String {
    let made = create(service, CONFIGURED, json!({ "name": name, "role": role })).await;
    made["token"].as_str().unwrap().to_owned()
}

/// Made from the description: every operation, with every role and with none.
#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_for_the_roles_that_the_description_names() {
    let place = with_token();
    let service = place.serve(&[]);
    let mut roles = Vec::new();
    for role in ["ingest", "read", "operate", "admin"] {
        roles.push((role, token(&service, role, role).await));
    }
    let revoked = token(&service, "revoked", "admin").await;
    let answer = service.ask_as(CONFIGURED, "DELETE", "/api/v1/tokens/revoked", None).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    let document = service.ask_as(CONFIGURED, "GET", "/api/v1/openapi.json", None).await.json();
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let (path, method) = (fill(path), method.to_uppercase());
            let ask = async |token: Option<&str>| {
                let authorization = token.map(|token| format!("Bearer {token}"));
                let mut headers = vec![("content-type", "application/json")];
                headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
                service.head(&method, &path, &headers, b"{\"reason\":").await
            };
            if path.starts_with("/health/") {
                assert_eq!(ask(None).await, 200, "{path}");
                continue;
            }
            let needed =
                operation["security"].as_array().unwrap().last().unwrap()["token"][0].as_str().unwrap();
            for nobody in
                [None, Some("x"), Some(revoked.as_str()), Some(""), Some("canary-0123456789-0123456780")]
            {
                assert_eq!(ask(nobody).await, 401, "{method} {path} as {nobody:?}");
            }
            for (role, token) in &roles {
                let may = match *role {
                    "admin" => true,
                    "operate" => ["operate", "read"].contains(&needed),
                    own => own == needed,
                };
                let status = ask(Some(token)).await;
                assert_eq!(status != 403, may, "{method} {path} needs {needed} and got {status} as {role}");
                assert!(status != 401 && status < 500, "{method} {path} as {role}: {status}");
            }
            assert!(ask(Some(CONFIGURED)).await != 403, "{method} {path}");
            operations += 1;
        }
    }
    assert!(operations >= 28, "{operations}");
    // What is not there looks the same to somebody without a token as what is.
    assert_eq!(service.head("GET", "/api/v1/nothing", &[], b"").await, 401);
    assert_eq!(service.head("PUT", "/api/v1/status", &[], b"").await, 401);
}

/// An address without anything that exists, so that nothing is changed.
fn fill(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{source}" => "default",
        "{id}" => "987654321",
        part if part.starts_with('{') => "nobody",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Also a request that began before.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_changes_nothing_with_a_request_it_had_begun() {
    let place = with_token();
    let service = place.serve(&[]);
    let boss = create(&service, CONFIGURED, json!({ "name": "boss", "role": "admin" })).await;
    let boss = boss["token"].as_str().unwrap();
    let body = json!({ "name": "heir", "role": "admin" }).to_string();
    let lines = format!(
        "authorization: Bearer {boss}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n",
        body.len()
    );
    let mut slow = service.connect().await;
    slow.send("POST", "/api/v1/tokens", &lines, b"").await;
    assert_eq!(slow.status().await, 100, "who asks is known, and the body is waited for");
    assert_eq!(service.ask_as(CONFIGURED, "DELETE", "/api/v1/tokens/boss", None).await.status, 204);
    slow.send_rest(body.as_bytes()).await;
    assert_eq!(slow.status().await, 401);
    let listed = service.ask_as(CONFIGURED, "GET", "/api/v1/tokens", None).await;
    assert_eq!(listed.json()["tokens"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_once_kept_as_a_hash_and_worthless_once_revoked() {
    let place = with_token();
    let service = place.serve(&[]);
    let made =
        create(&service, CONFIGURED, json!({ "name": "desk", "role": "operate", "expires_in": "7d" })).await;
    let desk = made["token"].as_str().unwrap().to_owned();
    assert!(desk.starts_with("oncebox_") && desk.len() >= 8 + 48 && made["expires_at"].is_string(), "{made}");
    let again = service
        .ask_as(CONFIGURED, "POST", "/api/v1/tokens", Some(&json!({ "name": "desk", "role": "read" })))
        .await;
    assert!(again.status == 409 && again.body.contains("revoke it first"), "{}", again.body);
    assert_eq!(service.ask_as(&desk, "GET", "/api/v1/status", None).await.status, 200);
    let short =
        create(&service, CONFIGURED, json!({ "name": "short", "role": "read", "expires_in": "1s" })).await;
    let short = short["token"].as_str().unwrap();
    until("the short one has expired", || async {
        service.ask_as(short, "GET", "/api/v1/status", None).await.status == 401
    })
    .await;
    let listed = service.ask_as(CONFIGURED, "GET", "/api/v1/tokens", None).await;
    let names: Vec<String> =
        listed.json()["tokens"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect();
    assert_eq!(names, ["\"desk\"", "\"short\""]);

    // By somebody else, with the command: known here within a second or so.
    let store = format!("sqlite:{}", place.database().display());
    let output = place.run(&["token", "create", "night", "--role", "read", "--store", &store]);
    assert!(output.status.success(), "{output:?}");
    let night = text(&output.stdout).trim().to_owned();
    until("it is known", || async {
        service.ask_as(&night, "GET", "/api/v1/status", None).await.status == 200
    })
    .await;
    let output = place.run(&["token", "list", "--store", &store]);
    assert!(text(&output.stdout).contains("night") && !text(&output.stdout).contains(&night), "{output:?}");
    assert!(place.run(&["token", "revoke", "night", "--store", &store]).status.success());
    until("it is worthless", || async {
        service.ask_as(&night, "GET", "/api/v1/status", None).await.status == 401
    })
    .await;
    assert_eq!(place.run(&["token", "revoke", "night", "--store", &store]).status.code(), Some(1));
    assert_eq!(
        place.run(&["token", "create", "desk", "--role", "read", "--store", &store]).status.code(),
        Some(1)
    );
    assert_eq!(
        place.run(&["token", "create", "x", "--role", "king", "--store", &store]).status.code(),
        Some(2)
    );
    assert_eq!(
        place.run(&["token", "create", "loopback", "--role", "read", "--store", &store]).status.code(),
        Some(2)
    );

    // Here: at once.
    let revoked = service.ask_as(CONFIGURED, "DELETE", "/api/v1/tokens/desk", None).await;
    assert_eq!(revoked.status, 204, "{}", revoked.body);
    assert_eq!(service.ask_as(&desk, "GET", "/api/v1/status", None).await.status, 401);
    assert_eq!(service.ask_as(CONFIGURED, "DELETE", "/api/v1/tokens/desk", None).await.status, 404);

    let audit = service.ask_as(CONFIGURED, "GET", "/api/v1/audit", None).await;
    assert!(audit.body.contains("create-token") && audit.body.contains("revoke-token"), "{}", audit.body);
    let log = service.log();
    service.stop();
    let mut everything = log.into_bytes();
    for file in std::fs::read_dir(place.path()).unwrap() {
        everything.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    everything.extend(audit.body.as_bytes());
    everything.extend(listed.body.as_bytes());
    for secret in [desk.as_str(), short, &night, CONFIGURED] {
        let found = everything.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
        assert!(!found, "a token is written down: {}", &secret[..8]);
    }
    let hash = oncebox_server::token::hash(short.as_bytes());
    assert!(everything.windows(64).any(|bytes| bytes == hash.as_bytes()), "its hash is");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_guess_gets_the_same_answer_and_the_right_token_still_works() {
    let place = with_token();
    let service = place.serve(&[]);
    let reader = token(&service, "reader", "read").await;
    let mut connection = service.connect().await;
    let mut answers = std::collections::BTreeSet::new();
    let stem = &reader[..reader.len() - 4];
    let lines = service.log().lines().count();
    for number in 0..10_000 {
        let guess = match number % 4 {
            0 => format!("{stem}{number:04x}"),
            1 => format!("oncebox_{number:064x}"),
            2 => String::new(),
            _ => format!("{CONFIGURED}{number}"),
        };
        if guess == reader {
            continue;
        }
        let answer =
            connection.ask("GET", "/api/v1/status", &format!("authorization: Bearer {guess}\r\n")).await;
        answers.insert((answer.status, answer.header("www-authenticate").map(str::to_owned), answer.body));
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers.first().unwrap().0, 401);
    assert!(service.log().lines().count() - lines < 100, "guesses do not fill the log");
    assert_eq!(service.ask_as(&reader, "GET", "/api/v1/status", None).await.status, 200);
}

/// Whoever guesses from one address is slowed down, and nobody at another one.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_guesses_has_to_wait_and_no_other() {
    let place = guessed(10);
    let service = place.serve(&[]);
    for _ in 0..30 {
        let old = service.ask_as("revoked-long-ago", "GET", "/api/v1/status", None).await;
        assert_eq!(old.status, 401, "the same wrong token again is no guess");
    }
    let mut statuses = Vec::new();
    for number in 0..20 {
        let path = ["/api/v1/status", "/metrics"][number % 2];
        let guess = service.ask_as(&format!("guess-{number}"), "GET", path, None).await;
        if guess.status == 429 {
            let wait: u64 = guess.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&wait) && guess.json()["error"].is_string(), "{}", guess.body);
        }
        statuses.push(guess.status);
    }
    assert_eq!(statuses, [[401; 9].as_slice(), &[429; 11]].concat(), "the tenth was the one before");
    // Nothing is compared any more, whether it is right or wrong.
    assert_eq!(service.ask_as(CONFIGURED, "GET", "/api/v1/status", None).await.status, 429);
    let bearer = format!("Bearer {CONFIGURED}");
    let headers = [("authorization", bearer.as_str()), ("webhook-id", "1"), ("x-kind", "k")];
    let post = service.post("/in/default", &headers, "x").await;
    assert!(post.status == 429 && post.header("retry-after").is_some(), "{} {}", post.status, post.body);
    assert_eq!(service.get("/api/v1/status").await.status, 401, "who shows no token guesses none");
    assert_eq!(service.get("/health/ready").await.status, 200);

    let mut elsewhere = service.connect_from([127, 0, 0, 2].into()).await;
    let lines = format!("authorization: {bearer}\r\n");
    assert_eq!(elsewhere.ask("GET", "/api/v1/status", &lines).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_token_is_for_an_admin_and_closes_the_door() {
    let place = Place::new("");
    let service = place.serve(&[]);
    assert_eq!(service.get("/api/v1/status").await.status, 200);
    let body = json!({ "name": "reader", "role": "read" });
    let refused = service.ask("POST", "/api/v1/tokens", Some(&body)).await;
    assert!(refused.status == 409 && refused.body.contains("for an admin first"), "{}", refused.body);
    let made = service.ask("POST", "/api/v1/tokens", Some(&json!({ "name": "boss", "role": "admin" }))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let boss = made.json()["token"].as_str().unwrap().to_owned();
    for path in ["/api/v1/status", "/metrics", "/api/v1/openapi.json"] {
        assert_eq!(service.get(path).await.status, 401, "{path}");
    }
    assert_eq!(service.send("1", "k", "x").await.status, 401);
    assert_eq!(service.get("/health/ready").await.status, 200);
    let audit = service.ask_as(&boss, "GET", "/api/v1/audit", None).await.json();
    assert_eq!(
        (&audit["audit"][0]["actor"], &audit["audit"][0]["action"], &audit["audit"][0]["target"]),
        (&json!("loopback"), &json!("create-token"), &json!("boss"))
    );
    // Also after a start, and in another process.
    service.kill();
    let service = place.serve(&[]);
    assert_eq!(service.get("/api/v1/status").await.status, 401);
    assert_eq!(service.ask_as(&boss, "GET", "/api/v1/status", None).await.status, 200);
    assert_eq!(service.ask_as(&boss, "DELETE", "/api/v1/tokens/boss", None).await.status, 204);
    assert_eq!(service.get("/api/v1/status").await.status, 200, "there is no token any more");
}

/// `token` of a source: when a post needs one.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_wants_a_token_as_its_section_says() {
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\n[source.auto]\ntype = \"http\"\n[source.always]\ntype = \"http\"\ntoken = \"always\"\n\
         [source.never]\ntype = \"http\"\ntoken = \"never\"\n\
         [source.signed]\ntype = \"http\"\nverify = { scheme = \"github\", secret = \"s3cret\" }\n\
         [source.both]\ntype = \"http\"\ntoken = \"always\"\nverify = { scheme = \"github\", secret = \"s3cret\" }\n",
    );
    let service = place.serve(&[]);
    let post = async |source: &str, token: Option<&str>| {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![("webhook-id", "1"), ("x-kind", "k")];
        headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        service.post(&format!("/in/{source}"), &headers, "x").await.status
    };
    assert_eq!(
        (post("auto", None).await, post("always", None).await, post("never", None).await),
        (202, 401, 202)
    );
    let boss =
        service.ask("POST", "/api/v1/tokens", Some(&json!({ "name": "boss", "role": "admin" }))).await.json();
    let boss = boss["token"].as_str().unwrap();
    let mut tokens = Vec::new();
    for role in ["ingest", "read"] {
        tokens.push(
            create(&service, boss, json!({ "name": role, "role": role })).await["token"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    let (ingest, read) = (Some(tokens[0].as_str()), Some(tokens[1].as_str()));
    for source in ["auto", "always"] {
        assert_eq!((post(source, None).await, post(source, read).await), (401, 403), "{source}");
        assert!([200, 202].contains(&post(source, ingest).await), "{source}");
    }
    assert_eq!(post("never", None).await, 200);
    assert_eq!(
        (post("signed", None).await, post("signed", ingest).await),
        (401, 401),
        "the signature is missing"
    );
    assert_eq!((post("both", read).await, post("both", ingest).await), (403, 401));
    assert_eq!((post("nobody", None).await, post("nobody", ingest).await), (401, 404));
}
