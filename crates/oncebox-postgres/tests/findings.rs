//! Faults of a server, each made on a private one, found, and undone.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::time::Duration;

use oncebox_core::admin::AdminStore;
use oncebox_core::clock::ClockShift;
use oncebox_postgres::PgStore;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use xtask::postgres::{PROGRAMS_VARIABLE, PrivatePostgres, StopMode};

const SCHEMA: &str = "oncebox";

struct Server {
    private: PrivatePostgres,
    pool: PgPool,
    clock: ClockShift,
    store: PgStore,
}

impl Server {
    async fn start() -> Option<Self> {
        if std::env::var_os(PROGRAMS_VARIABLE).is_none() {
            let _ = writeln!(
                std::io::stderr(),
                "not run: findings of Postgres; `cargo xtask test` has a server for them"
            );
            return None;
        }
        let private = tokio::task::spawn_blocking(|| PrivatePostgres::start().unwrap()).await.unwrap();
        let pool = PgPoolOptions::new().max_connections(4).connect(&private.url()).await.unwrap();
        let clock = ClockShift::default();
        let store = PgStore::new(pool.clone()).with_clock(clock.clone());
        Some(Self { private, pool, clock, store })
    }

    async fn sql(&self, text: &str) {
        let mut connection = PgConnection::connect(&self.private.url()).await.unwrap();
        for statement in text.split(';').filter(|statement| !statement.trim().is_empty()) {
            let statement = AssertSqlSafe(statement.to_owned());
            connection.execute(sqlx::raw_sql(statement)).await.unwrap();
        }
        connection.close().await.unwrap();
    }

    async fn codes(&self) -> Vec<&'static str> {
        self.store.findings().await.unwrap().iter().map(|finding| finding.code).collect()
    }

    /// Waits until the findings are these: a setting that is read again takes a moment.
    async fn expect(&self, codes: &[&str], why: &str) {
        oncebox_testkit::until(&format!("{codes:?} after {why}"), || async { self.codes().await == codes })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_of_a_server_is_found_and_nothing_else() {
    let Some(mut server) = Server::start().await else { return };
    assert_eq!(server.codes().await, ["schema"], "nothing has been migrated");
    server.store.migrate().await.unwrap();
    assert_eq!(server.store.findings().await.unwrap(), []);

    for (make, undo, code) in [
        ("fsync = off", "fsync", "fsync-off"),
        ("full_page_writes = off", "full_page_writes", "full-page-writes-off"),
        ("synchronous_commit = off", "synchronous_commit", "synchronous-commit-off"),
        ("autovacuum = off", "autovacuum", "autovacuum-off"),
        ("default_transaction_read_only = on", "default_transaction_read_only", "read-only"),
    ] {
        server.sql(&format!("alter system set {make}; select pg_reload_conf()")).await;
        server.expect(&[code], make).await;
        server
            .sql(&format!(
                "set default_transaction_read_only = off; alter system reset {undo}; select pg_reload_conf()"
            ))
            .await;
        // The settings file that the server was started with said so.
        server.sql("alter system set fsync = on; select pg_reload_conf()").await;
        server.expect(&[], undo).await;
    }
    for (make, undo, code) in [
        (
            "select pg_create_physical_replication_slot('gone', true)",
            "select pg_drop_replication_slot('gone')",
            "replication-slot",
        ),
        (
            "update pg_index set indisvalid = false where indexrelid = 'oncebox.delivery_due'::regclass",
            "update pg_index set indisvalid = true where indexrelid = 'oncebox.delivery_due'::regclass",
            "index-invalid",
        ),
        ("alter table oncebox.log add extra int", "alter table oncebox.log drop extra", "schema-drift"),
        (
            "drop index oncebox.delivery_state",
            "create index delivery_state on oncebox.delivery (handler, state, id)",
            "schema-drift",
        ),
    ] {
        server.sql(make).await;
        let found = server.store.findings().await.unwrap();
        assert!(found.iter().all(|finding| finding.code == code), "{make}: {found:?}");
        assert!(!found.is_empty(), "{make}");
        server.sql(undo).await;
        assert_eq!(server.store.findings().await.unwrap(), [], "{undo}");
    }
    server.expect(&[], "everything was undone").await;

    // Dead rows that nothing cleans up, because of a change by hand.
    server.sql("alter table oncebox.conflict set (autovacuum_enabled = false)").await;
    let columns = "identity, fingerprint, scope, message_id, kind, headers, payload, received_at";
    server
        .sql(&format!(
            "insert into {SCHEMA}.conflict ({columns}) select gen_random_uuid(), gen_random_uuid(), 's', 'i', 'k', '', '', 0 \
             from generate_series(1, 12000); delete from {SCHEMA}.conflict"
        ))
        .await;
    server.expect(&["bloat", "autovacuum-off", "schema-drift"], "12,000 dead rows").await;
    server.sql("alter table oncebox.conflict reset (autovacuum_enabled); vacuum oncebox.conflict").await;
    server.expect(&[], "vacuum").await;

    a_transaction_that_stays_open_is_named(&server).await;
    what_needs_a_restart_is_found(&mut server).await;
}

async fn a_transaction_that_stays_open_is_named(server: &Server) {
    let mut other = PgConnection::connect(&server.private.url()).await.unwrap();
    other.execute("set application_name = 'forgotten'; begin; select txid_current()").await.unwrap();
    assert_eq!(server.codes().await, [""; 0], "it is young");
    server.clock.advance(Duration::from_secs(3600));
    let found = server.store.findings().await.unwrap();
    assert_eq!(
        found.iter().map(|finding| finding.code).collect::<Vec<_>>(),
        ["old-transaction", "clock-skew"]
    );
    assert!(
        found[0].what.contains("`forgotten`") && found[0].remedy.contains("pg_terminate_backend"),
        "{found:?}"
    );
    other.execute("rollback").await.unwrap();
    assert_eq!(server.codes().await, ["clock-skew"]);
    other.close().await.unwrap();
}

async fn what_needs_a_restart_is_found(server: &mut Server) {
    server.sql("alter system set max_prepared_transactions = 2; alter system set max_connections = 20").await;
    server.private.restart(StopMode::Fast).unwrap();
    server.expect(&["clock-skew"], "the restart").await;
    server.sql("begin; create table left_behind (id int); prepare transaction 'left'").await;
    server.expect(&["prepared-transaction", "clock-skew"], "prepare").await;
    server.sql("rollback prepared 'left'").await;
    server.expect(&["clock-skew"], "its end").await;
    let many = PgPoolOptions::new()
        .min_connections(15)
        .max_connections(15)
        .connect(&server.private.url())
        .await
        .unwrap();
    let mut held = Vec::new();
    for _ in 0..15 {
        held.push(many.acquire().await.unwrap());
    }
    let mut ours = Vec::new();
    for _ in 0..3 {
        ours.push(server.pool.acquire().await.unwrap());
    }
    server.expect(&["connections", "clock-skew"], "18 connections").await;
}
