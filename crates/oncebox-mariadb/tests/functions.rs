//! The SQL functions `once`, `publish` and `receive`: the same rows and the same answers as the library's own calls.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::Scratch;
use oncebox_core::store::Retention;
use oncebox_core::{Failure, Headers, Inbox, Limits, Message, Once, Received, Store, handler, lane_of, run};
use oncebox_mariadb::MariaTx;
use oncebox_testkit::{Manners, MemoryBroker, until};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use tokio::sync::Mutex;

/// Ids and keys that a careless comparison or encoding would confuse.
const TEXTS: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a\t",
    "é",
    "e\u{301}",
    "ß",
    "ﬁ",
    "İ",
    "\u{200b}a",
    "😀",
    "%",
    "'",
    "''",
    "\"",
    "\\",
    "\\\\",
    "\\x00",
    "{a}",
    "null",
    "\u{7f}",
    "\u{1}",
    "Ω",
    "\u{2126}",
    "1",
    "01",
];

const PAYLOADS: &[&[u8]] = &[b"", b"{}", b"\0", b"\\x00", b"\xff\xfe", "ä\u{1f600}".as_bytes(), b"a\\nb"];

/// Held by each of these tests. To create or drop any stored function makes the server prepare every statement anew that
/// calls one, in whatever schema; when that happens often enough while one runs, it fails with error 1615.
static ALONE: Mutex<()> = Mutex::const_new(());

impl Scratch {
    fn call(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{schema}", &self.schema))
    }

    async fn once_on(&self, tx: &mut MySqlConnection, handler: &str, id: &str) -> Result<bool, sqlx::Error> {
        let call = self.call("select {schema}.once(?, ?)");
        Ok(sqlx::query(call).bind(handler).bind(id).fetch_one(tx).await?.get(0))
    }

    async fn publish_on(&self, tx: &mut MySqlConnection, message: &Message) -> Result<String, sqlx::Error> {
        let call = "select {schema}.publish_to(?, ?, ?, ?, ?, ?, timestamp'1970-01-01 00:00:00' + interval ? microsecond)";
        let row = sqlx::query(self.call(call))
            .bind(&message.sink)
            .bind(&message.kind)
            .bind(&message.payload[..])
            .bind(&message.key)
            .bind(&message.id)
            .bind(json(&message.headers))
            .bind(message.not_before.map(|at| at.as_microsecond()))
            .fetch_one(tx)
            .await?;
        Ok(row.get(0))
    }

    async fn receive_on(&self, tx: &mut MySqlConnection, message: &Message) -> Result<String, sqlx::Error> {
        let row = sqlx::query(self.call("select {schema}.receive(?, ?, ?, ?, ?, ?)"))
            .bind(&message.scope)
            .bind(&message.id)
            .bind(&message.kind)
            .bind(&message.payload[..])
            .bind(&message.key)
            .bind(json(&message.headers))
            .fetch_one(tx)
            .await?;
        Ok(row.get(0))
    }

    /// Hands the message to the library.
    async fn by_library(&self, message: &Message) -> Received {
        Inbox::new(self.store.clone()).receive(std::slice::from_ref(message)).await.unwrap()[0]
    }

    /// Calls `receive` in a transaction of its own.
    async fn received(&self, message: &Message) -> String {
        let mut connection = self.pool.acquire().await.unwrap();
        self.receive_on(&mut connection, message).await.unwrap()
    }

    /// Waits until a statement on this test's tables waits for a row lock.
    ///
    /// While it runs a function, a session has the function's schema for its default one.
    async fn until_waiting(&self) {
        until("a rival waits for a lock", || async {
            let row = sqlx::query("show engine innodb status").fetch_one(&self.pool).await.unwrap();
            let status: String = row.get(2);
            let mut transactions = status.split("---TRANSACTION");
            transactions.any(|block| block.contains("LOCK WAIT") && block.contains(&self.schema))
        })
        .await;
    }

