//! A source on a real broker that is paused: nothing is taken from it, and everything arrives once when it goes on.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use sqlx::SqlitePool;
use support::redis::redis;
use support::{Place, Service, text};
use xtask::redis::PrivateRedis;

/// The ids that the handler has got from a source, each as often as it ran.
async fn got(pool: &SqlitePool, stream: &str) -> Vec<String> {
    let sql = "select id from got where id like ?1 || '-%' order by id";
    sqlx::query_scalar(sql).bind(stream).fetch_all(pool).await.unwrap()
}

fn add(port: u16, stream: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    let ids: Vec<String> = numbers.map(|number| format!("{stream}-{number:03}")).collect();
    for id in &ids {
        redis(port, &format!("XADD {stream} * id {id} kind k payload x"));
    }
    ids
}

async fn lag(service: &Service, source: &str) -> Option<u64> {
    let sources = service.get("/api/v1/sources").await.json();
    let own = sources["sources"].as_array().unwrap().iter().find(|one| one["source"] == source);
    own.and_then(|one| one["lag"].as_u64())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_from_a_paused_source_on_redis_and_all_arrives_once() {
    let server = xtask::server::if_installed(PrivateRedis::start(), xtask::steps::BROKERS_VARIABLE);
    let Some(server) = server else { return };
    let (url, port) = (server.url(), server.port());
    let place = Place::new(&format!(
        "[defaults.source.redis]\nurl = \"{url}\"\ngroup = \"g\"\ncreate = true\n\
         [source.orders]\ntype = \"redis\"\nstream = \"orders\"\n[source.others]\ntype = \"redis\"\nstream = \"others\"\n\
         [handler.h]\non = [\"*\"]\nsql = \"insert into got (id) values (:id)\"\n"
    ));
    assert!(place.run(&["migrate"]).status.success());
    let pool = place.open().await;
    sqlx::query("create table got (id text not null)").execute(&pool).await.unwrap();
    let service = place.serve(&[]);
    let mut orders = add(port, "orders", 0..5);
    until("both sources are at work", || async { got(&pool, "orders").await.len() == 5 }).await;

    let output = place.run(&["pause", "orders", "--source"]);
    assert_eq!(text(&output.stdout), "paused orders\n", "{}", text(&output.stderr));
    let is_paused = || async { service.get("/api/v1/sources").await.body.contains("\"paused\":true") };
    until("the service has heard of it", is_paused).await;
    orders.extend(add(port, "orders", 5..25));
    let others = add(port, "others", 0..20);
    until("the other source goes on", || async { got(&pool, "others").await == others }).await;
    until("the broker says how much waits", || async { lag(&service, "orders").await == Some(20) }).await;
    assert_eq!(got(&pool, "orders").await, orders[..5]);
    let stored = "select count(*) from oncebox_log where scope = 'orders'";
    let stored: i64 = sqlx::query_scalar(stored).fetch_one(&pool).await.unwrap();
    assert_eq!(stored, 5, "nothing was stored");

    // It stays paused in a process that begins now.
    service.stop();
    let service = place.serve(&[]);
    add(port, "others", 20..21);
    until("the other source goes on", || async { got(&pool, "others").await.len() == 21 }).await;
    until("the broker says how much waits", || async { lag(&service, "orders").await == Some(20) }).await;
    assert_eq!(got(&pool, "orders").await, orders[..5]);

    assert!(place.run(&["resume", "orders", "--source"]).status.success());
    until("everything has arrived", || async { got(&pool, "orders").await.len() >= orders.len() }).await;
    until("everything is acknowledged", || async { lag(&service, "orders").await == Some(0) }).await;
    assert_eq!(got(&pool, "orders").await, orders, "each once");
    service.stop();
}
