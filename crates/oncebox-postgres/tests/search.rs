//! What a search costs.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::message;
use oncebox_core::admin::{AdminStore, MessageSearch};
use oncebox_postgres::PgStore;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

const HOUR: Duration = Duration::from_secs(3600);

/// Rows of the log that this session has looked at, once it has told the server.
async fn looked_at(pool: &PgPool, schema: &str) -> i64 {
    sqlx::query("select pg_stat_force_next_flush()").execute(pool).await.unwrap();
    let rows = format!(
        "select (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables \
         where schemaname = '{schema}' and relname = 'log'"
    );
    sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(pool).await.unwrap()
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
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store =
            PgStore::new(pool.clone()).schema(&scratch.schema).unwrap().with_clock(scratch.clock.clone());
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
        for statistics in ["select 1", "analyze {schema}.log"] {
            scratch.sql(statistics).await;
            for (search, found, most) in [
                (&MessageSearch::default(), 100, 600),
                (&before, 100, 600),
                (&between, 100, 3000),
                (&nobody, 0, 3000),
            ] {
                let start = looked_at(&pool, &scratch.schema).await;
                assert_eq!(store.messages(search).await.unwrap().messages.len(), found, "{search:?}");
                let rows = looked_at(&pool, &scratch.schema).await - start;
                assert!(rows >= found as i64, "{rows} rows: they are not counted");
                assert!(rows <= most, "{rows} rows were looked at after `{statistics}` for {search:?}");
            }
        }
        pool.close().await;
    })
    .await;
}
