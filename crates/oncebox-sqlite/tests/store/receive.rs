use oncebox_core::store::{Arrival, Claim, Connection, ReadInline, Token};
use oncebox_core::{ErrorKind, Message, Once, Received, Store};
use sqlx::Acquire;

use crate::{LIMITS, fixture, moved, text};

fn arrivals(messages: impl IntoIterator<Item = Message>) -> Vec<Arrival> {
    messages.into_iter().map(Arrival::new).collect()
}

#[tokio::test]
async fn verdicts_come_in_order_and_conflicts_are_kept() {
    use Received::{Conflict, Duplicate, New};
    let fixture = fixture().await;
    let first = arrivals((0..300).map(|n| text(&n.to_string())));
    let received = fixture.store.receive(&first).await.unwrap();
    assert_eq!(received, vec![New; 300]);

    let again = arrivals([
        text("new-1"),
        text("7"),
        Message::new("test", "other bytes").id("8").scope("tests"),
        text("8").scope("elsewhere"),
        Message::new("other", "body of 9").id("9").scope("tests"),
        text("10"),
    ]);
    assert_eq!(
        fixture.store.receive(&again).await.unwrap(),
        [New, Duplicate, Conflict, New, Conflict, Duplicate]
    );
    assert_eq!(
        fixture.store.receive(&again).await.unwrap(),
        [Duplicate, Duplicate, Conflict, Duplicate, Conflict, Duplicate]
    );
    assert_eq!(fixture.number("select count(*) from oncebox_log").await, 302);
    let conflicts = fixture.store.conflicts(10).await.unwrap();
    assert_eq!(conflicts.len(), 2);
    assert!(conflicts.iter().any(|conflict| &conflict.message.payload[..] == b"other bytes"));
}

#[tokio::test]
async fn bytes_come_out_as_they_went_in() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    let at = jiff::Timestamp::from_microsecond(1_900_000_000_123_456).unwrap();
    let messages = vec![
        Message::new("k", vec![0, 159, 146, 150, 0, 255])
            .id("nul and no utf-8")
            .key("k")
            .header("a", vec![0, 255]),
        Message::new("k", Vec::new()).id("empty").header("a", "1").header("A", "2"),
        Message::new("k", vec![7; 3_000_000]).id("large").not_before(at),
        Message::new("ключ", "'; drop table x; --").id("\u{1f980} ' \" \\ %_").key("' or 1=1"),
    ];
    fixture.receive(messages.clone()).await;
    let (tx, rows) = fixture.batch("h", Token(1)).await;
    assert_eq!(rows.len(), 4);
    for message in messages {
        let row = rows.iter().find(|row| row.message.as_ref().unwrap().id == message.id).unwrap();
        assert_eq!(row.message.as_ref().unwrap(), &message);
        assert_eq!(row.scheduled, message.not_before.is_some());
    }
    tx.rollback().await;
}

