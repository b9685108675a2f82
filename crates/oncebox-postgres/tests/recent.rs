//! Messages that a process has received itself are not read back, and never mistaken for others.

// A failed expectation of a helper is a panic, as in any test.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{DAY, LIMITS, Scratch, arrivals, everything, message, with_store};
use oncebox_core::store::{
    ABANDONED_AFTER, Claim, Connection, LaneBound, LaneMessage, LaneRow, ReadLanes, Retention,
};
use oncebox_core::{Attempt, Failure, Inbox, Message, Received, Store, handler, run};
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

/// The rows that a handler at the start of the log is given, each lane up to this seq, which changes nothing.
async fn look(scratch: &Scratch, store: &PgStore, name: &str, upto: Option<i64>) -> Vec<LaneRow> {
    let (token, kinds) = (scratch.token(), everything());
    let claimed = store.claim(&Claim { handler: name, token, lanes: 32, limit: 100 }).await.unwrap();
    let lanes: Vec<LaneBound> = claimed.iter().map(|one| LaneBound { lane: one.lane, upto }).collect();
    let read = ReadLanes {
        handler: name,
        token,
        lanes: &lanes,
        limit: 100,
        kinds: &kinds,
        ordered: false,
        limits: LIMITS,
    };
    let batch = store.begin_lanes(&read).await.unwrap().expect("the lanes are ours");
    batch.connection.rollback().await;
    store.release(name, token).await.unwrap();
    batch.rows
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
            // One after the other they make one run.
            for some in (0..25).map(|n| message(format!("{read}{n}"))).collect::<Vec<_>>().chunks(5) {
                inbox.receive(some).await.unwrap();
            }
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
        let at = scratch.number("select max(received_at) from {schema}.log").await;
        lose_everything(scratch).await;
        // They take the seqs that the lost ones had, in the same lane.
        Inbox::new(there).receive(&["x", "y", "z"].map(keyed)).await.unwrap();
        // Even at the same time.
        scratch.sql(&format!("update {{schema}}.log set received_at = {at}")).await;
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

#[tokio::test]
async fn what_others_stored_in_place_of_a_lost_message_is_run() {
    with_store(async |scratch| {
        let (here, there) = (scratch.store.clone().remember(MEBIBYTE), scratch.store.clone());
        let inbox = recording(scratch, &here, 10).await;
        inbox.receive(&["a", "b"].map(keyed)).await.unwrap();
        lose_everything(scratch).await;
        // As many as were lost, so that the next one has the seq it would have had.
        Inbox::new(there).receive(&["x", "y"].map(keyed)).await.unwrap();
        inbox.receive(&[keyed("c")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["x", "y", "c"]);

        // The same with a receive that meets a known id.
        inbox.receive(&[keyed("d")]).await.unwrap();
        scratch.sql("delete from {schema}.log where id = 'd'; delete from {schema}.seen where seq = 4").await;
        scratch.sql("update {schema}.head set seq = 3; update {schema}.log set received_at = 7").await;
        Inbox::new(scratch.store.clone()).receive(&[keyed("z")]).await.unwrap();
        inbox.receive(&["c", "e"].map(keyed)).await.unwrap();
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["x", "y", "c", "z", "e"]);
    })
    .await;
}

#[tokio::test]
async fn what_is_remembered_is_what_is_stored() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.register("h", false).await;
        let messages = vec![
            Message::new("k", vec![0, 159, 146, 150, 0, 255]).id("bytes").key("k").header("a", vec![0, 255]),
            Message::new("k", Vec::new()).id("empty").header("a", "").header("A", "2").header("", "x"),
            Message::new("e\u{301}", "'; drop").id("\u{1f980} ' \" \\ %_").key(" ' or 1=1").scope(" "),
            Message::new("other", "sink").id("sent").to("events").header("json", "{\"base64\":\"AA==\"}"),
        ];
        here.receive(&arrivals(messages)).await.unwrap();
        // However the store has the message.
        let text = |mut row: LaneRow| {
            row.message = row.to_message().map(LaneMessage::from);
            format!("{row:?}")
        };
        let text = |rows: Vec<LaneRow>| rows.into_iter().map(text).collect::<Vec<_>>();
        let mut remembered = look(scratch, &here, "h", None).await;
        let mut stored = look(scratch, &scratch.store, "h", None).await;
        remembered.sort_by_key(|row| row.seq);
        stored.sort_by_key(|row| row.seq);
        assert_eq!(remembered.len(), 4);
        assert_eq!(text(remembered), text(stored));
    })
    .await;
}

#[tokio::test]
async fn a_small_part_of_a_large_buffer_does_not_keep_the_buffer() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.register("h", false).await;
        let buffer = Bytes::from(vec![b'x'; MEBIBYTE]);
        let received = Message::new("k", buffer.slice(..3)).id("a").header("h", buffer.slice(3..5));
        here.receive(&arrivals(vec![received])).await.unwrap();
        scratch.sql("update {schema}.log set payload = 'other'").await;
        let rows = look(scratch, &here, "h", None).await;
        assert_eq!(rows[0].to_message().unwrap().payload, "xxx", "it is remembered");
        assert!(buffer.is_unique());
    })
    .await;
}

