//! Both services are killed with SIGKILL again and again; in the end each order is charged exactly once.
//!
//! A kill at any odd time mostly hits a service that waits. So most of these are staged: something that the service needs
//! is held up, it is killed when it has got so far and no further, and then it is let go. Which promise would be broken
//! stands at each of the moments.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oncebox_testkit::{Proxy, until};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, PgPool, SqliteConnection, SqlitePool};
use xtask::postgres::PrivatePostgres;

/// How many orders wait in the outbox before the relay is let go.
const LOT: i64 = 30;
/// So many orders that some of them have come to billing, however seldom it is given any.
const MANY: i64 = 250;
/// A lot is longer than this, and what else goes over a connection while it stands still is not.
const LOT_BYTES: u64 = 1500;
/// What the sessions of the test call themselves in Postgres.
const OURS: &str = "test";
/// How long a moment may take to come.
const SOON: Duration = Duration::from_secs(45);
/// How long it may take until both services work again.
const TO_WORK: Duration = Duration::from_secs(150);
/// How long a group may be without a leader of its own; it needs a few rounds of three seconds.
const WITHOUT_LEADER: Duration = Duration::from_secs(25);
/// How long the services may take in the end to work off what waits.
const REST: Duration = Duration::from_secs(150);

#[cfg(feature = "rabbitmq")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_with_rabbitmq_between_them() {
    let Some(server) = started(xtask::rabbitmq::PrivateRabbitmq::start()) else { return };
    let proxy = Proxy::start(local(server.port())).await;
    let through_proxy = server.url().replace(&server.port().to_string(), &proxy.address().port().to_string());
    let between =
        Between { broker: "rabbitmq", proxy, shop: through_proxy, billing: server.url(), groups: None };
    in_time(each_order_is_charged_once(6, &between)).await.unwrap();
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_with_nats_between_them() {
    let Some(server) = started(xtask::nats::PrivateNats::start()) else { return };
    let proxy = Proxy::start(local(server.port())).await;
    let through_proxy = server.url().replace(&server.port().to_string(), &proxy.address().port().to_string());
    let between = Between { broker: "nats", proxy, shop: through_proxy, billing: server.url(), groups: None };
    in_time(each_order_is_charged_once(5, &between)).await.unwrap();
}

/// Fewer rounds: here a billing that comes back waits six seconds and more until it is given anything.
#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_with_kafka_between_them() {
    // Each time with a server and services of its own.
    for _ in 0..6 {
        // Clients go to the address that the server tells them, so billing goes through the proxy, too.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = xtask::tansu::PrivateTansu::start_behind(port);
        let Some(server) = xtask::server::if_installed(server, xtask::steps::ALL_VARIABLE) else { return };
        let proxy = Proxy::start_at(port, local(server.port())).await;
        tokio::task::block_in_place(|| server.create_topic("orders", 3)).unwrap();
        let address = proxy.address().to_string();
        let groups =
            Some(one_connection(SqliteConnectOptions::new().filename(server.folder().join("tansu.db"))));
        let between = Between { broker: "kafka", proxy, shop: address.clone(), billing: address, groups };
        if in_time(each_order_is_charged_once(3, &between)).await.is_ok() {
            return;
        }
    }
    panic!("Tansu has broken its group six times");
}

/// A test that hangs fails; one that goes well takes about a minute.
async fn in_time<T>(case: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(480), case).await.expect("it ends within 8 minutes")
}

