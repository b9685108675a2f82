//! No secret appears anywhere, and nobody writes log lines but the service.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use oncebox_testkit::until;
use serde_json::Value;
use support::receiver::{Receiver, status};
use support::{Place, text};

/// Part of every secret, and of nothing else.
const CANARY: &str = "canary";

/// Sources and sinks on brokers that nobody reaches, as far as they are built in.
///
/// A message goes to each of the sinks.
fn brokers() -> String {
    let mut all = String::new();
    let mut add = |is_built_in: bool, section: &str| {
        if !is_built_in {
            return;
        }
        all.push_str(section);
        let sink = section.split("[sink.").nth(1).unwrap().split(']').next().unwrap();
        all.push_str(&format!("[handler.to-{sink}]\non = [\"*\"]\nsink = \"{sink}\"\n"));
    };
    add(
        cfg!(feature = "nats"),
        "[source.nats]\ntype = \"nats\"\nurl = \"nats://user:${BROKER}@127.0.0.1:1\"\nstream = \"S\"\nconsumer = \"c\"\n\
         [sink.nats]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nauth = { user = \"u\", password = \"${BROKER}\" }\n\
         prefix = \"events\"\n",
    );
    add(
        cfg!(feature = "rabbitmq"),
        "[source.rabbit]\ntype = \"rabbitmq\"\nurl = \"amqp://user:${BROKER}@127.0.0.1:1\"\nqueue = \"q\"\n\
         [sink.rabbit]\ntype = \"rabbitmq\"\nurl = \"amqp://127.0.0.1:1\"\npassword = \"${BROKER}\"\n",
    );
    add(
        cfg!(feature = "redis"),
        "[source.redis]\ntype = \"redis\"\nurl = \"redis://user:${BROKER}@127.0.0.1:1\"\nstream = \"s\"\ngroup = \"g\"\n\
         [sink.redis]\ntype = \"redis\"\nurl = \"redis://user:${BROKER}@127.0.0.1:1\"\nstream = \"s\"\n",
    );
    add(
        cfg!(feature = "amqp1"),
        "[source.amqp]\ntype = \"amqp1\"\nurl = \"amqp://user:${BROKER}@127.0.0.1:1\"\naddress = \"q\"\n\
         [sink.amqp]\ntype = \"amqp1\"\nurl = \"amqp://127.0.0.1:1\"\nusername = \"${BROKER}\"\npassword = \"${BROKER}\"\n\
         address = \"q\"\n",
    );
    add(
        cfg!(feature = "mqtt"),
        "[source.mqtt]\ntype = \"mqtt\"\nurl = \"mqtt://${BROKER}:${BROKER}@127.0.0.1:1\"\nclient_id = \"c\"\n\
         topic = \"t\"\n\
         [sink.mqtt]\ntype = \"mqtt\"\nurl = \"mqtt://127.0.0.1:1\"\nusername = \"${BROKER}\"\npassword = \"${BROKER}\"\n",
    );
    let sasl = "{ \"security.protocol\" = \"sasl_plaintext\", \"sasl.mechanism\" = \"PLAIN\", \
                \"sasl.username\" = \"${BROKER}\", \"sasl.password\" = \"${BROKER}\", \"debug\" = \"all\" }";
    add(
        cfg!(feature = "kafka"),
        &format!(
            "[source.kafka]\ntype = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopic = \"t\"\nproperties = {sasl}\n\
             [sink.kafka]\ntype = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopic = \"t\"\nproperties = {sasl}\n"
        ),
    );
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_ever_shown() {
    let refusing = Receiver::start(|_, _| status("400 Bad Request", "", "not this one")).await;
    let place = Place::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\ntoken = \"${{TOKEN}}\"\n[log]\nlevel = \"trace\"\n\
         [telemetry]\nsample = 1.0\n\
         [source.default]\ntype = \"http\"\n\
         [source.signed]\ntype = \"http\"\nverify = {{ scheme = \"standard-webhooks\", secret = [\"${{SIGN}}\", \"${{SIGN2}}\"] }}\n\
         [source.hub]\ntype = \"http\"\nverify = {{ scheme = \"github\", secret = \"${{HUB}}\" }}\n\
         [defaults.handler]\nmax_attempts = 2\nbackoff = {{ first = \"1ms\", max = \"2ms\" }}\n\
         [handler.away]\non = [\"*\"]\nhttp = \"http://127.0.0.1:1/hook\"\nsecret = \"${{OUT}}\"\n\
         headers = {{ authorization = \"Bearer ${{HEAD}}\" }}\n\
         [handler.refused]\non = [\"*\"]\nhttp = \"{0}\"\nsecret = \"${{OUT}}\"\nheaders = {{ x-api-key = \"${{HEAD}}\" }}\n\
         [handler.wrong]\non = [\"*\"]\nsql = \"select no_such_function(:id)\"\n\
         [handler.forward]\non = [\"*\"]\nsink = \"out\"\n\
         [sink.out]\ntype = \"http\"\nurl = \"{0}\"\nsecret = \"${{OUT}}\"\nheaders = {{ authorization = \"Bearer ${{HEAD}}\" }}\n\
         max_attempts = 1\n{1}",
        refusing.url(),
        brokers()
    ))
    .variable("TOKEN", "canary-token-canary-token-1")
    .variable("SIGN", "whsec_Y2FuYXJ5LXNpZ25hdHVyZQ==")
    .variable("SIGN2", "canary-second-signing-secret")
    .variable("HUB", "canary-hub")
    .variable("OUT", "canary-out")
    .variable("HEAD", "canary-header")
    .variable("BROKER", "canary-broker");
    assert!(place.run(&["migrate"]).status.success());
    let mut shown: Vec<String> = Vec::new();
    for arguments in [&["check"][..], &["check", "--json"]] {
        let output = place.run(arguments);
        shown.push(format!("{}{}", text(&output.stdout), text(&output.stderr)));
    }
    // Whoever looks for a fault asks for every line there is.
    let output = place.command(&["check"]).env("ONCEBOX_LOG", "trace").output().unwrap();
    shown.push(format!("{}{}", text(&output.stdout), text(&output.stderr)));
    let service = place.serve(&[]);
    let bearer = ("authorization", "Bearer canary-token-canary-token-1");
    let headers =
        [bearer, ("webhook-id", "1"), ("x-kind", "k"), ("cookie", "session=canary"), ("x-api-key", "canary")];
    let answer = service.post("/in/default?token=canary-query", &headers, "x").await;
    assert_eq!(answer.status, 202);
    shown.push(answer.body);
    let mut refused = Vec::new();
    for (path, headers) in [
        ("/in/default", vec![("authorization", "Bearer canary-wrong"), ("webhook-id", "2")]),
        ("/in/default", vec![("authorization", "Basic Y2FuYXJ5OmNhbmFyeQ=="), ("webhook-id", "2")]),
        (
            "/in/signed",
            vec![("webhook-id", "3"), ("webhook-timestamp", "1"), ("webhook-signature", "v1,canary")],
        ),
        ("/in/hub", vec![("x-hub-signature-256", "sha256=canary")]),
        ("/in/canary-nobody", vec![("authorization", "Bearer canary-wrong")]),
    ] {
        let answer = service.post(path, &headers, "{}").await;
        refused.push(answer.status);
        shown.push(format!("{}{}", answer.head, answer.body));
    }
    assert_eq!(refused, [401; 5]);
    until("everything has failed for good", || async {
        let log = service.log();
        log.matches("deliveries became dead letters").count() >= 3
            && log.contains("outgoing messages were refused for good")
    })
    .await;
    let known = service.request("GET", "/api/v1/sources", &[bearer], b"").await.unwrap().json();
    let brokers = known["sources"].as_array().unwrap().iter().filter(|one| one["type"] != "http").count();
    until("every broker was found to be away", || async {
        let sources = service.request("GET", "/api/v1/sources", &[bearer], b"").await.unwrap().json();
        let away = |one: &&Value| one["type"] != "http" && one["error"].is_string();
        sources["sources"].as_array().unwrap().iter().filter(away).count() == brokers
    })
    .await;
    for path in ["status", "handlers", "deliveries", "outbox", "conflicts", "sources", "sinks"] {
        let answer = service.request("GET", &format!("/api/v1/{path}"), &[bearer], b"").await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        shown.push(answer.body);
    }
    for path in ["/metrics", "/health/ready", "/health/live", "/nothing"] {
        shown.push(service.request("GET", path, &[bearer], b"").await.unwrap().body);
    }
    for arguments in [&["status", "--json"][..], &["list", "--json"], &["show", "1"]] {
        let output = place.run(arguments);
        shown.push(format!("{}{}", text(&output.stdout), text(&output.stderr)));
    }
    shown.push(service.log());
    service.stop();
    for secret in [CANARY, "Y2FuYXJ5", "whsec_"] {
        let hits: Vec<&str> =
            shown.iter().flat_map(|text| text.lines()).filter(|line| line.contains(secret)).collect();
        assert!(hits.is_empty(), "`{secret}` is shown: {hits:#?}");
    }
    // A test that looks at nothing finds nothing.
    let all = shown.join("\n");
    for word in [
        "cannot be reached",
        "no_such_function",
        "not this one",
        "oncebox_dead_letters",
        "signature is missing or wrong",
    ] {
        assert!(all.contains(word), "{word}");
    }
    for (is_built_in, word) in [
        (cfg!(feature = "mqtt"), "MQTT server 127.0.0.1:1: it cannot be reached"),
        (cfg!(feature = "kafka"), "no broker answers at 127.0.0.1:1"),
        (cfg!(feature = "amqp1"), "AMQP server 127.0.0.1:1"),
    ] {
        assert!(!is_built_in || shown[0].contains(word), "{word}: {}", shown[0]);
    }
}