    async fn rows(&self, text: &str) -> Vec<MySqlRow> {
        sqlx::query(self.call(text)).fetch_all(&self.pool).await.unwrap()
    }

    async fn count(&self, name: &str) -> i64 {
        let counts = self.store.counts().await.unwrap();
        let own = counts.iter().find(|count| count.handler.is_empty() && count.name == name);
        own.map_or(0, |count| count.value)
    }
}

/// What a caller hands over: a list of names and values.
fn json(headers: &Headers) -> Option<String> {
    (!headers.is_empty()).then(|| headers.to_stored())
}

/// Messages with every field at its oddest.
fn corpus() -> Vec<Message> {
    let texts = TEXTS.iter().map(|text| (*text).to_owned()).chain(["x".repeat(512), "ä".repeat(256)]);
    let mut messages = Vec::new();
    for (number, text) in texts.enumerate() {
        let payload = PAYLOADS[number % PAYLOADS.len()].to_vec();
        let mut message = Message::new(format!("kind {}", text.replace('ä', "")), payload)
            .id(text.clone())
            .scope(if number % 3 == 0 { "" } else { "scope\u{e9} " });
        message.kind.truncate(message.kind.floor_char_boundary(255));
        if number % 2 == 0 {
            message =
                message.key(&text).header("tenant", text.clone()).header("Tenant", "\u{1}\"\\\n/\u{7f}é");
        }
        if number % 5 == 0 {
            message = message.header("bytes", vec![0, 255, number as u8]).header("", "");
        }
        messages.push(message);
    }
    messages
}

/// Each row as one text: only their sameness counts.
fn texts(rows: &[MySqlRow]) -> Vec<String> {
    rows.iter().map(|row| row.get::<String, _>(0)).collect()
}

#[tokio::test]
async fn what_sql_receives_is_stored_as_the_library_would_store_it() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        common::with_store(async |library| {
            let messages = corpus();
            for message in &messages {
                assert_eq!(scratch.received(message).await, "new", "{message:?}");
                assert_eq!(library.by_library(message).await, Received::New);
            }
            for read in [
                "select concat_ws('|', seq, lane, hex(identity), hex(scope), hex(id), hex(kind),
                    coalesce(hex(`key`), 'null'), hex(headers), hex(payload), coalesce(not_before, 'null'))
                 from {schema}.log order by seq",
                "select concat_ws('|', hex(identity), hex(fingerprint), seq, lane) from {schema}.seen order by seq",
            ] {
                let (sql, own) = (texts(&scratch.rows(read).await), texts(&library.rows(read).await));
                assert_eq!(sql.len(), messages.len());
                assert_eq!(sql, own);
            }
            let lanes = scratch.rows("select lane from {schema}.log order by seq").await;
            for (row, message) in lanes.iter().zip(&messages) {
                let expected = lane_of(message.key.as_ref().unwrap_or(&message.id));
                assert_eq!(row.get::<i16, _>(0), i16::try_from(expected).unwrap());
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn sql_and_the_library_take_each_others_copies_for_duplicates_and_conflicts() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        for (number, message) in corpus().into_iter().enumerate() {
            let other =
                Message::with_id(message.id.clone(), message.kind.clone(), "other").scope(&message.scope);
            if number % 2 == 0 {
                assert_eq!(scratch.received(&message).await, "new");
                assert_eq!(scratch.by_library(&message).await, Received::Duplicate);
            } else {
                assert_eq!(scratch.by_library(&message).await, Received::New);
            }
            assert_eq!(scratch.received(&message).await, "duplicate", "{message:?}");
            assert_eq!(scratch.received(&other).await, "conflict");
            assert_eq!(scratch.received(&other).await, "conflict");
            assert_eq!(scratch.by_library(&other).await, Received::Conflict);
        }
        let expected = corpus().len();
        let conflicts = scratch.store.conflicts(1000).await.unwrap();
        assert_eq!(conflicts.len(), expected, "each conflicting message is kept once");
        assert!(conflicts.iter().all(|conflict| &conflict.message.payload[..] == b"other"));
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, expected as i64);
    })
    .await;
}

