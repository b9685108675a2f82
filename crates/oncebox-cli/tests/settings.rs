//! Settings whose effect is seen only from outside: each test fails when its key is ignored.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use oncebox_testkit::until;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, SqlitePool};
use support::receiver::{Receiver, status};
use support::{Place, not_run, text};

/// Two hours, in the microseconds of the store.
const TWO_HOURS: i64 = 2 * 3600 * 1_000_000;

async fn count(pool: &SqlitePool, table: &'static str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {table}"))).fetch_one(pool).await.unwrap()
}

/// Makes everything that is stored two hours older.
async fn age(pool: &SqlitePool) {
    for sql in [
        "update oncebox_seen set seen_at = seen_at - ?1",
        "update oncebox_log set received_at = received_at - ?1",
    ] {
        sqlx::query(sql).bind(TWO_HOURS).execute(pool).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_is_how_long_an_id_blocks_duplicates() {
    let place = Place::new("[store]\nkeep = \"1h\"\n[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n");
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    assert_eq!(service.send("1", "k", "x").await.status, 200);
    // What waits for a handler is never forgotten.
    until("it is done", || async {
        service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 1\n")
    })
    .await;
    service.stop();
    age(&place.open().await).await;
    let service = place.serve(&[]);
    until("the id is forgotten", || async { service.send("1", "k", "x").await.status == 202 }).await;
    assert_eq!(service.send("1", "k", "x").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_payload_is_how_long_a_message_that_is_done_stays_readable() {
    let place =
        Place::new("[store]\nkeep_payload = \"1h\"\n[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n");
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    until("it is done", || async {
        service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 1\n")
    })
    .await;
    service.stop();
    let pool = place.open().await;
    age(&pool).await;
    assert_eq!(count(&pool, "oncebox_log").await, 1);
    let service = place.serve(&[]);
    until("the payload is gone", || async { count(&pool, "oncebox_log").await == 0 }).await;
    assert_eq!(service.send("1", "k", "x").await.status, 200, "its id is still known");
}

/// A lot of one is one request at a time; a lot of many is many.
#[tokio::test(flavor = "multi_thread")]
async fn batch_of_a_sink_is_how_many_are_sent_at_once() {
    let (single, many) = (Receiver::always("wait").await, Receiver::always("wait").await);
    let place = Place::new(&format!(
        "[handler.a]\non = [\"*\"]\nsink = \"single\"\n[sink.single]\ntype = \"http\"\nurl = \"{}\"\nbatch = 1\n\
         [handler.b]\non = [\"*\"]\nsink = \"many\"\n[sink.many]\ntype = \"http\"\nurl = \"{}\"\n",
        single.url(),
        many.url()
    ));
    let service = place.serve(&[]);
    let lines: String =
        (0..5).map(|number| format!("{{\"id\":\"{number}\",\"kind\":\"k\",\"payload\":1}}\n")).collect();
    let answer = service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await;
    assert_eq!(answer.status, 207);
    until("the sinks were asked", || async { many.got().len() == 5 && !single.got().is_empty() }).await;
    until("all wait in the outbox", || async {
        service.get("/metrics").await.body.contains("oncebox_outbox_waiting{sink=\"single\"} 5\n")
    })
    .await;
    assert_eq!(single.got().len(), 1);
}

/// A schema of its own on the Postgres for tests; removed at the end.
struct Schema {
    pool: PgPool,
    url: String,
    name: String,
}

impl Schema {
    async fn new(what: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
            not_run(what, "Postgres");
            return None;
        };
        let pool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
        let name = format!("settings_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Some(Self { pool, url, name })
    }

    /// The address with one more parameter.
    fn with(&self, parameter: &str) -> String {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{sign}{parameter}", self.url)
    }

    fn store(&self, url: &str) -> String {
        format!("[store]\nurl = \"{url}\"\nschema = \"{}\"\n", self.name)
    }

    async fn remove(self) {
        let sql = format!("drop schema if exists \"{}\" cascade", self.name);
        // A statement that nobody waits for any more may still hold a table: then one of the two is asked to try again.
        while let Err(error) = sqlx::query(AssertSqlSafe(sql.clone())).execute(&self.pool).await {
            let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
            assert_eq!(code.as_deref(), Some("40P01"), "{error}");
        }
    }
}

/// As many calls at once as there are messages, each in a transaction of its own, but for the connections.
#[tokio::test(flavor = "multi_thread")]
async fn connections_is_the_most_there_are_to_the_database() {
    let Some(schema) = Schema::new("the limit of connections").await else { return };
    for (setting, most) in [("connections = 4\n", 5), ("", 17)] {
        let name = format!("{}_{most}", schema.name);
        let place = Place::new(&format!(
            "{}{setting}[handler.h]\non = [\"*\"]\nsql = \"select pg_sleep(0.3)\"\nbatch = 1\nconcurrency = 12\n",
            schema.store(&schema.with(&format!("application_name={name}")))
        ));
        let service = place.serve(&[]);
        let lines: String = (0..40)
            .map(|number| format!("{{\"id\":\"{most}-{number}\",\"kind\":\"k\",\"payload\":1}}\n"))
            .collect();
        let answer = service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await;
        assert_eq!(answer.status, 207);
        let seen = AtomicU32::new(0);
        until("all are done", || async {
            let open: i64 =
                sqlx::query_scalar("select count(*) from pg_stat_activity where application_name = $1")
                    .bind(&name)
                    .fetch_one(&schema.pool)
                    .await
                    .unwrap();
            seen.fetch_max(u32::try_from(open).unwrap(), Ordering::Relaxed);
            service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 40\n")
        })
        .await;
        let seen = seen.into_inner();
        // One more is there to listen.
        assert!(seen <= most, "{setting:?}: {seen} connections");
        assert!(most == 5 || seen > 5, "more than the limit would have been used: {seen}");
        service.stop();
    }
    schema.remove().await;
}

/// Without hints (`behind_pooler`) what another process stores is found by looking, as often as `poll` says.
#[tokio::test(flavor = "multi_thread")]
async fn poll_is_how_often_a_process_looks_without_a_hint() {
    let Some(schema) = Schema::new("polling").await else { return };
    let deaf = |rest: &str| format!("{}behind_pooler = true\n{rest}", schema.store(&schema.url));
    let handler = |name: &str| format!("[handler.{name}]\non = [\"*\"]\nsql = \"select :id\"\n");
    let (never, often) = (
        Place::new(&deaf(&format!("[run]\npoll = \"1h\"\n{}", handler("never")))),
        Place::new(&deaf(&handler("often"))),
    );
    let inlet = Place::new(&deaf(""));
    let (never, often, inlet) = (never.serve(&[]), often.serve(&[]), inlet.serve(&[]));
    let done = async |service: &support::Service, name: &str| -> u64 {
        let text = service.get("/metrics").await.body;
        let start = format!("oncebox_done_total{{handler=\"{name}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0)
    };
    for number in 1..=3_u64 {
        assert_eq!(inlet.send(&number.to_string(), "k", "x").await.status, 202);
        until("who looks often has found it", || async { done(&often, "often").await == number }).await;
    }
    assert_eq!(done(&never, "never").await, 0, "it has not looked");
    // A message of its own is a hint.
    assert_eq!(never.send("own", "k", "x").await.status, 202);
    until("it has looked", || async { done(&never, "never").await == 4 }).await;
    for service in [never, often, inlet] {
        service.stop();
    }
    schema.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relaxed_durability_accepts_what_can_lose_messages() {
    let Some(schema) = Schema::new("relaxed durability").await else { return };
    let store = schema.store(&schema.with("options[synchronous_commit]=off"));
    let handler = "[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n";
    let output = Place::new(&format!("{store}{handler}")).run(&["serve"]);
    let shown = text(&output.stderr);
    assert!(output.status.code() == Some(2) && shown.contains("synchronous_commit"), "{shown}");
    let place = Place::new(&format!("{store}relaxed_durability = true\n{handler}"));
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    service.stop();
    schema.remove().await;
}

/// An outgoing message: its sink, whether it is dead, how often it was tried, and the last error.
type Outgoing = (String, bool, i64, Option<String>);

async fn outbox(pool: &SqlitePool) -> Vec<Outgoing> {
    let sql = "select sink, dead, attempts, last_error from oncebox_outbox";
    sqlx::query_as(sql).fetch_all(pool).await.unwrap()
}

fn is_dead(outbox: &[Outgoing], sink: &str) -> bool {
    outbox.iter().any(|(own, dead, ..)| own == sink && *dead)
}

/// Whoever may wait longer, try more often or try again later still waits when the others have given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_waits_and_tries_again_as_it_is_told() {
    let silent = Receiver::always("wait").await;
    let busy = Receiver::start(|_, _| status("503 Busy", "", "a long explanation of it")).await;
    let sink = |name: &str, url: String, lines: &str| {
        format!(
            "[handler.{name}]\non = [\"*\"]\nsink = \"{name}\"\n[sink.{name}]\ntype = \"http\"\nurl = \"{url}\"\n{lines}\n"
        )
    };
    let soon = "backoff = { first = \"1ms\", max = \"2ms\" }";
    let place = Place::new(
        &[
            sink("short", silent.url(), "timeout = \"1s\"\nmax_attempts = 1"),
            sink("long", silent.url(), "timeout = \"25s\"\nmax_attempts = 1"),
            sink("often", busy.url(), &format!("max_attempts = 3\nmax_response = \"7B\"\n{soon}")),
            sink("seldom", busy.url(), "max_attempts = 3\nbackoff = { first = \"1h\", max = \"1h\" }"),
        ]
        .concat(),
    );
    let service = place.serve(&[]);
    let pool = place.open().await;
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    until("two have given up", || async {
        let outbox = outbox(&pool).await;
        is_dead(&outbox, "short") && is_dead(&outbox, "often")
    })
    .await;
    let outbox = outbox(&pool).await;
    assert!(!is_dead(&outbox, "long") && !is_dead(&outbox, "seldom"), "{outbox:?}");
    let of = |sink: &str| outbox.iter().find(|row| row.0 == sink).unwrap().clone();
    assert_eq!((of("often").2, of("seldom").2), (3, 1), "{outbox:?}");
    let (cut, whole) = (of("often").3.unwrap(), of("seldom").3.unwrap());
    assert!(cut.contains("a long") && !cut.contains("explanation"), "{cut}");
    assert!(whole.contains("a long explanation of it"), "{whole}");
}

/// The same for brokers, whose relay has a table of its own, and `inline`, with which nothing is stored.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_of_a_broker_and_inline_are_as_they_are_told() {
    let server = xtask::redis::PrivateRedis::start();
    let Some(server) = xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE) else { return };
    let sink = |name: &str, relay: &str| {
        format!(
            "[handler.{name}]\non = [\"*\"]\nsink = \"{name}\"\n[sink.{name}]\ntype = \"redis\"\nstream = \"absent\"\n\
             create = false\nrelay = {{ {relay} }}\n"
        )
    };
    let source = |name: &str, inline: bool| {
        format!(
            "[source.{name}]\ntype = \"redis\"\nstream = \"{name}\"\ngroup = \"g\"\ncreate = true\ninline = {inline}\n"
        )
    };
    let place = Place::new(&format!(
        "[defaults.source.redis]\nurl = \"{0}\"\n[defaults.sink.redis]\nurl = \"{0}\"\n{1}{2}{3}{4}",
        server.url(),
        sink("often", "max_attempts = 3, backoff = { first = \"1ms\", max = \"2ms\" }"),
        sink("seldom", "max_attempts = 3, backoff = { first = \"1h\", max = \"1h\" }"),
        source("stored", false),
        source("inline", true),
    ));
    let _service = place.serve(&[]);
    let pool = place.open().await;
    for stream in ["stored", "inline"] {
        support::redis::redis(server.port(), &format!("XADD {stream} * id 1 kind k payload x"));
    }
    let of = |outbox: &[Outgoing], sink: &str| -> Vec<(bool, i64)> {
        outbox.iter().filter(|row| row.0 == sink).map(|row| (row.1, row.2)).collect()
    };
    until("one has given up on both", || async { of(&outbox(&pool).await, "often") == [(true, 3); 2] }).await;
    until("the other has tried both", || async { of(&outbox(&pool).await, "seldom") == [(false, 1); 2] })
        .await;
    let stored: Vec<String> =
        sqlx::query_scalar("select scope from oncebox_log").fetch_all(&pool).await.unwrap();
    assert_eq!(stored, ["stored"]);
}

/// A sink of `type = "redis"`, and a handler that sends everything to it, to a stream of its name.
#[cfg(feature = "redis")]
fn redis_sink(name: &str, server: &xtask::redis::PrivateRedis, lines: &str) -> String {
    let url = server.url();
    format!(
        "[handler.{name}]\non = [\"*\"]\nsink = \"{name}\"\n\
         [sink.{name}]\ntype = \"redis\"\nurl = \"{url}\"\nstream = \"{name}\"\n{lines}\n"
    )
}

/// Redis takes what it is sent but answers nobody who writes; who has less time says so first, and tries again.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn timeout_of_a_relay_is_how_long_a_broker_may_take_to_confirm() {
    let server = xtask::redis::PrivateRedis::start();
    let Some(server) = xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE) else { return };
    // More than any relay waits: what the sink itself does about it is not what is seen.
    let own =
        "timeout = \"50s\"\nrelay = { max_attempts = 1000, backoff = { first = \"1ms\", max = \"2ms\" }";
    let place = Place::new(
        &[
            redis_sink("short", &server, &format!("{own}, timeout = \"1s\" }}")),
            redis_sink("long", &server, &format!("{own}, timeout = \"25s\" }}")),
        ]
        .concat(),
    );
    let service = place.serve(&[]);
    let pool = place.open().await;
    support::redis::redis(server.port(), "CLIENT PAUSE 3600000 WRITE");
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    until("one has given up waiting", || async { outbox(&pool).await.iter().any(|row| row.2 > 0) }).await;
    let rows = outbox(&pool).await;
    let of = |sink: &str| rows.iter().find(|row| row.0 == sink).unwrap().clone();
    let (short, long) = (of("short"), of("long"));
    assert_eq!(short.3.as_deref(), Some("the sink did not confirm it within 1s"), "{rows:?}");
    assert_eq!((long.2, long.3), (0, None), "it has more time");
    support::redis::redis(server.port(), "CLIENT UNPAUSE");
    until("both are confirmed", || async { outbox(&pool).await.is_empty() }).await;
}

/// Redis itself tells how many entries came in one transaction, which is one call of the sink.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn batch_of_a_relay_is_the_most_a_broker_gets_at_once() {
    use std::io::{BufRead, BufReader, Write};

    let server = xtask::redis::PrivateRedis::start();
    let Some(server) = xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE) else { return };
    let place = Place::new(
        &[redis_sink("few", &server, "relay = { batch = 2 }"), redis_sink("many", &server, "")].concat(),
    );
    let service = place.serve(&[]);
    let mut seen = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    seen.set_read_timeout(Some(support::DEADLINE)).unwrap();
    seen.write_all(b"MONITOR\r\n").unwrap();
    let mut seen = BufReader::new(seen).lines().map(Result::unwrap);
    assert_eq!(seen.next().as_deref(), Some("+OK"));

    // Nothing is added before all wait: a lot that was leased earlier may be smaller, the rest could go at once.
    support::redis::redis(server.port(), "CLIENT PAUSE 3600000 WRITE");
    let lines: String =
        (0..8).map(|number| format!("{{\"id\":\"{number}\",\"kind\":\"k\",\"payload\":1}}\n")).collect();
    let answer = service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await;
    assert_eq!(answer.status, 207);
    until("all wait in the outbox", || async {
        let metrics = service.get("/metrics").await.body;
        ["few", "many"]
            .iter()
            .all(|sink| metrics.contains(&format!("oncebox_outbox_waiting{{sink=\"{sink}\"}} 8\n")))
    })
    .await;
    support::redis::redis(server.port(), "CLIENT UNPAUSE");

    let (mut few, mut many): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut lot = (0, 0);
    while few.iter().sum::<usize>() < 8 || many.iter().sum::<usize>() < 8 {
        let line = seen.next().expect("more commands").to_ascii_uppercase();
        match line {
            line if line.contains("\"XADD\" \"FEW\"") => lot.0 += 1,
            line if line.contains("\"XADD\" \"MANY\"") => lot.1 += 1,
            line if line.ends_with("\"EXEC\"") => {
                few.push(lot.0);
                many.push(lot.1);
                lot = (0, 0);
            }
            _ => {}
        }
    }
    assert_eq!(few.iter().max(), Some(&2), "{few:?}");
    assert!(many.iter().max() > Some(&2), "more would have gone at once: {many:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_is_how_tables_begin_and_migrate_says_who_makes_them() {
    let place = Place::new("[store]\nschema = \"shop_\"\n");
    place.serve(&[]).stop();
    let tables = "select count(*) from sqlite_master where name = 'shop_log'";
    let tables: i64 = sqlx::query_scalar(tables).fetch_one(&place.open().await).await.unwrap();
    assert_eq!(tables, 1);
    let output = Place::new("[store]\nmigrate = false\n").run(&["serve"]);
    let shown = text(&output.stderr);
    assert!(output.status.code() == Some(2) && shown.contains("run `migrate` first"), "{shown}");
}

