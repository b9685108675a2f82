//! A database that goes away in the middle of everything: a private server, restarted as after a crash.

#![allow(clippy::unwrap_used)]

use std::io::Write;

use oncebox_core::{Inbox, Message, Received, Tx, handler, run};
use oncebox_mariadb::{MariaStore, MariaTransaction};
use sqlx::mysql::MySqlPoolOptions;
use tokio::sync::oneshot;
use xtask::mariadb::{PROGRAMS_VARIABLE, PrivateMariadb};
use xtask::postgres::StopMode;

const MESSAGES: usize = 600;

/// Receivers go on until each message is acknowledged, a runner works through it all, and the server crashes three
/// times; afterwards every effect is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_loses_nothing_and_doubles_nothing() {
    if std::env::var_os(PROGRAMS_VARIABLE).is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "not run: MariaDB restarts; `cargo xtask test` has a server for them"
        );
        return;
    }
    let mut server = tokio::task::spawn_blocking(|| PrivateMariadb::start().unwrap()).await.unwrap();
    let pool = MySqlPoolOptions::new().max_connections(8).connect(&server.url()).await.unwrap();
    let store = MariaStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query("create database shop").execute(&pool).await.unwrap();
    sqlx::query("create table shop.effect (id varchar(100) not null)").execute(&pool).await.unwrap();

    let record = |mut tx: Tx<MariaTransaction>, message: Message| async move {
        sqlx::query("insert into shop.effect (id) values (?)").bind(&message.id).execute(&mut *tx).await?;
        Ok::<(), oncebox_core::Failure>(())
    };
    let inbox = Inbox::new(store).on("order.placed", handler("record", record).batch(20));
    inbox.register().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let runner = run(inbox.clone()).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let runner = tokio::spawn(runner.into_future());

    let sender = inbox.clone();
    let sending = tokio::spawn(async move {
        for number in 0..MESSAGES {
            let message = Message::new("order.placed", "{}").id(format!("m-{number}"));
            // What is not acknowledged comes again, as from any source.
            while sender.receive(std::slice::from_ref(&message)).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    });
    for part in 1..=3 {
        let goal = i64::try_from(MESSAGES * part / 4).unwrap();
        oncebox_testkit::until("a part of the effects", || async { effects(&pool).await >= goal }).await;
        server = tokio::task::spawn_blocking(move || {
            server.restart(StopMode::Immediate).unwrap();
            server
        })
        .await
        .unwrap();
    }
    sending.await.unwrap();
    let all = i64::try_from(MESSAGES).unwrap();
    oncebox_testkit::until("every effect", || async { effects(&pool).await >= all }).await;
    stop.send(()).unwrap();
    runner.await.unwrap().unwrap();

    assert_eq!(effects(&pool).await, all);
    let different: i64 =
        sqlx::query_scalar("select count(distinct id) from shop.effect").fetch_one(&pool).await.unwrap();
    assert_eq!(different, all);
    let again = Message::new("order.placed", "{}").id("m-0");
    assert_eq!(inbox.receive(&[again]).await.unwrap(), [Received::Duplicate]);
    drop(server);
}

/// Zero while the server is away.
async fn effects(pool: &sqlx::MySqlPool) -> i64 {
    sqlx::query_scalar("select count(*) from shop.effect").fetch_one(pool).await.unwrap_or(0)
}