#[tokio::test]
async fn what_sql_publishes_is_stored_as_the_library_would_store_it() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        common::with_store(async |library| {
            let mut messages = corpus();
            for (number, message) in messages.iter_mut().enumerate() {
                message.scope = String::new();
                message.sink = if number % 4 == 0 { "mail".to_owned() } else { String::new() };
                if number % 5 == 0 {
                    // Beyond what the type `timestamp` of MariaDB can hold.
                    message.not_before = Some("2200-01-01T00:00:00.123456Z".parse().unwrap());
                }
            }
            let mut tx = scratch.pool.begin().await.unwrap();
            tx.execute("set time_zone = '-11:00'").await.unwrap();
            for message in &messages {
                assert_eq!(scratch.publish_on(&mut tx, message).await.unwrap(), message.id);
            }
            tx.execute("set time_zone = '+00:00'").await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = library.pool.begin().await.unwrap();
            library.store.publish(&mut tx, &messages).await.unwrap();
            tx.commit().await.unwrap();
            let read = "select concat_ws('|', hex(sink), lane, hex(scope), hex(id), hex(kind),
                    coalesce(hex(`key`), 'null'), hex(headers), hex(payload), coalesce(not_before, 'null'),
                    due_at = greatest(created_at, coalesce(not_before, 0)), attempts, state)
                from {schema}.outbox order by seq";
            let (sql, own) = (texts(&scratch.rows(read).await), texts(&library.rows(read).await));
            assert_eq!(sql.len(), messages.len());
            assert_eq!(sql, own);
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn once_in_sql_and_in_the_library_is_the_same_memory() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        let mut tx = scratch.pool.begin().await.unwrap();
        for (number, id) in TEXTS.iter().enumerate() {
            if number % 2 == 0 {
                assert!(scratch.once_on(&mut tx, "import", id).await.unwrap(), "{id}");
            } else {
                assert_eq!(scratch.store.once(&mut tx, "import", id).await.unwrap(), Once::First, "{id}");
            }
        }
        for id in TEXTS {
            assert!(!scratch.once_on(&mut tx, "import", id).await.unwrap(), "{id}");
            assert_eq!(scratch.store.once(&mut tx, "import", id).await.unwrap(), Once::Again, "{id}");
            assert!(scratch.once_on(&mut tx, "other", id).await.unwrap(), "{id}");
        }
        tx.commit().await.unwrap();
        // The name and id of `once` are never taken for the scope and id of a message.
        assert_eq!(scratch.received(&Message::new("order", "x").id("a").scope("import")).await, "new");
    })
    .await;
}

