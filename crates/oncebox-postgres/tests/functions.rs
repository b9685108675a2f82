//! The SQL functions `once`, `publish` and `receive`: the same rows and the same answers as the library's own calls.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::Scratch;
use oncebox_core::store::{AskOutgoing, Retention};
use oncebox_core::{
    ErrorKind, Failure, Headers, Inbox, Limits, Message, Once, Received, Store, handler, lane_of, run,
};
use oncebox_postgres::PgTx;
use oncebox_testkit::{Manners, MemoryBroker, until};
use sqlx::postgres::{PgListener, PgRow};
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

/// Ids and keys that a careless comparison or encoding would confuse.
const TEXTS: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a\t",
    "a\n",
    "é",
    "e\u{301}",
    "ß",
    "ﬁ",
    "İ",
    "\u{200b}a",
    "😀",
    "\u{1f600}\u{fe0f}",
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

impl Scratch {
    fn call(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{schema}", &self.schema))
    }

    async fn once_on(&self, tx: &mut PgConnection, handler: &str, id: &str) -> Result<bool, sqlx::Error> {
        let call = self.call("select {schema}.once($1, $2)");
        Ok(sqlx::query(call).bind(handler).bind(id).fetch_one(tx).await?.get(0))
    }

    async fn publish_on(&self, tx: &mut PgConnection, message: &Message) -> Result<String, sqlx::Error> {
        let call =
            "select {schema}.publish_to($1, $2, $3, $4, $5, $6::json, to_timestamp($7::numeric / 1000000))";
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

    async fn receive_on(&self, tx: &mut PgConnection, message: &Message) -> Result<String, sqlx::Error> {
        let call =
            "select {schema}.receive($1, $2, $3, $4, $5, $6::json, to_timestamp($7::numeric / 1000000))";
        let row = sqlx::query(self.call(call))
            .bind(&message.scope)
            .bind(&message.id)
            .bind(&message.kind)
            .bind(&message.payload[..])
            .bind(&message.key)
            .bind(json(&message.headers))
            .bind(message.not_before.map(|at| at.as_microsecond()))
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

    /// Waits until a statement with this text waits for a lock.
    async fn until_waiting(&self, text: &str) {
        let ask = "select count(*) from pg_stat_activity
                   where application_name = $1 and wait_event_type = 'Lock' and query like '%' || $2 || '%'";
        until("a rival waits for a lock", || async {
            let row = sqlx::query(ask).bind(&self.schema).bind(text).fetch_one(&self.pool).await.unwrap();
            row.get::<i64, _>(0) == 1
        })
        .await;
    }

    async fn rows(&self, text: &str) -> Vec<PgRow> {
        sqlx::query(self.call(text)).fetch_all(&self.pool).await.unwrap()
    }

    async fn count(&self, name: &str) -> i64 {
        let counts = self.store.counts().await.unwrap();
        counts
            .iter()
            .find(|count| count.handler.is_empty() && count.name == name)
            .map_or(0, |count| count.value)
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
        let mut message = Message::new(
            format!("kind {}", text.replace('ä', "")),
            PAYLOADS[number % PAYLOADS.len()].to_vec(),
        )
        .id(text.clone())
        .scope(if number % 3 == 0 { "" } else { "scope\u{e9}" });
        message.kind.truncate(message.kind.floor_char_boundary(255));
        if number % 2 == 0 {
            message =
                message.key(&text).header("tenant", text.clone()).header("Tenant", "\u{1}\"\\\n/\u{7f}é");
        }
        if number % 5 == 0 {
            message = message.header("bytes", vec![0, 255, number as u8]).header("", "");
            message = message.not_before("2200-01-01T00:00:00.123456Z".parse().unwrap());
        }
        messages.push(message);
    }
    messages
}

fn columns(row: &PgRow, names: &[&str]) -> Vec<String> {
    // As text, because the columns have different types and only their sameness counts.
    names
        .iter()
        .map(|name| row.get::<Option<String>, _>(*name).map_or("null".to_owned(), |v| format!("`{v}`")))
        .collect()
}

#[tokio::test]
async fn what_sql_receives_is_stored_as_the_library_would_store_it() {
    common::with_store(async |scratch| {
        common::with_store(async |library| {
            let messages = corpus();
            for message in &messages {
                assert_eq!(scratch.received(message).await, "new", "{message:?}");
            }
            for one in &messages {
                assert_eq!(library.by_library(one).await, Received::New);
            }
            let read = "select seq::text, lane::text, identity::text, scope, id, kind, key, headers,
                               encode(payload, 'hex') as payload, not_before::text
                        from {schema}.log as l order by l.seq";
            let names = ["seq", "lane", "identity", "scope", "id", "kind", "key", "headers", "payload", "not_before"];
            let (sql, own) = (scratch.rows(read).await, library.rows(read).await);
            assert_eq!(sql.len(), messages.len());
            for ((sql, own), message) in sql.iter().zip(&own).zip(&messages) {
                assert_eq!(columns(sql, &names), columns(own, &names));
                let lane: u16 = sql.get::<String, _>("lane").parse().unwrap();
                assert_eq!(lane, lane_of(message.key.as_ref().unwrap_or(&message.id)));
            }
            let read = "select identity::text, fingerprint::text, seq::text, lane::text from {schema}.seen as s order by s.seq";
            let names = ["identity", "fingerprint", "seq", "lane"];
            for (sql, own) in scratch.rows(read).await.iter().zip(&library.rows(read).await) {
                assert_eq!(columns(sql, &names), columns(own, &names));
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn sql_and_the_library_take_each_others_copies_for_duplicates_and_conflicts() {
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
    common::with_store(async |scratch| {
        common::with_store(async |library| {
            let mut messages = corpus();
            for (number, message) in messages.iter_mut().enumerate() {
                message.scope = String::new();
                message.sink = if number % 4 == 0 { "mail".to_owned() } else { String::new() };
            }
            let mut tx = scratch.pool.begin().await.unwrap();
            for message in &messages {
                assert_eq!(scratch.publish_on(&mut tx, message).await.unwrap(), message.id);
            }
            tx.commit().await.unwrap();
            let mut tx = library.pool.begin().await.unwrap();
            library.store.publish(&mut tx, &messages).await.unwrap();
            tx.commit().await.unwrap();
            let read = "select sink, lane::text, scope, id, kind, key, headers, encode(payload, 'hex') as payload,
                               not_before::text, (due_at = greatest(created_at, not_before))::text as due, attempts::text
                        from {schema}.outbox as o order by o.seq";
            let names = ["sink", "lane", "scope", "id", "kind", "key", "headers", "payload", "not_before", "due", "attempts"];
            let (sql, own) = (scratch.rows(read).await, library.rows(read).await);
            assert_eq!(sql.len(), messages.len());
            for (sql, own) in sql.iter().zip(&own) {
                assert_eq!(columns(sql, &names), columns(own, &names));
            }
            let ask = AskOutgoing { sink: "mail", token: scratch.token(), limit: 100, lease_for: common::MINUTE };
            let leased = scratch.store.lease_outgoing(&ask).await.unwrap();
            let due = messages.iter().filter(|message| message.sink == "mail" && message.not_before.is_none());
            assert!(leased.iter().map(|outgoing| &outgoing.message).eq(due));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn once_in_sql_and_in_the_library_is_the_same_memory() {
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
            (good().key(""), "key"),
            (good().key("k".repeat(513)), "key"),
            (Message::with_id("1", "", "x"), "kind"),
            (Message::with_id("1", "k".repeat(256), "x"), "kind"),
            (good().scope("s".repeat(256)), "scope"),
            (good().to("s".repeat(256)), "sink"),
            (headers, "headers"),
            (good().header("h".repeat(529), "v".repeat(65_000)), "headers"),
            (Message::with_id("1", "order", vec![0; 16 * 1024 * 1024 + 1]), "payload"),
        ] {
            let own = Limits::default().check(&message).unwrap_err();
            assert!(own.to_string().contains(word), "{own}");
            let mut answers = Vec::new();
            for function in ["publish_to", "receive"] {
                let mut connection = scratch.pool.acquire().await.unwrap();
                match function {
                    "receive" if word != "sink" => {
                        answers.push(scratch.receive_on(&mut connection, &message).await)
                    }
                    "publish_to" if word != "scope" => {
                        answers.push(scratch.publish_on(&mut connection, &message).await)
                    }
                    _ => {}
                }
            }
            for answer in answers {
                let error = answer.unwrap_err();
                let error = error.as_database_error().unwrap();
                assert_eq!(error.code().as_deref(), Some("22023"), "{error}");
                assert!(error.message().contains(&format!("the {word} of a message")), "{error}");
            }
        }
        // At every limit at once, and exactly there.
        let longest = Message::with_id("i".repeat(512), "k".repeat(255), vec![7; 16 * 1024 * 1024])
            .scope("s".repeat(255))
            .key("k".repeat(512))
            .header("h".repeat(528), "v".repeat(65_000));
        assert_eq!(scratch.received(&longest).await, "new");
        assert_eq!(scratch.by_library(&longest).await, Received::Duplicate);

        let mut connection = scratch.pool.acquire().await.unwrap();
        for (handler, id) in [("", "1"), ("h", ""), ("h", &*"x".repeat(513)), (&*"h".repeat(101), "1")] {
            let own = scratch.store.once(&mut connection, handler, id).await.unwrap_err();
            assert_eq!(own.kind(), ErrorKind::Invalid);
            let error = scratch.once_on(&mut connection, handler, id).await.unwrap_err();
            assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("22023"), "{error}");
        }
        for (call, word) in [
            ("select {schema}.once(null, '1')", "handler"),
            ("select {schema}.once('h', null)", "id"),
            ("select {schema}.receive('s', null, 'k', 'x')", "id"),
            ("select {schema}.receive('s', '1', null, 'x')", "kind"),
            ("select {schema}.receive('s', '1', 'k', null)", "payload"),
            ("select {schema}.publish_to(null, 'k', 'x')", "sink"),
            ("select {schema}.publish(null, 'x')", "kind"),
            ("select {schema}.publish('k', 'x', not_before => 'infinity')", "not_before"),
            ("select {schema}.receive('s', '1', 'k', 'x', not_before => '9999-12-31')", "not_before"),
            ("select {schema}.publish('k', 'x', headers => '7')", "headers"),
            ("select {schema}.publish('k', 'x', headers => '[1]')", "header"),
            ("select {schema}.publish('k', 'x', headers => '[[\"a\"]]')", "header"),
            ("select {schema}.publish('k', 'x', headers => '[[\"a\",1]]')", "header"),
            ("select {schema}.publish('k', 'x', headers => '{\"a\":{\"b\":\"c\"}}')", "header"),
            ("select {schema}.receive('s', '1', 'k', 'x', headers => '{\"a\":null}')", "header"),
        ] {
            let error = connection.execute(scratch.call(call)).await.unwrap_err();
            let error = error.as_database_error().unwrap();
            assert!(error.message().contains(word), "{call}: {error}");
            assert!(matches!(error.code().as_deref(), Some("22023" | "22004")), "{call}: {error}");
        }
        assert_eq!(scratch.number("select count(*) from {schema}.outbox").await, 0);
    })
    .await;
}

#[tokio::test]
async fn the_payload_limit_is_a_setting() {
    common::with_store(async |scratch| {
        let mut tx = scratch.pool.begin().await.unwrap();
        tx.execute("set local oncebox.payload_limit = '3'").await.unwrap();
        scratch.publish_on(&mut tx, &Message::new("order", "abc")).await.unwrap();
        let error = scratch.publish_on(&mut tx, &Message::new("order", "abcd")).await.unwrap_err();
        assert!(error.to_string().contains("the limit is 3"), "{error}");
        drop(tx);
        assert_eq!(scratch.received(&Message::new("order", "abcd")).await, "new");
    })
    .await;
}

#[tokio::test]
async fn arguments_may_be_left_out_and_texts_are_their_bytes() {
    common::with_store(async |scratch| {
        let payload = r#"{"path":"C:\\temp\n","zero":"\u0000"}"#;
        scratch.sql(&format!("select {{schema}}.receive('s', '1', 'k', '{payload}', headers => '{{\"b\":\"1\",\"a\":\"2\",\"b\":\"3\"}}')")).await;
        let stored = &scratch.rows("select payload, headers, key from {schema}.log").await[0];
        assert_eq!(stored.get::<Vec<u8>, _>(0), payload.as_bytes());
        assert_eq!(stored.get::<String, _>(1), r#"[["b","1"],["a","2"],["b","3"]]"#, "in order, none dropped");
        assert_eq!(stored.get::<Option<String>, _>(2), None);
        assert_eq!(scratch.received(&Message::with_id("1", "k", payload).scope("s")).await, "duplicate");

        let mut ids = Vec::new();
        for _ in 0..50 {
            let row = sqlx::query(scratch.call("select {schema}.publish('k', $1)")).bind(payload);
            ids.push(row.fetch_one(&scratch.pool).await.unwrap().get::<String, _>(0));
        }
        let parsed: Vec<uuid::Uuid> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert!(parsed.iter().all(|id| id.get_version_num() == 7), "{ids:?}");
        // The first six bytes are the time, so ids sort by it.
        assert!(parsed.windows(2).all(|pair| pair[0].as_bytes()[..6] <= pair[1].as_bytes()[..6]), "{ids:?}");
        ids.dedup();
        assert_eq!(ids.len(), 50);
        for empty in ["null", "'{}'", "'[]'", "'null'"] {
            scratch.sql(&format!("select {{schema}}.publish('k', ''::bytea, null, 'empty', {empty})")).await;
        }
        let rows = scratch.rows("select headers, payload from {schema}.outbox where id = 'empty'").await;
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.get::<&str, _>(0).is_empty() && row.get::<&[u8], _>(1).is_empty()));
    })
    .await;
}

#[tokio::test]
async fn a_rolled_back_transaction_leaves_nothing() {
    common::with_store(async |scratch| {
        let message = Message::new("order", "x").id("1");
        for _ in 0..2 {
            let mut tx = scratch.pool.begin().await.unwrap();
            assert!(scratch.once_on(&mut tx, "import", "1").await.unwrap());
            assert_eq!(scratch.receive_on(&mut tx, &message).await.unwrap(), "new");
            assert_eq!(
                scratch.receive_on(&mut tx, &message).await.unwrap(),
                "duplicate",
                "in the same transaction"
            );
            scratch.publish_on(&mut tx, &message).await.unwrap();
            tx.rollback().await.unwrap();
        }
        for table in ["seen", "log", "outbox", "tally", "conflict"] {
            assert_eq!(
                scratch.number(&format!("select count(*) from {{schema}}.{table}")).await,
                0,
                "{table}"
            );
        }
        assert_eq!(scratch.number("select seq from {schema}.head").await, 0);
    })
    .await;
}

/// For `once` and `receive`.
#[tokio::test(flavor = "multi_thread")]
async fn a_rival_is_waited_for_and_believed() {
    common::with_store(async |scratch| {
        for commits in [true, false] {
            let id = format!("commits: {commits}");
            let message = Message::new("order", "x").id(&id);
            for function in ["once", "receive"] {
                let (mut first, mut second) =
                    (scratch.pool.begin().await.unwrap(), scratch.pool.begin().await.unwrap());
                let call = async |tx: &mut PgConnection| match function {
                    "once" => scratch.once_on(tx, "import", &id).await.unwrap().to_string(),
                    _ => scratch.receive_on(tx, &message).await.unwrap(),
                };
                let (new, known) = if function == "once" { ("true", "false") } else { ("new", "duplicate") };
                assert_eq!(call(&mut first).await, new);
                let end = async {
                    scratch.until_waiting(function).await;
                    if commits { first.commit().await.unwrap() } else { first.rollback().await.unwrap() }
                };
                let (answer, ()) = tokio::join!(call(&mut second), end);
                assert_eq!(answer, if commits { known } else { new }, "{function}, commits: {commits}");
                second.rollback().await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_come_at_the_same_time_are_one_message() {
    common::with_store(async |scratch| {
        let calls = (0..40).map(|number| {
            let id = (number % 8).to_string();
            async move {
                let message = Message::new("order", "x").id(&id);
                // Half of them by the library, which must agree.
                if number / 8 % 2 == 0 {
                    scratch.received(&message).await
                } else {
                    format!("{:?}", scratch.by_library(&message).await).to_lowercase()
                }
            }
        });
        let answers = futures_util::future::join_all(calls).await;
        assert_eq!(answers.iter().filter(|answer| *answer == "new").count(), 8, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| *answer == "duplicate").count(), 32, "{answers:?}");
        assert_eq!(scratch.number("select count(*) from {schema}.log").await, 8);
    })
    .await;
}

/// 40001 is the database's way to ask for the transaction again.
#[tokio::test]
async fn at_higher_isolation_a_rival_asks_for_the_transaction_again() {
    common::with_store(async |scratch| {
        for level in ["repeatable read", "serializable"] {
            let begin = format!("begin isolation level {level}");
            let mut tx = scratch.pool.begin_with(AssertSqlSafe(begin.clone())).await.unwrap();
            sqlx::query("select 1 from pg_class limit 1").execute(&mut *tx).await.unwrap();
            let message = Message::new("order", "x").id(level);
            assert_eq!(scratch.received(&message).await, "new");
            let error = scratch.receive_on(&mut tx, &message).await.unwrap_err();
            assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("40001"), "{error}");
            drop(tx);
            let mut tx = scratch.pool.begin_with(AssertSqlSafe(begin)).await.unwrap();
            assert_eq!(scratch.receive_on(&mut tx, &message).await.unwrap(), "duplicate");
        }
    })
    .await;
}

/// Without the lock on the head row, a runner would move its cursor past a number that commits late.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_commits_late_is_not_skipped() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        let inbox =
            Inbox::new(scratch.store.clone()).on("order", handler("charge", recorder(&scratch.schema)));
        run(inbox.clone()).drain().await.unwrap();
        let mut slow = scratch.pool.begin().await.unwrap();
        assert_eq!(
            scratch.receive_on(&mut slow, &Message::new("order", "x").id("slow").key("k")).await.unwrap(),
            "new"
        );
        let fast = async {
            assert_eq!(scratch.received(&Message::new("order", "x").id("fast").key("k")).await, "new");
            run(inbox.clone()).drain().await.unwrap();
        };
        let end = async {
            scratch.until_waiting("receive").await;
            run(inbox.clone()).drain().await.unwrap();
            slow.commit().await.unwrap();
        };
        tokio::join!(fast, end);
        run(inbox.clone()).drain().await.unwrap();
        let ids = scratch.rows("select id from {schema}.effect order by ctid").await;
        assert_eq!(ids.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>(), ["slow", "fast"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_runners_are_woken_by_what_sql_receives_and_publishes() {
    common::with_store(async |scratch| {
        scratch.effects().await;
        let broker = MemoryBroker::new(1, Manners::GOOD);
        let inbox =
            Inbox::new(scratch.store.clone()).on("order", handler("charge", recorder(&scratch.schema)));
        run(inbox.clone()).drain().await.unwrap();
        let running = run(inbox).relay(broker.clone()).poll_every(Duration::from_secs(3600));
        let running = tokio::spawn(running.into_future());
        for number in 0..3 {
            let message = Message::new("order", "x").id(number.to_string());
            assert_eq!(scratch.received(&message).await, "new");
            until("the message is handled", || async { scratch.count_effects().await == number + 1 }).await;
            let mut tx = scratch.pool.begin().await.unwrap();
            scratch.publish_on(&mut tx, &message).await.unwrap();
            tx.commit().await.unwrap();
            until("the message is sent", || async { broker.sent().len() as i64 == number + 1 }).await;
        }
        running.abort();
    })
    .await;
}

#[tokio::test]
async fn a_session_that_turned_hints_off_gives_none() {
    common::with_store(async |scratch| {
        let channel = format!("oncebox.{}", scratch.schema);
        let mut listener = PgListener::connect_with(&scratch.pool).await.unwrap();
        listener.listen(&channel).await.unwrap();
        let mut connection = scratch.pool.acquire().await.unwrap();
        for (setting, hints) in [("off", 0), ("on", 2)] {
            let set = format!("set oncebox.notify = '{setting}'");
            connection.execute(AssertSqlSafe(set)).await.unwrap();
            scratch.receive_on(&mut connection, &Message::new("order", "x")).await.unwrap();
            scratch.publish_on(&mut connection, &Message::new("order", "x")).await.unwrap();
            // Notifications of one session come in order, so nothing can come before this one and be late.
            sqlx::query("select pg_notify($1, 'end')")
                .bind(&channel)
                .execute(&mut *connection)
                .await
                .unwrap();
            let mut heard = 0;
            while listener.recv().await.unwrap().payload().is_empty() {
                heard += 1;
            }
            assert_eq!(heard, hints, "{setting}");
        }
        connection.close().await.unwrap();
    })
    .await;
}

/// Transactions that notify commit one after the other, so `publish` must not make each of them notify.
#[tokio::test]
async fn a_session_that_publishes_a_lot_gives_few_hints() {
    common::with_store(async |scratch| {
        let channel = format!("oncebox.{}", scratch.schema);
        let mut listener = PgListener::connect_with(&scratch.pool).await.unwrap();
        listener.listen(&channel).await.unwrap();
        let mut connection = scratch.pool.acquire().await.unwrap();
        let begun = Instant::now();
        for _ in 0..200 {
            scratch.publish_on(&mut connection, &Message::new("order", "x")).await.unwrap();
        }
        let most = begun.elapsed().as_millis() / 10 + 1;
        sqlx::query("select pg_notify($1, 'end')").bind(&channel).execute(&mut *connection).await.unwrap();
        let mut heard = 0;
        while listener.recv().await.unwrap().payload().is_empty() {
            heard += 1;
        }
        assert!((1..=most).contains(&heard), "{heard} hints, at most {most} expected");
    })
    .await;
}

#[tokio::test]
async fn what_sql_receives_is_counted() {
    common::with_store(async |scratch| {
        for number in [1, 2, 3, 1, 1] {
            scratch.received(&Message::with_id(number.to_string(), "order", "x")).await;
        }
        scratch.received(&Message::with_id("1", "order", "other")).await;
        let retention = Retention { keep: common::DAY, payload: common::DAY, step: 2 };
        for _ in 0..4 {
            assert_eq!((scratch.count("received").await, scratch.count("duplicate").await), (3, 2));
            assert_eq!(scratch.count("conflict").await, 1);
            let left = scratch.number("select count(*) from {schema}.tally").await;
            assert_eq!(scratch.store.purge(&retention).await.unwrap().more, left >= 2);
        }
        assert_eq!(scratch.number("select count(*) from {schema}.tally").await, 0);
        assert_eq!(scratch.number("select count(*) from {schema}.counter where minute > 0").await, 3);
    })
    .await;
}

/// A purged id is new again, by the database's own clock.
#[tokio::test]
async fn ids_from_sql_are_forgotten_after_keep() {
    common::with_store(async |scratch| {
        let message = Message::new("order", "x").id("1");
        scratch.register("charge", false).await;
        assert_eq!(scratch.received(&message).await, "new");
        scratch.process_all("charge").await;
        let retention =
            Retention { keep: Duration::from_secs(3600), payload: Duration::from_secs(3600), step: 100 };
        scratch.store.purge(&retention).await.unwrap();
        assert_eq!(scratch.received(&message).await, "duplicate");
        scratch.clock.advance(common::DAY);
        scratch.store.purge(&retention).await.unwrap();
        assert_eq!(scratch.received(&message).await, "new");
    })
    .await;
}

fn recorder(
    schema: &str,
) -> impl Fn(PgTx, Message) -> futures_util::future::BoxFuture<'static, Result<(), Failure>> + Clone + use<> {
    let insert = format!("insert into {schema}.effect (id) values ($1)");
    move |mut tx, message| {
        let insert = insert.clone();
        Box::pin(async move {
            sqlx::query(AssertSqlSafe(insert)).bind(&message.id).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