/// The database takes the connection and says nothing; who has less time gives up first.
#[test]
fn connect_timeout_is_how_long_a_database_may_take() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = |timeout: &str| {
        let url = format!("postgres://u@{}/shop", silent.local_addr().unwrap());
        Place::new(&format!("[store]\nurl = \"{url}\"\nconnect_timeout = \"{timeout}\"\n"))
    };
    let (short, long) = (place("1s"), place("50s"));
    let mut waiting = long.command(&["serve"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    let output = short.run(&["serve"]);
    let still_waits = waiting.try_wait().unwrap().is_none();
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(output.status.code() == Some(2) && still_waits, "{}", text(&output.stderr));
}

/// Nobody gets an answer from the store; who has less time says so first.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_longer_than_the_time_for_it_is_not_ready() {
    let Some(schema) = Schema::new("the time for health").await else { return };
    let place = |timeout: &str| {
        Place::new(&format!("{}[health]\ntimeout = \"{timeout}\"\n", schema.store(&schema.url)))
    };
    let places = (place("1s"), place("50s"));
    let (short, long) = (places.0.serve(&[]), places.1.serve(&[]));
    // Nothing else: two locks could wait for each other.
    let mut lock = schema.pool.begin().await.unwrap();
    let sql = format!("lock table \"{}\".handler in access exclusive mode", schema.name);
    sqlx::query(AssertSqlSafe(sql)).execute(&mut *lock).await.unwrap();
    tokio::select! {
        answer = short.get("/health/ready") => assert_eq!(answer.status, 503),
        answer = long.get("/health/ready") => panic!("it had more time: {answer:?}"),
    }
    lock.rollback().await.unwrap();
    // In good order: what a killed process has begun goes on in the database, and would lock what is removed.
    short.stop();
    long.stop();
    schema.remove().await;
}

