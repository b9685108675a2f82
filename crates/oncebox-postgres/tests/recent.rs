//! Messages that a process has received itself are not read back, and never mistaken for others.

mod common;

use common::{Scratch, message, with_store};
use oncebox_core::{Failure, Inbox, Message, Received, handler, run};
use oncebox_postgres::{PgStore, PgTx};
use sqlx::{AssertSqlSafe, Row};

const MEBIBYTE: usize = 1024 * 1024;

/// An inbox whose handler writes down the id and payload of each message, in the order of its runs.
async fn recording(scratch: &Scratch, store: &PgStore, batch: usize) -> Inbox<PgStore> {
    scratch.sql("create table if not exists {schema}.ran (number bigserial, id text, payload text)").await;
    let insert = format!("insert into {}.ran (id, payload) values ($1, $2)", scratch.schema);
    let record = move |mut tx: PgTx, message: Message| {
        let insert = insert.clone();
        async move {
            let payload = String::from_utf8_lossy(&message.payload).into_owned();
            sqlx::query(AssertSqlSafe(insert)).bind(message.id).bind(payload).execute(&mut *tx).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = Inbox::new(store.clone()).on("*", handler("h", record).batch(batch));
    inbox.register().await.unwrap();
    inbox
}

async fn ran(scratch: &Scratch) -> Vec<(String, String)> {
    let text = format!("select id, payload from {}.ran order by number", scratch.schema);
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(&scratch.pool).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn ids(scratch: &Scratch) -> Vec<String> {
    ran(scratch).await.into_iter().map(|(id, _)| id).collect()
}

fn keyed(id: &str) -> Message {
    message(id).key("k")
}

/// What a failover to a server without the last commits, or a restored backup, makes of the log.
async fn lose_everything(scratch: &Scratch) {
    scratch
        .sql("delete from {schema}.log; delete from {schema}.seen; update {schema}.head set seq = 0")
        .await;
}

#[tokio::test]
async fn what_was_received_here_is_not_read_back() {
    with_store(async |scratch| {
        for (bytes, read) in [(MEBIBYTE, "body"), (0, "other")] {
            let store = scratch.store.clone().remember(bytes);
            let inbox = recording(scratch, &store, 10).await;
            inbox.receive(&(0..25).map(|n| message(format!("{read}{n}"))).collect::<Vec<_>>()).await.unwrap();
            // Nobody changes the log; here it shows where a message comes from.
            scratch.sql("update {schema}.log set payload = 'other'").await;
            run(inbox).drain().await.unwrap();
            let ran = ran(scratch).await;
            assert_eq!(ran.len(), 25, "with {bytes} bytes");
            assert!(ran.iter().all(|(_, payload)| payload == read), "{ran:?}");
            scratch.sql("truncate {schema}.ran").await;
        }
    })
    .await;
}

#[tokio::test]
async fn others_messages_before_between_and_after_are_run_in_order() {
    with_store(async |scratch| {
        let (here, there) = (scratch.store.clone().remember(MEBIBYTE), scratch.store.clone());
        let inbox = recording(scratch, &here, 2).await;
        let other = Inbox::new(there);
        let mut expected = Vec::new();
        for round in 0..6 {
            for (name, by) in [("a", &inbox), ("b", &inbox), ("c", &other), ("d", &inbox), ("e", &other)] {
                let messages: Vec<Message> = (0..3).map(|n| keyed(&format!("{name}{round}{n}"))).collect();
                expected.extend(messages.iter().map(|message| message.id.clone()));
                assert_eq!(by.receive(&messages).await.unwrap(), [Received::New; 3]);
                // Known ones take a seq and leave it empty.
                let mut again = messages[..2].to_vec();
                again.push(keyed(&format!("{name}{round}-")));
                expected.push(again[2].id.clone());
                by.receive(&again).await.unwrap();
            }
            if round % 2 == 0 {
                run(inbox.clone()).drain().await.unwrap();
                assert_eq!(ids(scratch).await, expected);
            }
        }
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, expected);
    })
    .await;
}

#[tokio::test]
async fn a_log_that_lost_its_last_messages_is_believed() {
    with_store(async |scratch| {
        let (here, there) = (scratch.store.clone().remember(MEBIBYTE), scratch.store.clone());
        let inbox = recording(scratch, &here, 10).await;
        inbox.receive(&["a", "b", "c"].map(keyed)).await.unwrap();
        lose_everything(scratch).await;
        // They take the seqs that the lost ones had, in the same lane.
        Inbox::new(there).receive(&["x", "y", "z"].map(keyed)).await.unwrap();
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["x", "y", "z"]);
    })
    .await;
}

#[tokio::test]
async fn the_same_message_at_the_same_place_may_follow_another_history() {
    with_store(async |scratch| {
        let (here, there) = (scratch.store.clone().remember(MEBIBYTE), scratch.store.clone());
        let inbox = recording(scratch, &here, 10).await;
        inbox.receive(&["a", "b", "c"].map(keyed)).await.unwrap();
        lose_everything(scratch).await;
        Inbox::new(there).receive(&["x", "y", "c"].map(keyed)).await.unwrap();
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["x", "y", "c"]);
    })
    .await;
}

#[tokio::test]
async fn a_run_goes_on_from_the_log_that_is_there() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        let inbox = recording(scratch, &here, 10).await;
        inbox.receive(&["a", "b", "c", "d"].map(keyed)).await.unwrap();
        lose_everything(scratch).await;
        inbox.receive(&["x", "y"].map(keyed)).await.unwrap();
        inbox.receive(&["z"].map(keyed)).await.unwrap();
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["x", "y", "z"]);
    })
    .await;
}

#[tokio::test]
async fn more_than_can_be_remembered_is_run_all_the_same() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(4096);
        let inbox = recording(scratch, &here, 7).await;
        let messages: Vec<Message> = (0..200).map(|n| keyed(&format!("m{n:03}"))).collect();
        for some in messages.chunks(9) {
            inbox.receive(some).await.unwrap();
        }
        run(inbox.clone()).drain().await.unwrap();
        inbox.receive(&[keyed("last")]).await.unwrap();
        run(inbox).drain().await.unwrap();
        let expected: Vec<String> =
            messages.into_iter().map(|message| message.id).chain(["last".into()]).collect();
        assert_eq!(ids(scratch).await, expected);
    })
    .await;
}

#[tokio::test]
async fn a_message_for_later_is_not_run_early() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        let inbox = recording(scratch, &here, 10).await;
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
        inbox.receive(&[keyed("now"), keyed("later").not_before(later), keyed("too")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["now", "too"]);
        scratch.clock.advance(std::time::Duration::from_secs(7200));
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["now", "too", "later"]);
    })
    .await;
}