/// A setting that is refused may be a secret in the wrong place.
#[cfg(all(feature = "kafka", feature = "mqtt", feature = "nats"))]
#[test]
fn no_secret_of_a_broker_is_in_an_error_about_the_configuration() {
    for section in [
        "[source.a]\ntype = \"kafka\"\ntopic = \"t\"\nproperties = { \"security.protocol\" = \"canary\" }\n",
        "[source.a]\ntype = \"kafka\"\ntopic = \"t\"\nproperties = { \"sasl.password\" = [\"canary\"] }\n",
        "[source.a]\ntype = \"kafka\"\ntopic = \"t\"\nstart = \"canary\"\n",
        "[sink.a]\ntype = \"kafka\"\ntopic = \"t\"\nproperties = { \"sasl.pasword\" = \"canary\" }\n",
        "[sink.a]\ntype = \"mqtt\"\nurl = \"mqtt://u:canary@h/path\"\n",
        "[sink.a]\ntype = \"mqtt\"\nurl = \"http://u:canary@h\"\n",
        "[sink.a]\ntype = \"mqtt\"\nurl = \"mqtt://u:canary@h:port\"\n",
        "[sink.a]\ntype = \"mqtt\"\npassword = \"canary\"\n",
        "[sink.a]\ntype = \"mqtt\"\nusername = { a = \"canary\" }\n",
        "[sink.a]\ntype = \"nats\"\nauth = { token = \"canary\", nkey = \"canary\" }\n",
        "[sink.a]\ntype = \"nats\"\nauth = \"canary\"\n",
    ] {
        for arguments in [&["check"][..], &["check", "--json"], &["serve"]] {
            let output = Place::new(section).run(arguments);
            let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
            assert!(!output.status.success() && shown.contains("oncebox.toml:"), "{section}: {shown}");
            assert!(!shown.contains("canary"), "{section}: {shown}");
        }
    }
}