/// A server for the test; `None` when it is not installed.
fn started<T>(server: std::io::Result<T>) -> Option<T> {
    xtask::server::if_installed(server, xtask::steps::BROKERS_VARIABLE)
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A broker for the two services.
struct Between {
    broker: &'static str,
    proxy: Proxy,
    /// Where the shop finds it: at the proxy.
    shop: String,
    /// Where billing finds it.
    billing: String,
    /// Tansu's own tables, if it is Tansu.
    groups: Option<SqlitePool>,
}

/// Tansu 0.6.0 sometimes keeps a member that was killed as the leader of its group, and then gives nobody a partition any
/// more. That is no fault of the services, and nothing they do gets them over it.
#[derive(Debug)]
struct Broken;

/// Each of the moments is met so many times.
async fn each_order_is_charged_once(rounds: usize, between: &Between) -> Result<(), Broken> {
    let Some(postgres) = started(PrivatePostgres::start()) else { return Ok(()) };
    let folder = tempfile::tempdir().unwrap();
    let mut town = Town::open(between, &postgres, folder.path()).await;
    let ended = town.kill_and_rest(rounds).await;
    let placed = town.placed().await;
    let mut times: BTreeMap<(i64, i64), i64> = placed.iter().map(|order| (*order, 0)).collect();
    for order in town.charged().await {
        *times.entry(order).or_default() += 1;
    }
    let orders = |wrong: fn(i64) -> bool| -> Vec<i64> {
        times.iter().filter(|(_, times)| wrong(**times)).map(|((number, _), _)| *number).collect()
    };
    let (mut lost, doubled) = (orders(|times| times == 0), orders(|times| times > 1));
    if ended.is_err() {
        // They wait in the broker.
        lost.clear();
    }
    assert!(
        lost.is_empty() && doubled.is_empty(),
        "of {} orders lost {lost:?}, doubled {doubled:?}",
        placed.len()
    );
    assert_eq!(times.len(), placed.len(), "an order is charged that nobody has placed");
    ended?;
    assert!(town.missed.is_empty(), "the services were not killed when {:?}", town.missed);
    Ok(())
}

/// The two services, and what the test looks at and holds up.
struct Town<'a> {
    proxy: &'a Proxy,
    start_shop: Box<dyn Fn(i64) -> Service + Send + Sync + 'a>,
    start_billing: Box<dyn Fn() -> Service + Send + Sync + 'a>,
    shop: Service,
    billing: Service,
    shops: PgPool,
    charges: SqlitePool,
    /// Billing's database for one who writes.
    file: SqliteConnectOptions,
    groups: Option<&'a SqlitePool>,
    /// Moments that did not come.
    missed: Vec<&'static str>,
}

impl<'a> Town<'a> {
    async fn open(between: &'a Between, postgres: &'a PrivatePostgres, folder: &Path) -> Self {
        let Between { broker, proxy, shop, billing, groups } = between;
        let file = folder.join("billing.db");
        let (name, database) = (file.display().to_string(), postgres.url());
        let start_shop = Box::new(move |orders: i64| {
            Service::start(env!("CARGO_BIN_EXE_shop"), &[broker, shop, &database, &orders.to_string()])
        });
        let start_billing =
            Box::new(move || Service::start(env!("CARGO_BIN_EXE_billing"), &[broker, billing, &name]));
        let file = SqliteConnectOptions::new().filename(file);
        let ours: PgConnectOptions = postgres.url().parse().unwrap();
        let ours = ours.application_name(OURS);
        let town = Self {
            proxy,
            shop: start_shop(i64::MAX),
            billing: start_billing(),
            start_shop,
            start_billing,
            shops: PgPool::connect_with(ours).await.unwrap(),
            charges: one_connection(file.clone().read_only(true)),
            file,
            groups: groups.as_ref(),
            missed: Vec::new(),
        };
        until("the services have their tables", || async {
            let billing = sqlx::query("select count(*) from charge").execute(&town.charges).await;
            let shop = sqlx::query("select count(*) from oncebox.relay, placed").execute(&town.shops).await;
            billing.is_ok() && shop.is_ok()
        })
        .await;
        town
    }

    async fn kill_and_rest(&mut self, rounds: usize) -> Result<(), Broken> {
        for _ in 0..rounds {
            self.kill_the_shop_before_it_has_removed_what_was_sent().await?;
            self.kill_the_shop_before_the_broker_has_confirmed().await?;
            self.kill_billing_before_it_has_stored().await?;
            self.kill_both_at_work().await?;
        }
        self.come_to_rest().await
    }

