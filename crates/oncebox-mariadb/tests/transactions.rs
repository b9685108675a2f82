//! What only MariaDB does to a handler's transaction: statements that commit by themselves, deadlocks that undo all of
//! it, lock waits that undo one statement, and settings of a session.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::{Attempt, ErrorKind, Failure, Inbox, Message, Store, handler, run};
use oncebox_mariadb::MariaTx;
use oncebox_testkit::{Effect, Subject, until};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use support::{MariaSubject, deadlock};

const HOUR: Duration = Duration::from_secs(3600);

fn number(error: &sqlx::Error) -> u16 {
    error.as_database_error().unwrap().try_downcast_ref::<MySqlDatabaseError>().unwrap().number()
}

/// A row to wait for.
async fn make_row(subject: &MariaSubject) {
    subject.pool().execute("insert into pair values (1, 0)").await.unwrap();
}

async fn only_history(subject: &MariaSubject) -> (DeliveryState, String) {
    let found = subject.store().deliveries(&DeliveryFilter::all()).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    (found[0].state, found[0].history[0].error.clone())
}

/// 1213: the server has undone everything, and what the handler does next must not be kept either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_deadlock_is_never_counted_as_done() {
    let Some(subject) = MariaSubject::create().await else { return };
    let swallow = |mut tx: MariaTx, message: Message, Attempt(attempt): Attempt| async move {
        MariaSubject::record(&mut tx, Effect::of("before", &message)).await?;
        let met = if attempt == 1 { deadlock(&mut tx).await } else { Ok(()) };
        let after = MariaSubject::record(&mut tx, Effect::of("after", &message)).await;
        match met {
            Err(error) => {
                assert_eq!(number(&error), 1213);
                assert!(after.is_err(), "a statement after a deadlock is refused");
            }
            Ok(()) => after?,
        }
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("swallow", swallow));
    inbox.register().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("stored")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    assert_eq!(subject.effects().await, [], "nothing of it");
    let (state, error) = only_history(&subject).await;
    assert_eq!(state, DeliveryState::Retrying);
    assert!(error.contains("deadlock"), "{error}");

    // The same where there are neighbours, and where nothing but the commit is left to do.
    let messages = ["a", "b"].map(|id| Message::new("order", "x").id(id));
    inbox.process_all(messages.to_vec()).await.unwrap();
    assert_eq!(subject.effects().await, []);
    subject.clock().advance(HOUR);
    run(inbox).drain().await.unwrap();
    let effects = subject.effects().await;
    for id in ["stored", "a", "b"] {
        let mine = effects.iter().filter(|effect| effect.id == id);
        let handlers: Vec<&str> = mine.map(|effect| effect.handler.as_str()).collect();
        assert_eq!(handlers, ["before", "after"], "{id}");
    }
}

/// A rival that holds row 1 until it is told to let go.
async fn hold_row(subject: &MariaSubject) -> sqlx::Transaction<'static, sqlx::MySql> {
    let mut rival = subject.pool().begin().await.unwrap();
    rival.execute("update pair set value = value + 1 where id = 1").await.unwrap();
    rival
}

async fn want_row(tx: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    // The handler may shorten the wait for its own session; it is set back afterwards.
    tx.execute("set innodb_lock_wait_timeout = 1").await?;
    tx.execute("update pair set value = 10 where id = 1").await.map(drop)
}

