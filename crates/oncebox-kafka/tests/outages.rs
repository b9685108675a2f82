//! Connections that break or stand half open, through a proxy whose address Tansu tells its clients; and servers that
//! are away.

// Also in functions that are not marked as tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Inbox, Message, Settle, Sink, Source, SourceStatus, Store, run};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use oncebox_testkit::{Proxy, Subject, until, within_deadline};
use support::{Plain, SqliteSubject};
use tokio::net::TcpStream;
use xtask::server::StopMode;
use xtask::tansu::PrivateTansu;

const TOPIC: &str = "orders";
const GROUP: &str = "shop";
const LIMIT: Duration = Duration::from_secs(60);

struct Behind {
    // Before the server, so that it ends first.
    proxy: Proxy,
    servers: String,
    plain: Plain,
    server: PrivateTansu,
}

/// Everybody, the plain client too, goes through the proxy; `None` when Tansu is not built.
async fn start() -> Option<Behind> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = support::tansu_behind(port)?;
    let address: SocketAddr = server.url().parse().unwrap();
    let proxy = Proxy::start_at(port, address).await;
    tokio::task::block_in_place(|| server.create_topic(TOPIC, 1)).unwrap();
    let servers = proxy.address().to_string();
    Some(Behind { proxy, plain: Plain::new(&servers), servers, server })
}

fn messages(lot: usize) -> Vec<Message> {
    (0..50).map(|number| Message::new("k", "x").id(format!("m-{lot}-{number:02}"))).collect()
}

fn deliveries(lot: usize) -> Vec<Delivered> {
    messages(lot).iter().map(|one| support::delivery(one, Some(one.id.as_bytes()))).collect()
}

