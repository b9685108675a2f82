//! Messages that a process has received itself are not read back, and never mistaken for others.

use std::time::Duration;

use bytes::Bytes;
use oncebox_core::store::{
    ABANDONED_AFTER, Arrival, Claim, Connection, LaneBound, LaneMessage, LaneRow, ReadLanes, Retention, Token,
};
use oncebox_core::{Attempt, Failure, Inbox, Message, Received, Store, handler, run};
use oncebox_sqlite::{SqliteStore, SqliteTx};
use sqlx::{AssertSqlSafe, Row};

use crate::{Fixture, LIMITS, SECOND, every_kind, fixture, registration};

const MEBIBYTE: usize = 1024 * 1024;
const DAY: Duration = SECOND.saturating_mul(24 * 3600);
const RAN: &str =
    "create table if not exists ran (number integer primary key, id text not null, payload text not null)";

impl Fixture {
    async fn sql(&self, text: &str) {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(self.store.pool()).await.unwrap();
    }

    /// A handle as another process has it, which remembers so much.
    async fn remembering(&self, bytes: usize) -> SqliteStore {
        self.other().await.remember(bytes)
    }
}

/// An inbox whose handler writes down the id and payload of each message, in the order of its runs.
async fn recording(fixture: &Fixture, store: &SqliteStore, batch: usize) -> Inbox<SqliteStore> {
    fixture.sql(RAN).await;
    let record = async |mut tx: SqliteTx, message: Message| {
        let payload = String::from_utf8_lossy(&message.payload).into_owned();
        write_down(&mut tx, &message.id, &payload).await
    };
    let inbox = Inbox::new(store.clone()).on("*", handler("h", record).batch(batch));
    inbox.register().await.unwrap();
    inbox
}

async fn write_down(tx: &mut SqliteTx, id: &str, payload: &str) -> Result<(), Failure> {
    let insert = sqlx::query("insert into ran (id, payload) values (?1, ?2)");
    insert.bind(id).bind(payload).execute(&mut **tx).await?;
    Ok(())
}

async fn ran(fixture: &Fixture) -> Vec<(String, String)> {
    let rows = sqlx::query("select id, payload from ran order by number");
    let rows = rows.fetch_all(fixture.store.pool()).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn ids(fixture: &Fixture) -> Vec<String> {
    ran(fixture).await.into_iter().map(|(id, _)| id).collect()
}

fn keyed(id: &str) -> Message {
    message(id).key("k")
}

fn message(id: impl Into<String>) -> Message {
    Message::new("order.placed", "body").id(id).scope("orders")
}

fn arrivals(messages: Vec<Message>) -> Vec<Arrival> {
    Arrival::all(&messages).collect()
}

/// The rows that a handler at the start of the log is given, each lane up to this seq, which changes nothing.
async fn look(store: &SqliteStore, name: &str, upto: Option<i64>) -> Vec<LaneRow> {
    let (token, kinds) = (Token(7), every_kind());
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

/// What a restored backup makes of the log.
async fn lose_everything(fixture: &Fixture) {
    fixture.sql("delete from oncebox_log; delete from oncebox_seen; update oncebox_head set seq = 0").await;
}

#[tokio::test]
async fn what_was_received_here_is_not_read_back() {
    let fixture = fixture().await;
    for (bytes, read) in [(MEBIBYTE, "body"), (0, "other")] {
        let store = fixture.remembering(bytes).await;
        let inbox = recording(&fixture, &store, 10).await;
        // One after the other they make one run.
        for some in (0..25).map(|n| message(format!("{read}{n}"))).collect::<Vec<_>>().chunks(5) {
            inbox.receive(some).await.unwrap();
        }
        // Nobody changes the log; here it shows where a message comes from.
        fixture.sql("update oncebox_log set payload = cast('other' as blob)").await;
        run(inbox).drain().await.unwrap();
        let ran = ran(&fixture).await;
        assert_eq!(ran.len(), 25, "with {bytes} bytes");
        assert!(ran.iter().all(|(_, payload)| payload == read), "{ran:?}");
        fixture.sql("delete from ran").await;
    }
}

#[tokio::test]
async fn what_came_with_known_messages_is_not_read_back_either() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    let inbox = recording(&fixture, &here, 10).await;
    Inbox::new(fixture.store.clone()).receive(&["a", "b"].map(keyed)).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&["a", "c", "b", "d"].map(keyed)).await.unwrap();
    inbox.receive(&["d", "e", "c"].map(keyed)).await.unwrap();
    fixture.sql("update oncebox_log set payload = cast('other' as blob)").await;
    run(inbox).drain().await.unwrap();
    let expected = ["a", "b", "c", "d", "e"].map(|id| (id.to_owned(), "body".to_owned()));
    assert_eq!(ran(&fixture).await, expected);
}

