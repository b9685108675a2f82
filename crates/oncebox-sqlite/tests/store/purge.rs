use std::time::Duration;

use oncebox_core::admin::DeliveryFilter;
use oncebox_core::store::{Arrival, Commit, Count, Park, ParkState, Purged, Retention, Token};
use oncebox_core::{Message, Received, Store};

use crate::{Fixture, LIMITS, fixture, moved, text};

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Fixture {
    async fn purge(&self, keep: Duration, payload: Duration, step: usize) -> Purged {
        let mut total = Purged::default();
        loop {
            let purged = self.store.purge(&Retention { keep, payload, step }).await.unwrap();
            assert!(purged.ids <= step as u64 && purged.messages <= step as u64);
            total.ids += purged.ids;
            total.messages += purged.messages;
            total.others += purged.others;
            if !purged.more {
                return total;
            }
        }
    }

    async fn done(&self, handler: &str, park: Vec<Park>) {
        let (tx, rows) = self.batch(handler, Token(1)).await;
        self.store.commit(tx, Commit { park, ..moved(handler, Token(1), &rows) }).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_unfinished_or_young_is_removed() {
    let fixture = fixture().await;
    fixture.receive((0..100).map(|n| text(&n.to_string())).collect()).await;
    fixture.clock.advance(3 * DAY);
    assert_eq!(fixture.purge(DAY, DAY, 10).await, Purged::default(), "no handlers: nothing is done");
    fixture.register("slow", false).await;
    fixture.register("fast", false).await;
    assert_eq!(fixture.purge(DAY, DAY, 10).await, Purged::default(), "nobody is done");
    let dead = Park {
        handler: "fast".into(),
        message: text("7"),
        state: ParkState::Dead,
        attempts: 1,
        error: Some("e".into()),
    };
    fixture.done("fast", vec![dead]).await;
    assert_eq!(fixture.purge(DAY, DAY, 10).await, Purged::default(), "one of two is done");
    fixture.done("slow", vec![]).await;
    assert_eq!(fixture.purge(4 * DAY, 4 * DAY, 10).await, Purged::default(), "all young");

    let purged = fixture.purge(4 * DAY, DAY, 10).await;
    assert_eq!((purged.messages, purged.ids), (100, 0), "payloads go before ids");
    fixture.receive(vec![text("8")]).await;
    assert_eq!(fixture.number("select count(*) from oncebox_log").await, 0, "still a duplicate");
    let purged = fixture.purge(DAY, DAY, 10).await;
    assert_eq!((purged.messages, purged.ids, purged.others), (0, 99, 0), "the dead letter's id stays");
    assert_eq!(fixture.store.receive(&[Arrival::new(text("7"))]).await.unwrap(), [Received::Duplicate]);
    assert_eq!(fixture.store.receive(&[Arrival::new(text("8"))]).await.unwrap(), [Received::New]);

    fixture.store.discard(&DeliveryFilter::dead("fast"), "enough").await.unwrap();
    let purged = fixture.purge(DAY, DAY, 10).await;
    assert_eq!((purged.ids, purged.others), (0, 0), "given up just now: its row stays, and so does its id");
    fixture.clock.advance(2 * DAY);
    let purged = fixture.purge(DAY, DAY, 10).await;
    assert_eq!(
        (purged.ids, purged.others),
        (1, 3),
        "the delivery goes, with its id and history; message 8 waits"
    );
    assert_eq!(fixture.number("select count(*) from oncebox_seen").await, 1);
}

#[tokio::test]
async fn old_conflicts_counters_and_once_marks_go() {
    let fixture = fixture().await;
    fixture.receive(vec![text("a")]).await;
    fixture.receive(vec![Message::new("test", "other").id("a").scope("tests")]).await;
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    fixture.store.once(&mut tx, "h", "a").await.unwrap();
    fixture.store.commit(tx, Commit::default()).await.unwrap();
    fixture.store.add_counts(&[Count { handler: "h".into(), name: "n".into(), value: 5 }]).await.unwrap();
    fixture.clock.advance(3 * DAY);
    let purged = fixture.purge(DAY, DAY, 10).await;
    assert_eq!((purged.ids, purged.messages, purged.others), (1, 0, 2));
    assert_eq!(fixture.store.counts().await.unwrap()[0].value, 5);
}

#[tokio::test]
async fn ids_that_must_stay_do_not_block_the_others() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive((0..60).map(|n| text(&n.to_string())).collect()).await;
    let dead = (0..30).map(|n| Park {
        handler: "h".into(),
        message: text(&n.to_string()),
        state: ParkState::Dead,
        attempts: 1,
        error: None,
    });
    fixture.done("h", dead.collect()).await;
    fixture.clock.advance(2 * DAY);
    assert_eq!(fixture.purge(DAY, DAY, 10).await.ids, 30);
    assert_eq!(fixture.purge(DAY, DAY, 10).await.ids, 0);
}
