//! Connections that break or stand half open, through a proxy whose address Tansu tells its clients; and servers that
//! are away.

// Also in functions that are not marked as tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::admin::{AdminStore, OutgoingFilter};
use oncebox_core::mapping::Delivered;
use oncebox_core::{
    Backoff, Error, Inbox, Message, Relay, Run, SendFailure, Sink, Source, SourceStatus, Store, handler, run,
};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use oncebox_testkit::{Proxy, Subject, Verdict, recording, until, within_deadline};
use support::{Mock, Plain, SqliteSubject};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use xtask::server::StopMode;
use xtask::tansu::PrivateTansu;

const TOPIC: &str = "orders";
const GROUP: &str = "shop";

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

/// A runner in the background.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start<St: Store>(run: Run<St, ()>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let run = run.with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        Self { stop, task: tokio::spawn(run.into_future()) }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_and_half_open_connections_of_a_source_lose_and_double_nothing() {
    let Some(behind) = start().await else { return };
    let store = SqliteSubject::create().await.unwrap();
    let inbox = Inbox::new(store.store()).on("k", handler("charge", recording::<SqliteSubject>("charge")));
    let running = Running::start(run(inbox).consume(source(&behind.servers)));
    for lot in 0..6 {
        behind.plain.put(TOPIC, None, &deliveries(lot)).await;
        until("the lot has its effects", || async { store.effects().await.len() >= 50 * (lot + 1) }).await;
        if lot == 3 { behind.proxy.freeze() } else { behind.proxy.cut() }
    }
    assert!(behind.proxy.connections() > 6);
    until("all is committed", || async {
        behind.plain.pending(GROUP, TOPIC, 1).is_some_and(|pending| pending == 0)
    })
    .await;
    running.stop().await;
    let sent: Vec<String> = (0..6).flat_map(messages).map(|message| message.id).collect();
    Verdict::of(&store.effects().await, sent.iter().map(String::as_str), &["charge"]).assert_clean();
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

/// Counts the calls that end in vain.
struct Tried {
    sink: KafkaSink,
    in_vain: Arc<AtomicUsize>,
}

impl Sink for Tried {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        let answers = self.sink.send(messages).await;
        if answers.is_err() {
            self.in_vain.fetch_add(1, Ordering::SeqCst);
        }
        answers
    }
}

/// Returns when the topic has all of these; in the order of each key, copies aside.
async fn assert_all_sent(plain: &Plain, messages: &[Message]) {
    let ids = |messages: &[Message]| messages.iter().map(|one| one.id.clone()).collect::<BTreeSet<_>>();
    let expected = ids(messages);
    until("everything is sent", || async { ids(&plain.taken(TOPIC)) == expected }).await;
    let mut first_copies = plain.taken(TOPIC);
    let mut seen = BTreeSet::new();
    first_copies.retain(|taken| seen.insert(taken.id.clone()));
    for key in ["a", "b", "c"] {
        let of_key = first_copies.iter().filter(|taken| taken.key.as_deref() == Some(key));
        assert!(of_key.map(|taken| &taken.id).is_sorted(), "key {key}: {first_copies:?}");
    }
}

async fn publish(store: &SqliteSubject, messages: &[Message]) {
    let mut own = store.begin().await;
    store.store().publish(&mut own, messages).await.unwrap();
    SqliteSubject::commit(own).await;
}

/// While the broker is away the outbox holds exactly what was not confirmed; afterwards nothing. On the mock cluster: a
/// producer whose messages have timed out asks for another epoch, and that question ends Tansu's storage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_confirmed_stays_in_the_outbox() {
    let mock = Mock::start();
    mock.create_topic(TOPIC, 1);
    let plain = Plain::new(&mock.servers);
    let config = KafkaSinkConfig::new(&mock.servers, TOPIC)
        .property("message.timeout.ms", "2000")
        .property("socket.timeout.ms", "1000")
        .property("reconnect.backoff.max.ms", "500");
    let in_vain = Arc::new(AtomicUsize::new(0));
    let sink = Tried { sink: KafkaSink::new(config).unwrap(), in_vain: in_vain.clone() };
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let relay = Relay::new(sink).backoff(backoff).max_attempts(1000);
    let store = SqliteSubject::create().await.unwrap();
    let running = Running::start(run(Inbox::new(store.store())).relay(relay));
    let keys = ["a", "b", "c"].into_iter().cycle();
    let messages: Vec<Message> = messages(0).into_iter().zip(keys).map(|(one, key)| one.key(key)).collect();
    let outbox = async || store.store().outgoing(&OutgoingFilter::default()).await.unwrap();

    publish(&store, &messages[..25]).await;
    until("the first are sent", || async { outbox().await.is_empty() }).await;
    assert_all_sent(&plain, &messages[..25]).await;
    mock.down();
    publish(&store, &messages[25..]).await;
    until("it was tried in vain", || async { in_vain.load(Ordering::SeqCst) >= 2 }).await;
    let left: Vec<String> = outbox().await.into_iter().map(|left| left.id).collect();
    assert_eq!(left, messages[25..].iter().map(|message| message.id.clone()).collect::<Vec<_>>());
    mock.up();
    until("nothing is left", || async { outbox().await.is_empty() }).await;
    assert_all_sent(&plain, &messages).await;
    running.stop().await;
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
    let running = Running::start(run(inbox.clone()).consume(source(&servers)));
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
        running.stop().await;
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
