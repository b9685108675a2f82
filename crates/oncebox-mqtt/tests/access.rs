//! Who is let in, what is encrypted, and what settings say when they cannot work.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oncebox_core::{Message, SendFailure, Settle, Sink, Source};
use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig, TlsConfig};
use oncebox_testkit::DEADLINE;
use support::fresh_name;
use xtask::certificates::Certificates;
use xtask::mosquitto::PrivateMosquitto;

/// A server with these settings; the test is skipped where Mosquitto is not installed.
macro_rules! server {
    ($start:expr) => {{
        if xtask::mosquitto::program().is_err() {
            return;
        }
        tokio::task::spawn_blocking(move || $start.unwrap()).await.unwrap()
    }};
}

fn message(id: &str) -> Message {
    Message::with_id(id, "order.placed", "x")
}

fn sink(config: MqttSinkConfig) -> MqttSink {
    MqttSink::new(config.require_subscribers(false)).unwrap()
}

fn trust(authority: &Path) -> TlsConfig {
    TlsConfig { ca: Some(authority.to_owned()), ..TlsConfig::default() }
}

async fn refusal(sink: &MqttSink) -> String {
    sink.send(&[message("1")]).await.unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_knows_the_password_is_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords");
    let made =
        Command::new("mosquitto_passwd").arg("-c").arg("-b").arg(&file).args(["ann", "p@ss/word"]).status();
    if made.is_err() {
        return;
    }
    let settings = format!("allow_anonymous false\npassword_file {}\n", file.display());
    let server = server!(PrivateMosquitto::start_with(&settings));
    let (port, name) = (server.port(), fresh_name());
    let url = format!("mqtt://127.0.0.1:{port}");
    let good = MqttSinkConfig::new(&url).credentials("ann", "p@ss/word");
    assert_eq!(sink(good).send(&[message("1")]).await.unwrap(), [Ok(())]);
    let in_url = MqttSinkConfig::new(format!("mqtt://ann:p%40ss%2Fword@127.0.0.1:{port}"));
    assert_eq!(sink(in_url).send(&[message("1")]).await.unwrap(), [Ok(())]);
    let in_url = format!("mqtt://ann:wrong-secret@127.0.0.1:{port}");
    for (url, credentials) in [
        (&url, None),
        (&url, Some(("ann", "wrong-secret"))),
        (&url, Some(("nobody", "wrong-secret"))),
        (&in_url, None),
    ] {
        let mut source = MqttSourceConfig::new(url, &name).topic("a");
        let mut sink = MqttSinkConfig::new(url);
        if let Some((username, password)) = credentials {
            (source, sink) = (source.credentials(username, password), sink.credentials(username, password));
        }
        let (mut source, sink) = (MqttSource::new("orders", source).unwrap(), MqttSink::new(sink).unwrap());
        let of_source = source.next(1).await.unwrap_err();
        let of_sink = sink.send(&[message("1")]).await.unwrap_err();
        for error in [of_source, of_sink, source.check().await.unwrap_err(), sink.check().await.unwrap_err()]
        {
            assert!(error.is_transient(), "{error}");
            assert!(error.to_string().contains("check `username` and `password`"), "{error}");
            assert!(!format!("{error} {error:?} {source:?} {sink:?}").contains("wrong-secret"), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_must_prove_who_it_is() {
    let server = server!(PrivateMosquitto::start_tls());
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let trusting = MqttSinkConfig::new(&url).tls(trust(&files.authority));
    assert_eq!(sink(trusting.clone()).send(&[message("1")]).await.unwrap(), [Ok(())]);
    let by_name = MqttSinkConfig { url: url.replace("127.0.0.1", "localhost"), ..trusting };
    assert_eq!(sink(by_name).send(&[message("1")]).await.unwrap(), [Ok(())]);
    let refusal = refusal(&sink(MqttSinkConfig::new(&url))).await;
    assert!(refusal.to_lowercase().contains("certificate") || refusal.contains("tls.ca"), "{refusal}");

    round_trip(&url, &trust(&files.authority)).await;
}

/// Sends a message and takes it in again.
async fn round_trip(url: &str, tls: &TlsConfig) {
    let name = fresh_name();
    let config = MqttSourceConfig::new(url, &name).topic(format!("{name}/#")).tls(tls.clone());
    let mut source = MqttSource::new("orders", config).unwrap();
    let events = sink(MqttSinkConfig::new(url).topic(format!("{name}/{{kind}}")).tls(tls.clone()));
    let mut got = None;
    while got.is_none() {
        assert_eq!(events.send(&[message("1")]).await.unwrap(), [Ok(())]);
        got = tokio::time::timeout(Duration::from_millis(500), source.next(1)).await.ok();
    }
    let got = got.unwrap().unwrap();
    assert_eq!(got[0].message.kind, "order.placed");
    source.settle(got.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_a_client_certificate_gets_one() {
    let server = server!(PrivateMosquitto::start_mutual_tls());
    let (url, files) = (server.tls_url().unwrap(), server.certificates().unwrap());
    let with = |own: &Certificates| TlsConfig {
        certificate: Some(own.certificate.clone()),
        key: Some(own.key.clone()),
        ..trust(&files.authority)
    };
    round_trip(&url, &with(files)).await;

    let folder = tempfile::tempdir().unwrap();
    let of_another = Certificates::create(folder.path()).unwrap();
    for tls in [trust(&files.authority), with(&of_another)] {
        let of_sink = refusal(&sink(MqttSinkConfig::new(&url).tls(tls.clone()))).await;
        let config = MqttSourceConfig::new(&url, fresh_name()).topic("a").tls(tls);
        let mut source = MqttSource::new("orders", config).unwrap();
        let of_source = source.next(1).await.unwrap_err().to_string();
        for refusal in [of_sink, of_source] {
            assert!(refusal.contains("`tls.certificate` if it wants one"), "{refusal}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_server_does_not_take_leaves_its_neighbours_unharmed() {
    // The first tells its limit; the second cuts the connection.
    for (setting, permanent) in [("max_packet_size 2000\n", true), ("message_size_limit 1000\n", false)] {
        let server = server!(PrivateMosquitto::start_with(setting));
        let sink = sink(MqttSinkConfig::new(server.url()));
        let mut lot: Vec<Message> = (0..40).map(|number| message(&number.to_string())).collect();
        lot[20].payload = vec![b'x'; 10_000].into();
        for _ in 0..2 {
            let answers = sink.send(&lot).await.unwrap();
            assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 39, "{setting}: {answers:?}");
            let refused = answers[20].as_ref().unwrap_err();
            assert_eq!(matches!(refused, SendFailure::Permanent(_)), permanent, "{setting}: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_message_holds_back_its_key_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, "topic write allowed\n").unwrap();
    let settings = format!("acl_file {}\n", file.display());
    let server = server!(PrivateMosquitto::start_with(&settings));
    let sink = sink(MqttSinkConfig::new(server.url()));
    let keyed = |id: &str, kind: &str, key: &str| Message::with_id(id, kind, "x").key(key);
    let lot = [
        keyed("1", "allowed", "a"),
        keyed("2", "denied", "a"),
        keyed("3", "allowed", "a"),
        keyed("4", "allowed", "b"),
        keyed("5", "no/+/topic", "b"),
        keyed("6", "allowed", "b"),
        Message::with_id("7", "allowed", "x"),
    ];
    let answers = sink.send(&lot).await.unwrap();
    let sent: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(sent, [true, false, false, true, false, true, true], "{answers:?}");
    assert!(matches!(&answers[1], Err(SendFailure::Retry(why)) if why.contains("may not publish")));
    assert!(matches!(&answers[2], Err(SendFailure::Retry(why)) if why.contains("of its key")));
    assert!(matches!(&answers[4], Err(SendFailure::Permanent(why)) if why.contains("cannot be a topic")));
}

/// Mosquitto's own `acl_file` grants every subscription, and then delivers nothing: only a plugin refuses.
fn plugin() -> std::io::Result<PathBuf> {
    let file = "mosquitto_dynamic_security.so";
    let folders = std::fs::read_dir("/usr/lib")?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = folders.map(|folder| folder.join(file)).find(|path| path.is_file());
    found.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, format!("{file} is not installed")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_the_server_refuses_is_named() {
    let Some(plugin) = xtask::server::if_installed(plugin(), xtask::steps::BROKERS_VARIABLE) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rights.json");
    let rights = serde_json::json!({
        "roles": [{ "rolename": "reader", "acls": [
            { "acltype": "subscribePattern", "topic": "allowed/#", "allow": true },
        ] }],
        "groups": [{ "groupname": "everybody", "roles": [{ "rolename": "reader" }] }],
        "anonymousGroup": "everybody",
        "defaultACLAccess": { "publishClientSend": true, "publishClientReceive": true, "subscribe": false },
    });
    std::fs::write(&file, rights.to_string()).unwrap();
    let settings = format!("plugin {}\nplugin_opt_config_file {}\n", plugin.display(), file.display());
    let server = server!(PrivateMosquitto::start_with(&settings));
    let source = |filters: &[&str]| {
        let mut config = MqttSourceConfig::new(server.url(), fresh_name());
        config.topic = filters.iter().map(|filter| (*filter).to_owned()).collect();
        MqttSource::new("orders", config).unwrap()
    };
    for filters in [&["denied/#"][..], &["allowed/#", "denied/#"], &["denied/#", "allowed/#"]] {
        let mut source = source(filters);
        let error = tokio::time::timeout(DEADLINE, source.next(1)).await.expect("it is refused").unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("may not subscribe to topic `denied/#`"), "{filters:?}: {error}");
        assert_eq!(source.connected(), Some(false));
    }
    let mut source = source(&["allowed/#"]);
    let connecting = async {
        while source.connected() != Some(true) {
            if let Ok(next) = tokio::time::timeout(Duration::from_millis(50), source.next(1)).await {
                panic!("nothing was published: {next:?}");
            }
        }
    };
    tokio::time::timeout(DEADLINE, connecting).await.expect("the other one is granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_subscribers_a_message_counts_as_sent_only_where_asked_for() {
    let server = server!(PrivateMosquitto::start());
    let config = MqttSinkConfig::new(server.url());
    let answers = MqttSink::new(config.clone()).unwrap().send(&[message("1")]).await.unwrap();
    assert!(matches!(&answers[0], Err(SendFailure::Retry(why)) if why.contains("nobody has subscribed")));
    for config in [config.clone().require_subscribers(false), config.retain(true)] {
        assert_eq!(MqttSink::new(config).unwrap().send(&[message("1")]).await.unwrap(), [Ok(())]);
    }
}

#[test]
fn settings_are_read_as_people_write_them() {
    let source: MqttSourceConfig = toml::from_str(
        r#"
        url = "mqtts://mqtt.example.com"
        client_id = "billing-1"
        topic = "$share/billing/orders/#"
        qos = 2
        session_expiry = "3d"
        prefetch = 500
        keep_alive = "15s"
        username = "billing"
        password = "top-secret"
        tls.ca = "/etc/ssl/ca.pem"
        "#,
    )
    .unwrap();
    assert_eq!((source.topic.len(), source.session_expiry), (1, Duration::from_secs(3 * 86_400)));
    assert!(!format!("{source:?}").contains("top-secret"));
    assert!(!format!("{:?}", MqttSource::new("orders", source).unwrap()).contains("top-secret"));
    let several: MqttSourceConfig = toml::from_str(r#"topic = ["a", "b"]"#).unwrap();
    assert_eq!(several.topic, ["a", "b"]);
    let sink: MqttSinkConfig = toml::from_str(
        r#"topic = "shop/{kind}"
            qos = 2
            message_expiry = "1h"
            url = "mqtt://ann:top-secret@host""#,
    )
    .unwrap();
    assert_eq!((sink.message_expiry, sink.qos), (Some(Duration::from_secs(3600)), 2));
    assert!(!format!("{sink:?}").contains("top-secret"));
    let error = toml::from_str::<MqttSourceConfig>("topics = []").unwrap_err().to_string();
    assert!(error.contains("unknown field `topics`"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_refused_with_the_remedy() {
    let good = || MqttSourceConfig::new("mqtt://localhost", "id").topic("a/#");
    let refused = |config: MqttSourceConfig| MqttSource::new("orders", config).unwrap_err().to_string();
    assert!(MqttSource::new("orders", good()).is_ok());
    for (config, words) in [
        (MqttSourceConfig { client_id: String::new(), ..good() }, "name of its own that stays the same"),
        (MqttSourceConfig { topic: Vec::new(), ..good() }, "`topic` is empty"),
        (good().topic("a/#/b"), "`a/#/b` is no topic filter"),
        (good().topic("$share/group"), "$share/GROUP/FILTER"),
        (good().topic("$share//a"), "$share/GROUP/FILTER"),
        (good().qos(0), "`qos` is 0"),
        (good().qos(3), "`qos` is 3"),
        (good().prefetch(0), "`prefetch` is 0"),
        (good().session_expiry(Duration::ZERO), "`session_expiry`"),
        (good().keep_alive(Duration::ZERO), "`keep_alive`"),
        (MqttSourceConfig { url: "http://localhost".to_owned(), ..good() }, "mqtt:// or mqtts://"),
        (MqttSourceConfig { url: "localhost:1883".to_owned(), ..good() }, "mqtt://"),
        (MqttSourceConfig { url: "mqtt://localhost/topic".to_owned(), ..good() }, "nothing more"),
        (good().tls(trust(Path::new("ca.pem"))), "write mqtts://"),
        (
            good().tls(TlsConfig { certificate: Some("c.pem".into()), ..TlsConfig::default() }),
            "belong together",
        ),
        (MqttSourceConfig { password: Some("secret".to_owned()), ..good() }, "no `username`"),
    ] {
        let error = refused(config);
        assert!(error.contains(words) && !error.contains("secret"), "{words}: {error}");
    }
    let error = refused(MqttSourceConfig { url: "mqtt://ann:secret@:x".to_owned(), ..good() });
    assert!(error.contains("`url`") && !error.contains("secret"), "{error}");
    let good = || MqttSinkConfig::new("mqtt://localhost");
    for topic in ["", "a/+", "a/#"] {
        assert!(MqttSink::new(good().topic(topic)).is_err(), "{topic}");
    }
    for (config, words) in [
        (good().qos(0), "`qos` is 0"),
        (good().qos(3), "`qos` is 3; set 1 or 2"),
        (good().qos(2), "set `require_subscribers` to false if"),
    ] {
        let error = MqttSink::new(config).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    for config in [good(), good().qos(2).require_subscribers(false), good().qos(2).retain(true)] {
        assert!(MqttSink::new(config).is_ok());
    }
}