#[tokio::test]
async fn others_messages_before_between_and_after_are_run_in_order() {
    let fixture = fixture().await;
    let (here, there) = (fixture.remembering(MEBIBYTE).await, fixture.store.clone());
    let inbox = recording(&fixture, &here, 2).await;
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
            assert_eq!(ids(&fixture).await, expected);
        }
    }
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, expected);
}

#[tokio::test]
async fn a_log_that_lost_its_last_messages_is_believed() {
    let fixture = fixture().await;
    let (here, there) = (fixture.remembering(MEBIBYTE).await, fixture.store.clone());
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["a", "b", "c"].map(keyed)).await.unwrap();
    let at = fixture.number("select max(received_at) from oncebox_log").await;
    lose_everything(&fixture).await;
    // They take the seqs that the lost ones had, in the same lane.
    Inbox::new(there).receive(&["x", "y", "z"].map(keyed)).await.unwrap();
    // Even at the same time.
    fixture.sql(&format!("update oncebox_log set received_at = {at}")).await;
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["x", "y", "z"]);
}

#[tokio::test]
async fn the_same_message_at_the_same_place_may_follow_another_history() {
    let fixture = fixture().await;
    let (here, there) = (fixture.remembering(MEBIBYTE).await, fixture.store.clone());
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["a", "b", "c"].map(keyed)).await.unwrap();
    lose_everything(&fixture).await;
    Inbox::new(there).receive(&["x", "y", "c"].map(keyed)).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["x", "y", "c"]);
}

#[tokio::test]
async fn a_run_goes_on_from_the_log_that_is_there() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["a", "b", "c", "d"].map(keyed)).await.unwrap();
    lose_everything(&fixture).await;
    inbox.receive(&["x", "y"].map(keyed)).await.unwrap();
    inbox.receive(&["z"].map(keyed)).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["x", "y", "z"]);
}

#[tokio::test]
async fn more_than_can_be_remembered_is_run_all_the_same() {
    let fixture = fixture().await;
    let here = fixture.remembering(4096).await;
    let inbox = recording(&fixture, &here, 7).await;
    let messages: Vec<Message> = (0..200).map(|n| keyed(&format!("m{n:03}"))).collect();
    for some in messages.chunks(9) {
        inbox.receive(some).await.unwrap();
    }
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[keyed("last")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    let expected: Vec<String> =
        messages.into_iter().map(|message| message.id).chain(["last".into()]).collect();
    assert_eq!(ids(&fixture).await, expected);
}

#[tokio::test]
async fn a_message_for_later_is_not_run_early() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    let inbox = recording(&fixture, &here, 10).await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    inbox.receive(&[keyed("now"), keyed("later").not_before(later), keyed("too")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["now", "too"]);
    fixture.clock.advance(Duration::from_secs(7200));
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["now", "too", "later"]);
}

/// More than the statements for a few have room for.
#[tokio::test]
async fn large_groups_are_remembered_as_well() {
    let fixture = fixture().await;
    let (here, there) = (fixture.remembering(MEBIBYTE).await, fixture.store.clone());
    let inbox = recording(&fixture, &here, 1000).await;
    let id = |name: &str, number: usize| format!("{name}{number}");
    let group = |name: &str, known: &str| -> Vec<Message> {
        let (first, then) = ((0..200).map(|n| keyed(&id(name, n))), (200..300).map(|n| keyed(&id(name, n))));
        first.chain((0..100).map(|n| keyed(&id(known, n)))).chain(then).collect()
    };
    let bodies = |names: &[&str]| -> Vec<(String, String)> {
        let ids = names.iter().flat_map(|name| (0..300).map(|n| id(name, n)));
        ids.map(|id| (id, "body".to_owned())).collect()
    };
    // With others' messages before, then one run, with known ones in between.
    Inbox::new(there.clone()).receive(&group("a", "a")).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    fixture.sql("delete from ran").await;
    for (name, known) in [("b", "a"), ("c", "b"), ("d", "d"), ("e", "a")] {
        assert_eq!(inbox.receive(&group(name, known)).await.unwrap()[200], Received::Duplicate);
    }
    fixture.sql("update oncebox_log set payload = cast('other' as blob)").await;
    run(inbox.clone()).drain().await.unwrap();
    assert_eq!(ran(&fixture).await, bodies(&["b", "c", "d", "e"]));

    // Somebody else's in the place of what was lost.
    let head = fixture.number("select seq from oncebox_head").await;
    inbox.receive(&group("lost", "a")).await.unwrap();
    fixture.sql(&format!("delete from oncebox_log where seq > {head}")).await;
    fixture.sql(&format!("delete from oncebox_seen where seq > {head}")).await;
    fixture.sql(&format!("update oncebox_head set seq = {head}")).await;
    Inbox::new(there).receive(&group("x", "a")).await.unwrap();
    inbox.receive(&group("g", "a")).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(ran(&fixture).await, bodies(&["b", "c", "d", "e", "x", "g"]));
}

