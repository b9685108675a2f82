//! QoS 2 from end to end: what the suite says of any source and sink, and what only the second confirmation of a sink
//! can get wrong.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use oncebox_core::{Message, SendFailure, Sink};
use oncebox_mqtt::{MqttSink, MqttSinkConfig};
use oncebox_testkit::{BrokerSubject, DEADLINE, Proxy, broker_cases, until};
use rumqttc::QoS;
use support::{MosquittoSubject, Observer, SqliteSubject, fresh_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use xtask::mosquitto::PrivateMosquitto;

broker_cases! { MosquittoSubject<2>, SqliteSubject, create, intake:
    everything_put_is_applied_once_and_acknowledged,
    everything_is_handled_inline_once,
    nothing_is_acknowledged_before_it_is_committed,
    a_death_between_commit_and_acknowledgement_makes_a_duplicate,
    a_death_before_the_commit_makes_a_redelivery,
    a_storm_of_copies_has_one_effect_each,
    sources_share_a_queue_and_take_over_from_each_other,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, round_trip: a_message_arrives_as_it_was_published }
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, order:
    order_is_kept_from_the_queue_to_the_effect,
    order_is_kept_from_the_outbox_to_the_destination,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, pressure:
    no_more_is_handed_over_than_asked_for,
    a_dropped_next_takes_nothing_with_it,
    a_slow_store_bounds_what_is_taken,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, sending:
    what_is_confirmed_is_there,
    a_dropped_send_spoils_no_later_one,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, stopping:
    stopping_fifty_times_under_load_loses_and_doubles_nothing,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create, outages:
    a_cut_connection_of_a_source_is_made_again,
    a_half_open_connection_of_a_source_is_noticed,
    an_outage_is_shown_and_ends_by_itself,
    a_sink_loses_nothing_to_broken_connections,
}
broker_cases! { MosquittoSubject<2>, SqliteSubject, create_alone, outages:
    a_restart_of_the_broker_loses_and_doubles_nothing,
}

/// The cases above would prove little if the server delivered with less.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_suite_puts_comes_with_qos_2() {
    let Some(subject) = MosquittoSubject::<2>::create().await else { return };
    let port = subject.address().port();
    let observer = Observer::subscribe(&fresh_name(), port, &subject.route(), QoS::ExactlyOnce).await;
    let deliveries: Vec<_> =
        messages(10).iter().map(|message| MosquittoSubject::<2>::delivery(message, None)).collect();
    subject.put(&deliveries).await;
    until("all have come", || async { observer.got().len() >= 10 }).await;
    assert!(observer.got().iter().all(|publish| publish.qos == QoS::ExactlyOnce));
}

/// The port of the shared server; the test is skipped where there is none.
macro_rules! port {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server.port(),
            None => return,
        }
    };
}

fn sink(at: SocketAddr, topic: &str) -> MqttSink {
    let config = MqttSinkConfig::new(format!("mqtt://{at}")).topic(topic).qos(2).require_subscribers(false);
    MqttSink::new(config).unwrap()
}

