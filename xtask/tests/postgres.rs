//! The private Postgres server, for real: starts servers, crashes them and kills their owners.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::postgres::{PrivatePostgres, StopMode, programs_folder, restart_server};

#[test]
fn committed_rows_survive_a_crash_and_uncommitted_ones_do_not() {
    let mut server = PrivatePostgres::start().unwrap();
    let url = server.url();
    query(&url, "create table kept (id int); insert into kept values (1)");
    let mut session = open_transaction(&url, "insert into kept values (2)");

    server.restart(StopMode::Immediate).unwrap();
    assert_eq!(query(&server.url(), "select count(*) from kept"), "1");
    assert_eq!(server.url(), url);
    session.kill().unwrap();
    session.wait().unwrap();

    server.restart(StopMode::Fast).unwrap();
    assert_eq!(query(&url, "select count(*) from kept"), "1");
}

#[test]
fn a_stopped_server_leaves_no_process_and_no_folder() {
    let server = PrivatePostgres::start().unwrap();
    let (data, port) = (server.data(), port_of(&server.url()));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop().unwrap();
    assert!(!data.exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn two_servers_live_side_by_side() {
    let (one, two) = (PrivatePostgres::start().unwrap(), PrivatePostgres::start().unwrap());
    query(&one.url(), "create table only_here (id int)");
    assert_eq!(query(&two.url(), "select to_regclass('only_here') is null"), "t");
}

#[test]
fn a_server_killed_by_a_test_starts_again() {
    let mut server = PrivatePostgres::start().unwrap();
    query(&server.url(), "create table kept (id int)");
    kill("-KILL", &server_process(&server.data()));
    server.restart(StopMode::Immediate).unwrap();
    assert_eq!(query(&server.url(), "select count(*) from kept"), "0");
}

#[test]
fn a_server_restarted_by_another_process_still_stops_with_its_owner() {
    let server = PrivatePostgres::start().unwrap();
    let (data, port) = (server.data(), port_of(&server.url()));
    let before = server_process(&data);
    restart_server(&data, StopMode::Immediate).unwrap();
    assert_ne!(server_process(&data), before);
    assert_eq!(query(&server.url(), "select 1"), "1");
    drop(server);
    assert!(!data.exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_killed_owner_leaves_no_server_behind() {
    for signal in ["-INT", "-TERM", "-KILL"] {
        let mut owner = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("postgres")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(io::Result::unwrap);
        let mut value = |name| lines.next().unwrap().strip_prefix(name).unwrap().to_owned();
        let port = port_of(&value("export ONCEBOX_TEST_POSTGRES="));
        let data = PathBuf::from(value("export ONCEBOX_TEST_POSTGRES_DATA="));
        value("export ONCEBOX_TEST_POSTGRES_BIN=");
        let pooler = port_of(&value("export ONCEBOX_TEST_PGBOUNCER="));
        for port in [port, pooler] {
            assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        }

        kill(signal, &owner.id().to_string());
        owner.wait().unwrap();
        wait_until(|| !data.parent().unwrap().exists());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{signal}");
        wait_until(|| TcpStream::connect(("127.0.0.1", pooler)).is_err());
    }
}

fn query(url: &str, sql: &str) -> String {
    let psql = programs_folder().unwrap().join("psql");
    let output = Command::new(psql).args([url, "-qAtX", "-c", sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A session that has done `sql` and not committed it.
fn open_transaction(url: &str, sql: &str) -> Child {
    let psql = programs_folder().unwrap().join("psql");
    let mut session = Command::new(psql)
        .args([url, "-qAtX"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(session.stdin.as_mut().unwrap(), "begin; {sql}; select 'done';").unwrap();
    let mut line = String::new();
    BufReader::new(session.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    session
}

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.split('/').next().unwrap().parse().unwrap()
}

fn server_process(data: &Path) -> String {
    std::fs::read_to_string(data.join("postmaster.pid")).unwrap().lines().next().unwrap().to_owned()
}

fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

/// The guard of a killed owner is nobody's child, so there is no signal to wait for.
fn wait_until(done: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !done() {
        assert!(started_at.elapsed() < Duration::from_secs(30), "took too long");
        thread::sleep(Duration::from_millis(20));
    }
}