#[tokio::test]
async fn ids_that_look_like_one_number_are_different_ids() {
    let fixture = fixture().await;
    let ids = ["1", "01", "1.0", "1 ", " 1", "+1", "1e0", "A", "a", "é", "e\u{301}"];
    let all = arrivals(ids.map(text));
    assert_eq!(fixture.store.receive(&all).await.unwrap(), vec![Received::New; ids.len()]);
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    for id in ids {
        assert_eq!(fixture.store.once(&mut tx, "h", id).await.unwrap(), Once::First, "{id}");
        assert_eq!(fixture.store.once(&mut tx, "h", id).await.unwrap(), Once::Again, "{id}");
    }
    tx.rollback().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_writers_on_one_file_never_see_busy() {
    let fixture = fixture().await;
    // Four handles of their own, as other processes would be, and two tasks on each.
    let mut tasks = Vec::new();
    for handle in 0..4 {
        let store = fixture.other().await;
        for task in 0..2 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                for round in 0..40 {
                    let batch = arrivals((0..5).map(|n| text(&format!("{handle}-{task}-{round}-{n}"))));
                    assert_eq!(store.receive(&batch).await.unwrap(), [Received::New; 5]);
                    // Everybody sends these.
                    let shared = arrivals((0..3).map(|n| text(&format!("shared-{round}-{n}"))));
                    store.receive(&shared).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(fixture.number("select count(*) from oncebox_log").await, 8 * 40 * 5 + 40 * 3);
    assert_eq!(fixture.number("select count(distinct seq) from oncebox_log").await, 8 * 40 * 5 + 40 * 3);
}

#[tokio::test]
async fn inline_arrivals_are_seen_when_their_transaction_commits_and_not_before() {
    let fixture = fixture().await;
    fixture.receive(vec![text("stored")]).await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let all =
        arrivals([text("a"), text("stored"), text("stored").scope("x"), text("later").not_before(later)]);
    let conflicting = arrivals([Message::new("test", "x").id("stored").scope("tests")]);
    let inline = ReadInline { arrivals: &all, ordered: &["h"], limits: LIMITS };
    for _ in 0..2 {
        let batch = fixture.store.begin_inline(&inline).await.unwrap();
        assert_eq!(batch.received, [Received::New, Received::Duplicate, Received::New, Received::New]);
        assert_eq!(batch.scheduled, [false, false, false, true]);
        batch.connection.rollback().await;
    }
    let batch = fixture.store.begin_inline(&inline).await.unwrap();
    fixture.store.commit(batch.connection, Default::default()).await.unwrap();
    let batch = fixture.store.begin_inline(&inline).await.unwrap();
    assert_eq!(batch.received, [Received::Duplicate; 4]);
    batch.connection.rollback().await;
    let inline = ReadInline { arrivals: &conflicting, ..inline };
    let batch = fixture.store.begin_inline(&inline).await.unwrap();
    assert_eq!(batch.received, [Received::Conflict]);
    batch.connection.rollback().await;
}

#[tokio::test]
async fn once_and_publish_need_a_transaction() {
    let fixture = fixture().await;
    let store = &fixture.store;
    let mut connection = store.pool().acquire().await.unwrap();
    let error = store.once(&mut connection, "import", "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInTransaction);
    let error = store.publish(&mut connection, &[text("a")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInTransaction);

    // One that SQLite ended by itself, which sqlx does not notice.
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("insert into effect (note) values ('x')").execute(&mut *tx).await.unwrap();
    sqlx::query("insert or rollback into effect (note) values ('x')").execute(&mut *tx).await.unwrap_err();
    assert_eq!(store.once(&mut tx, "import", "a").await.unwrap_err().kind(), ErrorKind::NotInTransaction);
    drop(tx);

    // One begun without sqlx's help.
    sqlx::raw_sql("begin immediate").execute(&mut *connection).await.unwrap();
    assert_eq!(store.once(&mut connection, "import", "raw").await.unwrap(), Once::First);
    sqlx::raw_sql("rollback").execute(&mut *connection).await.unwrap();

    let mut tx = connection.begin().await.unwrap();
    assert_eq!(store.once(&mut tx, "import", "raw").await.unwrap(), Once::First);
    store.publish(&mut tx, &[text("out"), text("out-2").to("kafka")]).await.unwrap();
    for (handler, id) in
        [("", "a"), ("h", ""), ("h", "a\0b"), (&*"h".repeat(101), "a"), ("h", &*"i".repeat(513))]
    {
        assert_eq!(store.once(&mut tx, handler, id).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let small = store.clone().payload_limit(3);
    assert_eq!(small.publish(&mut tx, &[text("out")]).await.unwrap_err().kind(), ErrorKind::Invalid);
    tx.commit().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    assert_eq!(store.once(&mut tx, "import", "raw").await.unwrap(), Once::Again);
    assert_eq!(fixture.number("select count(*) from oncebox_outbox").await, 2);
}

#[tokio::test]
async fn an_applied_message_is_still_a_duplicate() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("a"), text("b")]).await;
    let (tx, rows) = fixture.batch("h", Token(1)).await;
    fixture.store.commit(tx, moved("h", Token(1), &rows)).await.unwrap();
    fixture.receive(vec![text("a"), text("b")]).await;
    let claim = Claim { handler: "h", token: Token(2), lanes: 32, limit: 10 };
    assert_eq!(fixture.store.claim(&claim).await.unwrap(), []);
}
