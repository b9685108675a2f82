//! A private Tansu server, which speaks Kafka's protocol, for tests: its own data folder and port, gone when its owner
//! is.
//!
//! No Debian package has a Kafka server. Tansu is built once into a folder outside the checkout; see [`cache_folder`].

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child::{self, Ending};
use crate::error::Error;
use crate::server::{self, Kind, Server, StopMode, connect, free_port};

/// Names the folder for what takes long to build, when it is not to be `oncebox` in the user's cache folder.
pub const CACHE_VARIABLE: &str = "ONCEBOX_TEST_CACHE";

const VERSION: &str = "0.6.0";

/// A running Tansu server that belongs to this process.
///
/// It listens on 127.0.0.1 and keeps topics, messages and the positions of groups in a SQLite file, so they are there
/// after it was stopped or killed. It has no transactions and makes no topic by itself: see
/// [`PrivateTansu::create_topic`]. Dropping it stops it and removes its data. The same happens when this process dies
/// without dropping it, be it by `kill -9`, because a small guard process waits for our end of its pipe to close.
///
/// ```no_run
/// # use xtask::tansu::PrivateTansu;
/// # use xtask::server::StopMode;
/// let mut server = PrivateTansu::start()?;
/// let servers = server.url(); // 127.0.0.1:PORT, what Kafka's clients call bootstrap servers
/// server.create_topic("orders", 3)?;
/// server.restart(StopMode::Immediate)?; // the same address and topics
/// server.stop()?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateTansu {
    server: Server<Tansu>,
}

impl PrivateTansu {
    /// Starts a server and waits until it answers; takes a second or so.
    ///
    /// Fails with [`io::ErrorKind::NotFound`] when Tansu is not built. Fails when it does not start; the error then
    /// carries what it logged.
    pub fn start() -> io::Result<Self> {
        let program = program()?;
        Ok(Self { server: Server::start(|folder| Tansu::prepare(&program, folder, None))? })
    }

    /// Like [`PrivateTansu::start`], but it tells its clients to come to this port of 127.0.0.1, where a proxy is to be.
    pub fn start_behind(port: u16) -> io::Result<Self> {
        let program = program()?;
        Ok(Self { server: Server::start(|folder| Tansu::prepare(&program, folder, Some(port)))? })
    }

    /// The address of the server, in the form that Kafka's clients want: without a scheme.
    pub fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.server.kind.port
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Creates a topic; fails when there is one of this name.
    pub fn create_topic(&self, name: &str, partitions: u32) -> io::Result<()> {
        self.topic("create", &[name, "--partitions", &partitions.to_string()]).map(drop)
    }

    /// Creates a user for logins with SCRAM-SHA-512.
    pub fn create_user(&self, name: &str, password: &str) -> io::Result<()> {
        self.ask("user", "create", &[name, password]).map(drop)
    }

    /// Stops the server and starts it again so that it wants a login; topics and users must be there by then.
    ///
    /// It checks passwords with SCRAM only: with PLAIN it lets everybody in.
    pub fn require_login(&mut self) -> io::Result<()> {
        self.server.kind.wants_login = true;
        self.server.restart(StopMode::Fast)
    }

    /// The names of its topics.
    pub fn topics(&self) -> io::Result<Vec<String>> {
        let answer: serde_json::Value = serde_json::from_str(&self.topic("list", &[])?)?;
        let topics = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(topics.iter().filter_map(|topic| topic["name"].as_str()).map(str::to_owned).collect())
    }

    /// Stops the server and starts it again on the same port and data; returns when it answers.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        self.server.restart(mode)
    }

    /// Stops the server and removes its data, like dropping it, but says when that failed.
    pub fn stop(self) -> io::Result<()> {
        self.server.stop()
    }

    fn topic(&self, action: &str, arguments: &[&str]) -> io::Result<String> {
        self.ask("topic", action, arguments)
    }

    fn ask(&self, about: &str, action: &str, arguments: &[&str]) -> io::Result<String> {
        let kind = &self.server.kind;
        let mut command = server::command(&kind.program, self.folder());
        command.args([about, action, "--broker", &kind.listener()]).args(arguments);
        let output = command.output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        // It says what is wrong on either.
        let why = [output.stdout, output.stderr].concat();
        let why = String::from_utf8_lossy(&why);
        Err(io::Error::other(format!("`tansu {about} {action}` failed: {}", why.trim())))
    }
}