/// 1205 undoes the statement only. Whoever returns it gets everything rolled back and tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_wait_that_is_returned_leaves_nothing_behind_and_blames_no_message() {
    let Some(subject) = MariaSubject::create().await else { return };
    make_row(&subject).await;
    let rival = Arc::new(tokio::sync::Mutex::new(Some(hold_row(&subject).await)));
    let calls = Arc::new(AtomicUsize::new(0));
    let (held, counted) = (rival.clone(), calls.clone());
    let charge = move |mut tx: MariaTx, message: Message| {
        let (held, counted) = (held.clone(), counted.clone());
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            MariaSubject::record(&mut tx, Effect::of("charge", &message)).await?;
            if let Err(error) = want_row(&mut tx).await {
                assert_eq!(number(&error), 1205);
                if let Some(rival) = held.lock().await.take() {
                    rival.rollback().await?;
                }
                return Err(Failure::from(error));
            }
            Ok::<(), Failure>(())
        }
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("charge", charge).max_attempts(1));
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(subject.effects().await.len(), 1);
    let row = sqlx::query("select value from pair where id = 1").fetch_one(subject.pool()).await.unwrap();
    assert_eq!(row.get::<i32, _>(0), 10);
}

/// A handler that swallows it goes on in the same transaction, as after any refused statement, and all the rest
/// of its work is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_lock_wait_loses_that_statement_and_no_other() {
    let Some(subject) = MariaSubject::create().await else { return };
    make_row(&subject).await;
    let rival = hold_row(&subject).await;
    let swallow = |mut tx: MariaTx, message: Message| async move {
        MariaSubject::record(&mut tx, Effect::of("before", &message)).await?;
        assert_eq!(number(&want_row(&mut tx).await.unwrap_err()), 1205);
        MariaSubject::record(&mut tx, Effect::of("after", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("swallow", swallow));
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    rival.rollback().await.unwrap();
    let handlers: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.handler).collect();
    assert_eq!(handlers, ["before", "after"]);
    let row = sqlx::query("select value from pair where id = 1").fetch_one(subject.pool()).await.unwrap();
    assert_eq!(row.get::<i32, _>(0), 0);
}

/// What would end the transaction before its time.
const ENDINGS: [&str; 9] = [
    "commit",
    "rollback",
    "commit and chain",
    "start transaction",
    "create table made (id int)",
    "truncate table once",
    "alter table once add column more int",
    "lock tables ledger write",
    "drop table once",
];

/// MariaDB would commit what came before them; here it refuses them. Who swallows the error still has his transaction.
#[tokio::test]
async fn statements_that_end_the_transaction_are_refused() {
    let Some(subject) = MariaSubject::create().await else { return };
    let make = |mut tx: MariaTx, message: Message| async move {
        MariaSubject::record(&mut tx, Effect::of("before", &message)).await?;
        for ending in ENDINGS {
            let error = tx.execute(ending).await.unwrap_err();
            assert_eq!(number(&error), 1399, "{ending}: {error}");
        }
        MariaSubject::record(&mut tx, Effect::of("after", &message)).await?;
        if message.id == "bad" {
            return Err(Failure::permanent("no"));
        }
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("make", make));
    inbox.register().await.unwrap();
    let messages = |way: &str| [way, "bad"].map(|id| Message::new("order", "x").id(id).scope(way));
    inbox.receive(&messages("stored")).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    inbox.process_all(messages("inline").to_vec()).await.unwrap();
    let effects: Vec<(String, String)> =
        subject.effects().await.into_iter().map(|effect| (effect.id, effect.handler)).collect();
    let expected = [("stored", "before"), ("stored", "after"), ("inline", "before"), ("inline", "after")];
    assert_eq!(effects, expected.map(|(id, handler)| (id.to_owned(), handler.to_owned())));
    let dead = inbox.store().deliveries(&DeliveryFilter::dead("make")).await.unwrap();
    assert_eq!(dead.len(), 2, "the bad ones, and nothing of their work");
}

