use std::time::Instant;

use oncebox_core::admin::{AdminStore, MessageSearch};
use oncebox_core::store::Arrival;
use oncebox_core::{Message, Store};
use sqlx::{AssertSqlSafe, Row};

use crate::{Fixture, SECOND, fixture};

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

/// How SQLite gets at the log in a statement of the store.
async fn plan(fixture: &Fixture, statement: &str) -> Vec<String> {
    let text = statement.replace("{prefix}", "oncebox_");
    let explain = format!("explain query plan {}", text.lines().skip(1).collect::<Vec<_>>().join("\n"));
    let rows = sqlx::query(AssertSqlSafe(explain)).fetch_all(fixture.store.pool()).await.unwrap();
    let lines = rows.iter().map(|row| row.get::<String, _>("detail"));
    lines.filter(|line| line.contains(" log") || line.contains("oncebox_log")).collect()
}

#[tokio::test]
async fn a_search_costs_the_same_however_long_the_log_is() {
    let fixture = fixture().await;
    let receive = async |name: &str, count: usize| {
        for group in 0..count.div_ceil(1000) {
            let some = (0..count.min(1000)).map(|n| {
                Arrival::new(
                    Message::new("order.placed", "body").id(format!("{name}-{group}-{n}")).scope("orders"),
                )
            });
            fixture.store.receive(&some.collect::<Vec<_>>()).await.unwrap();
        }
    };
    receive("early", 20_000).await;
    fixture.clock.advance(HOUR);
    receive("middle", 100).await;
    fixture.clock.advance(HOUR);
    receive("late", 20_000).await;

    // Whether or not it has counted: each lane is a range of the table's own key, and each place one row.
    for statistics in ["select 1", "analyze"] {
        sqlx::query(statistics).execute(fixture.store.pool()).await.unwrap();
        let places = plan(&fixture, include_str!("../../src/sql/search_places.sql")).await;
        assert_eq!(places, ["SEARCH log USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"], "{statistics}");
        let read = plan(&fixture, include_str!("../../src/sql/search_read.sql")).await;
        // Once for how long each payload is, once for those that fit.
        assert_eq!(read, ["SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"; 2], "{statistics}");
        let last = plan(&fixture, include_str!("../../src/sql/search_last.sql")).await;
        let ranges = [
            "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH oncebox_log USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        ];
        assert_eq!(last, ranges, "{statistics}");
    }
    let mut before = MessageSearch::default();
    before.before = Some(20_101);
    let middle = fixture.store.messages(&before).await.unwrap().messages;
    assert!(middle.iter().all(|hit| hit.message.id.starts_with("middle")), "{middle:?}");
    let mut between = MessageSearch::default();
    between.since = middle.last().map(|hit| hit.received_at);
    between.until = middle.first().map(|hit| hit.received_at + HOUR / 2);
    let began = Instant::now();
    assert_eq!(fixture.store.messages(&between).await.unwrap().messages.len(), 100);
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
}