fn server(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn messages(count: usize) -> Vec<Message> {
    let message = |number| Message::with_id(format!("{number:05}"), "order.placed", "x");
    (0..count).map(message).collect()
}

/// The ids that an observer has got, in order, with copies.
fn ids(observer: &Observer) -> Vec<String> {
    observer.got().iter().map(|publish| support::plain::message_of(publish).id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_subscribes_with_qos_2_gets_qos_2_and_each_message_once() {
    let (port, name) = (port!(), fresh_name());
    let observer = Observer::subscribe(&format!("{name}-observer"), port, &name, QoS::ExactlyOnce).await;
    let sent = messages(1000);
    let answers = sink(server(port), &name).send(&sent).await.unwrap();
    assert!(answers.len() == 1000 && answers.iter().all(Result::is_ok), "{answers:?}");
    until("all have come", || async { observer.got().len() >= 1000 }).await;
    assert!(observer.got().iter().all(|publish| publish.qos == QoS::ExactlyOnce));
    let got = ids(&observer);
    assert_eq!(got.len(), 1000, "none comes twice");
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_when_the_connection_is_cut_under_load_is_there() {
    let (port, name) = (port!(), fresh_name());
    let observer = Observer::subscribe(&format!("{name}-observer"), port, &name, QoS::ExactlyOnce).await;
    let proxy = Proxy::start(server(port)).await;
    let sink = sink(proxy.address(), &name);
    let sent = messages(3000);
    let mut confirmed = BTreeSet::new();
    for lot in sent.chunks(500) {
        let before = observer.got().len();
        // Some have come, so the others are on their way.
        let cut = async {
            until("some have come", || async { observer.got().len() > before }).await;
            proxy.cut();
        };
        let (answers, ()) = tokio::join!(sink.send(lot), cut);
        let answers = answers.unwrap_or_default();
        let lucky = lot.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
        confirmed.extend(lucky.map(|(message, _)| message.id.clone()));
    }
    assert!(proxy.connections() > 1, "something was cut");
    // As a relay does.
    for lot in sent.chunks(500) {
        let left: Vec<Message> = lot.iter().filter(|one| !confirmed.contains(&one.id)).cloned().collect();
        if !left.is_empty() {
            assert!(sink.send(&left).await.unwrap().iter().all(Result::is_ok));
        }
    }
    let all: BTreeSet<String> = sent.iter().map(|message| message.id.clone()).collect();
    until("everything is there", || async { ids(&observer).into_iter().collect::<BTreeSet<_>>() == all })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_confirmed_by_the_last_packet_of_its_exchange() {
    let (port, name) = (port!(), fresh_name());
    let observer = Observer::subscribe(&format!("{name}-observer"), port, &name, QoS::ExactlyOnce).await;
    let mut gate = Gate::start(port).await;
    let sink = sink(gate.address, &name);
    let mut sending = tokio::spawn(async move { sink.send(&messages(1)).await });
    let held = gate.held.wait_for(|held| *held);
    tokio::time::timeout(DEADLINE, held).await.expect("the server ends the exchange").unwrap();
    // Now the server has it, as the first packet said, and the sink must not go by that.
    until("it has come", || async { observer.got().len() == 1 }).await;
    let early = tokio::time::timeout(Duration::from_millis(300), &mut sending).await;
    assert!(early.is_err(), "{early:?}");
    gate.open.send_replace(true);
    let answers = tokio::time::timeout(DEADLINE, sending).await.expect("it is confirmed").unwrap();
    assert_eq!(answers.unwrap(), [Ok(())]);
    assert_eq!(observer.got().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_has_its_own_answer() {
    let Some(_) = tokio::task::spawn_blocking(support::server).await.unwrap() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, "topic write allowed\n").unwrap();
    let settings = format!("acl_file {}\n", file.display());
    let own = tokio::task::spawn_blocking(move || PrivateMosquitto::start_with(&settings).unwrap());
    let own = own.await.unwrap();
    let sink = sink(server(own.port()), "{kind}");
    let message = |id: &str, kind: &str| Message::with_id(id, kind, "x");
    let lot = [
        message("1", "allowed"),
        message("2", "denied").key("a"),
        message("3", "allowed").key("a"),
        message("4", "no/+/topic"),
        message("5", "allowed").key("b"),
    ];
    let answers = sink.send(&lot).await.unwrap();
    let sent: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(sent, [true, false, false, false, true], "{answers:?}");
    assert!(matches!(&answers[1], Err(SendFailure::Retry(why)) if why.contains("may not publish")));
    assert!(matches!(&answers[2], Err(SendFailure::Retry(why)) if why.contains("of its key")));
    assert!(matches!(&answers[3], Err(SendFailure::Permanent(why)) if why.contains("cannot be a topic")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_less_is_an_error_that_names_the_setting() {
    let Some(_) = tokio::task::spawn_blocking(support::server).await.unwrap() else { return };
    let own = tokio::task::spawn_blocking(|| PrivateMosquitto::start_with("max_qos 1\n").unwrap());
    let own = own.await.unwrap();
    let sink = sink(server(own.port()), "t");
    for error in [sink.send(&messages(1)).await.unwrap_err(), sink.check().await.unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains("QoS 1 at most") && error.contains("`qos`"), "{error}");
    }
}

/// Stands between a client and the server, and holds back what ends an exchange of QoS 2 until it is opened.
struct Gate {
    address: SocketAddr,
    held: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

/// The first byte of a PUBCOMP.
const ENDS_EXCHANGE: u8 = 0x70;

impl Gate {
    async fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (holding, held) = watch::channel(false);
        let (open, mut opened) = watch::channel(false);
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) =
                TcpStream::connect(server(port)).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            loop {
                // What a server says to a sink is short: its length has one byte.
                let mut head = [0; 2];
                if from_server.read_exact(&mut head).await.is_err() {
                    return;
                }
                let mut body = vec![0; usize::from(head[1])];
                from_server.read_exact(&mut body).await.unwrap();
                if head[0] == ENDS_EXCHANGE {
                    holding.send_replace(true);
                    let _ = opened.wait_for(|open| *open).await;
                }
                to_client.write_all(&[&head, &body[..]].concat()).await.unwrap();
            }
        });
        Self { address, held, open }
    }
}