#[tokio::test]
async fn a_receive_that_was_rolled_back_is_not_remembered() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["a", "b"].map(keyed)).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    let refuse = "create trigger refuse before insert on oncebox_log begin select raise(abort, 'full'); end";
    fixture.sql(refuse).await;
    for size in [1, 300] {
        let lost: Vec<Message> = (0..size).map(|number| keyed(&format!("lost{size}-{number}"))).collect();
        inbox.receive(&lost).await.unwrap_err();
    }
    fixture.sql("drop trigger refuse").await;
    // It takes the place that was not taken.
    Inbox::new(fixture.store.clone()).receive(&[keyed("c")]).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["a", "b", "c"]);
}

#[tokio::test]
async fn what_others_stored_in_place_of_a_lost_message_is_run() {
    let fixture = fixture().await;
    let (here, there) = (fixture.remembering(MEBIBYTE).await, fixture.store.clone());
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["a", "b"].map(keyed)).await.unwrap();
    lose_everything(&fixture).await;
    // As many as were lost, so that the next one has the seq it would have had.
    Inbox::new(there).receive(&["x", "y"].map(keyed)).await.unwrap();
    inbox.receive(&[keyed("c")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["x", "y", "c"]);

    // The same with a receive that meets a known id.
    inbox.receive(&[keyed("d")]).await.unwrap();
    fixture.sql("delete from oncebox_log where id = 'd'; delete from oncebox_seen where seq = 4").await;
    fixture.sql("update oncebox_head set seq = 3; update oncebox_log set received_at = 7").await;
    Inbox::new(fixture.store.clone()).receive(&[keyed("z")]).await.unwrap();
    inbox.receive(&["c", "e"].map(keyed)).await.unwrap();
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["x", "y", "c", "z", "e"]);
}

/// A commit with nothing but copies leaves nothing in the log by which its loss can be told.
#[tokio::test]
async fn what_others_stored_in_place_of_a_lost_copy_is_run() {
    // A few are received in another way than many, and so are those with other bytes.
    for (copies, with_conflict) in [(1, false), (1, true), (300, false), (300, true)] {
        let fixture = fixture().await;
        let here = fixture.remembering(MEBIBYTE).await;
        let inbox = recording(&fixture, &here, 1000).await;
        let first: Vec<Message> = (0..copies).map(|number| keyed(&format!("first{number}"))).collect();
        inbox.receive(&first).await.unwrap();
        let before = fixture.number("select seq from oncebox_head").await;
        inbox.receive(&first).await.unwrap();
        if with_conflict {
            let conflicting = Message::new("order.placed", "other").id("first0").scope("orders").key("k");
            inbox.receive(&[conflicting]).await.unwrap();
        }
        let taken = fixture.number("select seq from oncebox_head").await - before;
        assert!(taken >= copies, "{taken}");
        fixture.sql(&format!("delete from oncebox_conflict; update oncebox_head set seq = {before}")).await;
        let others: Vec<Message> = (0..taken).map(|number| keyed(&format!("other{number}"))).collect();
        Inbox::new(fixture.store.clone()).receive(&others).await.unwrap();
        inbox.receive(&[keyed("last")]).await.unwrap();
        run(inbox).drain().await.unwrap();
        let all = first.into_iter().chain(others).map(|message| message.id).chain(["last".to_owned()]);
        assert_eq!(ids(&fixture).await, all.collect::<Vec<_>>(), "{copies} copies took {taken} places");
    }
}

#[tokio::test]
async fn what_is_remembered_is_what_is_stored() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.register("h", false).await;
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
    let mut remembered = look(&here, "h", None).await;
    let mut stored = look(&fixture.store, "h", None).await;
    remembered.sort_by_key(|row| row.seq);
    stored.sort_by_key(|row| row.seq);
    assert_eq!(remembered.len(), 4);
    assert_eq!(text(remembered), text(stored));
}