#[tokio::test]
async fn both_refuse_the_same_messages_and_name_the_field() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        let good = || Message::new("order", "x").id("1");
        let mut headers = good();
        for number in 0..70 {
            headers = headers.header(format!("h{number}"), "v".repeat(1000));
        }
        for (message, word) in [
            (good().id(""), "id"),
            (good().id("x".repeat(513)), "id"),
            (good().id("ä".repeat(257)), "id"),
            (good().id("a\0b"), "id"),
            (good().key(""), "key"),
            (good().key("k".repeat(513)), "key"),
            (Message::with_id("1", "", "x"), "kind"),
            (Message::with_id("1", "k".repeat(256), "x"), "kind"),
            (good().scope("s".repeat(256)), "scope"),
            (good().to("s".repeat(256)), "sink"),
            (headers, "headers"),
            (good().header("h".repeat(529), "v".repeat(65_000)), "headers"),
        ] {
            let own = Limits::default().check(&message).unwrap_err();
            assert!(own.to_string().contains(word), "{own}");
            let mut connection = scratch.pool.acquire().await.unwrap();
            let mut answers = Vec::new();
            if word != "sink" {
                answers.push(scratch.receive_on(&mut connection, &message).await);
            }
            if word != "scope" {
                answers.push(scratch.publish_on(&mut connection, &message).await);
            }
            for answer in answers {
                let error = answer.unwrap_err();
                let error = error.as_database_error().unwrap();
                assert_eq!(error.code().as_deref(), Some("45000"), "{error}");
                assert!(error.message().contains(&format!("the {word} of a message")), "{error}");
            }
        }
        let mut connection = scratch.pool.acquire().await.unwrap();
        for (call, word) in [
            ("select {schema}.once(null, '1')", "handler"),
            ("select {schema}.once('h', null)", "id"),
            ("select {schema}.once('', '1')", "handler"),
            ("select {schema}.once(repeat('h', 101), '1')", "handler"),
            ("select {schema}.once('h', repeat('x', 513))", "id"),
            ("select {schema}.receive('s', null, 'k', 'x', null, null)", "id"),
            ("select {schema}.receive('s', '1', null, 'x', null, null)", "kind"),
            ("select {schema}.receive('s', '1', 'k', null, null, null)", "payload"),
            ("select {schema}.receive('s', '1', 'k', 'x', null, 'no json')", "headers"),
            ("select {schema}.publish_to(null, 'k', 'x', null, null, null, null)", "sink"),
            ("select {schema}.publish(null, 'x', null, null, null, null)", "kind"),
            ("select {schema}.publish('k', 'x', null, null, '7', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '[1]', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '[[\"a\"]]', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '[[\"a\",1]]', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '{\"a\":null}', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '{\"a\":{\"b\":\"c\"}}', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '{\"a\":{\"base64\":\"QQ==\",\"x\":1e999}}', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, '{\"a\":\"1\",\"a\":\"2\"}', null)", "headers"),
            ("select {schema}.publish('k', 'x', null, null, null, '9999-12-31')", "not_before"),
            ("select {schema}.publish('k', 'x', null, null, null, '0000-00-00')", "not_before"),
        ] {
            let error = connection.execute(scratch.call(call)).await.unwrap_err();
            let error = error.as_database_error().unwrap();
            assert!(error.message().contains(word), "{call}: {error}");
            assert_eq!(error.code().as_deref(), Some("45000"), "{call}: {error}");
        }
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.seen").await, 0);
    })
    .await;
}

#[tokio::test]
async fn headers_may_be_an_object_and_an_id_is_made() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        let call = "select {schema}.publish('k', 'x', null, null, '{\"a b\":\"1\",\"c\":{\"base64\":\"AP8=\"}}', null)";
        let mut ids = Vec::new();
        for _ in 0..20 {
            let row = sqlx::query(scratch.call(call)).fetch_one(&scratch.pool).await.unwrap();
            ids.push(row.get::<String, _>(0));
        }
        let parsed: Vec<uuid::Uuid> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert!(parsed.iter().all(|id| id.get_version_num() == 7), "{ids:?}");
        assert!(parsed.windows(2).all(|pair| pair[0].as_bytes()[..6] <= pair[1].as_bytes()[..6]), "{ids:?}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 20);
        let stored = scratch.rows("select cast(headers as char) from {schema}.outbox limit 1").await;
        let headers = Headers::from_stored(&texts(&stored)[0]).unwrap();
        assert_eq!(headers.text("a b"), Some("1"));
        assert_eq!(headers.get("c").unwrap()[..], [0, 255]);
        for empty in ["null", "'{}'", "'[]'", "'null'"] {
            scratch.sql(&format!("select {{schema}}.publish('k', '', null, 'empty', {empty}, null)")).await;
        }
        let left = "select count(*) from {schema}.outbox where id = 'empty' and headers = '' and payload = ''";
        assert_eq!(scratch.number(left).await, 4);
    })
    .await;
}

