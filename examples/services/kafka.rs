//! The same through Kafka: both services are killed with SIGKILL whenever they have done some more.

#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use oncebox_testkit::{until, within_deadline};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};
use xtask::postgres::PrivatePostgres;

const ORDERS: i64 = 2000;
const SHOP_KILLS: i64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_with_kafka_between_them() {
    // Tansu takes long to build, so only the slow tests insist on it.
    let server = xtask::tansu::PrivateTansu::start();
    let Some(server) = xtask::server::if_installed(server, xtask::steps::ALL_VARIABLE) else { return };
    server.create_topic("orders", 3).unwrap();
    // Joining the group again takes its time, so billing is killed less often.
    within_deadline(each_order_is_charged_once("kafka", &server.url(), 5)).await;
}

/// A server for the test; `None` when it is not installed.
fn started<T>(server: std::io::Result<T>) -> Option<T> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

/// Billing is killed so many times, the shop ten times.
async fn each_order_is_charged_once(broker: &str, address: &str, billing_kills: i64) {
    let Some(postgres) = started(PrivatePostgres::start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("billing.db");
    let orders = ORDERS.to_string();
    let start_shop =
        || Service::start(env!("CARGO_BIN_EXE_shop"), &[broker, address, &postgres.url(), &orders]);
    let start_billing =
        || Service::start(env!("CARGO_BIN_EXE_billing"), &[broker, address, &file.display().to_string()]);

    let (shop, billing) = (start_shop(), start_billing());
    let shops = PgPool::connect(&postgres.url()).await.unwrap();
    let charges = charges(&file).await;
    // Each in the middle of its work: the shop while it places orders, billing while they come in.
    let (_shop, _billing) = tokio::join!(
        kill_again_and_again(
            SHOP_KILLS,
            shop,
            start_shop,
            || count_placed(&shops),
            || free_the_relay(&shops)
        ),
        kill_again_and_again(billing_kills, billing, start_billing, || count_charged(&charges), async || ()),
    );
    until("every order is charged", || async { count_charged(&charges).await >= ORDERS }).await;
    until("the outbox is empty", || async {
        let waiting: i64 =
            sqlx::query_scalar("select count(*) from oncebox.outbox").fetch_one(&shops).await.unwrap();
        waiting == 0
    })
    .await;

    // Everything has come to rest, so a doubled charge would be here by now.
    let placed: Vec<(i64, i64)> =
        sqlx::query_as("select number, cents from placed order by number").fetch_all(&shops).await.unwrap();
    let charged: Vec<(i64, i64)> =
        sqlx::query_as("select number, cents from charge").fetch_all(&charges).await.unwrap();
    let mut times: BTreeMap<i64, usize> = BTreeMap::new();
    charged.iter().for_each(|(number, _)| *times.entry(*number).or_default() += 1);
    times.retain(|_, times| *times != 1);
    assert!(times.is_empty(), "orders charged more than once: {times:?}");
    let mut charged = charged;
    charged.sort_unstable();
    assert_eq!(i64::try_from(placed.len()).unwrap(), ORDERS);
    assert_eq!(charged, placed);
}

/// Billing's database, as soon as billing has made it.
async fn charges(file: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
    until("billing has its table", || async {
        sqlx::query("select count(*) from charge").execute(&pool).await.is_ok()
    })
    .await;
    pool
}

async fn count_charged(charges: &SqlitePool) -> i64 {
    sqlx::query_scalar("select count(*) from charge").fetch_one(charges).await.unwrap()
}

/// None as long as there is no table.
async fn count_placed(shops: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from placed").fetch_one(shops).await.unwrap_or(0)
}

/// What a killed relay had taken is free after half a minute; as if it were over.
async fn free_the_relay(shops: &PgPool) {
    sqlx::query("update oncebox.relay set leased_until = 0").execute(shops).await.unwrap();
}

/// Kills a service whenever it has done some more, and starts it again.
async fn kill_again_and_again<Fut: Future<Output = i64>>(
    kills: i64,
    mut service: Service,
    start: impl Fn() -> Service,
    done: impl Fn() -> Fut,
    killed: impl AsyncFn(),
) -> Service {
    for kill in 1..=kills {
        until("the service has done more", || async {
            assert!(service.is_running(), "a service ended by itself");
            done().await >= kill * ORDERS / (kills + 1)
        })
        .await;
        service.kill();
        killed().await;
        service = start();
    }
    service
}

/// A process that is killed at the latest when the test ends.
struct Service(Child);

impl Service {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        Self(Command::new(program).args(arguments).stdin(Stdio::null()).spawn().unwrap())
    }

    fn is_running(&self) -> bool {
        // Asking needs no exclusive access, unlike `try_wait`.
        std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
    }

    /// SIGKILL: no goodbye, no last commit.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
