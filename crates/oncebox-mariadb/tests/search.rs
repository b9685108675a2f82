//! What a search costs.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::message;
use oncebox_core::admin::{AdminStore, MessageSearch};
use oncebox_mariadb::MariaStore;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

const HOUR: Duration = Duration::from_secs(3600);

/// Rows that this session has looked at.
async fn looked_at(pool: &MySqlPool) -> i64 {
    let rows = "select cast(sum(variable_value) as signed) from information_schema.session_status \
                where variable_name like 'handler_read%'";
    sqlx::query_scalar(rows).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_search_costs_the_same_however_long_the_log_is() {
    common::with_store(async |scratch| {
        for group in 0..20 {
            scratch.receive((0..1000).map(|n| message(format!("early-{group}-{n}"))).collect()).await;
        }
        scratch.clock.advance(HOUR);
        scratch.receive((0..100).map(|n| message(format!("middle-{n}"))).collect()).await;
        scratch.clock.advance(HOUR);
        for group in 0..20 {
            scratch.receive((0..1000).map(|n| message(format!("late-{group}-{n}"))).collect()).await;
        }
        let options = scratch.pool.connect_options().as_ref().clone();
        let pool = MySqlPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store =
            MariaStore::new(pool.clone()).schema(&scratch.schema).unwrap().with_clock(scratch.clock.clone());
        let mut before = MessageSearch::default();
        before.before = Some(20_101);
        let middle = store.messages(&before).await.unwrap().messages;
        assert!(middle.iter().all(|hit| hit.message.id.starts_with("middle")), "{middle:?}");
        let mut between = MessageSearch::default();
        between.since = middle.last().map(|hit| hit.received_at);
        between.until = middle.first().map(|hit| hit.received_at + HOUR / 2);
        let mut nobody = between.clone();
        nobody.kind = Some("nobody.*".to_owned());
        // The planner's mind is not the same before and after it has counted.
        for statistics in ["do 1", "analyze table {schema}.log"] {
            scratch.sql(statistics).await;
            for (search, found, most) in [
                (&MessageSearch::default(), 100, 1500),
                (&before, 100, 1500),
                (&between, 100, 6000),
                (&nobody, 0, 6000),
            ] {
                let start = looked_at(&pool).await;
                assert_eq!(store.messages(search).await.unwrap().messages.len(), found, "{search:?}");
                let rows = looked_at(&pool).await - start;
                assert!(rows >= found as i64, "{rows} rows: they are not counted");
                assert!(rows <= most, "{rows} rows were looked at after `{statistics}` for {search:?}");
            }
        }
        pool.close().await;
    })
    .await;
}
