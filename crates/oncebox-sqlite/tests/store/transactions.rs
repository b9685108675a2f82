use std::time::{Duration, Instant};

use oncebox_core::store::{Commit, Connection, TxLimits};
use oncebox_core::{ErrorKind, Store};
use oncebox_sqlite::SqliteTransaction;
use sqlx::Connection as _;

use crate::{Fixture, LIMITS, fixture, text};

async fn run(tx: &mut SqliteTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(&mut **tx).await.map(|_| ())
}

async fn assert_fenced(fixture: &Fixture, tx: SqliteTransaction) {
    let commit = Commit { outgoing: vec![text("ghost")], ..Commit::default() };
    let error = fixture.store.commit(tx, commit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(fixture.number("select count(*) from effect where note <> 'before'").await, 0);
    assert_eq!(fixture.number("select count(*) from oncebox_outbox").await, 0);
    // The next transaction on the same connection works.
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    run(&mut tx, "insert into effect (note) values ('next'); delete from effect where note = 'next'")
        .await
        .unwrap();
    fixture.store.commit(tx, Commit::default()).await.unwrap();
}

#[tokio::test]
async fn a_transaction_the_handler_or_an_error_ended_is_fenced_and_keeps_nothing() {
    let fixture = fixture().await;
    sqlx::raw_sql(
        "insert into effect (note) values ('before');
         create table guarded (x integer);
         create trigger guard before insert on guarded begin select raise(rollback, 'no'); end",
    )
    .execute(fixture.store.pool())
    .await
    .unwrap();
    // Statements a handler might run, and whether it swallows an error by doing so.
    for (sql, fails) in [
        ("insert or rollback into effect (note) values ('before')", true),
        ("insert into guarded (x) values (1)", true),
        ("commit", true),
        ("end", true),
        ("rollback", false),
        ("release oncebox_fence; commit", true),
        ("rollback; begin; insert into effect (note) values ('x'); commit", true),
        ("rollback; savepoint oncebox_fence; insert into effect (note) values ('x')", false),
        ("release oncebox_fence", false),
    ] {
        let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
        run(&mut tx, "insert into effect (note) values ('a')").await.unwrap();
        let result = run(&mut tx, sql).await;
        assert_eq!(result.is_err(), fails, "{sql}: {result:?}");
        // What comes afterwards would commit by itself.
        let _ = run(&mut tx, "insert into effect (note) values ('b')").await;
        assert_fenced(&fixture, tx).await;
    }
}

#[tokio::test]
async fn a_swallowed_error_that_ends_only_its_statement_does_not_matter() {
    let fixture = fixture().await;
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    run(&mut tx, "insert into effect (note) values ('a')").await.unwrap();
    run(&mut tx, "insert into effect (note) values ('a')").await.unwrap_err();
    run(&mut tx, "insert into effect (note) values ('b')").await.unwrap();
    fixture.store.commit(tx, Commit::default()).await.unwrap();
    assert_eq!(fixture.number("select count(*) from effect").await, 2);
}

#[tokio::test]
async fn a_nested_begin_is_a_savepoint() {
    let fixture = fixture().await;
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    let mut nested = tx.begin().await.unwrap();
    sqlx::query("insert into effect (note) values ('kept')").execute(&mut *nested).await.unwrap();
    nested.commit().await.unwrap();
    let mut nested = tx.begin().await.unwrap();
    sqlx::query("insert into effect (note) values ('undone')").execute(&mut *nested).await.unwrap();
    drop(nested);
    let mut nested = tx.begin().await.unwrap();
    sqlx::query("insert into effect (note) values ('undone')").execute(&mut *nested).await.unwrap();
    nested.rollback().await.unwrap();
    fixture.store.commit(tx, Commit::default()).await.unwrap();
    assert_eq!(fixture.number("select count(*) from effect").await, 1);

    // One that is never ended.
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    let nested = tx.begin().await.unwrap();
    std::mem::forget(nested);
    let error = fixture.store.commit(tx, Commit::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn an_error_at_commit_is_reported_and_nothing_is_kept() {
    let fixture = fixture().await;
    sqlx::raw_sql(
        "create table parent (id integer primary key);
         create table child (parent integer references parent (id) deferrable initially deferred)",
    )
    .execute(fixture.store.pool())
    .await
    .unwrap();
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    run(&mut tx, "insert into effect (note) values ('a'); insert into child values (7)").await.unwrap();
    let error = fixture.store.commit(tx, Commit::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
}

const RUNAWAY: &str = "with recursive n (x) as (select 1 union all select x + 1 from n) select max(x) from n";
const RUNAWAY_WRITE: &str = "with recursive n (x) as (select 1 union all select x + 1 from n) insert into effect (note) select 'x' || x from n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runaway_statement_is_interrupted_and_the_write_lock_is_free() {
    let fixture = fixture().await;
    let limits = TxLimits { statement: Duration::from_millis(200) };
    for sql in [RUNAWAY, RUNAWAY_WRITE] {
        let mut tx = fixture.store.begin_plain(limits).await.unwrap();
        let started = Instant::now();
        let error = run(&mut tx, sql).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert!(!fixture.store.is_transient(&error), "{error}");
        tx.rollback().await;
        fixture.receive(vec![text("a")]).await;
    }
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_short_statements_may_take_longer_than_the_limit_of_one() {
    let fixture = fixture().await;
    let limits = TxLimits { statement: Duration::from_millis(150) };
    let mut tx = fixture.store.begin_plain(limits).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        run(&mut tx, "select count(*) from (with recursive n (x) as (select 1 union all select x + 1 from n where x < 20000) select x from n)").await.unwrap();
    }
    fixture.store.commit(tx, Commit::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_handler_stops_its_statement_and_frees_the_write_lock() {
    let fixture = fixture().await;
    for by_rollback in [true, false] {
        let mut tx =
            fixture.store.begin_plain(TxLimits { statement: Duration::from_secs(60) }).await.unwrap();
        tokio::time::timeout(Duration::from_millis(50), run(&mut tx, RUNAWAY_WRITE)).await.unwrap_err();
        let started = Instant::now();
        if by_rollback {
            tx.rollback().await;
        } else {
            drop(tx);
        }
        let other = fixture.other().await;
        other.receive(&[oncebox_core::store::Arrival::new(text("a"))]).await.unwrap();
        fixture.receive(vec![text("b")]).await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_transaction_stops_and_cannot_be_committed() {
    let fixture = fixture().await;
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    let revoker = tx.revoker();
    let task = tokio::spawn(async move {
        let result = run(&mut tx, RUNAWAY).await;
        (tx, result)
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    revoker().await;
    let (tx, result) = task.await.unwrap();
    assert!(result.is_err());
    let late = tx.revoker();
    let error = fixture.store.commit(tx, Commit::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    // A revoker that comes too late does not touch the next transaction.
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    late().await;
    run(&mut tx, "insert into effect (note) values ('a')").await.unwrap();
    fixture.store.commit(tx, Commit::default()).await.unwrap();
}

#[tokio::test]
async fn writers_wait_without_emptying_a_pool_of_one() {
    let fixture = fixture().await;
    let options = (*fixture.store.pool().connect_options()).clone();
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
    let store = oncebox_sqlite::SqliteStore::new(pool);
    store.register(&[crate::registration("h", false)]).await.unwrap();
    let tx = store.begin_plain(LIMITS).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .add_counts(&[oncebox_core::store::Count { handler: "h".into(), name: "n".into(), value: 1 }])
                .await
        }
    });
    assert_eq!(store.handlers().await.unwrap().len(), 1);
    store.commit(tx, Commit::default()).await.unwrap();
    waiting.await.unwrap().unwrap();
    store.close().await;
    assert_eq!(store.handlers().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(store.begin_plain(LIMITS).await.unwrap_err().is_transient());
}

#[tokio::test]
async fn transient_errors_are_told_from_others() {
    let fixture = fixture().await;
    let store = &fixture.store;
    assert!(store.is_transient(&sqlx::Error::PoolTimedOut));
    assert!(store.is_transient(&sqlx::Error::WorkerCrashed));
    let options = (*store.pool().connect_options()).clone().busy_timeout(Duration::from_millis(1));
    let mut rival = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let tx = store.begin_plain(LIMITS).await.unwrap();
    let busy = sqlx::query("insert into effect (note) values ('a')").execute(&mut rival).await.unwrap_err();
    assert!(store.is_transient(&busy), "{busy}");
    #[derive(Debug)]
    struct Wrapped(sqlx::Error);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("wrapped")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    assert!(store.is_transient(&Wrapped(busy)));
    let wrong = sqlx::query("select * from nowhere").execute(&mut rival).await.unwrap_err();
    assert!(!store.is_transient(&wrong));
    tx.rollback().await;
}
