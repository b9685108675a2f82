//! Faults of a server, each made on a private one, found, and undone.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::time::Duration;

use oncebox_core::admin::AdminStore;
use oncebox_core::clock::ClockShift;
use oncebox_mariadb::MariaStore;
use oncebox_testkit::until;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use xtask::mariadb::{PROGRAMS_VARIABLE, PrivateMariadb};

async fn codes(store: &MariaStore) -> Vec<&'static str> {
    store.findings().await.unwrap().iter().map(|finding| finding.code).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_of_a_server_is_found_and_nothing_else() {
    if std::env::var_os(PROGRAMS_VARIABLE).is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "not run: findings of MariaDB; `cargo xtask test` has a server for them"
        );
        return;
    }
    let start = || {
        PrivateMariadb::start_with(
            "log_bin = binary\nbinlog_format = MIXED\nsync_binlog = 1\nlog_bin_trust_function_creators = 1\n",
        )
        .unwrap()
    };
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let url = server.url();
    // Each look with new sessions: settings of the server are those of a session when it begins.
    let clock = ClockShift::default();
    let connect = async || {
        let pool = MySqlPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
        MariaStore::new(pool).with_clock(clock.clone())
    };
    let sql = async |text: &str| {
        let mut connection = MySqlConnection::connect(&url).await.unwrap();
        connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
        connection.close().await.unwrap();
    };
    let store = connect().await;
    assert_eq!(codes(&store).await, ["schema"], "nothing has been migrated");
    store.migrate().await.unwrap();
    assert_eq!(store.findings().await.unwrap(), []);

    for (make, undo, code) in [
        (
            "set global innodb_flush_log_at_trx_commit = 2",
            "set global innodb_flush_log_at_trx_commit = 1",
            "flush-log-at-commit",
        ),
        ("set global sync_binlog = 0", "set global sync_binlog = 1", "sync-binlog"),
        (
            "set global tx_isolation = 'READ-UNCOMMITTED'",
            "set global tx_isolation = 'REPEATABLE-READ'",
            "isolation",
        ),
        ("set global binlog_format = 'STATEMENT'", "set global binlog_format = 'MIXED'", "binlog-format"),
        ("set global wait_timeout = 20", "set global wait_timeout = 28800", "wait-timeout"),
        ("set global read_only = 1", "set global read_only = 0", "read-only"),
        ("set global autocommit = 0", "set global autocommit = 1", "autocommit-off"),
        ("create table oncebox.own (id int) engine = myisam", "drop table oncebox.own", "engine"),
        ("alter table oncebox.log add extra int", "alter table oncebox.log drop extra", "schema-drift"),
        (
            "drop index delivery_state on oncebox.delivery",
            "create index delivery_state on oncebox.delivery (handler, state, id)",
            "schema-drift",
        ),
    ] {
        sql(make).await;
        let found = connect().await.findings().await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|finding| finding.code == code), "{make}: {found:?}");
        sql(undo).await;
        assert_eq!(connect().await.findings().await.unwrap(), [], "{undo}");
    }

    let mut other = MySqlConnection::connect(&url).await.unwrap();
    other.execute("begin").await.unwrap();
    other.execute("insert into oncebox.source (name, paused, changed_at) values ('x', 0, 0)").await.unwrap();
    assert_eq!(codes(&store).await, [""; 0], "it is young");
    clock.advance(Duration::from_secs(3600));
    // MariaDB's list of transactions may be a tenth of a second old.
    until("it is found", || async { codes(&store).await == ["old-transaction", "clock-skew"] }).await;
    let found = store.findings().await.unwrap();
    assert!(found[0].what.contains("`root`") && found[0].remedy.contains("kill connection"), "{found:?}");
    other.execute("rollback").await.unwrap();
    until("it is found no more", || async { codes(&store).await == ["clock-skew"] }).await;
}
