//! `POST /in/{source}`: the contract, the limits, and that an answer is a promise.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use oncebox_testkit::until;
use sqlx::Row;
use support::{Place, Service, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Every message of the log: id, kind, key, payload.
async fn stored(place: &Place) -> Vec<(String, String, Option<String>, Vec<u8>)> {
    let pool = place.open().await;
    let rows = sqlx::query("select id, kind, key, payload from oncebox_log order by seq")
        .fetch_all(&pool)
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_gets_the_status_of_the_contract() {
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\nmax_body = \"2KiB\"\n[store]\nmax_payload = \"1KiB\"\n[source.shop]\ntype = \"http\"\nid = \"header:webhook-id\"\nkind = \"json:/type\"\nkey = \"json:/order\"\n",
    );
    let service = place.serve(&[]);
    let post = async |id: &str, body: &str| service.post("/in/shop", &[("webhook-id", id)], body).await;
    let body = r#"{"type":"order.placed", "order": 7}"#;
    let answer = post("a", body).await;
    assert_eq!((answer.status, answer.json()), (202, serde_json::json!({"id":"a","status":"new"})));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let answer = post("a", body).await;
    assert_eq!((answer.status, answer.word()), (200, "duplicate".to_owned()));
    let answer = post("a", r#"{"type":"order.placed","order":8}"#).await;
    assert_eq!((answer.status, answer.word()), (422, "conflict".to_owned()));
    let answer = service.post("/in/shop", &[], body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("no id (looked in header:webhook-id)"), "{}", answer.body);
    assert_eq!(post("b", "{}").await.status, 400, "no kind");
    assert_eq!(post("b", "no json").await.status, 400);
    assert_eq!(post(&"x".repeat(600), body).await.status, 400, "an id that is too long");
    assert_eq!(
        post("c", &format!(r#"{{"type":"k","x":"{}"}}"#, "x".repeat(1100))).await.status,
        413,
        "beyond max_payload"
    );
    assert_eq!(post("c", &"x".repeat(3000)).await.status, 413, "beyond max_body");
    assert_eq!(service.post("/in/none", &[("webhook-id", "1")], body).await.status, 404);
    assert_eq!(service.get("/in/shop").await.status, 405, "nothing changes on GET");
    assert_eq!(service.get("/nothing").await.status, 404);
    let twice = [("webhook-id", "d"), ("webhook-id", "e")];
    assert_eq!(service.post("/in/shop", &twice, body).await.status, 400, "two ids are none");
    let stored = stored(&place).await;
    assert_eq!(
        stored,
        [("a".to_owned(), "order.placed".to_owned(), Some("7".to_owned()), body.as_bytes().to_vec())]
    );
    for path in ["/in/shop", "/health/live", "/metrics", "/nothing"] {
        let answer = service.get(path).await;
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert!(answer.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gets_a_line_per_message() {
    let place = Place::new("[source.shop]\ntype = \"http\"\n");
    let service = place.serve(&[]);
    let lines = [
        r#"{"id":"a","kind":"k","key":"x","headers":{"tenant":"acme"},"payload":{"z": 1.50, "a":2}}"#,
        r#"{"id":"a","kind":"k","payload":{"z": 1.50, "a":2}}"#,
        r#"{"id":"a","kind":"k","payload":"other"}"#,
        r#"{"kind":"k","payload":1}"#,
        r#"{"id":"b","payload":1}"#,
        r#"{"id":"c","kind":"k"}"#,
        r#"{"id":"d","kind":"k","payload":1,"colour":"red"}"#,
        "not json",
        "",
        r#"{"id":7,"kind":"k","payload_base64":"/wA="}"#,
    ];
    let answer = service
        .post("/in/shop", &[("content-type", "application/x-ndjson; charset=utf-8")], lines.join("\n"))
        .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (207, Some("application/x-ndjson")),
        "{}",
        answer.body
    );
    let words: Vec<(String, String)> = answer
        .body
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            (line["id"].as_str().unwrap_or("-").to_owned(), line["status"].as_str().unwrap().to_owned())
        })
        .collect();
    let words: Vec<(&str, &str)> = words.iter().map(|(id, word)| (id.as_str(), word.as_str())).collect();
    assert_eq!(
        words,
        [
            ("a", "new"),
            ("a", "duplicate"),
            ("a", "conflict"),
            ("-", "invalid"),
            ("b", "invalid"),
            ("c", "invalid"),
            ("-", "invalid"),
            ("-", "invalid"),
            ("7", "new")
        ]
    );
    let stored = stored(&place).await;
    assert_eq!(stored[0].3, br#"{"z": 1.50, "a":2}"#, "bytes as they were written");
    assert_eq!((stored[1].0.as_str(), stored[1].3.as_slice()), ("7", &b"\xff\0"[..]));
    assert_eq!(stored.len(), 2);
    let empty = service.post("/in/shop", &[("content-type", "application/x-ndjson")], "\n\n").await;
    assert_eq!(empty.status, 400);
}

/// The limits of a store may be narrower than ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_the_store_refuses_harms_no_other() {
    let place = Place::new("[source.shop]\ntype = \"http\"\n");
    let service = place.serve(&[]);
    let too_big = "create trigger too_big before insert on oncebox_log when new.id = 'large' \
                   begin select length(zeroblob(2000000000)); end";
    sqlx::query(too_big).execute(&place.open().await).await.unwrap();
    let line = |id: &str| format!("{{\"id\":\"{id}\",\"kind\":\"k\",\"payload\":1}}");
    let post = async |ids: &[&str]| {
        let lines: Vec<String> = ids.iter().map(|id| line(id)).collect();
        let answer =
            service.post("/in/shop", &[("content-type", "application/x-ndjson")], lines.join("\n")).await;
        assert_eq!(answer.status, 207, "{}", answer.body);
        let lines = answer.body.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.collect::<Vec<_>>()
    };
    let answers = post(&["a", "large", "b"]).await;
    let words: Vec<_> = answers.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(words, ["new", "invalid", "new"]);
    assert!(answers[1]["error"].as_str().unwrap().contains("larger than SQLite can hold"), "{answers:?}");
    assert_eq!(post(&["large"]).await[0]["status"], "invalid");
    let ids: Vec<String> = stored(&place).await.into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn signatures_are_checked_and_the_secret_can_be_changed() {
    let place = Place::new(
        "[source.shop]\ntype = \"http\"\nkind = \"k\"\nverify = { scheme = \"standard-webhooks\", secret = [\"${NEW}\", \"${OLD}\"] }\n\
         [source.hub]\ntype = \"http\"\nid = \"hash\"\nkind = \"k\"\nverify = { scheme = \"github\", secret = \"${OLD}\" }\n\
         [source.strict]\ntype = \"http\"\nkind = \"k\"\nverify = { scheme = \"standard-webhooks\", secret = \"${OLD}\", tolerance = \"1s\" }\n",
    )
    .variable("NEW", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    .variable("OLD", "whsec_b2xkLXNlY3JldA==");
    let service = place.serve(&[]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let send = async |path: &str, secret: &str, time: i64, signed: &[u8], body: &[u8]| {
        let webhook = standardwebhooks::Webhook::new(secret).unwrap();
        let signature = webhook.sign("m1", time, signed).unwrap();
        let time = time.to_string();
        let headers = [
            ("webhook-id", "m1"),
            ("webhook-timestamp", time.as_str()),
            ("webhook-signature", signature.as_str()),
        ];
        service.post(path, &headers, body).await.status
    };
    let (new, old) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_b2xkLXNlY3JldA==");
    assert_eq!(send("/in/shop", new, now, b"{}", b"{}").await, 202, "the new secret");
    assert_eq!(send("/in/shop", old, now, b"{}", b"{}").await, 200, "the old one meanwhile; again");
    assert_eq!(send("/in/shop", "whsec_b3RoZXI=", now, b"{}", b"{}").await, 401);
    assert_eq!(send("/in/shop", new, now, b"{}", b"{ }").await, 401, "other bytes");
    assert_eq!(send("/in/shop", new, now - 400, b"{}", b"{}").await, 401, "too old");
    assert_eq!(send("/in/shop", new, now + 400, b"{}", b"{}").await, 401, "from the future");
    assert_eq!(
        send("/in/strict", old, now - 60, b"{}", b"{}").await,
        401,
        "the tolerance is the configured one"
    );
    assert_eq!(service.send("1", "k", "x").await.status, 404);
    assert_eq!(service.post("/in/shop", &[("webhook-id", "1")], "{}").await.status, 401, "no signature");
    assert_eq!(service.post("/in/hub", &[("x-hub-signature-256", "sha256=00")], "{}").await.status, 401);
    for secret in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "b2xkLXNlY3JldA"] {
        assert!(!service.log().contains(secret), "a secret is in the log");
    }
}

/// Who cannot sign learns nothing of a source but that it wants a signature, and with tokens not even
/// that.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_good_signature_learns_nothing_of_the_source() {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\nmax_body = \"1MiB\"\n\
         [source.shop]\ntype = \"http\"\nkind = \"k\"\nrate = \"1/s\"\n\
         verify = { scheme = \"standard-webhooks\", secret = \"${SECRET}\" }\n",
    )
    .variable("SECRET", SECRET);
    let service = place.serve(&[]);
    assert_eq!(service.ask("POST", "/api/v1/sources/shop/pause", None).await.status, 200);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let time = now.to_string();
    let wrong = [("webhook-id", "1"), ("webhook-timestamp", time.as_str()), ("webhook-signature", "v1,AAAA")];
    let answers = async |path: &str| {
        let mut all = std::collections::BTreeSet::new();
        for headers in [&[][..], &wrong[..2], &wrong] {
            for body in ["{}", "no JSON", ""] {
                let answer = service.post(path, headers, body).await;
                all.insert((answer.status, answer.header("retry-after").map(str::to_owned), answer.body));
            }
        }
        all
    };
    let paused = answers("/in/shop").await;
    assert!(paused.len() == 1 && paused.first().unwrap().0 == 401, "{paused:?}");
    let signature = standardwebhooks::Webhook::new(SECRET).unwrap().sign("1", now, b"{}").unwrap();
    let mut good = wrong;
    good[2].1 = signature.as_str();
    let told = service.post("/in/shop", &good, "{}").await;
    assert!(told.status == 503 && told.body.contains("paused"), "{}", told.body);
    // The body of one who has not even tried to sign is not waited for.
    let mut waits = service.connect().await;
    waits.send("POST", "/in/shop", "content-length: 9\r\n", b"").await;
    assert_eq!(waits.status().await, 401);
    // Too large is too large whatever the name.
    for path in ["/in/shop", "/in/nobody"] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999\r\n\r\n");
        assert_eq!(service.raw(head.as_bytes()).await.unwrap().status, 413, "{path}");
    }
    assert_eq!(answers("/in/nobody").await.first().unwrap().0, 404, "the contract, while there is no token");

    let boss = serde_json::json!({ "name": "a", "role": "admin" });
    assert_eq!(service.ask("POST", "/api/v1/tokens", Some(&boss)).await.status, 201);
    assert_eq!(answers("/in/shop").await, answers("/in/nobody").await, "with tokens nobody learns a name");
    assert_eq!(answers("/in/shop").await, paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_replays_at_once_are_one_message() {
    let place = Place::new("");
    let service = std::sync::Arc::new(place.serve(&[]));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let service = service.clone();
        tasks.spawn(async move {
            let mut new = 0;
            for _ in 0..50 {
                let answer = service.send("same", "k", "x").await;
                assert!(matches!(answer.status, 200 | 202), "{answer:?}");
                new += usize::from(answer.status == 202);
            }
            new
        });
    }
    let new: usize = tasks.join_all().await.into_iter().sum();
    assert_eq!((new, stored(&place).await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_refused_and_the_depth_is_configured() {
    let place = Place::new("[http]\nlisten = \"127.0.0.1:0\"\njson_depth = 3\n");
    let service = place.serve(&[]);
    let nested = |depth: usize| {
        format!(r#"{{"id":"{depth}","type":"k","x":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1))
    };
    assert_eq!(service.post("/in/default", &[], nested(3)).await.status, 202);
    assert_eq!(service.post("/in/default", &[], nested(4)).await.status, 400);
    assert_eq!(service.post("/in/default", &[], nested(20_000)).await.status, 400, "too deep");
    for (number, body) in
        [(1, r#"{"id":"n","type":"k","x":1e999999}"#), (2, r#"{"id":"p","id":"q","type":"k"}"#)]
    {
        let answer = service.post("/in/default", &[], body).await;
        assert!(matches!(answer.status, 202 | 400), "{number}: {answer:?}");
    }
    let line = format!(r#"{{"id":"b","kind":"k","payload":{}{}}}"#, "[".repeat(9), "]".repeat(9));
    let answer = service.post("/in/default", &[("content-type", "application/x-ndjson")], line).await;
    assert!(answer.status == 207 && answer.body.contains("nested deeper than 3"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_is_cut_at_the_limit() {
    let place =
        Place::new("[http]\nlisten = \"127.0.0.1:0\"\nmax_body = \"64KiB\"\nmax_in_flight = \"1MiB\"\n");
    let service = place.serve(&[]);
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let head = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: 1\r\nx-kind: k\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let endless = tokio::spawn(async move {
        let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
        let mut sent = 0_u64;
        while sent < (1 << 30) && write.write_all(&chunk).await.is_ok() {
            sent += 0x4000;
        }
        sent
    });
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(support::DEADLINE, read.read_to_end(&mut answer)).await.unwrap();
    assert!(text(&answer).starts_with("HTTP/1.1 413"), "{}", text(&answer));
    let sent = tokio::time::timeout(support::DEADLINE, endless).await.unwrap().unwrap();
    assert!(sent < 64 << 20, "{sent} bytes were taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off_and_others_do_not_wait() {
    let place =
        Place::new("[http]\nlisten = \"127.0.0.1:0\"\nheader_timeout = \"2s\"\nbody_timeout = \"2s\"\n");
    let service = place.serve(&[]);
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        let begin: &[u8] = match number % 4 {
            0 => b"",
            1 => b"POST /in/default HT",
            2 => b"POST /in/default HTTP/1.1\r\nhost: localhost\r\nx-a: ",
            _ => b"POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: 1\r\nx-kind: k\r\ncontent-length: 100\r\n\r\nbegin",
        };
        stream.write_all(begin).await.unwrap();
        slow.push(stream);
    }
    let began = Instant::now();
    assert_eq!(service.send("healthy", "k", "x").await.status, 202);
    assert!(began.elapsed() < Duration::from_secs(10), "others wait: {:?}", began.elapsed());
    for (number, mut stream) in slow.into_iter().enumerate() {
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(support::DEADLINE, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "connection {number} stays open");
        if number % 4 == 3 {
            assert!(text(&answer).starts_with("HTTP/1.1 408"), "{}", text(&answer));
        }
    }
    assert_eq!(stored(&place).await.len(), 1);
    // And one that was quick once and then says nothing.
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    assert!(
        tokio::time::timeout(support::DEADLINE, stream.read_to_end(&mut answer)).await.is_ok(),
        "it stays open"
    );
    assert!(text(&answer).starts_with("HTTP/1.1 200"));
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_get_503_at_once() {
    let place =
        Place::new("[http]\nlisten = \"127.0.0.1:0\"\nmax_connections = 3\nheader_timeout = \"1h\"\n");
    let service = place.serve(&[]);
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut seen = [0; 12];
        stream.read_exact(&mut seen).await.unwrap();
        silent.push(stream);
    }
    let answer = service.get("/health/live").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    drop(silent);
    until("there is room again", || async { service.get("/health/live").await.status == 200 }).await;
}

/// Back-pressure: the memory of bodies is bounded, and who does not fit is told when to come back.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_the_memory_limit_get_503_with_retry_after() {
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\nmax_body = \"1MiB\"\nmax_in_flight = \"1MiB\"\nbody_timeout = \"1h\"\nretry_after = \"1500ms\"\n",
    );
    let service = place.serve(&[]);
    let mut holding = TcpStream::connect(service.address).await.unwrap();
    let head = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: 1\r\nx-kind: k\r\ncontent-length: 1048570\r\nexpect: 100-continue\r\n\r\n";
    holding.write_all(head.as_bytes()).await.unwrap();
    let mut seen = [0; 12];
    holding.read_exact(&mut seen).await.unwrap();
    let answer = service.send("2", "k", "more than six bytes").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")), "{}", answer.body);
    assert_eq!(service.send("3", "k", "tiny").await.status, 202);
    drop(holding);
    until("the memory is free again", || async {
        service.send("4", "k", "more than six bytes").await.status != 503
    })
    .await;
    assert!(service.get("/metrics").await.body.contains("oncebox_http_in_flight_bytes 0\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_answers_429_with_retry_after() {
    let place = Place::new("[source.default]\ntype = \"http\"\nrate = \"2/h\"\n");
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    let answer = service.send("2", "k", "x").await;
    assert_eq!(answer.status, 429);
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 1000, "{}", answer.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_503_and_not_an_answer_in_disguise() {
    let place = Place::new("");
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    let pool = place.open().await;
    sqlx::query("alter table oncebox_log rename to elsewhere").execute(&pool).await.unwrap();
    let answer = service.send("2", "k", "x").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.body);
    assert!(!answer.body.contains("oncebox_log"), "no word about the inside: {}", answer.body);
    let batch = service
        .post(
            "/in/default",
            &[("content-type", "application/x-ndjson")],
            r#"{"id":"3","kind":"k","payload":1}"#,
        )
        .await;
    assert_eq!(batch.status, 503);
    sqlx::query("alter table elsewhere rename to oncebox_log").execute(&pool).await.unwrap();
    assert_eq!(service.send("2", "k", "x").await.status, 202);
}

/// The number of commits in a WAL: frames that say how large the database is after them.
fn commits(wal: &std::path::Path) -> usize {
    let bytes = std::fs::read(wal).unwrap();
    let word = |place: usize| u32::from_be_bytes(bytes[place..place + 4].try_into().unwrap());
    let frame = 24 + word(8) as usize;
    let salts = &bytes[16..24];
    (32..)
        .step_by(frame)
        .take_while(|at| at + frame <= bytes.len() && &bytes[at + 8..at + 16] == salts)
        .filter(|at| word(at + 4) != 0)
        .count()
}

/// Requests that come at the same time share a commit. The file is locked until all of them have come, so that "at the
/// same time" does not depend on how fast this machine is.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_posts_share_commits() {
    const POSTS: usize = 60;
    let place = Place::new("");
    let service = std::sync::Arc::new(place.serve(&[]));
    assert_eq!(service.send("first", "k", "x").await.status, 202);
    let pool = place.open().await;
    let mut lock = pool.acquire().await.unwrap();
    sqlx::query("begin immediate").execute(&mut *lock).await.unwrap();
    let wal = place.path().join("oncebox.db-wal");
    let before = commits(&wal);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..POSTS {
        let service = service.clone();
        tasks.spawn(async move { service.send(&number.to_string(), "k", "x").await.status });
    }
    let all = format!("oncebox_http_in_flight_bytes {POSTS}\n");
    until("all of them wait", || async { service.get("/metrics").await.body.contains(&all) }).await;
    sqlx::query("rollback").execute(&mut *lock).await.unwrap();
    assert!(tasks.join_all().await.iter().all(|status| *status == 202));
    let made = commits(&wal) - before;
    assert_eq!(stored(&place).await.len(), POSTS + 1);
    // The one that was waiting for the lock, the rest, and now and then the counters.
    assert!((1..=8).contains(&made), "{POSTS} posts took {made} commits");
}

/// An answer is a promise: it holds when the process is killed right after it.
#[tokio::test(flavor = "multi_thread")]
async fn kill_9_right_after_an_answer_loses_nothing() {
    let place = Place::new("");
    let mut acknowledged = Vec::new();
    for round in 0..8 {
        let service: Service = place.serve(&[]);
        for number in 0..3 {
            let id = format!("{round}-{number}");
            assert_eq!(service.send(&id, "k", "x").await.status, 202);
            acknowledged.push(id);
        }
        let lines: String = (0..20)
            .map(|number| format!("{{\"id\":\"{round}-b{number}\",\"kind\":\"k\",\"payload\":1}}\n"))
            .collect();
        assert_eq!(
            service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await.status,
            207
        );
        acknowledged.extend((0..20).map(|number| format!("{round}-b{number}")));
        service.kill();
    }
    let mut found: Vec<String> = stored(&place).await.into_iter().map(|(id, ..)| id).collect();
    found.sort_unstable();
    acknowledged.sort_unstable();
    assert_eq!(found, acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_stored_as_configured_and_credentials_never() {
    let place = Place::new(
        "[source.default]\ntype = \"http\"\nkeep_headers = [\"X-*\", \"authorization\"]\nscope = \"shared\"\n",
    );
    let service = place.serve(&[]);
    let headers = [
        ("webhook-id", "1"),
        ("x-kind", "k"),
        ("x-tenant", "acme"),
        ("authorization", "Bearer canary"),
        ("x-api-key", "canary"),
    ];
    assert_eq!(service.post("/in/default", &headers, "x").await.status, 202);
    let pool = place.open().await;
    let row = sqlx::query("select headers, scope from oncebox_log").fetch_one(&pool).await.unwrap();
    assert_eq!(row.get::<String, _>(0), r#"[["x-kind","k"],["x-tenant","acme"]]"#);
    assert_eq!(row.get::<String, _>(1), "shared");
    let file = std::fs::read(place.path().join("oncebox.db-wal")).unwrap();
    assert!(!file.windows(6).any(|window| window == b"canary"));
}
