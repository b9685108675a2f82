//! The store suite through PgBouncer in transaction mode, under a runtime role; needs `ONCEBOX_TEST_PGBOUNCER`.

#![allow(clippy::unwrap_used)]

// Shared with the other suites, which use more of it.
#[allow(dead_code)]
mod support;

use oncebox_core::{Failure, Inbox, Message, handler, run};
use oncebox_postgres::PgTx;
use oncebox_testkit::{Effect, Manners, MemoryBroker, Subject, store_suite};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use support::{SubjectBy, Way};

/// Each transaction may run in another session than the last.
#[derive(Debug)]
struct Pooler;

impl Way for Pooler {
    const RUNTIME_ROLE: bool = true;
    const POOLER: bool = true;
}

store_suite!(SubjectBy<Pooler>);

async fn ask(tx: &mut PgConnection, call: String) -> String {
    sqlx::query(AssertSqlSafe(call)).persistent(false).fetch_one(tx).await.unwrap().get(0)
}

/// Copies from many clients, whose transactions land in whichever session is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sql_functions_work_through_a_pooler() {
    let Some(subject) = SubjectBy::<Pooler>::create().await else { return };
    let record = |mut tx: PgTx, message: Message| async move {
        SubjectBy::<Pooler>::record(&mut tx, Effect::of("charge", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("charge", record));
    run(inbox.clone()).drain().await.unwrap();
    let calls = (0..30).map(|number| {
        let (pool, schema, id) = (subject.pool(), subject.name(), number % 5);
        async move {
            let mut tx = pool.begin().await.unwrap();
            let first = ask(&mut tx, format!("select {schema}.once('import', '{id}')::text")).await;
            if first == "true" {
                ask(&mut tx, format!("select {schema}.publish('paid', 'x', id => '{id}')")).await;
            }
            let received =
                ask(&mut tx, format!("select {schema}.receive('shop', '{id}', 'order', 'x')")).await;
            tx.commit().await.unwrap();
            (first == "true", received == "new")
        }
    });
    let answers = futures_util::future::join_all(calls).await;
    assert_eq!(answers.iter().filter(|(first, _)| *first).count(), 5, "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, new)| *new).count(), 5, "{answers:?}");
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox).relay(broker.clone()).drain().await.unwrap();
    assert_eq!((broker.sent().len(), subject.effects().await.len()), (5, 5));
}