    /// Were a copy not known by its id, orders would be charged twice.
    async fn kill_the_shop_before_it_has_removed_what_was_sent(&mut self) -> Result<(), Broken> {
        self.both_work().await?;
        let relay = self.hold_the_relay().await;
        let mut outbox = self.shops.begin().await.unwrap();
        // Only the rows: a lock on the table might wait for a relay that waits for us.
        sqlx::query("select seq from oncebox.outbox for update").execute(&mut *outbox).await.unwrap();
        relay.rollback().await.unwrap();
        self.reach("an order is charged that is still in the outbox", async |town| {
            town.count_charged().await > town.count_sent().await
        })
        .await;
        self.kill_shop().await;
        outbox.rollback().await.unwrap();
        self.shop = (self.start_shop)(i64::MAX);
        Ok(())
    }

    /// Were messages removed from the outbox before the broker has them, they would be lost.
    async fn kill_the_shop_before_the_broker_has_confirmed(&mut self) -> Result<(), Broken> {
        let moment = "the shop sends";
        let mut is_here = false;
        // What was on its way when the connections froze may keep the relay waiting: then once more.
        for _ in 0..3 {
            self.both_work().await?;
            let relay = self.hold_the_relay().await;
            let withheld = self.proxy.withheld();
            self.proxy.freeze();
            relay.rollback().await.unwrap();
            let sends = until(moment, || async { self.proxy.withheld() >= withheld + LOT_BYTES });
            is_here = tokio::time::timeout(SOON / 3, sends).await.is_ok();
            if is_here {
                break;
            }
            self.proxy.cut();
        }
        if !is_here {
            self.missed.push(moment);
        }
        self.kill_shop().await;
        self.proxy.cut();
        self.shop = (self.start_shop)(i64::MAX);
        Ok(())
    }

    /// Were messages acknowledged before they are stored, they would be lost.
    async fn kill_billing_before_it_has_stored(&mut self) -> Result<(), Broken> {
        self.both_work().await?;
        let mut writer = SqliteConnection::connect_with(&self.file).await.unwrap();
        let writing = writer.begin_with("begin immediate").await.unwrap();
        let sent = self.count_sent().await;
        self.reach("many more are sent", async |town| town.count_sent().await >= sent + MANY).await;
        self.billing.kill();
        writing.rollback().await.unwrap();
        self.billing = (self.start_billing)();
        Ok(())
    }

    async fn kill_both_at_work(&mut self) -> Result<(), Broken> {
        self.both_work().await?;
        self.billing.kill();
        self.kill_shop().await;
        self.shop = (self.start_shop)(i64::MAX);
        self.billing = (self.start_billing)();
        Ok(())
    }

    /// Waits for the moment of a kill. One that does not come is noted, so that first the effects are looked at.
    async fn reach(&mut self, moment: &'static str, here: impl AsyncFn(&Self) -> bool) {
        if !self.missed.contains(&moment)
            && tokio::time::timeout(SOON, until(moment, || here(self))).await.is_err()
        {
            self.missed.push(moment);
        }
    }

