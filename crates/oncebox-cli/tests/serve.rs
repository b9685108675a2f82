//! `oncebox serve` and `oncebox check` as processes: how they start, what they say, how they stop.

#![allow(clippy::unwrap_used)]

mod support;

use nix::sys::signal::Signal;
use oncebox_testkit::until;
use serde_json::Value;
use support::receiver::{Receiver, status};
use support::{Place, text};

#[tokio::test(flavor = "multi_thread")]
async fn serve_works_with_no_configuration_at_all() {
    let place = Place::empty();
    let service = place.serve(&["--listen", "127.0.0.1:0"]);
    let answer = service.post("/in/default", &[], r#"{"id":"1","type":"order.placed"}"#).await;
    assert_eq!((answer.status, answer.json()), (202, serde_json::json!({"id":"1","status":"new"})));
    for headers in [[("webhook-id", "w1"), ("x-kind", "k")], [("idempotency-key", "\"i1\""), ("x-kind", "k")]]
    {
        let id = headers[0].1.trim_matches('"').to_owned();
        let answer = service.post("/in/default", &headers, "not json").await;
        assert_eq!((answer.status, answer.json()["id"].as_str()), (202, Some(id.as_str())));
    }
    assert!(place.database().exists());
    let private = std::fs::metadata(place.database()).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&private.permissions()) & 0o077,
        0,
        "the file is private"
    );
    service.stop();
}