/// Nobody ever answers; who has less time gives up first.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_takes_no_longer_than_its_handler_may() {
    let silent = Receiver::always("wait").await;
    let handler = |name: &str, timeout: &str| {
        let url = silent.url();
        format!(
            "[handler.{name}]\non = [\"*\"]\nhttp = \"{url}\"\nmax_attempts = 1\ntimeout = \"{timeout}\"\n"
        )
    };
    let place = Place::new(&[handler("short", "1s"), handler("long", "50s")].concat());
    let service = place.serve(&[]);
    assert_eq!(service.send("1", "k", "x").await.status, 202);
    until("one has given up", || async {
        service.get("/metrics").await.body.contains("oncebox_dead_letters{handler=\"short\"} 1\n")
    })
    .await;
    let metrics = service.get("/metrics").await.body;
    assert!(metrics.contains("oncebox_dead_letters{handler=\"long\"} 0\n"), "{metrics}");
    service.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_of_the_runner_is_for_handlers_that_say_nothing() {
    let (plain, own) = (Receiver::always("wait").await, Receiver::always("wait").await);
    let place = Place::new(&format!(
        "[run]\nconcurrency = 2\n[handler.plain]\non = [\"*\"]\nhttp = \"{}\"\n\
         [handler.own]\non = [\"*\"]\nhttp = \"{}\"\nconcurrency = 5\n",
        plain.url(),
        own.url()
    ));
    let service = place.serve(&[]);
    for number in 0..12 {
        assert_eq!(service.send(&number.to_string(), "k", "x").await.status, 202);
    }
    until("both are at work", || async { (plain.got().len(), own.got().len()) == (2, 5) }).await;
    for number in 12..24 {
        assert_eq!(service.send(&number.to_string(), "k", "x").await.status, 202);
    }
    assert_eq!((plain.got().len(), own.got().len()), (2, 5));
    service.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn level_is_what_is_logged_and_what_is_not() {
    for (level, is_logged) in [("debug", true), ("info", false)] {
        let place = Place::new(&format!(
            "[log]\nlevel = \"{level}\"\n[handler.h]\non = [\"*\"]\nsql = \"select no_such_function(:id)\"\nmax_attempts = 1\n"
        ));
        let service = place.serve(&[]);
        assert_eq!(service.send("1", "k", "x").await.status, 202);
        until("it has failed", || async {
            service.get("/metrics").await.body.contains("oncebox_dead_letters{handler=\"h\"} 1\n")
        })
        .await;
        let log = service.log();
        service.stop();
        assert_eq!(log.contains("\"level\":\"DEBUG\""), is_logged, "{log}");
    }
}