#[tokio::test]
async fn a_small_part_of_a_large_buffer_does_not_keep_the_buffer() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.register("h", false).await;
    let buffer = Bytes::from(vec![b'x'; MEBIBYTE]);
    let received = Message::new("k", buffer.slice(..3)).id("a").header("h", buffer.slice(3..5));
    here.receive(&arrivals(vec![received])).await.unwrap();
    fixture.sql("update oncebox_log set payload = cast('other' as blob)").await;
    let rows = look(&here, "h", None).await;
    assert_eq!(rows[0].to_message().unwrap().payload, "xxx", "it is remembered");
    assert!(buffer.is_unique());
}

#[tokio::test]
async fn a_handler_from_the_start_is_not_given_what_was_purged() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    let inbox = recording(&fixture, &here, 10).await;
    inbox.receive(&["old", "older"].map(keyed)).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    fixture.clock.advance(DAY);
    inbox.receive(&[keyed("new")]).await.unwrap();
    let purged = here.purge(&Retention { payload: DAY / 2, ..Retention::default() }).await.unwrap();
    assert_eq!(purged.messages, 2);
    let mut late = registration("late", false);
    late.from_start = true;
    here.register(&[late]).await.unwrap();
    let rows = look(&here, "late", None).await;
    let ids: Vec<String> = rows.iter().map(|row| row.to_message().unwrap().id).collect();
    assert_eq!(ids, ["new"]);
}

#[tokio::test]
async fn a_stretch_that_is_run_again_ends_where_it_ended() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.register("h", false).await;
    here.receive(&arrivals(["a", "b", "c"].map(keyed).to_vec())).await.unwrap();
    let seqs: Vec<i64> = look(&here, "h", Some(2)).await.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [1, 2]);
}

#[tokio::test]
async fn without_the_row_of_the_head_what_is_stored_is_given_out() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.register("h", false).await;
    here.receive(&arrivals(["a", "b"].map(keyed).to_vec())).await.unwrap();
    fixture.sql("delete from oncebox_head").await;
    assert_eq!(look(&here, "h", None).await.len(), 2);
}

#[tokio::test]
async fn a_failing_message_holds_the_later_ones_of_its_key() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.sql(RAN).await;
    let record = async |mut tx: SqliteTx, Attempt(attempt), message: Message| {
        if message.id == "a" && attempt == 1 {
            return Err(Failure::retry_in(DAY / 2, "not yet"));
        }
        write_down(&mut tx, &message.id, "").await
    };
    let inbox = Inbox::new(here).on("*", handler("h", record).ordered());
    inbox.register().await.unwrap();
    inbox.receive(&[keyed("a")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    inbox.receive(&[keyed("b")]).await.unwrap();
    run(inbox.clone()).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, Vec::<String>::new());
    fixture.clock.advance(DAY);
    run(inbox).drain().await.unwrap();
    assert_eq!(ids(&fixture).await, ["a", "b"]);
}

#[tokio::test]
async fn all_that_a_dead_process_was_reading_is_suspected_whoever_received_it() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.sql(RAN).await;
    let record = async |mut tx: SqliteTx, Attempt(attempt), message: Message| {
        write_down(&mut tx, &message.id, &attempt.to_string()).await
    };
    let inbox = Inbox::new(here).on("*", handler("h", record));
    inbox.register().await.unwrap();
    inbox.receive(&[keyed("a")]).await.unwrap();
    Inbox::new(fixture.store.clone()).receive(&[keyed("b")]).await.unwrap();
    let claim = Claim { handler: "h", token: Token(9), lanes: 32, limit: 10 };
    assert_eq!(fixture.store.claim(&claim).await.unwrap().len(), 1);
    fixture.clock.advance(ABANDONED_AFTER * 2);
    run(inbox).drain().await.unwrap();
    let mut ran = ran(&fixture).await;
    ran.sort();
    assert_eq!(ran, [("a", "2"), ("b", "2")].map(|(id, attempt)| (id.to_owned(), attempt.to_owned())));
}

#[tokio::test]
async fn each_handler_is_given_its_kinds_from_its_place_on() {
    let fixture = fixture().await;
    let here = fixture.remembering(MEBIBYTE).await;
    fixture.sql(RAN).await;
    let writing = |name: &'static str| {
        move |mut tx: SqliteTx, message: Message| async move { write_down(&mut tx, &message.id, name).await }
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
    let ran = ran(&fixture).await;
    let by = |name: &str| -> Vec<&str> {
        ran.iter().filter(|(_, by)| by == name).map(|(id, _)| id.as_str()).collect()
    };
    assert_eq!(by("orders"), ["a", "c", "e"]);
    assert_eq!(by("all"), ["a", "b", "c", "d", "e"]);
}
