//! The service killed again and again while others post to it: every acknowledged message has its effect, once.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::clock::Seed;
use oncebox_testkit::until;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use support::{Place, Service, not_run};
use tokio::sync::RwLock;

const KILLS: usize = 12;
const CLIENTS: usize = 6;

/// What differs between the databases.
struct Database {
    url: String,
    /// The ledger: a table without any unique key, so that a doubled effect shows.
    ledger: String,
    create: String,
    remove: Option<String>,
    store: String,
}

impl Database {
    fn sqlite() -> Self {
        let create = "create table ledger (id text, attempt integer)".to_owned();
        Self {
            url: "sqlite:".to_owned(),
            ledger: "ledger".to_owned(),
            create,
            remove: None,
            store: "sqlite:oncebox.db".to_owned(),
        }
    }

    fn server(url: &str) -> Self {
        let schema = format!("storm_{:016x}", Seed::from_system().next());
        let ledger = format!("{schema}.ledger");
        let remove = if url.starts_with("postgres") {
            format!("drop schema {schema} cascade")
        } else {
            format!("drop database {schema}")
        };
        Self {
            url: url.to_owned(),
            create: format!("create table {ledger} (id varchar(100), attempt bigint)"),
            ledger,
            remove: Some(remove),
            store: format!("{url}\"\nschema = \"{schema}"),
        }
    }
}

fn config(database: &Database) -> String {
    format!(
        "[store]\nurl = \"{}\"\n[handler.ledger]\non = [\"*\"]\nsql = \"insert into {} (id, attempt) values (:id, :attempt)\"\nbackoff = {{ first = \"10ms\", max = \"100ms\" }}\n",
        database.store, database.ledger
    )
}

/// A connection to the ledger.
enum Ledger {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    Mariadb(MySqlPool),
}

impl Ledger {
    async fn open(place: &Place, database: &Database) -> Self {
        match database.url.split(':').next() {
            Some("postgres") => Self::Postgres(PgPool::connect(&database.url).await.unwrap()),
            Some("mysql") => Self::Mariadb(MySqlPool::connect(&database.url).await.unwrap()),
            _ => Self::Sqlite(place.open().await),
        }
    }

    async fn run(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
            Self::Postgres(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
            Self::Mariadb(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
        }
    }

    /// Every id with its number of effects.
    async fn effects(&self, table: &str) -> BTreeMap<String, i64> {
        let sql = AssertSqlSafe(format!("select id, count(*) from {table} group by id"));
        let rows: Vec<(String, i64)> = match self {
            Self::Sqlite(pool) => sqlx::query_as(sql).fetch_all(pool).await.unwrap(),
            Self::Postgres(pool) => sqlx::query_as(sql).fetch_all(pool).await.unwrap(),
            Self::Mariadb(pool) => sqlx::query_as(sql).fetch_all(pool).await.unwrap(),
        };
        rows.into_iter().collect()
    }
}

/// Posts single messages and batches, each id again and again, until told to stop. Answers what was acknowledged.
async fn client(
    number: usize,
    service: Arc<RwLock<Service>>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for round in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let id = format!("{number}-{}", round / 3);
        let service = service.read().await;
        let answer = if round % 5 == 4 {
            let batch: Vec<String> = (0..10).map(|one| format!("{number}-{round}-{one}")).collect();
            let lines: String = batch
                .iter()
                .map(|id| format!("{{\"id\":\"{id}\",\"kind\":\"k\",\"payload\":{{}}}}\n"))
                .collect();
            let headers = [("content-type", "application/x-ndjson")];
            let answer = service.request("POST", "/in/default", &headers, lines.as_bytes()).await;
            if let Ok(answer) = &answer
                && answer.status == 207
                && answer.body.lines().count() == 10
            {
                acknowledged.extend(batch);
            }
            answer
        } else {
            let headers = [("webhook-id", id.as_str()), ("x-kind", "k")];
            let answer = service.request("POST", "/in/default", &headers, b"{}").await;
            if answer.as_ref().is_ok_and(|answer| matches!(answer.status, 200 | 202)) {
                acknowledged.insert(id);
            }
            answer
        };
        sent.fetch_add(1, Ordering::SeqCst);
        drop(service);
        if answer.is_err() {
            // It was killed; the next one is coming up.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    acknowledged
}

async fn storm(place: Place, database: Database) {
    let first = place.serve(&[]);
    let ledger = Ledger::open(&place, &database).await;
    ledger.run(&database.create).await;
    let service = Arc::new(RwLock::new(first));
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, service.clone(), stop.clone(), sent.clone()));
    }
    for kill in 0..KILLS {
        let goal = sent.load(Ordering::SeqCst) + 20 + kill;
        until("some more were sent", || async { sent.load(Ordering::SeqCst) >= goal }).await;
        // While requests are under way: nobody waits for the lock with one in flight longer than it is answered.
        service.read().await.signal(nix::sys::signal::Signal::SIGKILL);
        let mut current = service.write().await;
        current.ended();
        *current = place.serve(&[]);
    }
    let goal = sent.load(Ordering::SeqCst) + 20;
    until("the last one works", || async { sent.load(Ordering::SeqCst) >= goal }).await;
    stop.store(true, Ordering::SeqCst);
    let acknowledged: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();
    until("every acknowledged message has its effect", || async {
        let effects = ledger.effects(&database.ledger).await;
        acknowledged.iter().all(|id| effects.contains_key(id))
    })
    .await;
    let log = service.read().await.log();
    Arc::try_unwrap(service).ok().unwrap().into_inner().stop();
    let effects = ledger.effects(&database.ledger).await;
    let doubled: Vec<_> = effects.iter().filter(|(_, count)| **count != 1).collect();
    assert!(doubled.is_empty(), "doubled: {doubled:?}\n{log}");
    assert!(acknowledged.len() > KILLS * 5, "{} messages say little", acknowledged.len());
    if let Some(remove) = database.remove {
        ledger.run(&remove).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_storm_through_http_on_sqlite() {
    let database = Database::sqlite();
    storm(Place::new(&config(&database)), database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_storm_through_http_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
        return not_run("the storm through HTTP", "Postgres");
    };
    let database = Database::server(&url);
    storm(Place::new(&config(&database)), database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_storm_through_http_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else {
        return not_run("the storm through HTTP", "MariaDB");
    };
    let database = Database::server(&url);
    storm(Place::new(&config(&database)), database).await;
}
