use std::time::Duration;

use oncebox_core::store::{Arrival, Claim, Connection, ReadInline, Token};
use oncebox_core::{DEFAULT_SCOPE, ErrorKind, Message, Once, Received, Store};
use oncebox_sqlite::SqliteStore;
use oncebox_testkit::until;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Acquire, AssertSqlSafe, ConnectOptions, Connection as _, Row};

use crate::{Fixture, LIMITS, fixture, moved, text};

fn arrivals(messages: impl IntoIterator<Item = Message>) -> Vec<Arrival> {
    let messages: Vec<Message> = messages.into_iter().collect();
    Arrival::all(&messages).collect()
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

/// Another handle on the file, with connections of this sort.
async fn handle(
    fixture: &Fixture,
    change: impl FnOnce(SqliteConnectOptions) -> SqliteConnectOptions,
) -> SqliteStore {
    let options = change((*fixture.store.pool().connect_options()).clone());
    SqliteStore::new(SqlitePoolOptions::new().max_connections(4).connect_lazy_with(options))
}

/// How many ids, messages and numbers there are.
async fn stored(fixture: &Fixture) -> [i64; 3] {
    [
        fixture.number("select count(*) from oncebox_seen").await,
        fixture.number("select count(*) from oncebox_log").await,
        fixture.number("select coalesce(max(seq), 0) from oncebox_head").await,
    ]
}

#[tokio::test]
async fn any_number_of_messages_is_stored_in_order_and_once() {
    let fixture = fixture().await;
    let mut total = 0;
    // A full statement before one with room left: what was bound to it must be gone.
    for size in [1, 2, 4, 3, 1, 250, 249, 129, 251, 1000, 3] {
        let some = arrivals((total..total + size).map(|n| text(&n.to_string())));
        assert_eq!(fixture.store.receive(&some).await.unwrap(), vec![Received::New; size], "{size}");
        assert_eq!(fixture.store.receive(&some).await.unwrap(), vec![Received::Duplicate; size], "{size}");
        total += size;
        assert_eq!(fixture.number("select count(*) from oncebox_log").await, total as i64, "{size}");
    }
    let rows = sqlx::query("select id, payload, seq, lane, identity from oncebox_log order by seq")
        .fetch_all(fixture.store.pool())
        .await
        .unwrap();
    for (n, row) in rows.iter().enumerate() {
        let expected = Arrival::new(text(&n.to_string()));
        assert_eq!(row.get::<String, _>(0), expected.message().id);
        assert_eq!(row.get::<Vec<u8>, _>(1), expected.message().payload);
        assert_eq!(row.get::<i64, _>(3), i64::from(expected.lane));
        assert_eq!(row.get::<Vec<u8>, _>(4), expected.identity);
    }
    let same = "select count(*) from oncebox_log l join oncebox_seen s \
                on s.identity = l.identity and s.seq = l.seq and s.lane = l.lane \
                and abs(s.seen_at - l.received_at) < 60000000";
    assert_eq!(fixture.number(same).await, total as i64);
    assert_eq!(fixture.number("select count(*) from oncebox_seen").await, total as i64);
}

#[tokio::test]
async fn one_group_may_have_an_id_twice() {
    use Received::{Conflict, Duplicate, New};
    let fixture = fixture().await;
    let other = || Message::new("test", "other bytes").id("a").scope("tests");
    let group = arrivals([text("a"), text("b"), text("a"), other()]);
    assert_eq!(fixture.store.receive(&group).await.unwrap(), [New, New, Duplicate, Conflict]);
    assert_eq!(fixture.number("select count(*) from oncebox_log").await, 2);
    assert_eq!(fixture.number("select count(*) from oncebox_seen").await, 2);
    assert_eq!(fixture.store.conflicts(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_the_row_of_the_head_nothing_is_stored() {
    let fixture = fixture().await;
    sqlx::raw_sql("delete from oncebox_head").execute(fixture.store.pool()).await.unwrap();
    for size in [1, 3, 300] {
        let some = arrivals((0..size).map(|n| text(&n.to_string())));
        fixture.store.receive(&some).await.unwrap_err();
        assert_eq!(stored(&fixture).await, [0, 0, 0], "{size}");
    }
    sqlx::raw_sql("insert into oncebox_head values (1, 0)").execute(fixture.store.pool()).await.unwrap();
    assert_eq!(fixture.store.receive(&arrivals([text("1")])).await.unwrap(), [Received::New]);
}

#[tokio::test]
async fn an_error_in_the_middle_keeps_nothing_and_the_next_one_is_stored() {
    let fixture = fixture().await;
    fixture.receive(vec![text("before")]).await;
    for end in ["abort", "fail", "rollback"] {
        let trigger = format!(
            "create trigger refuse_{end} before insert on oncebox_log when new.id like 'bad%'
             begin select raise({end}, 'no'); end"
        );
        sqlx::raw_sql(AssertSqlSafe(trigger)).execute(fixture.store.pool()).await.unwrap();
        let was = stored(&fixture).await;
        let group = arrivals(["good", "bad", "too"].map(|id| text(&format!("{id}-{end}"))));
        fixture.store.receive(&group).await.unwrap_err();
        assert_eq!(stored(&fixture).await, was, "{end}");
        let drop = AssertSqlSafe(format!("drop trigger refuse_{end}"));
        sqlx::raw_sql(drop).execute(fixture.store.pool()).await.unwrap();
        assert_eq!(fixture.store.receive(&group).await.unwrap(), [Received::New; 3], "{end}");
    }
}

#[tokio::test]
async fn a_full_disk_keeps_nothing_and_what_still_fits_is_stored() {
    let fixture = fixture().await;
    let store = handle(&fixture, |options| options.pragma("max_page_count", "400")).await;
    let was = stored(&fixture).await;
    let large = Message::new("test", vec![7; 4_000_000]).id("large").scope("tests");
    let error = store.receive(&arrivals([text("small"), large])).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(stored(&fixture).await, was);
    assert_eq!(store.receive(&arrivals([text("small")])).await.unwrap(), [Received::New]);
    assert_eq!(stored(&fixture).await, [1, 1, 1]);
}

#[tokio::test]
async fn a_busy_file_is_waited_for_and_each_message_is_stored_once() {
    for journal in ["wal", "delete"] {
        let fixture = fixture().await;
        fixture.store.close().await;
        let options = (*fixture.store.pool().connect_options()).clone().busy_timeout(Duration::from_secs(30));
        // The mode changes when the last of the other connections is closed.
        until("the journal mode has changed", || async {
            let change = AssertSqlSafe(format!("pragma journal_mode = {journal}"));
            let mut one = options.connect().await.unwrap();
            let mode: Result<String, _> = sqlx::query_scalar(change).fetch_one(&mut one).await;
            one.close().await.unwrap();
            mode.is_ok_and(|mode| mode == journal)
        })
        .await;
        let mut rival = options.connect().await.unwrap();
        // With a rollback journal a reader cannot keep a writer from beginning, but from committing.
        for hold in ["begin immediate", "begin; select count(*) from oncebox_head"] {
            let store = handle(&fixture, |options| options.busy_timeout(Duration::from_millis(1))).await;
            sqlx::raw_sql(hold).execute(&mut rival).await.unwrap();
            let group = arrivals((0..3).map(|n| text(&format!("{hold}-{n}"))));
            let mut receive = std::pin::pin!(store.receive(&group));
            let blocked = journal == "delete" || hold == "begin immediate";
            if blocked {
                let early = tokio::time::timeout(Duration::from_millis(100), &mut receive).await;
                assert!(early.is_err(), "{journal} {hold}: {early:?}");
            }
            sqlx::raw_sql("rollback").execute(&mut rival).await.unwrap();
            assert_eq!(receive.await.unwrap(), [Received::New; 3], "{journal} {hold}");
            let count = "select (select count(*) from oncebox_log) * 1000 + (select seq from oncebox_head)";
            let count: i64 = sqlx::query_scalar(count).fetch_one(&mut rival).await.unwrap();
            let expected = if hold == "begin immediate" { 3 } else { 6 };
            assert_eq!(count, expected * 1000 + expected, "{journal} {hold}");
            store.close().await;
        }
    }
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
        let row = rows.iter().find(|row| row.to_message().unwrap().id == message.id).unwrap();
        assert_eq!(row.scheduled, message.not_before.is_some());
        assert_eq!(row.to_message().unwrap(), message.scope(DEFAULT_SCOPE));
    }
    tx.rollback().await;
}

#[tokio::test]
async fn of_a_large_group_each_keeps_what_is_its_own() {
    // Whatever the first one of a statement has: most others have the same, but not all of them.
    for first in 0..3 {
        let fixture = fixture().await;
        fixture.register("h", false).await;
        let message = |n: usize| {
            let other = (usize::from(n % 7 == 3) + first) % 3;
            let message = Message::new(["one", "two", "drei"][other], format!("body {n}")).id(n.to_string());
            let message = message.scope(["tests", "", "other"][other]);
            let message = if n.is_multiple_of(3) { message.key(n % 5) } else { message };
            match (n + first) % 4 {
                0 => message,
                1 => message.header("a", "").header("b", vec![0, 255]),
                number => message.header("number", number.to_string()),
            }
        };
        let messages: Vec<Message> = (0..1000).map(message).collect();
        fixture.receive(messages.clone()).await;
        let (tx, rows) = fixture.batch("h", Token(1)).await;
        let mut read: Vec<Message> = rows.iter().map(|row| row.to_message().unwrap()).collect();
        read.sort_by_key(|message| message.id.parse::<usize>().unwrap());
        let with_scope = |mut message: Message| {
            if message.scope.is_empty() {
                message.scope = DEFAULT_SCOPE.to_owned();
            }
            message
        };
        assert_eq!(read.len(), messages.len());
        for (read, message) in read.into_iter().zip(messages) {
            assert_eq!(read, with_scope(message));
        }
        tx.rollback().await;
    }
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