/// A file that others can read holds no password.
#[cfg(all(feature = "kafka", feature = "mqtt", feature = "nats"))]
#[test]
fn secrets_of_brokers_must_be_private() {
    let mode = |mode| <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
    for (lines, is_secret) in [
        ("type = \"mqtt\"\nurl = \"mqtt://u:canary@127.0.0.1:1\"\n", true),
        ("type = \"mqtt\"\nurl = \"mqtt://127.0.0.1:1\"\nusername = \"u\"\npassword = \"canary\"\n", true),
        (
            "type = \"mqtt\"\nurl = \"mqtt://127.0.0.1:1\"\nusername = \"u\"\npassword = \"${BROKER}\"\n",
            false,
        ),
        ("type = \"nats\"\nurl = \"nats://canary@127.0.0.1:1\"\n", true),
        ("type = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nauth = { token = \"canary\" }\n", true),
        ("type = \"nats\"\nurl = \"nats://127.0.0.1:1\"\n", false),
        (
            "type = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopic = \"t\"\nproperties = { \"sasl.password\" = \"canary\" }\n",
            true,
        ),
    ] {
        let place = Place::new(&format!("[sink.a]\n{lines}")).variable("BROKER", "canary");
        std::fs::set_permissions(place.path().join("oncebox.toml"), mode(0o644)).unwrap();
        let output = place.run(&["check"]);
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(shown.contains("chmod 600"), is_secret, "{lines}: {shown}");
        assert!(!shown.contains("canary"), "{lines}: {shown}");
    }
}

