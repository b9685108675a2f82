//! A server that wants certificates from its clients.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_core::{Message, Sink, Source};
use oncebox_rabbitmq::{
    QueueKind, RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig, RoutingKey, TlsConfig,
};
use oncebox_testkit::within_deadline;
use support::own_mutual_tls_server;
use xtask::certificates::Certificates;

/// Both ends of a queue, with this certificate to show.
struct Ends {
    source: RabbitmqSource,
    sink: RabbitmqSink,
}

impl Ends {
    fn new(url: &str, trusted: &Certificates, shown: Option<&Certificates>) -> Self {
        let tls = TlsConfig {
            ca: Some(trusted.authority.clone()),
            certificate: shown.map(|files| files.certificate.clone()),
            key: shown.map(|files| files.key.clone()),
        };
        let source = RabbitmqSourceConfig::new(url, "orders").declare(QueueKind::Classic).tls(tls.clone());
        let routing_key = RoutingKey::Text("orders".to_owned());
        let sink = RabbitmqSinkConfig::new(url).routing_key(routing_key).tls(tls);
        Self {
            source: RabbitmqSource::new("orders", source).unwrap(),
            sink: RabbitmqSink::new(sink).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_clients_need_a_certificate_only_one_of_the_right_authority_is_let_in() {
    let Some(server) = own_mutual_tls_server().await else { return };
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    let of_stranger = Certificates::create(elsewhere.path()).unwrap();
    let message = [Message::new("k", "x").id("1")];
    within_deadline(async {
        let Ends { mut source, sink } = Ends::new(&url, files, Some(files));
        assert_eq!(source.lag().await.unwrap(), Some(0));
        assert_eq!(sink.send(&message).await.unwrap(), [Ok(())]);
        assert_eq!(source.next(1).await.unwrap()[0].message.id, "1");

        for shown in [None, Some(&of_stranger)] {
            let Ends { mut source, sink } = Ends::new(&url, files, shown);
            for refused in [
                source.next(1).await.map(drop),
                source.check().await.map(drop),
                sink.send(&message).await.map(drop),
                sink.check().await.map(drop),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("cannot connect to RabbitMQ"), "{error}");
                assert!(error.contains("`tls.certificate` if it wants one"), "{error}");
            }
        }
    })
    .await;
}
