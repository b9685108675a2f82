//! A server of its own, set in ways that a store must refuse or survive.

#![allow(clippy::unwrap_used)]

use std::io::Write;

use oncebox_core::{ErrorKind, Failure, Inbox, Message, Received, Store, handler, run};
use oncebox_mariadb::{MariaStore, MariaTx};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};
use xtask::mariadb::{PROGRAMS_VARIABLE, PrivateMariadb};

/// A server with these settings; none when there are no programs for it.
async fn server(settings: &'static str) -> Option<(PrivateMariadb, MySqlPool, MariaStore)> {
    if std::env::var_os(PROGRAMS_VARIABLE).is_none() {
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let _ = writeln!(std::io::stderr(), "not run: {name}; `cargo xtask test` has servers for it");
        return None;
    }
    let start = move || PrivateMariadb::start_with(settings).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let pool = MySqlPoolOptions::new().max_connections(4).connect(&server.url()).await.unwrap();
    let store = MariaStore::new(pool.clone());
    store.migrate().await.unwrap();
    Some((server, pool, store))
}

#[tokio::test]
async fn settings_that_can_lose_an_acknowledged_message_are_refused_by_name() {
    let Some((server, pool, store)) = server("").await else { return };
    store.register(&[]).await.unwrap();
    for value in ["0", "2"] {
        let set = format!("set global innodb_flush_log_at_trx_commit = {value}");
        pool.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
        let error = store.register(&[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
        store.clone().allow_relaxed_durability().register(&[]).await.unwrap();
    }
    pool.execute("set global innodb_flush_log_at_trx_commit = 1").await.unwrap();
    store.register(&[]).await.unwrap();

    // Only InnoDB knows transactions.
    pool.execute("alter table oncebox.counter engine = aria").await.unwrap();
    let error = store.register(&[]).await.unwrap_err();
    assert!(error.to_string().contains("InnoDB"), "{error}");
    drop(server);
}

#[tokio::test]
async fn a_binary_log_that_is_not_synced_or_not_possible_is_refused() {
    let settings = "log_bin = binary\nserver_id = 1\nsync_binlog = 0\nbinlog_format = mixed\n\
                    log_bin_trust_function_creators = 1\n";
    let Some((server, pool, store)) = server(settings).await else { return };
    // MariaDB has to be told that functions may write.
    pool.execute("set global log_bin_trust_function_creators = 0").await.unwrap();
    let error = store.clone().schema("untrusted").unwrap().migrate().await.unwrap_err();
    assert!(error.to_string().contains("log_bin_trust_function_creators"), "{error}");
    let error = store.register(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("sync_binlog"), "{error}");
    pool.execute("set global sync_binlog = 1").await.unwrap();
    store.register(&[]).await.unwrap();
    // Also for SQL callers at MariaDB's own level, at which it locks what a function looks at.
    for level in ["repeatable read", "serializable", "read committed"] {
        let calls = (0..40).map(|call| {
            let pool = pool.clone();
            async move {
                let mut tx = pool
                    .begin_with(sqlx::AssertSqlSafe(format!(
                        "set transaction isolation level {level}; begin"
                    )))
                    .await?;
                let receive = "select oncebox.receive('s', ?, 'unwanted', 'x', null, null)";
                let id = format!("{level} {}", call % 10);
                let answer: String = sqlx::query_scalar(receive).bind(id).fetch_one(&mut *tx).await?;
                tx.commit().await?;
                Ok::<_, sqlx::Error>(answer)
            }
        });
        let answers = futures_util::future::try_join_all(calls).await.unwrap();
        assert_eq!(answers.iter().filter(|answer| *answer == "new").count(), 10, "{level}");
    }
    // And with it on, everything works.
    let inbox = Inbox::new(store.clone());
    let message = || Message::new("order", "x").id("a");
    assert_eq!(inbox.receive(&[message()]).await.unwrap(), [Received::New]);
    assert_eq!(inbox.receive(&[message()]).await.unwrap(), [Received::Duplicate]);
    let record = |mut tx: MariaTx, message: Message| async move {
        sqlx::query("insert into shop.effect (id) values (?)").bind(&message.id).execute(&mut *tx).await?;
        Ok::<(), Failure>(())
    };
    sqlx::raw_sql("create database shop; create table shop.effect (id varchar(100) not null)")
        .execute(&pool)
        .await
        .unwrap();
    let inbox = Inbox::new(store.clone()).on("order", handler("record", record).from_start());
    run(inbox.clone()).drain().await.unwrap();
    inbox.process(Message::new("order", "x").id("b")).await.unwrap();
    let effects: i64 = sqlx::query_scalar("select count(*) from shop.effect").fetch_one(&pool).await.unwrap();
    assert_eq!(effects, 2);

    let options: MySqlConnectOptions = server.url().parse().unwrap();
    let pool = MySqlPoolOptions::new().after_connect(|connection, _| {
        Box::pin(async move { connection.execute("set session binlog_format = 'STATEMENT'").await.map(drop) })
    });
    let store = MariaStore::new(pool.connect_with(options).await.unwrap());
    let error = store.register(&[]).await.unwrap_err();
    assert!(error.to_string().contains("binlog_format"), "{error}");
    drop(server);
}

/// A replica, or a primary that is being replaced.
#[tokio::test]
async fn a_server_that_is_read_only_is_refused() {
    let Some((server, pool, store)) = server("").await else { return };
    pool.execute("set global read_only = 1").await.unwrap();
    let error = store.register(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");

    // Without the right to write nevertheless, receiving is refused as well, and says why.
    let make = "create user app@'127.0.0.1'; grant all on oncebox.* to app@'127.0.0.1';
                create user app@localhost; grant all on oncebox.* to app@localhost";
    sqlx::raw_sql(make).execute(&pool).await.unwrap();
    let url = server.url().replace("root@", "app@").replace("/mysql", "/oncebox");
    let app = MariaStore::new(MySqlPool::connect(&url).await.unwrap());
    let error = Inbox::new(app.clone()).receive(&[Message::new("order", "x").id("a")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    pool.execute("set global read_only = 0").await.unwrap();
    app.register(&[]).await.unwrap();
    let received = Inbox::new(app).receive(&[Message::new("order", "x").id("a")]).await.unwrap();
    assert_eq!(received, [Received::New]);
    drop(server);
}

#[tokio::test]
async fn a_message_larger_than_the_packet_is_refused_and_harms_no_other() {
    let Some((server, _pool, store)) = server("max_allowed_packet = 2M\n").await else { return };
    let inbox = Inbox::new(store.clone());
    let large = |id: &str, bytes: usize| Message::new("order", vec![7; bytes]).id(id);
    let error = inbox.receive(&[large("too large", 2 * 1024 * 1024)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("max_allowed_packet") && text.contains("too large"), "{text}");
    // Calls that come at the same time share a statement, but not its refusal.
    let (good, refused, other) =
        ([large("good", 10)], [large("too large", 2 * 1024 * 1024)], [large("other", 10)]);
    let calls = tokio::join!(inbox.receive(&good), inbox.receive(&refused), inbox.receive(&other));
    assert_eq!((calls.0.unwrap(), calls.2.unwrap()), (vec![Received::New], vec![Received::New]));
    let error = calls.1.unwrap_err();
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
    // Several that fit only one by one, and many small ones beside them.
    let mut messages: Vec<Message> = (0..5).map(|number| large(&number.to_string(), 1_900_000)).collect();
    messages.extend((5..500).map(|number| large(&number.to_string(), 10_000)));
    let answers = inbox.receive(&messages).await.unwrap();
    assert_eq!(answers, vec![Received::New; 500]);
    assert_eq!(inbox.receive(&messages).await.unwrap(), vec![Received::Duplicate; 500]);
    // Bytes that take six each as they are stored.
    let headers = || large("headers", 2 * 1024 * 1024 - 200 * 1024).header("h", vec![1; 60 * 1024]);
    let (refused, other) = ([headers()], [large("beside", 10)]);
    let (refused, other) = tokio::join!(inbox.receive(&refused), inbox.receive(&other));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(other.unwrap(), [Received::New]);
    // Bytes that take one each.
    let plain = large("plain", 2 * 1024 * 1024 - 200 * 1024).header("h", vec![b'1'; 60 * 1024]);
    assert_eq!(inbox.receive(&[plain]).await.unwrap(), [Received::New]);
    drop(server);
}

/// What is stored can also be stored with the error it leads to, or its lane would stand still.
#[tokio::test]
async fn the_largest_message_can_become_a_dead_letter() {
    let Some((server, pool, store)) = server("max_allowed_packet = 2M\n").await else { return };
    let fail = |mut tx: MariaTx, message: Message| async move {
        if message.id.len() > 1 {
            return Err(Failure::permanent("x".repeat(10_000)));
        }
        sqlx::query("insert into shop.effect (id) values (?)").bind(&message.id).execute(&mut *tx).await?;
        Ok::<(), Failure>(())
    };
    sqlx::raw_sql("create database shop; create table shop.effect (id varchar(100) not null)")
        .execute(&pool)
        .await
        .unwrap();
    let inbox = Inbox::new(store.clone()).on("order", handler("charge", fail));
    run(inbox.clone()).drain().await.unwrap();
    let message = |id: String, bytes: usize| Message::new("order", vec![7; bytes]).id(id).key("k");
    let packet = 2 * 1024 * 1024;
    // As much as is taken, in the library and in SQL.
    let receive = "select oncebox.receive('s', ?, 'order', ?, 'k', '{}')";
    let (mut stored, mut stored_by_sql) = (0, 0);
    for left in (8..48).map(|half_kib| half_kib * 512) {
        match inbox.receive(&[message(format!("left {left}"), packet - left)]).await {
            Ok(_) => stored += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
        }
        let call = sqlx::query_scalar::<_, String>(receive);
        match call.bind(format!("sql {left}")).bind(vec![7; packet - left]).fetch_one(&pool).await {
            Ok(answer) => stored_by_sql += u32::from(answer == "new"),
            Err(error) => assert!(error.to_string().contains("max_allowed_packet"), "{left}: {error}"),
        }
        if stored > 2 && stored_by_sql > 2 {
            break;
        }
    }
    assert!(stored > 2 && stored_by_sql > 2, "{stored} and {stored_by_sql} were taken");
    assert_eq!(inbox.receive(&[message("b".to_owned(), 1)]).await.unwrap(), [Received::New]);
    run(inbox).drain().await.unwrap();
    let status = &store.handlers().await.unwrap()[0];
    assert_eq!((status.dead, status.waiting), (u64::from(stored + stored_by_sql), 0));
    let effects: i64 = sqlx::query_scalar("select count(*) from shop.effect").fetch_one(&pool).await.unwrap();
    assert_eq!(effects, 1);
    drop(server);
}