/// MariaDB reads JSON that others refuse. A row the library could not read would stop its lane for good.
#[tokio::test]
async fn headers_that_only_mariadb_can_read_are_stored_so_that_the_library_can() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        scratch.register("h", false).await;
        let long = "json_object('sig', json_object('base64', to_base64(repeat('x', 200))))";
        for (number, headers) in
            [long, r#"'{"a":{"base64":"QR=="}}'"#, r#"'{"p":"C:\\dir"}'"#, r#"'[["a","1"],["a","2"]]'"#]
                .iter()
                .enumerate()
        {
            let call = format!("select {{schema}}.receive('s', '{number}', 'k', 'x', 'key', {headers})");
            let answer: String =
                sqlx::query(scratch.call(&call)).fetch_one(&scratch.pool).await.unwrap().get(0);
            assert_eq!(answer, "new", "{headers}");
        }
        let (_, batch) = scratch.read("h", false).await;
        let messages: Vec<Message> = batch.rows.iter().filter_map(|row| row.to_message()).collect();
        assert_eq!(messages.len(), 4);
        assert_eq!(messages[0].headers.get("sig").unwrap()[..], *"x".repeat(200).as_bytes());
        assert_eq!(messages[1].headers.text("a"), Some("A"));
        assert_eq!(messages[3].headers.len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dirty_read_is_no_duplicate() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        let message = Message::new("order", "x").id("1");
        let mut rival = scratch.pool.begin().await.unwrap();
        assert_eq!(scratch.receive_on(&mut rival, &message).await.unwrap(), "new");
        let mut second = scratch.pool.acquire().await.unwrap();
        second.execute("set session transaction isolation level read uncommitted").await.unwrap();
        let waiting = async { scratch.receive_on(&mut second, &message).await.unwrap() };
        let end = async {
            scratch.until_waiting().await;
            rival.rollback().await.unwrap();
        };
        let (answer, ()) = tokio::join!(waiting, end);
        assert_eq!(answer, "new");
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, 1);

        let pool = sqlx::mysql::MySqlPoolOptions::new()
            .max_connections(1)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute("set session transaction isolation level read uncommitted").await?;
                    Ok(())
                })
            })
            .connect_with(scratch.pool.connect_options().as_ref().clone())
            .await
            .unwrap();
        let store = oncebox_mariadb::MariaStore::new(pool).schema(&scratch.schema).unwrap();
        let error = store.register(&[]).await.unwrap_err();
        assert!(error.to_string().contains("READ-UNCOMMITTED"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_rolled_back_transaction_leaves_nothing() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        let message = Message::new("order", "x").id("1");
        let mut tx = scratch.pool.begin().await.unwrap();
        assert!(scratch.once_on(&mut tx, "import", "1").await.unwrap());
        assert_eq!(scratch.receive_on(&mut tx, &message).await.unwrap(), "new");
        scratch.publish_on(&mut tx, &message).await.unwrap();
        tx.rollback().await.unwrap();
        for table in ["seen", "log", "outbox", "tally"] {
            let count = format!("select count(*) from {{schema}}.{table}");
            assert_eq!(scratch.number(&count).await, 0, "{table}");
        }
        assert_eq!(scratch.received(&message).await, "new");
        let mut connection = scratch.pool.acquire().await.unwrap();
        assert!(scratch.once_on(&mut connection, "import", "1").await.unwrap());
    })
    .await;
}

