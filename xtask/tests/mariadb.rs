//! The private MariaDB server, for real: starts servers, crashes them and kills their owners.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::mariadb::PrivateMariadb;
use xtask::postgres::StopMode;

#[test]
fn committed_rows_survive_a_crash_and_uncommitted_ones_do_not() {
    let mut server = PrivateMariadb::start().unwrap();
    let port = port_of(&server.url());
    query(
        port,
        "create database a; create table a.kept (id int) engine = innodb; insert into a.kept values (1)",
    );
    let mut session = open_transaction(port, "insert into a.kept values (2)");

    server.restart(StopMode::Immediate).unwrap();
    assert_eq!(port_of(&server.url()), port);
    assert_eq!(query(port, "select count(*) from a.kept"), "1");
    session.kill().unwrap();
    session.wait().unwrap();

    server.restart(StopMode::Fast).unwrap();
    assert_eq!(query(port, "select count(*) from a.kept"), "1");
}

#[test]
fn a_stopped_server_leaves_no_process_and_no_folder() {
    let server = PrivateMariadb::start().unwrap();
    let (data, port) = (server.data(), port_of(&server.url()));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop().unwrap();
    assert!(!data.exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_killed_owner_leaves_no_server_behind() {
    for signal in ["-INT", "-KILL"] {
        let mut owner = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("mariadb")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(io::Result::unwrap);
        let url = lines.next().unwrap().strip_prefix("export ONCEBOX_TEST_MARIADB=").unwrap().to_owned();
        let port = port_of(&url);
        assert_eq!(query(port, "select 1"), "1");

        assert!(Command::new("kill").args([signal, &owner.id().to_string()]).status().unwrap().success());
        owner.wait().unwrap();
        wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

fn client(port: u16) -> Command {
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "--host=127.0.0.1", "--user=root", "--batch", "--skip-column-names"]);
    client.arg(format!("--port={port}")).arg("--unbuffered");
    client
}

fn query(port: u16, sql: &str) -> String {
    let output = client(port).args(["--execute", sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A session that has done `sql` and not committed it.
fn open_transaction(port: u16, sql: &str) -> Child {
    let mut session =
        client(port).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    writeln!(session.stdin.as_mut().unwrap(), "begin; {sql}; select 'done';").unwrap();
    let mut line = String::new();
    BufReader::new(session.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    session
}

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.split('/').next().unwrap().parse().unwrap()
}

/// The guard of a killed owner is nobody's child, so there is no signal to wait for.
fn wait_until(done: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !done() {
        assert!(started_at.elapsed() < Duration::from_secs(30), "took too long");
        thread::sleep(Duration::from_millis(20));
    }
}
