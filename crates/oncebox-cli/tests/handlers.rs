//! Handlers and sinks from a configuration, against real receivers and real tables.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use oncebox_testkit::until;
use sqlx::{Row, SqlitePool};
use support::Place;
use support::receiver::{Receiver, status};

/// A place whose database has the store's tables and an effect table without any unique key.
async fn prepared(config: &str) -> (Place, SqlitePool) {
    let place = Place::new(config);
    assert!(place.run(&["migrate"]).status.success());
    let pool = place.open().await;
    let table = "create table effect (id text, kind text, key text, payload, headers text, attempt integer)";
    sqlx::query(table).execute(&pool).await.unwrap();
    (place, pool)
}

async fn count(pool: &SqlitePool, sql: &'static str) -> i64 {
    sqlx::query(sql).fetch_one(pool).await.unwrap().get(0)
}

async fn effects(pool: &SqlitePool) -> i64 {
    count(pool, "select count(*) from effect").await
}

/// The errors of all failed attempts, oldest first.
async fn errors(pool: &SqlitePool) -> Vec<String> {
    let rows = sqlx::query("select error from oncebox_attempt order by rowid").fetch_all(pool).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_gets_every_parameter_and_runs_once_in_effect() {
    let (place, pool) = prepared(
        "[source.default]\ntype = \"http\"\nkey = \"header:x-key\"\n[handler.h]\non = [\"order.*\"]\n\
         sql = [\"insert into effect values (:id, :kind, :key, :payload, :headers, :attempt)\", \"update effect set kind = kind || ':kind' where id = :id -- :nothing\"]\n",
    )
    .await;
    let service = place.serve(&[]);
    let headers = [("webhook-id", "o'1"), ("x-kind", "order.placed"), ("x-key", "k"), ("x-a", "ü")];
    for _ in 0..3 {
        service.post("/in/default", &headers, "pay'load; drop table effect").await;
    }
    service.send("2", "other", "x").await;
    service.send("3", "order.paid", "y").await;
    until("both are done", || async { effects(&pool).await == 2 }).await;
    service.stop();
    let row = sqlx::query("select * from effect where id = 'o''1'").fetch_one(&pool).await.unwrap();
    assert_eq!(row.get::<String, _>("kind"), "order.placed:kind");
    assert_eq!(row.get::<Option<String>, _>("key").as_deref(), Some("k"));
    assert_eq!(row.get::<String, _>("payload"), "pay'load; drop table effect");
    assert_eq!(row.get::<i64, _>("attempt"), 1);
    let stored: serde_json::Value = serde_json::from_str(&row.get::<String, _>("headers")).unwrap();
    assert_eq!(stored["x-key"], "k");
    assert_eq!(count(&pool, "select count(*) from effect where key is null").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_that_fails_is_tried_again_with_backoff_and_then_dead() {
    let (place, pool) = prepared(
        "[handler.h]\non = [\"*\"]\nsql = [\"insert into effect (id, attempt) values (:id, :attempt)\", \"insert into not_there values (:id)\"]\n\
         max_attempts = 3\nbackoff = { first = \"10ms\", max = \"20ms\" }\n",
    )
    .await;
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("three attempts failed", || async { errors(&pool).await.len() == 3 }).await;
    until("it is a dead letter", || async {
        service.get("/metrics").await.body.contains("oncebox_dead_letters{handler=\"h\"} 1\n")
    })
    .await;
    assert!(
        errors(&pool).await.iter().all(|error| error.contains("no such table: not_there")),
        "{:?}",
        errors(&pool).await
    );
    assert_eq!(effects(&pool).await, 0, "the first statement is rolled back with the second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_no_text_is_dead_at_once_unless_bytes_are_asked_for() {
    let (place, pool) = prepared(
        "[handler.text]\non = [\"*\"]\nsql = \"insert into effect (payload) values (:payload)\"\n[handler.bytes]\non = [\"*\"]\nsql = \"insert into effect (payload) values (:payload_bytes)\"\n",
    )
    .await;
    let service = place.serve(&[]);
    service.post("/in/default", &[("webhook-id", "1"), ("x-kind", "k")], b"\xff\x00\xfe").await;
    until("one is done and one is dead", || async {
        effects(&pool).await == 1 && errors(&pool).await.len() == 1
    })
    .await;
    assert!(errors(&pool).await[0].contains("use `:payload_bytes`"));
    let bytes: Vec<u8> = sqlx::query("select payload from effect").fetch_one(&pool).await.unwrap().get(0);
    assert_eq!(bytes, b"\xff\x00\xfe");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_posts_with_id_signature_and_trace() {
    let receiver = Receiver::always("204 No Content\r\nconnection: close\r\n\r\n").await;
    let place = Place::new(&format!(
        "[handler.h]\non = [\"*\"]\nhttp = \"{}\"\nsecret = [\"${{NEW}}\", \"${{OLD}}\"]\nheaders = {{ authorization = \"Bearer ${{NEW}}\" }}\n",
        receiver.url()
    ))
    .variable("NEW", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    .variable("OLD", "whsec_b2xkLXNlY3JldA==");
    let service = place.serve(&[]);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("webhook-id", "m1"),
        ("x-kind", "order.placed"),
        ("content-type", "application/json"),
        ("traceparent", trace),
    ];
    service.post("/in/default", &headers, "{\"a\": 1}").await;
    service.send("m2", "k", "x").await;
    until("both are posted", || async { receiver.got().len() == 2 }).await;
    let got = receiver.got();
    let first = got.iter().find(|got| got.header("webhook-id") == Some("m1")).unwrap();
    assert_eq!((first.path.as_str(), first.body.as_slice()), ("/events", &b"{\"a\": 1}"[..]));
    assert_eq!(first.header("idempotency-key"), Some("m1"));
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!(
        (first.header("message-kind"), first.header("message-scope")),
        (Some("order.placed"), Some("default"))
    );
    assert_eq!(first.header("authorization"), Some("Bearer whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let sent_trace = first.header("traceparent").unwrap();
    assert!(
        sent_trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && sent_trace != trace,
        "{sent_trace}"
    );
    let second = got.iter().find(|got| got.header("webhook-id") == Some("m2")).unwrap();
    assert_eq!(second.header("traceparent").unwrap().len(), 55, "a trace begins here");
    // Another implementation agrees with each of the two signatures.
    for secret in ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_b2xkLXNlY3JldA=="] {
        let time = first.header("webhook-timestamp").unwrap().parse().unwrap();
        let expected = standardwebhooks::Webhook::new(secret).unwrap().sign("m1", time, &first.body).unwrap();
        assert!(first.header("webhook-signature").unwrap().split(' ').any(|own| own == expected));
    }
    assert!(!service.log().contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "a secret is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_answers_decide_between_done_retry_and_dead() {
    let receiver = Receiver::start(|got, _| {
        let first = got.header("webhook-id").unwrap();
        let (code, retry) = first.split_once('-').unwrap();
        match retry {
            "again" => status(&format!("{code} Later"), "location: /elsewhere\r\nretry-after: 0", "not now"),
            _ => status(&format!("{code} Never"), "", "no such thing"),
        }
    })
    .await;
    let (place, pool) = prepared(&format!(
        "[handler.h]\non = [\"*\"]\nhttp = \"{}\"\nmax_attempts = 2\nbackoff = {{ first = \"1h\", max = \"1h\" }}\nmax_response = \"5B\"\nbreaker = {{ failures = 0 }}\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    let again = [408, 409, 425, 429, 500, 502, 503, 504, 302];
    let never = [400, 401, 403, 404, 410, 422];
    for code in again {
        service.send(&format!("{code}-again"), "k", "x").await;
    }
    for code in never {
        service.send(&format!("{code}-never"), "k", "x").await;
    }
    // Retry-After of zero seconds wins over a backoff of an hour: two attempts each, and then dead.
    until("all have been answered", || async { errors(&pool).await.len() == 2 * again.len() + never.len() })
        .await;
    assert_eq!(receiver.got().len(), 2 * again.len() + never.len(), "and no more");
    assert!(receiver.got().iter().all(|got| got.path == "/events"), "redirects are not followed");
    let errors = errors(&pool).await;
    assert!(
        errors.iter().any(|error| error == "answered 404 Not Found: no su"),
        "kept, and cut at 5 bytes: {errors:?}"
    );
    assert!(errors.iter().any(|error| error.contains("answered 302")), "{errors:?}");
    let expected = format!("oncebox_dead_letters{{handler=\"h\"}} {}\n", again.len() + never.len());
    until("all are dead letters", || async { service.get("/metrics").await.body.contains(&expected) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_ends_is_cut_off() {
    let receiver = Receiver::start(|_, count| match count {
        0 => "wait".to_owned(),
        1 => format!("500 Oops\r\ncontent-length: 1000000000\r\n\r\n{}", "x".repeat(2 << 20)),
        _ => status("200 OK", "", ""),
    })
    .await;
    let (place, pool) = prepared(&format!(
        "[handler.h]\non = [\"*\"]\nhttp = \"{}\"\ntimeout = \"300ms\"\nbackoff = {{ first = \"1ms\", max = \"1ms\" }}\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("the third try was good", || async { receiver.got().len() == 3 }).await;
    let errors = errors(&pool).await;
    assert!(errors[0].contains("timed out"), "{errors:?}");
    assert!(errors[1].starts_with("answered 500") && errors[1].len() < 5000, "{}", errors[1].len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_breaker_makes_messages_wait_without_counting_attempts() {
    let receiver = Receiver::start(|_, count| match count {
        0..3 => status("500 Down", "retry-after: 0", ""),
        _ => status("200 OK", "", ""),
    })
    .await;
    let (place, pool) = prepared(&format!(
        "[handler.h]\non = [\"*\"]\nhttp = \"{}\"\nmax_attempts = 4\nconcurrency = 1\nbreaker = {{ failures = 3, open = \"600ms\" }}\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("the breaker opened", || async { service.log().contains("too many requests failed") }).await;
    for number in 2..20 {
        service.send(&number.to_string(), "k", "x").await;
    }
    until("all are posted", || async { receiver.got().len() == 3 + 19 }).await;
    let got = receiver.got();
    let waited = got[3].at.duration_since(got[2].at);
    assert!(waited >= Duration::from_millis(600), "it did not wait: {waited:?}");
    assert_eq!(errors(&pool).await.len(), 3, "nobody else paid for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_is_limited_per_handler() {
    let (running, most) = (
        std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)),
        std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (now, peak) = (running.clone(), most.clone());
    let release = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let gate = release.clone();
    tokio::spawn(async move {
        use std::sync::atomic::Ordering::SeqCst;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let (now, peak, gate) = (now.clone(), peak.clone(), gate.clone());
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                gate.acquire().await.unwrap().forget();
                now.fetch_sub(1, SeqCst);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .await;
            });
        }
    });
    let (place, _pool) =
        prepared(&format!("[handler.h]\non = [\"*\"]\nhttp = \"http://{address}/\"\nconcurrency = 3\n"))
            .await;
    let service = place.serve(&[]);
    for number in 0..12 {
        service.send(&number.to_string(), "k", "x").await;
    }
    until("three are under way", || async { running.load(std::sync::atomic::Ordering::SeqCst) == 3 }).await;
    release.add_permits(12);
    until("all are done", || async {
        service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 12\n")
    })
    .await;
    assert_eq!(most.load(std::sync::atomic::Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn ordered_handlers_keep_the_order_of_a_key_even_behind_a_failure() {
    let receiver = Receiver::start(|got, count| match (got.header("webhook-id"), count) {
        (Some("a-0"), 0..3) => status("503 Busy", "retry-after: 0", ""),
        _ => status("200 OK", "", ""),
    })
    .await;
    let (place, _pool) = prepared(&format!(
        "[source.default]\ntype = \"http\"\nkey = \"header:x-key\"\n[handler.h]\non = [\"*\"]\nhttp = \"{}\"\nordered = true\nconcurrency = 8\nbreaker = {{ failures = 0 }}\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    for number in 0..10 {
        let id = format!("a-{number}");
        service.post("/in/default", &[("webhook-id", &id), ("x-kind", "k"), ("x-key", "a")], "x").await;
    }
    until("the last one is posted", || async {
        receiver.got().iter().any(|got| got.header("webhook-id") == Some("a-9"))
    })
    .await;
    let mut order: Vec<String> =
        receiver.got().iter().map(|got| got.header("webhook-id").unwrap().to_owned()).collect();
    order.dedup();
    let expected: Vec<String> = (0..10).map(|number| format!("a-{number}")).collect();
    assert_eq!(order, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_spreads_the_calls_of_sql_and_http() {
    let receiver = Receiver::always("204 No Content\r\nconnection: close\r\n\r\n").await;
    let (place, pool) = prepared(&format!(
        "[handler.web]\non = [\"*\"]\nhttp = \"{}\"\nrate = \"5/s\"\nconcurrency = 1\n[handler.rows]\non = [\"*\"]\nsql = \"insert into effect (id) values (:id)\"\nrate = \"5/s\"\nconcurrency = 1\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    let lines: String =
        (0..15).map(|number| format!("{{\"id\":\"{number}\",\"kind\":\"k\",\"payload\":1}}\n")).collect();
    let began = Instant::now();
    service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await;
    let (web, rows) = (OnceLock::new(), OnceLock::new());
    until("all are done", || async {
        if receiver.got().len() == 15 {
            web.get_or_init(|| began.elapsed());
        }
        if effects(&pool).await == 15 {
            rows.get_or_init(|| began.elapsed());
        }
        web.get().is_some() && rows.get().is_some()
    })
    .await;
    // A second's worth at once, and ten more in two seconds.
    let least = Duration::from_millis(1500);
    assert!(web.get() > Some(&least) && rows.get() > Some(&least), "{web:?} {rows:?}");
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_handler_waits_and_batch_and_from_start_are_kept() {
    let (place, pool) = prepared(
        "[handler.h]\non = [\"*\"]\nsql = \"insert into effect (id) values (:id)\"\npaused = true\n",
    )
    .await;
    let service = place.serve(&[]);
    service.send("1", "k", "x").await;
    until("it is known to be paused", || async {
        service.get("/metrics").await.body.contains("oncebox_paused{handler=\"h\"} 1\n")
    })
    .await;
    assert_eq!(effects(&pool).await, 0);
    service.stop();
    let path = place.path().join("oncebox.toml");
    let write = |extra: &str| {
        let text = format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n{extra}[handler.h]\non = [\"*\"]\nsql = \"insert into effect (id) values (:id)\"\nbatch = 1\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    // `paused = false` leaves what an operator has decided.
    write("");
    let service = place.serve(&[]);
    until("it is still paused", || async {
        service.get("/metrics").await.body.contains("oncebox_paused{handler=\"h\"} 1\n")
    })
    .await;
    sqlx::query("update oncebox_handler set paused = 0").execute(&pool).await.unwrap();
    until("it runs when it is resumed", || async { effects(&pool).await == 1 }).await;
    service.stop();
    // A new handler that wants the past, and one that does not.
    write(
        "[handler.past]\non = [\"*\"]\nsql = \"insert into effect (id, kind) values (:id, 'past')\"\nfrom_start = true\n[handler.now]\non = [\"*\"]\nsql = \"insert into effect (id, kind) values (:id, 'now')\"\n",
    );
    let service = place.serve(&[]);
    service.send("2", "k", "x").await;
    until("all are done", || async { effects(&pool).await == 5 }).await;
    assert_eq!(count(&pool, "select count(*) from effect where kind = 'past'").await, 2);
    assert_eq!(count(&pool, "select count(*) from effect where kind = 'now'").await, 1);
    service.stop();
    // A new name for an old handler: what is done stays done.
    let text = "[http]\nlisten = \"127.0.0.1:0\"\n[handler.renamed]\non = [\"*\"]\nsql = \"insert into effect (id, kind) values (:id, 'renamed')\"\nformerly = [\"past\"]\nfrom_start = true\n";
    std::fs::write(&path, text).unwrap();
    let service = place.serve(&[]);
    service.send("3", "k", "x").await;
    until("only the new one is handled", || async { effects(&pool).await == 6 }).await;
    service.stop();
    assert_eq!(count(&pool, "select count(*) from effect where kind = 'renamed'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_what_a_handler_forwards_through_the_outbox() {
    // Whichever comes first: messages without a key have no order.
    let refused = std::sync::atomic::AtomicBool::new(false);
    let receiver = Receiver::start(move |got, _| match got.header("webhook-id") {
        Some("1") if !refused.swap(true, std::sync::atomic::Ordering::SeqCst) => status("503 Busy", "", ""),
        Some("bad") => status("400 Bad", "", "never"),
        _ => status("200 OK", "", ""),
    })
    .await;
    let (place, pool) = prepared(&format!(
        "[handler.forward]\non = [\"*\"]\nsink = \"events\"\n[sink.events]\ntype = \"http\"\nurl = \"{}\"\nbackoff = {{ first = \"1ms\", max = \"5ms\" }}\nheaders = {{ x-own = \"yes\" }}\nsecret = \"plain\"\n",
        receiver.url()
    ))
    .await;
    let service = place.serve(&[]);
    for id in ["1", "2", "bad"] {
        service.send(id, "order.paid", "x").await;
    }
    let sent =
        |id: &'static str| receiver.got().iter().filter(|got| got.header("webhook-id") == Some(id)).count();
    until("all were tried", || async { sent("1") == 2 && sent("2") == 1 && sent("bad") == 1 }).await;
    until("one is dead, the others are gone", || async {
        count(&pool, "select count(*) from oncebox_outbox").await == 1
    })
    .await;
    let got = receiver.got();
    assert!(got.iter().all(|got| got.header("x-own") == Some("yes") && got.header("message-kind") == Some("order.paid")));
    assert!(got[0].header("webhook-signature").unwrap().starts_with("v1,"));
    until("the dead one is counted", || async {
        service.get("/metrics").await.body.contains("oncebox_outbox_dead{sink=\"events\"} 1\n")
    })
    .await;
}

/// id, kind, key, a part of the payload, the payload, a header, the attempt.
type EffectRow = (String, String, Option<String>, String, Vec<u8>, String, i64);

/// A schema of its own on a server, removed at the end, with a service on it.
struct OnServer {
    place: Place,
    schema: String,
}

impl OnServer {
    fn new(url: &str, store: &str, handler: &str) -> Self {
        let schema = format!("rows_{:016x}", oncebox::clock::Seed::from_system().next());
        let handler = handler.replace("{schema}", &schema);
        let place =
            Place::new(&format!("[store]\nurl = \"{url}\"\nschema = \"{schema}\"\n{store}\n{handler}"));
        // Past the pooler: `oncebox migrate` does not know that there is one.
        let direct = if store.contains("behind_pooler") {
            std::env::var("ONCEBOX_TEST_POSTGRES").unwrap()
        } else {
            url.to_owned()
        };
        let output = place.run(&["migrate", "--store", &direct, "--schema", &schema]);
        assert!(output.status.success(), "{}", support::text(&output.stderr));
        Self { place, schema }
    }

    async fn send(&self) {
        let service = self.place.serve(&[]);
        service
            .post("/in/default", &[("webhook-id", "1"), ("x-kind", "k"), ("x-a", "b")], "{\"total\": 7}")
            .await;
        service
            .post("/in/default", &[("webhook-id", "1"), ("x-kind", "k"), ("x-a", "b")], "{\"total\": 7}")
            .await;
        until("it is done", || async {
            service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 1\n")
        })
        .await;
        let checked = self.place.run(&["check"]);
        assert!(checked.status.success(), "{}", support::text(&checked.stdout));
        service.stop();
    }
}

async fn on_postgres(url: &str, store: &str) {
    let handler = "[handler.h]\non = [\"*\"]\nsql = \"insert into {schema}.effect values (:id, :kind, :key, :payload::jsonb, :payload_bytes, :headers::jsonb, :attempt)\"\n";
    let server = OnServer::new(url, store, handler);
    let pool = sqlx::PgPool::connect(&std::env::var("ONCEBOX_TEST_POSTGRES").unwrap()).await.unwrap();
    let run = async |sql: String| sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    let schema = &server.schema;
    run(format!("create table {schema}.effect (id text, kind text, key text, body jsonb, bytes bytea, headers jsonb, attempt bigint)")).await;
    server.send().await;
    let sql =
        format!("select id, kind, key, body->>'total', bytes, headers->>'x-a', attempt from {schema}.effect");
    let rows: Vec<EffectRow> = sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(&pool).await.unwrap();
    let expected =
        ("1".to_owned(), "k".to_owned(), None, "7".to_owned(), b"{\"total\": 7}".to_vec(), "b".to_owned(), 1);
    assert_eq!(rows, [expected]);
    run(format!("drop schema {schema} cascade")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_gets_every_parameter_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
        return support::not_run("`sql` handlers", "Postgres");
    };
    on_postgres(&url, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_gets_every_parameter_through_a_pooler() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_PGBOUNCER") else {
        return support::not_run("`sql` handlers", "PgBouncer");
    };
    on_postgres(&url, "behind_pooler = true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_gets_every_parameter_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else {
        return support::not_run("`sql` handlers", "MariaDB");
    };
    let handler = "[handler.h]\non = [\"*\"]\nsql = \"insert into {schema}.effect values (:id, :kind, :key, json_value(:payload, '$.total'), :payload_bytes, json_value(:headers, '$.\\\"x-a\\\"'), :attempt)\"\n";
    let server = OnServer::new(&url, "", handler);
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    let schema = &server.schema;
    let create = format!(
        "create table {schema}.effect (id varchar(50), kind varchar(50), message_key varchar(50), total varchar(50), bytes blob, header varchar(50), attempt bigint)"
    );
    sqlx::query(sqlx::AssertSqlSafe(create)).execute(&pool).await.unwrap();
    server.send().await;
    let sql = format!("select * from {schema}.effect");
    let rows: Vec<EffectRow> = sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(&pool).await.unwrap();
    let expected =
        ("1".to_owned(), "k".to_owned(), None, "7".to_owned(), b"{\"total\": 7}".to_vec(), "b".to_owned(), 1);
    assert_eq!(rows, [expected]);
    sqlx::query(sqlx::AssertSqlSafe(format!("drop database {schema}"))).execute(&pool).await.unwrap();
}
