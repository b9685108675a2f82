//! The private message brokers, for real: starts servers, crashes them and kills their owners.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::nats::PrivateNats;
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::server::StopMode;

const LONG_ENOUGH: Duration = Duration::from_secs(60);

#[test]
fn rabbitmq_keeps_durable_queues_and_closes_connections_when_told() {
    let mut server = PrivateRabbitmq::start_tls().unwrap();
    let other = PrivateRabbitmq::start().unwrap();
    assert_ne!(server.port(), other.port());
    declare_queue(&server, "kept");
    for mode in [StopMode::Fast, StopMode::Immediate] {
        let url = server.url();
        server.restart(mode).unwrap();
        assert_eq!(server.url(), url);
        assert_eq!(queues(&server), "kept");
    }
    assert_eq!(queues(&other), "");

    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.write_all(b"AMQP\0\0\x09\x01").unwrap();
    let tls = server.tls_url().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(is_tls(tls, &server.certificates().unwrap().authority));

    let folder = server.folder().to_owned();
    server.stop().unwrap();
    assert_gone(&folder);
}

#[test]
fn nats_keeps_what_it_acknowledged() {
    let mut server = PrivateNats::start().unwrap();
    let other = PrivateNats::start().unwrap();
    assert_ne!(server.port(), other.port());
    let created = nats(&server, "$JS.API.STREAM.CREATE.KEPT", r#"{"name":"KEPT","subjects":["kept"]}"#);
    assert!(created.contains("\"config\""), "{created}");
    for mode in [StopMode::Immediate, StopMode::Fast] {
        assert!(nats(&server, "kept", "a message").contains("\"seq\":"));
        server.restart(mode).unwrap();
    }
    let state = nats(&server, "$JS.API.STREAM.INFO.KEPT", "");
    assert!(state.contains("\"messages\":2"), "{state}");

    let folder = server.folder().to_owned();
    server.stop().unwrap();
    assert_gone(&folder);
}

#[test]
fn nats_takes_settings_and_tls() {
    let closed = PrivateNats::start_with("authorization { token: secret }\n").unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", closed.port())).unwrap();
    client.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").unwrap();
    let answer = BufReader::new(client).lines().map(Result::unwrap).nth(1).unwrap();
    assert_eq!(answer, "-ERR 'Authorization Violation'");

    let tls = PrivateNats::start_tls().unwrap();
    assert!(tls.url().starts_with("tls://"));
    assert!(tls.certificates().unwrap().authority.is_file());
}

#[test]
fn a_wrong_setting_is_an_error_that_says_so() {
    let error = PrivateNats::start_with("no_such_setting: 1\n").unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn a_killed_owner_leaves_no_broker_behind() {
    for (command, signal) in [("nats", "-INT"), ("nats", "-KILL"), ("rabbitmq", "-KILL")] {
        let temporary = tempfile::tempdir().unwrap();
        let mut owner = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg(command)
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(io::Result::unwrap);
        let url = lines.next().unwrap();
        let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        let folder = fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
        assert!(!processes_in(&folder).is_empty());

        assert!(Command::new("kill").args([signal, &owner.id().to_string()]).status().unwrap().success());
        owner.wait().unwrap();
        wait_until(|| !folder.exists() && processes_in(&folder).is_empty());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

fn declare_queue(server: &PrivateRabbitmq, name: &str) {
    let declare = format!(
        "rabbit_amqqueue:declare({{resource, <<\"/\">>, queue, <<\"{name}\">>}}, true, false, [], none, <<\"test\">>)."
    );
    server.control(&["eval", &declare]).unwrap();
}

fn queues(server: &PrivateRabbitmq) -> String {
    server.control(&["list_queues", "name", "--no-table-headers"]).unwrap().trim().to_owned()
}

/// Asks and gives back the answer.
fn nats(server: &PrivateNats, subject: &str, question: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(LONG_ENOUGH)).unwrap();
    let length = question.len();
    write!(
        stream,
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{question}\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("MSG answer")).unwrap();
    lines.next().unwrap()
}

/// Whether a client that trusts this authority can talk there.
fn is_tls(port: u16, authority: &Path) -> bool {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"]);
    client.arg(format!("127.0.0.1:{port}")).arg("-CAfile").arg(authority);
    client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn assert_gone(folder: &Path) {
    assert!(!folder.exists());
    assert_eq!(processes_in(folder), Vec::<PathBuf>::new());
}

fn processes_in(folder: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let folders = processes.flat_map(|process| fs::read_link(process.path().join("cwd")));
    let folder = folder.display().to_string();
    folders.filter(|at| at.display().to_string().starts_with(&folder)).collect()
}

/// The guard of a killed owner is nobody's child, so there is no signal to wait for.
fn wait_until(done: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !done() {
        assert!(started_at.elapsed() < LONG_ENOUGH, "took too long");
        thread::sleep(Duration::from_millis(20));
    }
}
