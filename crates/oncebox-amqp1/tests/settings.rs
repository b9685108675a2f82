//! Settings that nothing else needs: each test fails when its key is ignored.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig, TlsConfig};
use oncebox_core::{Message, Sink, Source};
use oncebox_testkit::within_deadline;
use support::{fresh_name, operate, plain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use xtask::certificates::Certificates;
use xtask::rabbitmq::PrivateRabbitmq;

macro_rules! port {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server.port(),
            None => return,
        }
    };
}

/// Stands before the server and keeps what clients say to it.
async fn overheard(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, kept) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<u8>>>::default());
    let all = kept.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) =
                TcpStream::connect(("127.0.0.1", port)).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let kept = all.clone();
            tokio::spawn(async move {
                let mut part = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = from_client.read(&mut part).await {
                    kept.lock().unwrap().extend_from_slice(&part[..length]);
                    if to_server.write_all(&part[..length]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (own, kept)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_who_we_are_and_whom_we_ask_for() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let (own, said) = overheard(port).await;
    let (url, address) = (format!("amqp://guest:guest@127.0.0.1:{own}"), format!("/amq/queue/{queue}"));
    let said_so = |word: &str| said.lock().unwrap().windows(word.len()).any(|part| part == word.as_bytes());
    let source = |container: &str, hostname: &str| {
        let mut config = Amqp1SourceConfig::new(&url, &address);
        (config.container_id, config.hostname) = (Some(container.to_owned()), Some(hostname.to_owned()));
        Amqp1Source::new("orders", config).unwrap()
    };
    let sink = |container: &str, hostname: &str| {
        let mut config = Amqp1SinkConfig::new(&url, &address);
        (config.container_id, config.hostname) = (Some(container.to_owned()), Some(hostname.to_owned()));
        Amqp1Sink::new(config).unwrap()
    };
    source("source-of-the-test", "vhost:/").check().await.unwrap();
    sink("sink-of-the-test", "vhost:/").check().await.unwrap();
    assert!(said_so("source-of-the-test") && said_so("sink-of-the-test"));
    assert!(source("a", "vhost:nobody").check().await.is_err(), "there is no such virtual host");
    assert!(sink("b", "vhost:nobody").check().await.is_err(), "there is no such virtual host");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_user_the_login_is_anonymous() {
    let (port, queue) = (port!(), fresh_name());
    plain::create_queue(port, &queue).await;
    let (own, said) = overheard(port).await;
    let said_so = |word: &str| said.lock().unwrap().windows(word.len()).any(|part| part == word.as_bytes());
    let (url, address) = (format!("amqp://127.0.0.1:{own}"), format!("/amq/queue/{queue}"));
    within_deadline(async {
        let sink = Amqp1Sink::new(Amqp1SinkConfig::new(&url, &address)).unwrap();
        assert_eq!(sink.send(&[Message::new("k", "x").id("1")]).await.unwrap(), [Ok(())]);
        assert!(said_so("ANONYMOUS") && !said_so("PLAIN"));
        said.lock().unwrap().clear();
        let mut source = Amqp1Source::new("orders", Amqp1SourceConfig::new(&url, &address)).unwrap();
        let got = source.next(1).await.unwrap();
        assert_eq!(got[0].message.id, "1");
        assert!(said_so("ANONYMOUS") && !said_so("PLAIN"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_offer_our_login_is_an_error_with_the_remedy() {
    if xtask::rabbitmq::programs_folder().is_err() {
        return;
    }
    let settings = "amqp1_0.default_user = none\n";
    let server =
        tokio::task::spawn_blocking(move || PrivateRabbitmq::start_with(settings).unwrap()).await.unwrap();
    let queue = fresh_name();
    plain::create_queue(server.port(), &queue).await;
    let (port, address) = (server.port(), format!("/amq/queue/{queue}"));
    let errors = async |url: &str| {
        let sink = Amqp1Sink::new(Amqp1SinkConfig::new(url, &address)).unwrap();
        let mut source = Amqp1Source::new("orders", Amqp1SourceConfig::new(url, &address)).unwrap();
        let sent = sink.send(&[Message::new("k", "x")]).await.map(drop);
        [sent, sink.check().await.map(drop), source.next(1).await.map(drop), source.check().await.map(drop)]
            .map(|answer| answer.unwrap_err().to_string())
    };
    within_deadline(async {
        for error in errors(&format!("amqp://127.0.0.1:{port}")).await {
            assert!(error.contains("without a user: set `username` and `password`"), "{error}");
        }
        operate::control(&server, &["eval", "application:set_env(rabbit, auth_mechanisms, ['AMQPLAIN'])."]);
        for error in errors(&format!("amqp://guest:guest@127.0.0.1:{port}")).await {
            assert!(error.contains("SASL plain is not offered"), "{error}");
        }
    })
    .await;
}

/// The server takes the connection and says nothing; who has less time gives up first.
#[tokio::test(flavor = "multi_thread")]
async fn connecting_takes_no_longer_than_it_may() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://{}", silent.local_addr().unwrap());
    let sink = |seconds| {
        let connect_timeout = Duration::from_secs(seconds);
        Amqp1Sink::new(Amqp1SinkConfig { connect_timeout, ..Amqp1SinkConfig::new(&url, "a") }).unwrap()
    };
    let source = |seconds| {
        let connect_timeout = Duration::from_secs(seconds);
        let config = Amqp1SourceConfig { connect_timeout, ..Amqp1SourceConfig::new(&url, "a") };
        Amqp1Source::new("orders", config).unwrap()
    };
    within_deadline(async {
        let (short, long, message) = (sink(1), sink(25), [Message::new("k", "x")]);
        tokio::select! {
            answers = short.send(&message) => assert!(answers.is_err()),
            answers = long.send(&message) => panic!("it had more time: {answers:?}"),
        }
        let (mut short, mut long) = (source(1), source(25));
        tokio::select! {
            next = short.next(1) => assert!(next.is_err()),
            next = long.next(1) => panic!("it had more time: {next:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_client_certificate_are_read() {
    if xtask::rabbitmq::programs_folder().is_err() {
        return;
    }
    let server = tokio::task::spawn_blocking(|| PrivateRabbitmq::start_tls().unwrap()).await.unwrap();
    let queue = fresh_name();
    plain::create_queue(server.port(), &queue).await;
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let address = format!("/amq/queue/{queue}");
    let good = TlsConfig {
        ca: Some(files.authority.clone()),
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
    };
    let nowhere = || Some("/nowhere.pem".into());
    for (tls, missing) in [
        (good.clone(), None),
        (TlsConfig { certificate: nowhere(), ..good.clone() }, Some("`tls.certificate`")),
        (TlsConfig { key: nowhere(), ..good }, Some("`tls.key`")),
    ] {
        let sink = Amqp1Sink::new(Amqp1SinkConfig::new(&url, &address).tls(tls.clone())).unwrap();
        let source = Amqp1SourceConfig::new(&url, &address).tls(tls);
        let mut source = Amqp1Source::new("orders", source).unwrap();
        for checked in [sink.check().await, source.check().await] {
            match missing {
                None => drop(checked.unwrap()),
                Some(key) => assert!(checked.unwrap_err().to_string().contains(key)),
            }
        }
    }
}

/// A certificate instead of a password is not offered: the user is asked for as well.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_server_wants_a_certificate_nobody_else_is_let_in() {
    if xtask::rabbitmq::programs_folder().is_err() {
        return;
    }
    let server = tokio::task::spawn_blocking(|| PrivateRabbitmq::start_mutual_tls().unwrap()).await.unwrap();
    let queue = fresh_name();
    plain::create_queue(server.port(), &queue).await;
    let (url, address) = (server.tls_url().unwrap(), format!("/amq/queue/{queue}"));
    let files = server.certificates().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let of_stranger = Certificates::create(elsewhere.path()).unwrap();
    let tls = |shown: Option<&Certificates>| TlsConfig {
        ca: Some(files.authority.clone()),
        certificate: shown.map(|files| files.certificate.clone()),
        key: shown.map(|files| files.key.clone()),
    };
    let sink = |shown| Amqp1Sink::new(Amqp1SinkConfig::new(&url, &address).tls(tls(shown))).unwrap();
    let source =
        |shown| Amqp1Source::new("orders", Amqp1SourceConfig::new(&url, &address).tls(tls(shown))).unwrap();
    within_deadline(async {
        let message = [Message::new("k", "x").id("1")];
        assert_eq!(sink(Some(files)).send(&message).await.unwrap(), [Ok(())]);
        let got = source(Some(files)).next(1).await.unwrap();
        assert_eq!(got[0].message.id, "1");
        for shown in [None, Some(&of_stranger)] {
            for error in [
                sink(shown).send(&message).await.unwrap_err(),
                sink(shown).check().await.unwrap_err(),
                source(shown).next(1).await.unwrap_err(),
                source(shown).check().await.unwrap_err(),
            ] {
                let error = error.to_string();
                assert!(error.contains("`tls.certificate`"), "{error}");
            }
        }
    })
    .await;
}