#[test]
fn the_password_of_a_store_is_never_shown() {
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://user:canary@127.0.0.1:1/shop");
        let place = Place::new(&format!(
            "[store]\nurl = \"{url}\"\nconnect_timeout = \"2s\"\n[log]\nlevel = \"trace\"\n[http]\nlisten = \"127.0.0.1:0\"\n"
        ));
        for arguments in [&["serve"][..], &["check"], &["check", "--json"], &["migrate", "--store", &url]] {
            let output = place.run(arguments);
            let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
            assert!(!output.status.success(), "{arguments:?}: {shown}");
            assert!(!shown.is_empty() && !shown.contains(CANARY), "{arguments:?}: {shown}");
        }
    }
}

/// Whatever a message or an answer brings, a line of the log is a line of ours.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_writes_lines_into_the_log() {
    const INJECTED: &str = "a\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2Jb\r\nforged";
    let answers = Receiver::start(|_, _| status("400 Bad Request", "", INJECTED)).await;
    for format in ["json", "human"] {
        let place = Place::new(&format!(
            "[log]\nformat = \"{format}\"\nlevel = \"debug\"\n\
             [handler.h]\non = [\"*\"]\nhttp = \"{0}\"\n[handler.s]\non = [\"*\"]\nsql = \"select no_such_function(:id)\"\nmax_attempts = 1\n\
             [handler.f]\non = [\"*\"]\nsink = \"out\"\n[sink.out]\ntype = \"http\"\nurl = \"{0}\"\n",
            answers.url()
        ));
        let mut child = place.command(&["serve"]).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let _ = sender.send(text(&line));
            }
        });
        let mut log: Vec<String> = Vec::new();
        let mut wait_for = |word: &str| {
            let deadline = std::time::Instant::now() + support::DEADLINE;
            loop {
                if let Some(line) = log.iter().find(|line| line.contains(word)) {
                    return line.clone();
                }
                let left = deadline.saturating_duration_since(std::time::Instant::now());
                log.push(lines.recv_timeout(left).unwrap_or_else(|_| panic!("no `{word}` in {log:#?}")));
            }
        };
        let line = wait_for("listening");
        let address = line.split("127.0.0.1:").nth(1).unwrap();
        let port: String = address.chars().take_while(char::is_ascii_digit).collect();
        let id = serde_json::json!({ "id": INJECTED, "type": "k\u{1b}[2J\nforged" }).to_string();
        let request = format!(
            "POST /in/default HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{id}",
            id.len()
        );
        let posts = [
            request,
            "POST /in/default HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nwebhook-id: 1\r\nx-kind: k\r\ncontent-length: 1\r\n\r\nx"
                .to_owned(),
        ];
        for post in posts {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut stream = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
            stream.write_all(post.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            let answer = text(&answer);
            assert!(answer.contains(" 202 ") || answer.contains(" 400 "), "{answer}");
        }
        wait_for("outgoing messages were refused for good");
        wait_for("answered 400");
        child.kill().unwrap();
        child.wait().unwrap();
        log.extend(lines.iter());
        // The words for people at the start are ours, too.
        let ours = |line: &str| {
            let words = ["oncebox ", "  source", "  handlers", "  sinks", "  health", "  metrics", "try: "];
            line.starts_with('{')
                || line.starts_with("20") && line.contains("Z ")
                || words.iter().any(|word| line.starts_with(word))
        };
        for line in log.iter().filter(|line| !line.is_empty()) {
            assert!(ours(line), "{format}: {line:?} in {log:#?}");
            assert!(!line.contains('\u{1b}') && !line.contains('\r'), "{format}: {line:?}");
            assert!(!line.starts_with("2026-01-01"), "{format}: {line:?}");
        }
    }
}
