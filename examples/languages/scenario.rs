//! What every program in another language or driver must get right, on a database of its own.
//!
//! The program calls the SQL functions in its own transactions, with a role that may do nothing else. A runner in
//! this process handles what it received and relays what it published.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncebox::clock::Seed;
use oncebox::{Failure, Inbox, Message, PgStore, PgTx, handler, run};
use oncebox_testkit::{Manners, MemoryBroker, until};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Row};

/// A program, and how it is run for one action (`charge` or `receive`), order and argument.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    #[allow(clippy::type_complexity, reason = "it is only named here")]
    pub(crate) run: Box<dyn Fn(&str, &str, &str) -> Command + Send + Sync>,
}

/// A payload that careless quoting, escaping or encoding would change.
const ODD: &str = r#"{"note":"it's \\ \n 100% \u0000 é 😀","cents":250}"#;

/// Plays all of it, unless there is no server.
pub(crate) async fn play(program: Program) {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text = format!(
            "not run: {} (ONCEBOX_TEST_POSTGRES is not set; `cargo xtask test` sets it)\n",
            program.name
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
        return;
    };
    let shop = Shop::create(&url, program).await;
    let played = tokio::spawn({
        let shop = shop.clone();
        async move {
            shop.charges_once().await;
            shop.rivals_charge_once().await;
            shop.keeps_nothing_of_a_failure().await;
            shop.receives_once().await;
            shop.relays_what_was_published().await;
        }
    })
    .await;
    shop.remove(&url).await;
    if let Err(panic) = played {
        std::panic::resume_unwind(panic.into_panic());
    }
}

#[derive(Clone)]
struct Shop {
    program: std::sync::Arc<Program>,
    /// Of the database, and of the role that the program uses.
    name: String,
    pool: PgPool,
    store: PgStore,
    url: String,
}

