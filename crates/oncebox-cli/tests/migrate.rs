//! `oncebox migrate`: what it applies, what it says, and that the SQL it prints makes the same.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output};

use oncebox::clock::Seed;
use oncebox::{Failure, Inbox, Message, PgStore, PgTx, Received, SqliteStore, SqliteTx, handler, run};
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row};

fn oncebox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncebox")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `status --json` and gives back its exit code and its report.
fn status(store: &str, schema: &str) -> (i32, Value) {
    let output = oncebox(&["migrate", "status", "--json", "--store", store, "--schema", schema]);
    let report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output.status.code().unwrap(), report)
}

fn is_applied(report: &Value) -> bool {
    report["migrations"].as_array().unwrap().iter().all(|migration| migration["applied_at"].is_string())
}

fn postgres() -> Option<String> {
    let url = std::env::var("ONCEBOX_TEST_POSTGRES").ok();
    if url.is_none() {
        // Not through `eprintln!`, which the test harness would swallow.
        let _ = writeln!(
            std::io::stderr(),
            "not run: `migrate` on Postgres; `cargo xtask test` starts a server for it"
        );
    }
    url
}

async fn drop_schema(pool: &PgPool, schema: &str) {
    sqlx::query(AssertSqlSafe(format!("drop schema {schema} cascade"))).execute(pool).await.unwrap();
}

#[test]
fn up_applies_and_status_tells_pending_and_drift_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db").display().to_string();
    let url = format!("sqlite:{file}");
    let output = oncebox(&["migrate", "status", "--store", &url]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("oncebox migrate up"), "{}", text(&output.stderr));
    assert!(!folder.path().join("shop.db").exists(), "looking makes nothing");

    let output = oncebox(&["migrate", "--store", &url]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("applied 1 core"), "{}", text(&output.stdout));
    let output = oncebox(&["migrate", "up", "--store", &url]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), String::new()),
        "nothing is left to apply"
    );
    let output = oncebox(&["migrate", "status", "--store", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));

    // Another prefix in the same file is another set of tables.
    let (code, report) = status(&url, "other_");
    assert_eq!((code, is_applied(&report)), (1, false), "{report}");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&file).await.unwrap();
        sqlx::raw_sql("alter table oncebox_log add column extra integer")
            .execute(store.pool())
            .await
            .unwrap();
        store.close().await;
    });
    let output = oncebox(&["migrate", "status", "--store", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("drift: table `oncebox_log` was changed"),
        "{}",
        text(&output.stdout)
    );
}