/// Whatever the pool's sessions are set to.
#[tokio::test]
async fn a_handler_reads_what_is_committed_and_its_limits_are_set_back() {
    let settings = "set session transaction isolation level serializable; set max_statement_time = 77, \
                    idle_transaction_timeout = 78, innodb_lock_wait_timeout = 79, lock_wait_timeout = 80";
    let Some(subject) = MariaSubject::with_settings(settings).await else { return };
    let rival = subject.pool().clone();
    let look = move |mut tx: MariaTx, message: Message| {
        let rival = rival.clone();
        async move {
            let count = "select count(*) from seen_by_others";
            let before: i64 = sqlx::query_scalar(count).fetch_one(&mut *tx).await?;
            rival.execute("insert into seen_by_others values (1)").await?;
            let after: i64 = sqlx::query_scalar(count).fetch_one(&mut *tx).await?;
            let limits = "select concat_ws(' ', @@max_statement_time, @@idle_transaction_timeout, \
                          @@innodb_lock_wait_timeout, @@lock_wait_timeout)";
            let limits: String = sqlx::query_scalar(limits).fetch_one(&mut *tx).await?;
            let note = format!("{} more, {limits}", after - before);
            MariaSubject::record(&mut tx, Effect { note, ..Effect::of("look", &message) }).await?;
            Ok::<(), Failure>(())
        }
    };
    let make = "create table seen_by_others (id int) engine = innodb";
    subject.pool().execute(make).await.unwrap();
    let look = handler("look", look).timeout(Duration::from_secs(5));
    let inbox = Inbox::new(subject.store()).on("order", look);
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    inbox.process(Message::new("order", "x").id("b")).await.unwrap();
    run(inbox).drain().await.unwrap();
    let notes: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.note).collect();
    assert_eq!(notes, ["1 more, 5.000000 5 5 5"; 2]);

    for _ in 0..8 {
        let mut connection = subject.pool().acquire().await.unwrap();
        let text = "select concat_ws(' ', @@tx_isolation, @@max_statement_time, @@idle_transaction_timeout, \
                    @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@autocommit, @@in_transaction)";
        let set: String = sqlx::query_scalar(text).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(set, "SERIALIZABLE 77.000000 78 79 80 ON 0");
    }
}

/// A process that stands still keeps its connection; its locks must not outlive its limit.
#[tokio::test]
async fn the_server_ends_a_transaction_that_nobody_goes_on_with() {
    let Some(subject) = MariaSubject::create().await else { return };
    let limits = oncebox_core::store::TxLimits { statement: Duration::from_millis(500) };
    let mut tx = subject.store().begin_plain(limits).await.unwrap();
    MariaSubject::record(&mut tx, Effect { id: "a".into(), handler: "h".into(), note: String::new() })
        .await
        .unwrap();
    assert_eq!(subject.transactions().await.len(), 1);
    until("the server has ended it", || async { subject.transactions().await.is_empty() }).await;
    let error = subject.store().commit(tx, oncebox_core::store::Commit::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(subject.effects().await, []);
}

/// 1062 undoes the statement only, so a handler may use it to find a duplicate of its own.
#[tokio::test]
async fn a_duplicate_key_of_the_handlers_own_leaves_the_transaction_open() {
    let Some(subject) = MariaSubject::create().await else { return };
    let mine = |mut tx: MariaTx, message: Message| async move {
        let error = tx.execute("insert into once (one) values (1)").await.unwrap_err();
        assert_eq!(number(&error), 1062);
        MariaSubject::record(&mut tx, Effect::of("mine", &message)).await?;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("mine", mine));
    inbox.register().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(subject.effects().await.len(), 1);
}

/// The handler may look at another schema; the store's statements name theirs.
#[tokio::test]
async fn a_session_with_another_default_schema_finds_the_tables() {
    let Some(subject) = MariaSubject::create().await else { return };
    let go = |mut tx: MariaTx, message: Message| async move {
        MariaSubject::record(&mut tx, Effect::of("go", &message)).await?;
        tx.execute("use mysql").await?;
        Ok::<(), Failure>(())
    };
    let store = subject.store_with_one_connection().await;
    let inbox = Inbox::new(store).on("order", handler("go", go));
    inbox.register().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("other", "x").id("b")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    let count = format!("select count(*) from {}.log", subject.name());
    let received: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(subject.pool()).await.unwrap();
    assert_eq!((received, subject.effects().await.len()), (2, 1));
}
