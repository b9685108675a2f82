//! The private message brokers, for real: starts servers, crashes them and kills their owners.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may fail, and says when it did not run")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::mosquitto::PrivateMosquitto;
use xtask::nats::PrivateNats;
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::redis::PrivateRedis;
use xtask::server::StopMode;
use xtask::steps::ALL_VARIABLE;
use xtask::tansu::{self, PrivateTansu};

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

    let mut clients = [open_amqp(&server), open_amqp_1(&server)];
    server.close_connections().unwrap();
    for client in &mut clients {
        // Told so or not, it comes to an end.
        let ended = client.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(_) | Err(io::ErrorKind::ConnectionReset)), "{ended:?}");
    }
    assert!(is_tls(&server.tls_url().unwrap(), &server.certificates().unwrap().authority));

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
    let mut client = connect(closed.port());
    client.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").unwrap();
    let answer = BufReader::new(client).lines().map(Result::unwrap).nth(1).unwrap();
    assert_eq!(answer, "-ERR 'Authorization Violation'");

    let tls = PrivateNats::start_tls().unwrap();
    assert!(tls.url().starts_with("tls://"));
    assert!(tls.certificates().unwrap().authority.is_file());
}

#[test]
fn redis_keeps_what_it_acknowledged() {
    let mut server = PrivateRedis::start_tls().unwrap();
    let other = PrivateRedis::start_with("requirepass secret\n").unwrap();
    assert_ne!(server.port(), other.port());
    for mode in [StopMode::Immediate, StopMode::Fast] {
        assert!(redis(server.port(), "XADD kept * a b").starts_with('$'));
        server.restart(mode).unwrap();
    }
    assert_eq!(redis(server.port(), "XLEN kept"), ":2");
    assert!(redis(other.port(), "XLEN kept").starts_with("-NOAUTH"));
    assert!(is_tls(&server.tls_url().unwrap(), &server.certificates().unwrap().authority));

    let folder = server.folder().to_owned();
    server.stop().unwrap();
    assert_gone(&folder);
}

#[test]
fn mosquitto_keeps_sessions_when_it_is_stopped() {
    let mut server = PrivateMosquitto::start_tls().unwrap();
    let other = PrivateMosquitto::start_with("allow_anonymous false\n").unwrap();
    assert_ne!(server.port(), other.port());
    let in_session = b"\x10\x10\0\x04MQTT\x04\0\0\x3c\0\x04kept";
    let anonymous = b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0";
    let mut session = connect(server.port());
    mqtt(&mut session, in_session, b"\x20\x02\0\0");
    mqtt(&mut session, b"\x82\x06\0\x01\0\x01t\x01", b"\x90\x03\0\x01\x01");
    drop(session);
    let mut sender = connect(server.port());
    mqtt(&mut sender, anonymous, b"\x20\x02\0\0");
    mqtt(&mut sender, b"\x32\x06\0\x01t\0\x01x", b"\x40\x02\0\x01");

    server.restart(StopMode::Fast).unwrap();
    // The session is there, and so is its message.
    mqtt(&mut connect(server.port()), in_session, b"\x20\x02\x01\0\x32\x06\0\x01t\0\x01x");
    mqtt(&mut connect(other.port()), anonymous, b"\x20\x02\0\x05");
    assert!(is_tls(&server.tls_url().unwrap(), &server.certificates().unwrap().authority));
    server.restart(StopMode::Immediate).unwrap();

    let folder = server.folder().to_owned();
    server.stop().unwrap();
    assert_gone(&folder);
}

#[test]
fn tansu_keeps_its_topics() {
    if !has_tansu() {
        return;
    }
    let mut server = PrivateTansu::start().unwrap();
    let other = PrivateTansu::start().unwrap();
    assert_ne!(server.port(), other.port());
    server.create_topic("kept", 2).unwrap();
    for mode in [StopMode::Immediate, StopMode::Fast] {
        server.restart(mode).unwrap();
        assert_eq!(server.topics().unwrap(), ["kept"]);
    }
    let again = server.create_topic("kept", 2).unwrap_err();
    assert!(again.to_string().contains("already exists"), "{again}");
    assert_eq!(other.topics().unwrap(), Vec::<String>::new());

    let folder = server.folder().to_owned();
    server.stop().unwrap();
    assert_gone(&folder);
}

#[test]
fn a_wrong_setting_is_an_error_that_says_so() {
    let error = PrivateNats::start_with("no_such_setting: 1\n").unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn a_killed_owner_leaves_no_broker_behind() {
    let mut servers = vec!["nats", "rabbitmq", "redis", "mosquitto"];
    if has_tansu() {
        servers.push("tansu");
    }
    let killed = servers.into_iter().map(|server| (server, "-KILL"));
    for (command, signal) in killed.chain([("nats", "-INT")]) {
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
        let port = port_of(&url);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        // A start that found its port taken leaves an empty folder for a moment.
        let mut folders = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path());
        let folder = folders.find(|folder| !processes_in(folder).is_empty()).expect("a folder of a server");

        assert!(Command::new("kill").args([signal, &owner.id().to_string()]).status().unwrap().success());
        owner.wait().unwrap();
        wait_until(|| !folder.exists() && processes_in(&folder).is_empty());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

/// A client of AMQP 0-9-1 that has logged in.
fn open_amqp(server: &PrivateRabbitmq) -> TcpStream {
    let mut stream = connect(server.port());
    let log_in = b"\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US";
    stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
    read_until(&mut stream, b"\xce");
    stream.write_all(&[b"\x01\0\0\0\0\0\x24".as_slice(), log_in, b"\xce"].concat()).unwrap();
    read_until(&mut stream, b"\xce");
    stream
}

/// A client of AMQP 1.0 that has agreed to log in.
fn open_amqp_1(server: &PrivateRabbitmq) -> TcpStream {
    let mut stream = connect(server.port());
    stream.write_all(b"AMQP\x03\x01\0\0").unwrap();
    read_until(&mut stream, b"PLAIN");
    stream
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG_ENOUGH)).unwrap();
    stream
}

fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut read = Vec::new();
    while !read.windows(end.len()).any(|part| part == end) {
        let mut more = [0; 4096];
        let length = stream.read(&mut more).unwrap();
        assert_ne!(length, 0, "ended before {end:?}");
        read.extend_from_slice(&more[..length]);
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
    let mut stream = connect(server.port());
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
fn is_tls(url: &str, authority: &Path) -> bool {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"]);
    client.arg(format!("127.0.0.1:{}", port_of(url))).arg("-CAfile").arg(authority);
    client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn redis(port: u16, command: &str) -> String {
    let mut stream = connect(port);
    write!(stream, "{command}\r\n").unwrap();
    BufReader::new(stream).lines().next().unwrap().unwrap()
}

/// Sends and expects.
fn mqtt(stream: &mut TcpStream, packet: &[u8], expected: &[u8]) {
    stream.write_all(packet).unwrap();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, expected);
}

/// It takes long to build, so only those who want the slow tests must have it.
fn has_tansu() -> bool {
    match tansu::program() {
        Ok(_) => true,
        Err(missing) => {
            assert!(std::env::var_os(ALL_VARIABLE).is_none(), "{missing}");
            eprintln!("not run: Tansu; {missing}");
            false
        }
    }
}

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.parse().unwrap()
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