fn source(servers: &str) -> KafkaSource {
    let config = KafkaSourceConfig::new(servers, TOPIC)
        .group(GROUP)
        .property("session.timeout.ms", "6000")
        .property("heartbeat.interval.ms", "500")
        .property("socket.timeout.ms", "2000")
        .property("fetch.wait.max.ms", "100")
        .property("reconnect.backoff.max.ms", "500");
    KafkaSource::new("orders", config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_loses_nothing_to_broken_and_half_open_connections() {
    let Some(behind) = start().await else { return };
    let mut source = source(&behind.servers);
    let mut seen = BTreeSet::new();
    for lot in 0..6 {
        behind.plain.put(TOPIC, None, &deliveries(lot)).await;
        let take = async {
            while seen.len() < 50 * (lot + 1) {
                let Ok(next) = source.next(20).await else { continue };
                seen.extend(next.iter().map(|one| one.message.id.clone()));
                source
                    .settle(next.into_iter().map(|one| (one.receipt, Settle::Accept)).collect())
                    .await
                    .unwrap();
            }
        };
        tokio::time::timeout(LIMIT, take).await.unwrap_or_else(|_| panic!("lot {lot} did not come"));
        if lot == 3 { behind.proxy.freeze() } else { behind.proxy.cut() }
    }
    assert!(behind.proxy.connections() > 6);
    until("all is committed", || async {
        behind.plain.pending(GROUP, TOPIC, 1).is_some_and(|pending| pending == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_loses_nothing_to_broken_and_half_open_connections() {
    let Some(behind) = start().await else { return };
    let config = KafkaSinkConfig::new(&behind.servers, TOPIC)
        .property("message.timeout.ms", "5000")
        .property("socket.timeout.ms", "2000")
        .property("reconnect.backoff.max.ms", "500");
    let sink = KafkaSink::new(config).unwrap();
    let mut confirmed = BTreeSet::new();
    for lot in 0..6 {
        let messages = messages(lot);
        if lot == 3 {
            behind.proxy.freeze()
        } else {
            behind.proxy.cut()
        }
        until("the lot is confirmed", || async {
            let sent = sink.send(&messages);
            let breaks = async {
                tokio::task::yield_now().await;
                if lot % 2 == 1 {
                    behind.proxy.cut();
                }
            };
            let (answers, ()) = tokio::join!(sent, breaks);
            answers.is_ok_and(|answers| answers.iter().all(Result::is_ok))
        })
        .await;
        confirmed.extend(messages.into_iter().map(|message| message.id));
    }
    until("all that was confirmed is there", || async {
        let taken: BTreeSet<String> = behind.plain.taken(TOPIC).into_iter().map(|taken| taken.id).collect();
        taken.is_superset(&confirmed)
    })
    .await;
}

/// The broker dies again and again, mostly while a lot is under way. Only how long a message may wait is not as it is
/// unless set: so a wait of librdkafka's own ten seconds between two attempts to connect is a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_goes_on_soon_after_each_crash_of_the_broker() {
    let Some(mut server) = support::own_tansu() else { return };
    tokio::task::block_in_place(|| server.create_topic(TOPIC, 1)).unwrap();
    let config = KafkaSinkConfig::new(&server.url(), TOPIC).property("message.timeout.ms", "7500");
    let sink = KafkaSink::new(config).unwrap();
    let mut confirmed = BTreeSet::new();
    for lot in 0..9 {
        let messages = messages(lot);
        let crash = async {
            // The later, the more of the lot is confirmed before.
            tokio::time::sleep(Duration::from_millis(lot as u64 * 3)).await;
            tokio::task::block_in_place(|| server.restart(StopMode::Immediate)).unwrap();
        };
        let (_, ()) = tokio::join!(sink.send(&messages), crash);
        let answers = sink.send(&messages).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "lot {lot}: {answers:?}");
        confirmed.extend(messages.into_iter().map(|message| message.id));
    }
    let plain = Plain::new(&server.url());
    until("all that was confirmed is there", || async {
        let taken: BTreeSet<String> = plain.taken(TOPIC).into_iter().map(|taken| taken.id).collect();
        taken.is_superset(&confirmed)
    })
    .await;
}

fn status<St: Store>(inbox: &Inbox<St>) -> SourceStatus {
    inbox.sources().remove(0)
}

async fn until_well<St: Store>(inbox: &Inbox<St>) {
    until("the source is well", || async {
        inbox.sources().first().is_some_and(|status| status.connected && status.error.is_none())
    })
    .await;
}

/// What people see of the source, also of one on which nothing comes. First nobody can reach the server for a while,
/// then it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_tells_of_an_outage_and_of_its_end() {
    let Some(Behind { mut proxy, servers, plain, mut server }) = start().await else { return };
    let inbox = Inbox::new(SqliteSubject::create().await.unwrap().store());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = run(inbox.clone()).consume(source(&servers)).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let running = tokio::spawn(running.into_future());
    within_deadline(async {
        until_well(&inbox).await;
        for outage in 0..2 {
            let (port, before) = (proxy.address().port(), status(&inbox).delivered);
            drop(proxy);
            until("nobody listens", || async { TcpStream::connect(&servers).await.is_err() }).await;
            until("the outage is told", || async {
                let status = status(&inbox);
                !status.connected && status.error.is_some_and(|error| error.contains(&servers))
            })
            .await;
            if outage == 1 {
                tokio::task::block_in_place(|| server.restart(StopMode::Immediate)).unwrap();
            }
            proxy = Proxy::start_at(port, server.url().parse().unwrap()).await;
            until_well(&inbox).await;
            plain.put(TOPIC, None, &deliveries(outage)).await;
            until("it goes on", || async { status(&inbox).delivered >= before + 50 }).await;
        }
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
    })
    .await;
}

/// Shorter than the service waits for a check, so that its answer is heard.
const CHECKED_WITHIN: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_names_the_server_that_is_away() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The system takes connections for it, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (away, why) in [(free, "refused"), (silent.local_addr().unwrap(), "")] {
        let servers = away.to_string();
        let (mut source, sink) =
            (source(&servers), KafkaSink::new(KafkaSinkConfig::new(&servers, TOPIC)).unwrap());
        let checks = async { tokio::join!(source.check(), sink.check()) };
        let (of_source, of_sink) =
            tokio::time::timeout(CHECKED_WITHIN, checks).await.expect("the checks end");
        for found in [of_source, of_sink] {
            let error = found.expect_err("nobody answers").to_string();
            assert!(error.contains(&servers), "it does not name {away}: {error}");
            assert!(error.contains("check `brokers`"), "it names no remedy: {error}");
            assert!(error.contains(why), "it does not say why: {error}");
        }
    }
}