/// The folder for what takes long to build: the one named by [`CACHE_VARIABLE`], else `oncebox` in the user's cache
/// folder.
pub fn cache_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let users = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = variable(CACHE_VARIABLE).or_else(|| Some(users()?.join("oncebox")));
    folder.unwrap_or_else(|| std::env::temp_dir().join("oncebox"))
}

/// Where the program of Tansu is.
///
/// Fails, with what to do, when it is not built.
pub fn program() -> io::Result<PathBuf> {
    let program = root().join("bin/tansu");
    if program.is_file() {
        return Ok(program);
    }
    let message = format!(
        "Tansu, the Kafka server for tests, is not at {}; `cargo xtask test --all` builds it there",
        program.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Builds the program of Tansu, unless it is there.
///
/// Fails when it cannot be fetched or built, and with [`Error::Interrupted`].
pub fn build() -> Result<(), Error> {
    if program().is_ok() {
        return Ok(());
    }
    println!("building Tansu {VERSION}, the Kafka server for tests: takes 10 to 30 minutes, once");
    let target = cache_folder().join(format!("tansu-{VERSION}-target"));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["install", "tansu", "--version", VERSION, "--locked", "--features", "dynostore,libsql"]);
    command.arg("--root").arg(root()).arg("--target-dir").arg(&target);
    // Neither the flags nor the settings of this checkout are for it.
    command.env_remove("RUSTFLAGS").current_dir("/");
    let ending = child::run(&mut command)?;
    // Gigabytes that nobody needs any more; a build that failed can go on where it was.
    match (ending, program()) {
        (Ending::Exited(status), Ok(_)) if status.success() => {
            let _ = fs::remove_dir_all(target);
            Ok(())
        }
        _ => Err(Error::Environment(format!("cannot build Tansu into {}", root().display()))),
    }
}

fn root() -> PathBuf {
    cache_folder().join(format!("tansu-{VERSION}"))
}

#[derive(Debug)]
struct Tansu {
    program: PathBuf,
    /// Told to every client, so we know that it is ours who answers.
    name: String,
    port: u16,
    /// The port that it tells its clients, when that is another one.
    advertised: Option<u16>,
    wants_login: bool,
}

impl Tansu {
    fn prepare(program: &Path, folder: &Path, advertised: Option<u16>) -> io::Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { program: program.to_owned(), name, port: free_port()?, advertised, wants_login: false })
    }

    fn listener(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }
}

impl Kind for Tansu {
    const NAME: &'static str = "Tansu";

    fn command(&self, folder: &Path) -> Command {
        let mut command = server::command(&self.program, folder);
        command.args(["broker", "--cluster-id", &self.name, "--listener-url", &self.listener()]);
        let advertised = format!("tcp://127.0.0.1:{}", self.advertised.unwrap_or(self.port));
        command.args(["--advertised-listener-url", &advertised]);
        if self.wants_login {
            command.arg("--authentication");
        }
        // The file is in the folder it runs in.
        command.args(["--storage-engine", "sqlite://tansu.db"]);
        command
    }

    /// Asks for the cluster and no topic: Metadata, version 4.
    fn is_ready(&self, _process: u32) -> io::Result<bool> {
        let mut stream = connect(self.port)?;
        stream.write_all(b"\0\0\0\x0f\0\x03\0\x04\0\0\0\x01\xff\xff\0\0\0\0\0")?;
        let mut length = [0; 4];
        match stream.read_exact(&mut length) {
            // It hangs up on who asks without a login.
            Err(error) if self.wants_login && error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(true);
            }
            answer => answer?,
        }
        let length = u32::from_be_bytes(length).min(1 << 20);
        let mut answer = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        stream.read_exact(&mut answer)?;
        Ok(answer.windows(self.name.len()).any(|part| part == self.name.as_bytes()))
    }
}