/// Whatever the isolation level of the caller, who may have taken a snapshot before the rival committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_rival_is_waited_for_and_believed() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        for (level, commits) in [
            ("repeatable read", true),
            ("repeatable read", false),
            ("read committed", true),
            ("read committed", false),
        ] {
            let id = format!("{level} {commits}");
            let message = Message::new("order", "x").id(&id);
            let mut rival = scratch.pool.begin().await.unwrap();
            assert!(scratch.once_on(&mut rival, "import", &id).await.unwrap());
            let mut second = scratch.pool.acquire().await.unwrap();
            let set = format!("set transaction isolation level {level}");
            second.execute(AssertSqlSafe(set)).await.unwrap();
            second.execute("start transaction with consistent snapshot").await.unwrap();
            let waiting = async { scratch.once_on(&mut second, "import", &id).await.unwrap() };
            let end = async {
                scratch.until_waiting().await;
                if commits { rival.commit().await.unwrap() } else { rival.rollback().await.unwrap() }
            };
            let (first, ()) = tokio::join!(waiting, end);
            assert_eq!(first, !commits, "{id}");
            second.execute("commit").await.unwrap();

            let mut rival = scratch.pool.begin().await.unwrap();
            assert_eq!(scratch.receive_on(&mut rival, &message).await.unwrap(), "new");
            second.execute("start transaction with consistent snapshot").await.unwrap();
            let waiting = async { scratch.receive_on(&mut second, &message).await.unwrap() };
            let end = async {
                scratch.until_waiting().await;
                if commits { rival.commit().await.unwrap() } else { rival.rollback().await.unwrap() }
            };
            let (answer, ()) = tokio::join!(waiting, end);
            assert_eq!(answer, if commits { "duplicate" } else { "new" }, "{id}");
            second.execute("commit").await.unwrap();
        }
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_come_at_the_same_time_are_one_message_with_one_effect() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        scratch.effects().await;
        let sql = format!("insert into {}.effect (id) values (?)", scratch.schema);
        let charge = move |mut tx: MariaTx, message: Message| {
            let sql = sql.clone();
            async move {
                sqlx::query(AssertSqlSafe(sql)).bind(&message.id).execute(&mut *tx).await?;
                tx.publish(Message::new("paid", message.id)).await?;
                Ok::<(), Failure>(())
            }
        };
        let inbox = Inbox::new(scratch.store.clone()).on("order", handler("charge", charge));
        run(inbox.clone()).drain().await.unwrap();
        let messages: Vec<Message> =
            (0..10).map(|number| Message::new("order", "x").id(format!("{number}"))).collect();
        let calls = (0..40).map(|call: usize| {
            let message = &messages[call % messages.len()];
            async move { scratch.received(message).await }
        });
        let answers = futures_util::future::join_all(calls).await;
        assert_eq!(answers.iter().filter(|answer| *answer == "new").count(), 10);
        assert_eq!(answers.iter().filter(|answer| *answer == "duplicate").count(), 30);
        let mut tx = scratch.pool.begin().await.unwrap();
        scratch.publish_on(&mut tx, &Message::new("shipped", "y")).await.unwrap();
        tx.commit().await.unwrap();
        let broker = MemoryBroker::new(1, Manners::GOOD);
        run(inbox).relay(broker.clone()).drain().await.unwrap();
        assert_eq!(scratch.count_effects().await, 10);
        assert_eq!(scratch.number("select count(distinct id) from {schema}.effect").await, 10);
        let mut kinds: Vec<String> = broker.sent().into_iter().map(|message| message.kind).collect();
        kinds.sort();
        assert_eq!(kinds.len(), 11);
        assert_eq!(kinds.last().unwrap(), "shipped");
    })
    .await;
}

#[tokio::test]
async fn what_sql_receives_is_counted() {
    let _alone = ALONE.lock().await;
    common::with_store(async |scratch| {
        for (payload, answer) in [("x", "new"), ("x", "duplicate"), ("x", "duplicate"), ("y", "conflict")] {
            assert_eq!(scratch.received(&Message::new("order", payload).id("1")).await, answer);
        }
        for _ in 0..2 {
            assert_eq!(scratch.count("received").await, 1);
            assert_eq!(scratch.count("duplicate").await, 2);
            assert_eq!(scratch.count("conflict").await, 1);
            // Adds them up; the sums stay the same.
            let retention = Retention {
                keep: Duration::from_secs(60),
                payload: Duration::from_secs(60),
                ..Retention::default()
            };
            scratch.store.purge(&retention).await.unwrap();
            assert_eq!(scratch.number("select count(*) from {schema}.tally").await, 0);
        }
        assert_eq!(scratch.number("select count(*) from {schema}.counter where minute > 0").await, 3);
    })
    .await;
}
