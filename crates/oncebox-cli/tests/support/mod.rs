//! The real binary as a process, a plain HTTP client, and a server that handlers post to.

#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr)]

pub(crate) mod receiver;
pub(crate) mod redis;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Generous: the machine may be busy, and only a failing test waits that long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A folder with a configuration in it.
pub(crate) struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Place {
    /// Listens on a free port of this machine unless the configuration has an `[http]` of its own.
    pub(crate) fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let http = if config.contains("[http]") { "" } else { "[http]\nlisten = \"127.0.0.1:0\"\n" };
        let path = folder.path().join("oncebox.toml");
        std::fs::write(&path, format!("{http}{config}")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        Self { folder, variables: Vec::new() }
    }

    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("oncebox.db")
    }

    /// The SQLite file of the service.
    pub(crate) async fn open(&self) -> sqlx::SqlitePool {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.database());
        let options = options.busy_timeout(DEADLINE).journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        sqlx::sqlite::SqlitePoolOptions::new().max_connections(2).connect_with(options).await.unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncebox"));
        command.args(arguments).current_dir(self.folder.path()).env_remove("ONCEBOX_LOG");
        command.envs(self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        command
    }

    /// Starts the service and waits until it listens.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Service {
        let mut all = vec!["serve"];
        all.extend(arguments);
        let mut child = self.command(&all).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (stderr, kept) = (child.stderr.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        // Nothing is said there, so whatever comes is seen.
        let (stdout, kept) = (child.stdout.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        let mut service = Service { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), lines };
        service.address = service.wait_for_address();
        service
    }
}

/// The service as a process; killed on drop.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn wait_for_address(&mut self) -> SocketAddr {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let listening = |line: &String| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "listening").then(|| line["address"].as_str()?.parse().ok())?
            };
            if let Some(address) = self.lines.lock().unwrap().iter().find_map(listening) {
                return address;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the service ended with {status}: {}", self.log());
            }
            assert!(Instant::now() < deadline, "the service does not listen: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything it has logged.
    pub(crate) fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until the process has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the service does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and exit code 0.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answer {
        self.request("POST", path, headers, body.as_ref()).await.expect("an answer")
    }

    /// Posts a message with an id and a kind to the source `default`.
    pub(crate) async fn send(&self, id: &str, kind: &str, body: &str) -> Answer {
        self.post("/in/default", &[("webhook-id", id), ("x-kind", kind)], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"").await.expect("an answer")
    }

    /// A request with a JSON body, or none.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.asked(method, path, &[], body).await
    }

    /// The same with a token.
    pub(crate) async fn ask_as(&self, token: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.asked(method, path, &[("authorization", &format!("Bearer {token}"))], body).await
    }

    async fn asked(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let mut headers = headers.to_vec();
        headers.extend(body.map(|_| ("content-type", "application/json")));
        let body = body.map(Value::to_string).unwrap_or_default();
        self.request(method, path, &headers, body.as_bytes()).await.expect("an answer")
    }

    /// The status of the answer, without waiting for its end.
    pub(crate) async fn head(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
        let mut connection = self.connect().await;
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let lines = format!("{lines}content-length: {}\r\n", body.len());
        connection.send(method, path, &lines, body).await;
        connection.status().await
    }

    pub(crate) async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        Connection { stream: tokio::io::BufReader::new(stream) }
    }

    /// A connection from another address of this machine.
    pub(crate) async fn connect_from(&self, address: std::net::IpAddr) -> Connection {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).expect("an address of this machine");
        let stream = socket.connect(self.address).await.expect("a connection");
        Connection { stream: tokio::io::BufReader::new(stream) }
    }

    /// A connection with as little room as the system allows for what is not read.
    pub(crate) async fn connect_narrow(&self) -> Connection {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1).unwrap();
        let stream = socket.connect(self.address).await.expect("a connection");
        Connection { stream: tokio::io::BufReader::new(stream) }
    }

    /// One request on a connection of its own.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.raw(&bytes).await
    }

    /// Bytes as they are, and whatever comes back.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> std::io::Result<Answer> {
        let work = async {
            let mut stream = TcpStream::connect(self.address).await?;
            // The other side may refuse before it has read everything; its answer is what counts.
            let sent = stream.write_all(bytes).await;
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer).await;
            if answer.is_empty() {
                sent?;
                read?;
            }
            Answer::read(&answer)
        };
        tokio::time::timeout(DEADLINE, work).await.expect("an answer in time")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that stays open.
pub(crate) struct Connection {
    stream: tokio::io::BufReader<TcpStream>,
}

impl Connection {
    /// A request without a body, and its answer.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, lines: &str) -> Answer {
        self.send(method, path, lines, b"").await;
        let head = self.read_head().await;
        let mut answer = Answer { status: status_of(&head), head, body: String::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.expect("a body");
        answer.body = text(&body);
        answer
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, lines: &str, body: &[u8]) {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n").into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes).await.expect("a request that is taken");
    }

    /// What was held back of a request.
    pub(crate) async fn send_rest(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).await.expect("a request that is taken");
    }

    pub(crate) async fn status(&mut self) -> u16 {
        status_of(&self.read_head().await)
    }

    async fn read_head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.line(&mut head).await, "an answer: {head}");
        }
        head
    }

    /// The next line, or false at the end.
    pub(crate) async fn line(&mut self, line: &mut String) -> bool {
        use tokio::io::AsyncBufReadExt;
        let read = tokio::time::timeout(DEADLINE, self.stream.read_line(line)).await.expect("a line in time");
        read.is_ok_and(|bytes| bytes > 0)
    }
}

fn status_of(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn read(bytes: &[u8]) -> std::io::Result<Self> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Self {
            status: status.ok_or(std::io::ErrorKind::InvalidData)?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(own, value)| own.eq_ignore_ascii_case(name).then_some(value.trim()))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The `status` word of the answer.
    pub(crate) fn word(&self) -> String {
        self.json()["status"].as_str().unwrap_or_default().to_owned()
    }
}

/// Says on the terminal that a test did not run, where the test harness cannot swallow it.
pub(crate) fn not_run(what: &str, server: &str) {
    let _ =
        writeln!(std::io::stderr(), "not run: {what} on {server}; `cargo xtask test` starts a server for it");
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
