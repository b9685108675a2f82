//! TLS and logins. Tansu cannot be told to listen for TLS, so a small server in front of it does that.

// Also in functions that are not marked as tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Incoming, Message, Settle, Sink, Source};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig};
use oncebox_testkit::within_deadline;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use xtask::certificates::Certificates;
use xtask::tansu::PrivateTansu;

const TOPIC: &str = "orders";
const LIMIT: Duration = Duration::from_secs(60);

struct Guarded {
    server: PrivateTansu,
    certificates: Certificates,
    /// For clients.
    address: SocketAddr,
    folder: tempfile::TempDir,
}

/// A server that can be reached through TLS only; `None` when Tansu is not built.
async fn start() -> Option<Guarded> {
    start_with(acceptor).await
}

async fn start_with(acceptor: impl FnOnce(&Certificates) -> TlsAcceptor) -> Option<Guarded> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = support::tansu_behind(address.port())?;
    tokio::task::block_in_place(|| server.create_topic(TOPIC, 1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(folder.path()).unwrap();
    tokio::spawn(unwrap_tls(listener, acceptor(&certificates), server.port()));
    Some(Guarded { server, certificates, address, folder })
}

fn acceptor(certificates: &Certificates) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(&certificates.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&certificates.key).unwrap();
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Asks for a certificate of the same authority as the server's.
fn acceptor_of_known_clients(certificates: &Certificates) -> TlsAcceptor {
    let mut authorities = RootCertStore::empty();
    authorities.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(authorities)).build().unwrap();
    let certificate = CertificateDer::from_pem_file(&certificates.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&certificates.key).unwrap();
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()))
}

async fn unwrap_tls(listener: TcpListener, acceptor: TlsAcceptor, port: u16) {
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(mut client) = acceptor.accept(client).await else { return };
            let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// What both ends are told.
type Properties = Vec<(&'static str, String)>;

fn trusting(authority: &Path) -> Properties {
    vec![("security.protocol", "ssl".to_owned()), ("ssl.ca.location", authority.display().to_string())]
}

fn sink(address: SocketAddr, properties: &Properties) -> KafkaSink {
    let config = KafkaSinkConfig::new(&address.to_string(), TOPIC).property("message.timeout.ms", "4000");
    let config = properties.iter().fold(config, |config, (name, value)| config.property(*name, value));
    KafkaSink::new(config).unwrap()
}

fn source(address: SocketAddr, properties: &Properties) -> KafkaSource {
    let config = KafkaSourceConfig::new(&address.to_string(), TOPIC).group("shop");
    let config = properties.iter().fold(config, |config, (name, value)| config.property(*name, value));
    KafkaSource::new("orders", config).unwrap()
}

/// A message goes there and comes back.
async fn goes_around(address: SocketAddr, properties: &Properties) {
    let sent = Message::new("order.placed", "x").id("1");
    assert_eq!(sink(address, properties).send(std::slice::from_ref(&sent)).await.unwrap(), [Ok(())]);
    let mut source = source(address, properties);
    let taken: Vec<Incoming<_>> = loop {
        if let Ok(taken) = source.next(10).await {
            break taken;
        }
    };
    assert_eq!(taken[0].message, sent);
    source.settle(taken.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
}

/// What a source says of a server that hangs up without a word.
const HANGS_UP: &str = "brokers are down";

/// Neither end gets through, and both say why.
async fn is_refused(address: SocketAddr, properties: &Properties, why: &str) {
    let error =
        sink(address, properties).send(&[Message::new("order.placed", "x").id("2")]).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("no broker"), "{error}");
    assert!(why == HANGS_UP || error.to_string().contains(why), "{error}");
    let mut source = source(address, properties);
    let said = async {
        loop {
            let error = source.next(10).await.expect_err("it gets no messages").to_string();
            if error.contains(why) {
                return;
            }
        }
    };
    tokio::time::timeout(LIMIT, said).await.unwrap_or_else(|_| panic!("it does not say `{why}`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_over_tls_and_to_nobody_else() {
    let Some(guarded) = start().await else { return };
    within_deadline(async {
        goes_around(guarded.address, &trusting(&guarded.certificates.authority)).await;
        // Another authority of the same name.
        let other = tempfile::tempdir_in(guarded.folder.path()).unwrap();
        let other = Certificates::create(other.path()).unwrap();
        is_refused(guarded.address, &trusting(&other.authority), "certificate verify failed").await;
        // Who does not speak TLS is not heard.
        is_refused(guarded.address, &Vec::new(), HANGS_UP).await;
        // The right authority, but the certificate is not for this host.
        let elsewhere = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let address = elsewhere.local_addr().unwrap();
        tokio::spawn(unwrap_tls(elsewhere, acceptor(&guarded.certificates), guarded.server.port()));
        is_refused(address, &trusting(&guarded.certificates.authority), "certificate verify failed").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_with_scram_needs_the_right_password() {
    let Some(mut guarded) = start().await else { return };
    within_deadline(async {
        tokio::task::block_in_place(|| {
            guarded.server.create_user("shop", "open-sesame")?;
            guarded.server.require_login()
        })
        .unwrap();
        let login = |password: &str| {
            let mut properties = trusting(&guarded.certificates.authority);
            properties[0].1 = "sasl_ssl".to_owned();
            properties.push(("sasl.mechanism", "SCRAM-SHA-512".to_owned()));
            properties.extend([("sasl.username", "shop".to_owned()), ("sasl.password", password.to_owned())]);
            properties
        };
        goes_around(guarded.address, &login("open-sesame")).await;
        is_refused(guarded.address, &login("open-barley"), "uthentication").await;
        is_refused(guarded.address, &trusting(&guarded.certificates.authority), HANGS_UP).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_clients_need_a_certificate_only_one_of_the_right_authority_is_let_in() {
    let Some(guarded) = start_with(acceptor_of_known_clients).await else { return };
    within_deadline(async {
        let authority = &guarded.certificates.authority;
        let known = |own: &Certificates| {
            let mut properties = trusting(authority);
            properties.push(("ssl.certificate.location", own.certificate.display().to_string()));
            properties.push(("ssl.key.location", own.key.display().to_string()));
            properties
        };
        goes_around(guarded.address, &known(&guarded.certificates)).await;
        let required = "certificate required";
        is_refused(guarded.address, &trusting(authority), required).await;
        let error = source(guarded.address, &trusting(authority)).check().await.unwrap_err().to_string();
        assert!(error.contains(required), "{error}");
        let other = tempfile::tempdir_in(guarded.folder.path()).unwrap();
        let other = Certificates::create(other.path()).unwrap();
        is_refused(guarded.address, &known(&other), "SSL alert").await;
    })
    .await;
}