impl Shop {
    async fn create(url: &str, program: Program) -> Self {
        let name = format!("shop_{:016x}", Seed::from_system().next());
        let mut server = PgConnection::connect(url).await.unwrap();
        execute(&mut server, format!("create database {name}")).await;
        execute(&mut server, format!("create role {name} login")).await;
        let options: PgConnectOptions = url.parse().unwrap();
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options.clone().database(&name));
        let store = PgStore::new(pool.clone());
        store.migrate().await.unwrap();
        let mut own = pool.acquire().await.unwrap();
        execute(&mut own, include_str!("shop.sql").to_owned()).await;
        execute(&mut own, include_str!("roles/caller.sql").replace("shop_caller", &name)).await;
        execute(&mut own, format!("grant insert on charge to {name}")).await;
        drop(own);
        let url = options.database(&name).username(&name).to_url_lossy().to_string();
        Self { program: program.into(), name, pool, store, url }
    }

    async fn remove(&self, url: &str) {
        self.pool.close().await;
        let mut server = PgConnection::connect(url).await.unwrap();
        execute(&mut server, format!("drop database {} with (force)", self.name)).await;
        execute(&mut server, format!("drop role {}", self.name)).await;
    }

    /// Runs the program to its end; its answer, or what it complained about.
    async fn call(&self, action: &str, order: &str, argument: &str) -> Result<String, String> {
        let mut command = (self.program.run)(action, order, argument);
        // Without `sslmode`, which not every driver knows.
        let url = self.url.split('?').next().unwrap().to_owned();
        command.env("DATABASE_URL", url).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    async fn charges(&self, order: &str) -> i64 {
        let count = "select count(*) from charge where order_id = $1";
        sqlx::query(count).bind(order).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn number(&self, query: &'static str) -> i64 {
        sqlx::query(query).fetch_one(&self.pool).await.unwrap().get(0)
    }

    /// Waits until so many sessions of the program wait for a lock.
    async fn until_waiting(&self, sessions: i64) {
        let waiting = "select count(*) from pg_stat_activity where usename = $1 and wait_event_type = 'Lock'";
        until("the programs wait for the lock", || async {
            let row = sqlx::query(waiting).bind(&self.name).fetch_one(&self.pool).await.unwrap();
            row.get::<i64, _>(0) == sessions
        })
        .await;
    }

    /// The same message handed in twice has one effect.
    async fn charges_once(&self) {
        assert_eq!(self.call("charge", "7", "100").await.as_deref(), Ok("first"));
        assert_eq!(self.call("charge", "7", "100").await.as_deref(), Ok("again"));
        assert_eq!(self.charges("7").await, 1);
    }

    /// Handed in twice at the same time: both are held back until both have come, then let go.
    async fn rivals_charge_once(&self) {
        let mut rival = self.pool.begin().await.unwrap();
        let held: bool = sqlx::query("select oncebox.once('charge-card', 'order-8')")
            .fetch_one(&mut *rival)
            .await
            .unwrap()
            .get(0);
        assert!(held);
        let let_go = async {
            self.until_waiting(2).await;
            rival.rollback().await.unwrap();
        };
        let (one, two, ()) =
            tokio::join!(self.call("charge", "8", "100"), self.call("charge", "8", "100"), let_go);
        let mut answers = [one.unwrap(), two.unwrap()];
        answers.sort();
        assert_eq!(answers, ["again", "first"]);
        assert_eq!(self.charges("8").await, 1);
    }

    /// The table refuses the amount after the message was published: nothing of it stays, and it can be tried again.
    async fn keeps_nothing_of_a_failure(&self) {
        let error = self.call("charge", "9", "100001").await.unwrap_err();
        assert!(error.contains("charge_cents_check"), "{error}");
        assert_eq!(self.charges("9").await, 0);
        assert_eq!(self.number("select count(*) from oncebox.outbox where key = '9'").await, 0);
        assert_eq!(self.call("charge", "9", "100").await.as_deref(), Ok("first"));
    }

    /// Received twice, also at the same time, and handled once, with the very bytes; other bytes are a conflict.
    async fn receives_once(&self) {
        let mut create = self.pool.acquire().await.unwrap();
        execute(
            &mut create,
            "create table effect (id text, key text, payload bytea, source text)".to_owned(),
        )
        .await;
        drop(create);
        let record = |mut tx: PgTx, message: Message| async move {
            sqlx::query("insert into effect (id, key, payload, source) values ($1, $2, $3, $4)")
                .bind(&message.id)
                .bind(&message.key)
                .bind(&message.payload[..])
                .bind(message.headers.text("source"))
                .execute(&mut *tx)
                .await?;
            Ok::<(), Failure>(())
        };
        let inbox = Inbox::new(self.store.clone()).on("order.placed", handler("record", record));
        run(inbox.clone()).drain().await.unwrap();
        // An hour between polls: it is the hint of `receive` that wakes it.
        let running = tokio::spawn(run(inbox).poll_every(Duration::from_secs(3600)).into_future());
        assert_eq!(self.call("receive", "7", ODD).await.as_deref(), Ok("new"));
        assert_eq!(self.call("receive", "7", ODD).await.as_deref(), Ok("duplicate"));
        assert_eq!(self.call("receive", "7", "other").await.as_deref(), Ok("conflict"));

        let mut rival = self.pool.begin().await.unwrap();
        sqlx::query("update oncebox.head set seq = seq").execute(&mut *rival).await.unwrap();
        let let_go = async {
            self.until_waiting(2).await;
            rival.rollback().await.unwrap();
        };
        let (one, two, ()) =
            tokio::join!(self.call("receive", "8", ODD), self.call("receive", "8", ODD), let_go);
        let mut answers = [one.unwrap(), two.unwrap()];
        answers.sort();
        assert_eq!(answers, ["duplicate", "new"]);

        let both = || async { self.number("select count(*) from effect").await == 2 };
        until("both orders are handled", both).await;
        running.abort();
        let rows =
            sqlx::query("select id, key, payload, source from effect order by id").fetch_all(&self.pool);
        for (row, order) in rows.await.unwrap().iter().zip(["7", "8"]) {
            assert_eq!(row.get::<String, _>("id"), format!("order-{order}"));
            assert_eq!(row.get::<String, _>("key"), order);
            assert_eq!(row.get::<Vec<u8>, _>("payload"), ODD.as_bytes());
            assert_eq!(row.get::<String, _>("source"), self.program.name);
        }
    }

    /// What committed goes out, once for each, with its key, its headers and its bytes.
    async fn relays_what_was_published(&self) {
        let broker = MemoryBroker::new(1, Manners::GOOD);
        run(Inbox::new(self.store.clone())).relay(broker.clone()).drain().await.unwrap();
        let mut sent = broker.sent();
        sent.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(
            sent.iter().filter_map(|message| message.key.as_deref()).collect::<Vec<_>>(),
            ["7", "8", "9"]
        );
        for message in sent {
            assert_eq!(message.kind, "order.paid");
            assert_eq!(message.headers.text("source"), Some(self.program.name));
            let paid: serde_json::Value = message.decode().unwrap();
            assert_eq!(paid, serde_json::json!({ "order_id": message.key, "cents": 100 }));
        }
    }
}

async fn execute(connection: &mut PgConnection, text: String) {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.unwrap();
}
