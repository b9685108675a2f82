//! What only MariaDB does to a handler's transaction: implicit commits, deadlocks that undo all of it, lock waits that
//! undo one statement, and settings of a session.

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
use support::MariaSubject;

const HOUR: Duration = Duration::from_secs(3600);

fn number(error: &sqlx::Error) -> u16 {
    error.as_database_error().unwrap().try_downcast_ref::<MySqlDatabaseError>().unwrap().number()
}

/// Two rows that two transactions can lock in opposite order.
async fn make_rows(subject: &MariaSubject) {
    let make = "create table pair (id int primary key, value int not null) engine = innodb;
                insert into pair values (1, 0), (2, 0)";
    sqlx::raw_sql(make).execute(subject.pool()).await.unwrap();
}

async fn lock_waits(subject: &MariaSubject) -> usize {
    subject.transactions().await.iter().filter(|transaction| transaction.is_waiting).count()
}

async fn only_history(subject: &MariaSubject) -> (DeliveryState, String) {
    let found = subject.store().deliveries(&DeliveryFilter::all()).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    (found[0].state, found[0].history[0].error.clone())
}

/// A rival that holds row 2 and then wants row 1, so that whoever has row 1 and wants row 2 is in a deadlock.
async fn rival_of_a_deadlock(subject: &MariaSubject) -> tokio::task::JoinHandle<()> {
    let mut rival = subject.pool().begin().await.unwrap();
    // Many rows changed, so that InnoDB chooses the other one as its victim.
    sqlx::raw_sql("update pair set value = value + 1 where id = 2; insert into weight select seq from seq_1_to_500")
        .execute(&mut *rival)
        .await
        .unwrap();
    tokio::spawn(async move {
        rival.execute("update pair set value = value + 1 where id = 1").await.unwrap();
        rival.commit().await.unwrap();
    })
}

/// 1213: the server has rolled everything back, and what the handler does next would be in another transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_deadlock_is_never_counted_as_done() {
    let Some(subject) = MariaSubject::create().await else { return };
    make_rows(&subject).await;
    sqlx::raw_sql("create table weight (id int) engine = innodb").execute(subject.pool()).await.unwrap();
    let (locked, wait_for_rival) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (tell, go) = (locked.clone(), wait_for_rival.clone());
    let swallow = move |mut tx: MariaTx, message: Message, Attempt(attempt): Attempt| {
        let (tell, go) = (tell.clone(), go.clone());
        async move {
            MariaSubject::record(&mut tx, Effect::of("before", &message)).await?;
            if attempt == 1 {
                tx.execute("update pair set value = 10 where id = 1").await?;
                tell.notify_one();
                go.notified().await;
                let error = tx.execute("update pair set value = 10 where id = 2").await.unwrap_err();
                assert_eq!(number(&error), 1213);
            }
            MariaSubject::record(&mut tx, Effect::of("after", &message)).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = Inbox::new(subject.store()).on("order", handler("swallow", swallow));
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    let draining = tokio::spawn(run(inbox.clone()).drain());
    locked.notified().await;
    let rival = rival_of_a_deadlock(&subject).await;
    until("the rival waits for the handler", || async { lock_waits(&subject).await == 1 }).await;
    wait_for_rival.notify_one();
    draining.await.unwrap().unwrap();
    rival.await.unwrap();

    assert_eq!(subject.effects().await, [], "half of the effect must not be there");
    let (state, error) = only_history(&subject).await;
    assert_eq!(state, DeliveryState::Retrying);
    assert!(error.contains("deadlock"), "{error}");
    subject.clock().advance(HOUR);
    run(inbox).drain().await.unwrap();
    let handlers: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.handler).collect();
    assert_eq!(handlers, ["before", "after"]);
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

/// B17: 1205 undoes the statement only. Whoever returns it gets everything rolled back and tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_wait_that_is_returned_leaves_nothing_behind_and_blames_no_message() {
    let Some(subject) = MariaSubject::create().await else { return };
    make_rows(&subject).await;
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

/// B17: a handler that swallows it goes on in the same transaction, as after any refused statement, and all the rest
/// of its work is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_lock_wait_loses_that_statement_and_no_other() {
    let Some(subject) = MariaSubject::create().await else { return };
    make_rows(&subject).await;
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

/// DDL commits what came before it. That cannot be undone, but it is seen, and the handler is blamed.
#[tokio::test]
async fn a_statement_that_commits_by_itself_fails_the_handler() {
    let endings = [
        "create table made (id int)",
        "truncate table once",
        "lock tables ledger write; unlock tables",
        "set autocommit = 1; alter table once add column more int",
        "analyze table ledger",
    ];
    for ending in endings {
        let Some(subject) = MariaSubject::create().await else { return };
        let make = move |mut tx: MariaTx, message: Message, Attempt(attempt): Attempt| async move {
            if attempt == 1 {
                sqlx::raw_sql(ending).execute(&mut *tx).await?;
                return Ok(());
            }
            MariaSubject::record(&mut tx, Effect::of("make", &message)).await?;
            Ok::<(), Failure>(())
        };
        let inbox = Inbox::new(subject.store()).on("order", handler("make", make));
        run(inbox.clone()).drain().await.unwrap();
        inbox.receive(&[Message::new("order", "x").id("a")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        let (state, error) = only_history(&subject).await;
        assert_eq!(state, DeliveryState::Retrying, "{ending}");
        assert!(error.contains("ended before its commit"), "{ending}: {error}");
        subject.clock().advance(HOUR);
        run(inbox).drain().await.unwrap();
        assert_eq!(subject.effects().await.len(), 1, "{ending}");
    }
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
