//! Each language's program is run against a real database, together with a runner and its relay.

#![allow(clippy::unwrap_used)]

mod mariadb;
mod postgres;
mod scenario;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use mariadb::MariaShop;
use postgres::PgShop;
use scenario::Program;
use tokio::sync::Mutex;

/// Held by those on MariaDB: where stored functions are created meanwhile, in whatever schema, a statement that calls one
/// may fail with error 1615.
static ALONE: Mutex<()> = Mutex::const_new(());

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("languages").join(name)
}

/// What `cargo xtask test` has installed for a language.
fn installed(variable: &str, language: &str) -> Option<OsString> {
    let found = std::env::var_os(variable);
    if found.is_none() {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text = format!("not run: {language} ({variable} is not set; `cargo xtask test` sets it)\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    found
}

fn python(program: &'static str) -> Option<Program> {
    let python = installed("ONCEBOX_TEST_PYTHON", "python")?;
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new(&python);
        command.arg(file(program)).args([action, order, argument]);
        command
    };
    Some(Program { name: "python", run: Box::new(run) })
}

fn node(program: &'static str) -> Option<Program> {
    let modules = installed("ONCEBOX_TEST_NODE_PATH", "node")?;
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new("node");
        command.arg(file(program)).args([action, order, argument]).env("NODE_PATH", &modules);
        command
    };
    Some(Program { name: "node", run: Box::new(run) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_has_each_effect_once() {
    let programs = PathBuf::from(std::env::var_os("ONCEBOX_TEST_POSTGRES_BIN").unwrap_or_default());
    let run = move |action: &str, order: &str, argument: &str| {
        let mut command = Command::new("/bin/sh");
        // psql takes the address as an argument only, which the caller knows as a variable.
        command.args(["-c", r#"exec "$0" -X -A -t -q "$DATABASE_URL" "$@""#]).arg(programs.join("psql"));
        let value = if action == "charge" { format!("cents={argument}") } else { format!("body={argument}") };
        command.args(["-v", &format!("order_id={order}"), "-v", &value, "-f"]);
        command.arg(file(&format!("psql/{action}.sql")));
        command
    };
    scenario::play::<PgShop>(Program { name: "psql", run: Box::new(run) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mariadb_client_has_each_effect_once() {
    let _alone = ALONE.lock().await;
    let run = |action: &str, order: &str, argument: &str| {
        let value = if action == "charge" {
            format!("@cents = {argument}")
        } else {
            let mut hex = String::new();
            argument.bytes().for_each(|byte| write!(hex, "{byte:02x}").unwrap());
            format!("@body = x'{hex}'")
        };
        let mut command = Command::new("/bin/sh");
        // The client knows no addresses, only their parts: mysql://USER@HOST:PORT/DATABASE.
        let script = r#"
            rest=${DATABASE_URL#mysql://}; place=${rest#*@}; server=${place%%/*}
            while ! answer=$(mariadb --no-defaults --batch --skip-column-names --user="${rest%%@*}" \
                --host="${server%:*}" --port="${server##*:}" --init-command="$1" "${place#*/}" < "$0" 2>&1)
            do
                # After a deadlock the script is run again, as the guide says.
                case $answer in *"ERROR 1213 "*) ;; *) echo "$answer" >&2; exit 1 ;; esac
            done
            echo "$answer""#;
        command.args(["-c", script]).arg(file(&format!("mariadb/{action}.sql")));
        command.arg(format!("set @order_id = '{order}', {value}"));
        command
    };
    scenario::play::<MariaShop>(Program { name: "mariadb", run: Box::new(run) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_has_each_effect_once_on_postgres() {
    let Some(program) = python("python/shop_postgres.py") else { return };
    scenario::play::<PgShop>(program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_has_each_effect_once_on_mariadb() {
    let _alone = ALONE.lock().await;
    let Some(program) = python("python/shop_mariadb.py") else { return };
    scenario::play::<MariaShop>(program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_has_each_effect_once_on_postgres() {
    let Some(program) = node("node/shop_postgres.js") else { return };
    scenario::play::<PgShop>(program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_has_each_effect_once_on_mariadb() {
    let _alone = ALONE.lock().await;
    let Some(program) = node("node/shop_mariadb.js") else { return };
    scenario::play::<MariaShop>(program).await;
}