    /// Waits until messages go all the way.
    async fn both_work(&self) -> Result<(), Broken> {
        let (sent, charged) = (self.count_sent().await, self.count_charged().await);
        let deadline = Instant::now() + TO_WORK;
        let mut whole_at = Instant::now();
        loop {
            assert!(self.shop.is_running() && self.billing.is_running(), "a service ended by itself");
            let now = (self.count_sent().await, self.count_charged().await);
            if now.0 > sent && now.1 > charged {
                return Ok(());
            }
            if self.is_broken(&mut whole_at).await {
                return Err(Broken);
            }
            assert!(
                Instant::now() < deadline,
                "after {TO_WORK:?} sent {sent} and {}, charged {charged} and {}",
                now.0,
                now.1
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the group has had a leader that is none of its members ever since then; notes when it had not.
    async fn is_broken(&self, whole_at: &mut Instant) -> bool {
        let Some(groups) = self.groups else { return false };
        let stray = "select count(*) from consumer_group_detail
                     where json_extract(detail, '$.state.Forming.leader') not in
                         (select key from json_each(detail, '$.members'))";
        let strays: i64 = sqlx::query_scalar(stray).fetch_one(groups).await.unwrap_or(0);
        if strays == 0 {
            *whole_at = Instant::now();
        }
        whole_at.elapsed() > WITHOUT_LEADER
    }

    /// Keeps the relay from taking anything, and waits until there is a lot that it has not taken.
    async fn hold_the_relay(&self) -> sqlx::Transaction<'_, sqlx::Postgres> {
        let mut relay = self.shops.begin().await.unwrap();
        sqlx::query("lock table oncebox.relay in share mode").execute(&mut *relay).await.unwrap();
        // Of what was there before, some may be sent already.
        let placed = self.count_placed().await;
        until("a lot waits", || async { self.count_placed().await >= placed + LOT }).await;
        relay
    }

    async fn kill_shop(&mut self) {
        self.shop.kill();
        // A session that waits for a lock does not notice that its client is gone, and would go on.
        until("the sessions of the shop have ended", || async {
            let sessions: i64 = sqlx::query_scalar(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity
                 where backend_type = 'client backend' and application_name <> $1",
            )
            .bind(OURS)
            .fetch_one(&self.shops)
            .await
            .unwrap();
            sessions == 0
        })
        .await;
        // What a killed relay had taken is free after half a minute; as if it were over.
        sqlx::query("update oncebox.relay set leased_until = 0").execute(&self.shops).await.unwrap();
    }

    /// No more kills: what was placed goes its way, and then a last lot, behind every copy that is still there.
    async fn come_to_rest(&mut self) -> Result<(), Broken> {
        self.kill_shop().await;
        for more in [0, 50] {
            let orders = self.count_placed().await + more;
            self.kill_shop().await;
            self.shop = (self.start_shop)(orders);
            let deadline = Instant::now() + REST;
            let mut whole_at = Instant::now();
            while self.count_placed().await != orders
                || self.count_waiting().await != 0
                || self.count_charged().await != orders
            {
                // If it never is, an order was lost, and which one is said later.
                if Instant::now() > deadline {
                    return Ok(());
                }
                if self.is_broken(&mut whole_at).await {
                    return Err(Broken);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// How many different orders are charged.
    async fn count_charged(&self) -> i64 {
        sqlx::query_scalar("select count(distinct number) from charge")
            .fetch_one(&self.charges)
            .await
            .unwrap()
    }

    async fn charged(&self) -> Vec<(i64, i64)> {
        sqlx::query_as("select number, cents from charge").fetch_all(&self.charges).await.unwrap()
    }

    async fn count_placed(&self) -> i64 {
        sqlx::query_scalar("select count(*) from placed").fetch_one(&self.shops).await.unwrap()
    }

    async fn placed(&self) -> Vec<(i64, i64)> {
        sqlx::query_as("select number, cents from placed").fetch_all(&self.shops).await.unwrap()
    }

    /// How many messages have left the outbox.
    async fn count_sent(&self) -> i64 {
        let sent = "select (select count(*) from placed) - (select count(*) from oncebox.outbox)";
        sqlx::query_scalar(sent).fetch_one(&self.shops).await.unwrap()
    }

    /// How many messages are in the outbox.
    async fn count_waiting(&self) -> i64 {
        sqlx::query_scalar("select count(*) from oncebox.outbox").fetch_one(&self.shops).await.unwrap()
    }
}

fn one_connection(file: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new().max_connections(1).connect_lazy_with(file)
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