#[tokio::test]
async fn up_applies_and_status_tells_pending_and_drift_on_postgres() {
    let Some(url) = postgres() else { return };
    let pool = PgPool::connect(&url).await.unwrap();
    let schema = format!("cli_{:016x}", Seed::from_system().next());
    let (code, report) = status(&url, &schema);
    assert_eq!((code, is_applied(&report)), (1, false), "{report}");

    let output = oncebox(&["migrate", "up", "--store", &url, "--schema", &schema]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let applied = text(&output.stdout);
    assert!(applied.starts_with("applied 1 core\napplied 2 functions\n"), "{applied}");
    let (code, report) = status(&url, &schema);
    assert_eq!((code, is_applied(&report)), (0, true), "{report}");

    let change = format!("drop function {schema}.once(text, text); drop index {schema}.delivery_due");
    sqlx::raw_sql(AssertSqlSafe(change)).execute(&pool).await.unwrap();
    let (code, report) = status(&url, &schema);
    assert_eq!(code, 1);
    let expected = ["function `once(handler text, id text)` is missing", "index `delivery_due` is missing"];
    assert_eq!(report["drift"], serde_json::json!(expected));
    drop_schema(&pool, &schema).await;
}

#[tokio::test]
async fn the_printed_sql_makes_an_empty_sqlite_file_ready() {
    let printed = oncebox(&["migrate", "print", "--store", "sqlite:nothing-is-opened.db"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db").display().to_string();
    let store = SqliteStore::open(&file).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(text(&printed.stdout))).execute(store.pool()).await.unwrap();

    let (code, report) = status(&format!("sqlite:{file}"), "oncebox_");
    assert_eq!((code, is_applied(&report), &report["drift"]), (0, true, &serde_json::json!([])), "{report}");

    sqlx::query("create table effect (id text)").execute(store.pool()).await.unwrap();
    let charge = |mut tx: SqliteTx, message: Message| async move {
        sqlx::query("insert into effect (id) values (?1)").bind(&message.id).execute(&mut *tx).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(store.clone()).on("order", handler("charge", charge));
    run(inbox.clone()).drain().await.unwrap();
    let message = Message::new("order", "x").id("7");
    assert_eq!(
        inbox.receive(&[message.clone(), message]).await.unwrap(),
        [Received::New, Received::Duplicate]
    );
    run(inbox).drain().await.unwrap();
    let effects: i64 =
        sqlx::query("select count(*) from effect").fetch_one(store.pool()).await.unwrap().get(0);
    assert_eq!(effects, 1);
}

/// The printed SQL goes through `psql`, as people run it.
#[tokio::test]
async fn the_printed_sql_makes_an_empty_postgres_database_ready() {
    let Some(url) = postgres() else { return };
    let server = PgPool::connect(&url).await.unwrap();
    let database = format!("printed_{:016x}", Seed::from_system().next());
    sqlx::query(AssertSqlSafe(format!("create database {database}"))).execute(&server).await.unwrap();
    let own = format!("{}/{database}", url.rsplit_once('/').unwrap().0);

    let printed = oncebox(&["migrate", "print", "--store", &own, "--schema", "inbox"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("oncebox.sql");
    std::fs::write(&script, &printed.stdout).unwrap();
    let programs = std::env::var("ONCEBOX_TEST_POSTGRES_BIN").unwrap_or_default();
    let psql = std::path::Path::new(&programs).join("psql");
    let mut apply = Command::new(psql);
    apply.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&script).arg(&own);
    let applied = apply.output().unwrap();
    assert!(applied.status.success(), "{}", text(&applied.stderr));

    let (code, report) = status(&own, "inbox");
    assert_eq!((code, is_applied(&report), &report["drift"]), (0, true, &serde_json::json!([])), "{report}");
    let output = oncebox(&["migrate", "up", "--store", &own, "--schema", "inbox"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));

    let pool = PgPoolOptions::new().max_connections(4).connect(&own).await.unwrap();
    let store = PgStore::new(pool.clone()).schema("inbox").unwrap();
    sqlx::query("create table effect (id text)").execute(&pool).await.unwrap();
    let charge = |mut tx: PgTx, message: Message| async move {
        sqlx::query("insert into effect (id) values ($1)").bind(&message.id).execute(&mut *tx).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(store).on("order", handler("charge", charge));
    run(inbox.clone()).drain().await.unwrap();
    let message = Message::new("order", "x").id("7");
    assert_eq!(
        inbox.receive(&[message.clone(), message]).await.unwrap(),
        [Received::New, Received::Duplicate]
    );
    sqlx::query("select inbox.receive('', '8', 'order', 'x')").execute(&pool).await.unwrap();
    run(inbox).drain().await.unwrap();
    let effects: i64 = sqlx::query("select count(*) from effect").fetch_one(&pool).await.unwrap().get(0);
    assert_eq!(effects, 2);
    pool.close().await;
    let remove = format!("drop database {database} with (force)");
    sqlx::query(AssertSqlSafe(remove)).execute(&server).await.unwrap();
}

#[tokio::test]
async fn the_printed_sql_makes_an_empty_mariadb_schema_ready() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else {
        let _ = writeln!(
            std::io::stderr(),
            "not run: `migrate` on MariaDB; `cargo xtask test` starts a server for it"
        );
        return;
    };
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    let schema = format!("cli_{:016x}", Seed::from_system().next());
    let (code, report) = status(&url, &schema);
    assert_eq!((code, is_applied(&report)), (1, false), "{report}");
    let printed = oncebox(&["migrate", "print", "--store", &url, "--schema", &schema]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    // Through the client, as people run it.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("oncebox.sql");
    std::fs::write(&script, &printed.stdout).unwrap();
    let server: sqlx::mysql::MySqlConnectOptions = url.parse().unwrap();
    let mut client = Command::new("mariadb");
    client.args([
        "--no-defaults",
        "--protocol=tcp",
        "--batch",
        "-h",
        server.get_host(),
        "-u",
        server.get_username(),
    ]);
    client.arg(format!("--port={}", server.get_port())).stdin(std::fs::File::open(&script).unwrap());
    let applied = client.output().unwrap();
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let (code, report) = status(&url, &schema);
    assert_eq!((code, is_applied(&report), &report["drift"]), (0, true, &serde_json::json!([])), "{report}");
    let output = oncebox(&["migrate", "up", "--store", &url, "--schema", &schema]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), String::new()),
        "{}",
        text(&output.stderr)
    );

    let change = format!("alter table {schema}.log add column extra int; drop function {schema}.once");
    sqlx::raw_sql(AssertSqlSafe(change)).execute(&pool).await.unwrap();
    let (code, report) = status(&url, &schema);
    assert_eq!(
        (code, &report["drift"]),
        (1, &serde_json::json!(["function `once` is missing", "column `log.extra` was added"])),
        "{report}"
    );
    let left = "select count(*) from information_schema.schemata where schema_name like 'oncebox_fresh%'";
    assert_eq!(sqlx::query(left).fetch_one(&pool).await.unwrap().get::<i64, _>(0), 0);
    sqlx::query(AssertSqlSafe(format!("drop database {schema}"))).execute(&pool).await.unwrap();
}

#[test]
fn wrong_arguments_name_the_thing_and_the_remedy() {
    for (arguments, expected) in [
        (&["migrate", "--store", "oracle:x"][..], "use `sqlite:FILE`"),
        (
            &["migrate", "print", "--store", "postgres://x", "--schema", "a; drop"][..],
            "schema name `a; drop`",
        ),
        (&["migrate", "print", "--json"][..], "migrate status"),
        (&["migrate", "sideways"][..], "possible values: up, status, print"),
        (&["migrate", "status", "--store", "postgres://user:secret@127.0.0.1:1/db"][..], "cannot be reached"),
    ] {
        let output = oncebox(arguments);
        let shown = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {shown}");
        assert!(shown.contains(expected), "{arguments:?}: {shown}");
        assert!(!shown.contains("secret"), "a password is never shown: {shown}");
    }
}