#[tokio::test]
async fn a_handler_from_the_start_is_not_given_what_was_purged() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        let inbox = recording(scratch, &here, 10).await;
        inbox.receive(&["old", "older"].map(keyed)).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        scratch.clock.advance(DAY);
        inbox.receive(&[keyed("new")]).await.unwrap();
        let purged = here.purge(&Retention { payload: DAY / 2, ..Retention::default() }).await.unwrap();
        assert_eq!(purged.messages, 2);
        let mut late = common::registration("late", false);
        late.from_start = true;
        here.register(&[late]).await.unwrap();
        let rows = look(scratch, &here, "late", None).await;
        let ids: Vec<String> = rows.iter().map(|row| row.to_message().unwrap().id).collect();
        assert_eq!(ids, ["new"]);
    })
    .await;
}

#[tokio::test]
async fn a_stretch_that_is_run_again_ends_where_it_ended() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.register("h", false).await;
        here.receive(&arrivals(["a", "b", "c"].map(keyed).to_vec())).await.unwrap();
        let seqs: Vec<i64> = look(scratch, &here, "h", Some(2)).await.iter().map(|row| row.seq).collect();
        assert_eq!(seqs, [1, 2]);
    })
    .await;
}

#[tokio::test]
async fn without_the_row_of_the_head_what_is_stored_is_given_out() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.register("h", false).await;
        here.receive(&arrivals(["a", "b"].map(keyed).to_vec())).await.unwrap();
        scratch.sql("delete from {schema}.head").await;
        assert_eq!(look(scratch, &here, "h", None).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_failing_message_holds_the_later_ones_of_its_key() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.sql("create table {schema}.ran (number bigserial, id text, payload text)").await;
        let insert = format!("insert into {}.ran (id, payload) values ($1, '')", scratch.schema);
        let record = move |mut tx: PgTx, Attempt(attempt), message: Message| {
            let insert = insert.clone();
            async move {
                if message.id == "a" && attempt == 1 {
                    return Err(Failure::retry_in(DAY / 2, "not yet"));
                }
                sqlx::query(AssertSqlSafe(insert)).bind(message.id).execute(&mut *tx).await?;
                Ok(())
            }
        };
        let inbox = Inbox::new(here).on("*", handler("h", record).ordered());
        inbox.register().await.unwrap();
        inbox.receive(&[keyed("a")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        inbox.receive(&[keyed("b")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        assert_eq!(ids(scratch).await, Vec::<String>::new());
        scratch.clock.advance(DAY);
        run(inbox).drain().await.unwrap();
        assert_eq!(ids(scratch).await, ["a", "b"]);
    })
    .await;
}

#[tokio::test]
async fn all_that_a_dead_process_was_reading_is_suspected_whoever_received_it() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.sql("create table {schema}.ran (number bigserial, id text, payload text)").await;
        let insert = format!("insert into {}.ran (id, payload) values ($1, $2::text)", scratch.schema);
        let record = move |mut tx: PgTx, Attempt(attempt), message: Message| {
            let insert = insert.clone();
            async move {
                let insert = sqlx::query(AssertSqlSafe(insert)).bind(message.id).bind(attempt.to_string());
                insert.execute(&mut *tx).await?;
                Ok::<(), Failure>(())
            }
        };
        let inbox = Inbox::new(here).on("*", handler("h", record));
        inbox.register().await.unwrap();
        inbox.receive(&[keyed("a")]).await.unwrap();
        Inbox::new(scratch.store.clone()).receive(&[keyed("b")]).await.unwrap();
        let claim = Claim { handler: "h", token: scratch.token(), lanes: 32, limit: 10 };
        assert_eq!(scratch.store.claim(&claim).await.unwrap().len(), 1);
        scratch.clock.advance(ABANDONED_AFTER * 2);
        run(inbox).drain().await.unwrap();
        let mut ran = ran(scratch).await;
        ran.sort();
        assert_eq!(ran, [("a", "2"), ("b", "2")].map(|(id, attempt)| (id.to_owned(), attempt.to_owned())));
    })
    .await;
}

#[tokio::test]
async fn each_handler_is_given_its_kinds_from_its_place_on() {
    with_store(async |scratch| {
        let here = scratch.store.clone().remember(MEBIBYTE);
        scratch.sql("create table {schema}.ran (number bigserial, id text, payload text)").await;
        let writing = |name: &'static str| {
            let insert = format!("insert into {}.ran (id, payload) values ($1, '{name}')", scratch.schema);
            move |mut tx: PgTx, message: Message| {
                let insert = insert.clone();
                async move {
                    sqlx::query(AssertSqlSafe(insert)).bind(message.id).execute(&mut *tx).await?;
                    Ok::<(), Failure>(())
                }
            }
        };
        let inbox = Inbox::new(here.clone())
            .on("order.*", handler("orders", writing("orders")).batch(2))
            .on("*", handler("all", writing("all")).batch(3));
        inbox.register().await.unwrap();
        let other = |id: &str| Message::new("other", "body").id(id).scope("orders").key("k");
        here.set_paused("all", true).await.unwrap();
        inbox.receive(&[keyed("a"), other("b"), keyed("c")]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
        inbox.receive(&[other("d"), keyed("e")]).await.unwrap();
        here.set_paused("all", false).await.unwrap();
        run(inbox).drain().await.unwrap();
        let ran = ran(scratch).await;
        let by = |name: &str| -> Vec<&str> {
            ran.iter().filter(|(_, by)| by == name).map(|(id, _)| id.as_str()).collect()
        };
        assert_eq!(by("orders"), ["a", "c", "e"]);
        assert_eq!(by("all"), ["a", "b", "c", "d", "e"]);
    })
    .await;
}