#[test]
fn serve_says_where_to_look_and_what_to_try() {
    let place = Place::new("[log]\nformat = \"human\"\n");
    let mut child = place.command(&["serve"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut shown = String::new();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
    while !shown.contains("try: ") {
        let read = std::io::BufRead::read_line(&mut lines, &mut shown).unwrap();
        assert!(read > 0, "it ended: {shown}");
    }
    let line = shown.lines().find_map(|line| line.strip_prefix("try: ")).unwrap().to_owned();
    for word in ["/in/default", "/health/ready", "/metrics", "SQLite"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    // The line works as it stands there.
    let output = std::process::Command::new("sh").args(["-c", &line]).output();
    if let Ok(output) = output.as_ref()
        && output.status.success()
    {
        assert!(text(&output.stdout).contains("202 Accepted"), "{}", text(&output.stdout));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_what_has_begun_and_exits_0() {
    let (asked, mut answered) = (std::sync::Arc::new(tokio::sync::Notify::new()), Vec::new());
    let told = asked.clone();
    let receiver = Receiver::start(move |_, _| {
        told.notify_one();
        status("200 OK", "", "")
    })
    .await;
    let place = Place::new(&format!(
        "[source.default]\ntype = \"http\"\n[handler.h]\non = [\"*\"]\nhttp = \"{}\"\n[sink.s]\ntype = \"http\"\nurl = \"{}\"\n\
         [handler.f]\non = [\"*\"]\nsink = \"s\"\n",
        receiver.url(),
        receiver.url()
    ));
    let service = place.serve(&[]);
    for number in 0..20 {
        answered.push(service.send(&number.to_string(), "k", "x").await.status);
    }
    asked.notified().await;
    service.stop();
    assert!(answered.iter().all(|status| *status == 202));
    // What was acknowledged and not yet posted is posted by the next one.
    let service = place.serve(&[]);
    until("every message is posted by both handlers", || async { receiver.got().len() >= 40 }).await;
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_waits_for_a_request_that_is_under_way() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let place = Place::new("");
    let mut service = place.serve(&[]);
    let mut stream = tokio::net::TcpStream::connect(service.address).await.unwrap();
    let head = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: 1\r\nx-kind: k\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = [0; 25];
    // Now the request has begun for sure.
    stream.read_exact(&mut seen).await.unwrap();
    assert!(text(&seen).contains("100 Continue"), "{}", text(&seen));
    service.signal(Signal::SIGTERM);
    until("it accepts nobody new", || async {
        tokio::net::TcpStream::connect(service.address).await.is_err()
    })
    .await;
    stream.write_all(b"body").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(text(&answer).contains("202 Accepted"), "{}", text(&answer));
    assert!(service.ended().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_for_stopping_is_limited_and_a_second_signal_ends_at_once() {
    let receiver = Receiver::always("wait").await;
    let config = |shutdown: &str| {
        format!(
            "[run]\nshutdown = \"{shutdown}\"\n[handler.h]\non = [\"*\"]\nhttp = \"{}\"\ntimeout = \"10m\"\n",
            receiver.url()
        )
    };
    let place = Place::new(&config("200ms"));
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("the handler runs", || async { !receiver.got().is_empty() }).await;
    service.stop();

    let place = Place::new(&config("10m"));
    let mut service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("the handler runs", || async { receiver.got().len() == 2 }).await;
    service.signal(Signal::SIGTERM);
    until("it is stopping", || async { service.log().contains("the runner is stopping") }).await;
    assert!(service.is_running());
    service.signal(Signal::SIGTERM);
    assert_eq!(service.ended().code(), Some(143));
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let place = Place::new("[http]\nlisten = \"0.0.0.0:0\"\n");
    let output = place.run(&["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("oncebox.toml:2:1: `0.0.0.0:0` can be reached"),
        "{}",
        text(&output.stderr)
    );
    let output = Place::empty().run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`token`"), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_other_machines_may_be_listened_to() {
    let place = Place::new("[http]\nlisten = \"0.0.0.0:0\"\ntoken = \"${ONCEBOX_TOKEN}\"\n")
        .variable("ONCEBOX_TOKEN", "canary-0123456789-0123456789");
    let mut service = place.serve(&[]);
    service.address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    let send = |value: &'static str| {
        let headers = [("authorization", value), ("webhook-id", "1"), ("x-kind", "k")];
        let service = &service;
        async move { service.post("/in/default", &headers, "x").await.status }
    };
    assert_eq!(send("Bearer canary-0123456789-0123456789").await, 202);
    for wrong in
        ["Bearer canary-0123456789-012345678", "Bearer ", "canary-0123456789-0123456789", "Basic eDp5"]
    {
        assert_eq!(send(wrong).await, 401, "{wrong}");
    }
    assert_eq!(service.send("1", "k", "x").await.status, 401, "no token at all");
    assert_eq!(service.post("/in/nobody", &[], "x").await.status, 401, "who may not post learns no names");
    assert_eq!(service.get("/metrics").await.status, 401);
    assert_eq!(service.get("/health/live").await.status, 200);
    assert!(!service.log().contains("canary"), "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_tells_when_messages_wait_too_long_or_the_store_is_gone() {
    let place = Place::new(
        "[health]\nmax_lag = \"1ms\"\n[handler.h]\non = [\"*\"]\nsql = \"select no_such_function(:id)\"\npaused = false\n\
         max_attempts = 1\n[handler.p]\non = [\"*\"]\nsql = \"select :id\"\npaused = true\n",
    );
    let service = place.serve(&[]);
    let ready = async || service.get("/health/ready").await;
    until("nothing waits, so it is ready", || async { ready().await.status == 200 }).await;
    service.send("1", "k", "x").await;
    // `p` is paused and so behind on purpose; `h` buries the message and is not behind.
    until("a paused handler does not count", || async { ready().await.status == 200 }).await;
    service.stop();

    let place = Place::new(
        "[health]\nmax_lag = \"1ms\"\n[handler.h]\non = [\"*\"]\nhttp = \"http://127.0.0.1:1/\"\nbreaker = { failures = 1, open = \"1h\" }\n",
    );
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("the breaker is open", || async { service.log().contains("too many requests failed") }).await;
    service.send("2", "k", "x").await;
    until("a message waits too long", || async {
        let answer = service.get("/health/ready").await;
        answer.status == 503 && answer.json()["problem"].as_str().unwrap().contains("handler `h` has waited")
    })
    .await;
    assert_eq!(service.get("/health/live").await.status, 200);
    service.stop();

    let place = Place::new("[store]\nconnect_timeout = \"1s\"\n");
    let service = place.serve(&[]);
    assert_eq!(service.get("/health/ready").await.status, 200);
    let pool = place.open().await;
    sqlx::query("drop table oncebox_handler").execute(&pool).await.unwrap();
    // An answer is shared for a second.
    until("the store is missed", || async {
        let answer = service.get("/health/ready").await;
        answer.status == 503 && answer.json()["problem"].as_str() == Some("the store cannot be used")
    })
    .await;
    assert!(service.get("/metrics").await.body.contains("oncebox_up 0\n"));
    assert_eq!(service.get("/health/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_was_received_done_and_dead() {
    let place = Place::new(
        "[handler.good]\non = [\"a\"]\nsql = \"select :id\"\n[handler.bad]\non = [\"b\"]\nsql = \"select no_such_function()\"\nmax_attempts = 1\n",
    );
    let service = place.serve(&[]);
    service.send("1", "a", "x").await;
    service.send("1", "a", "x").await;
    service.send("2", "b", "x").await;
    let expected = [
        "oncebox_up 1",
        "oncebox_received_total 2",
        "oncebox_duplicate_total 1",
        "oncebox_done_total{handler=\"good\"} 1",
        "oncebox_dead_total{handler=\"bad\"} 1",
        "oncebox_dead_letters{handler=\"bad\"} 1",
        "oncebox_http_requests_total{status=\"202\"} 2",
        "oncebox_http_requests_total{status=\"200\"} 1",
        "oncebox_http_in_flight_bytes 0",
    ];
    until("the counters have arrived", || async {
        let text = service.get("/metrics").await.body;
        expected.iter().all(|line| text.lines().any(|own| own == *line))
    })
    .await;
}

#[test]
fn check_says_what_would_run_and_what_would_not() {
    let handler = "[handler.h]\non = [\"*\"]\nsql = \"insert into t values (:id)\"\n";
    let place = Place::new(&format!("[store]\nmigrate = false\n{handler}"));
    let output = place.run(&["check"]);
    assert_eq!(output.status.code(), Some(1), "nobody would make the file: {}", text(&output.stdout));
    assert!(text(&output.stdout).contains("run `oncebox migrate`, or set `migrate = true`"));
    let place = Place::new("[store]\nurl = \"sqlite:nowhere/x.db\"\n");
    let output = place.run(&["check"]);
    assert_eq!(output.status.code(), Some(1), "nobody would make the folder: {}", text(&output.stdout));
    let place = Place::new(handler);
    let output = place.run(&["check", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &report["good"]),
        (Some(0), &Value::Bool(true)),
        "there is no file yet, and it would be made: {report}"
    );
    assert!(report["findings"][0]["does"].as_str().unwrap().contains("would be created"), "{report}");
    assert!(!place.database().exists(), "looking makes nothing");
    assert!(place.run(&["migrate"]).status.success());
    let problem = |output: &std::process::Output| -> Vec<String> {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        findings.iter().filter(|one| one["problem"].is_string()).map(|one| one.to_string()).collect()
    };
    let output = place.run(&["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        matches!(&problem(&output)[..], [one] if one.contains("handler h") && one.contains("no such table")),
        "{:?}",
        problem(&output)
    );

    let place = Place::new(
        "[source.shop]\ntype = \"http\"\n[handler.h]\non = [\"a\", \"b.*\"]\nsql = \"select :id\"\n[handler.w]\non = [\"*\"]\nhttp = \"http://127.0.0.1:1/\"\n",
    );
    assert!(place.run(&["migrate"]).status.success());
    let output = place.run(&["check"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    for line in ["source shop", "POST /in/shop", "sql on a, b.*", "127.0.0.1` port 1 cannot be reached"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let place = Place::new("[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n");
    assert!(place.run(&["migrate"]).status.success());
    let output = place.run(&["check"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));

    let place = Place::new("[handler.h]\n");
    let output = place.run(&["check"]);
    assert_eq!(output.status.code(), Some(1), "the configuration is wrong");
    assert!(text(&output.stderr).contains("oncebox.toml:3:"), "{}", text(&output.stderr));
    let output = place.run(&["check", "--config", "nothing.toml"]);
    assert_eq!(output.status.code(), Some(2), "there is no configuration");
}

#[test]
fn secrets_are_never_shown_and_must_be_private() {
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"canary-token-canary-token\"\nmax_bodi = \"1MiB\"\n[store]\nurl = \"postgres://u:canary-pw@127.0.0.1:1/x\"\n\
         [source.s]\ntype = \"http\"\nverify = { scheme = \"github\", secret = \"canary-sig\", tolerence = \"1m\" }\n",
    );
    for command in ["serve", "check"] {
        let output = place.run(&[command]);
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(
            shown.contains("did you mean `max_body`?") && shown.contains("did you mean `tolerance`?"),
            "{shown}"
        );
        assert!(!shown.contains("canary"), "{shown}");
    }
    let place =
        Place::new("[store]\nurl = \"postgres://u:canary-pw@127.0.0.1:1/x\"\nconnect_timeout = \"1s\"\n");
    for command in ["serve", "check"] {
        let output = place.run(&[command]);
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success(), "{shown}");
        assert!(shown.contains("Postgres at 127.0.0.1:1 cannot be reached"), "{shown}");
        assert!(shown.contains("Connection refused"), "the reason is told: {shown}");
        assert!(!shown.contains("canary"), "{shown}");
    }
    let path = place.path().join("oncebox.toml");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let output = place.run(&["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("chmod 600"), "{}", text(&output.stderr));
}
