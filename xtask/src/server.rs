//! What the private servers share: a folder of their own, free ports, a start that waits until the server serves, and
//! a guard that ends them with their owner.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// How a server is stopped before it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Lets the server finish what it does and write what it holds in memory.
    Fast,
    /// Stops at once, as a crash would; the next start recovers from what is on disk.
    Immediate,
}

pub(crate) const LOG: &str = "server.log";

const POLL: Duration = Duration::from_millis(10);
const READY_WITHIN: Duration = Duration::from_secs(120);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const LAUNCH_TRIES: u32 = 5;

/// What is particular to one kind of server, with the ports it was given.
pub(crate) trait Kind: fmt::Debug {
    /// What people call it.
    const NAME: &'static str;

    /// The program and its arguments; all it keeps is in the folder, which is also where it runs.
    fn command(&self, folder: &Path) -> Command;

    /// Whether it serves, asked in its own protocol; an error means not yet.
    fn is_ready(&self, process: u32) -> io::Result<bool>;
}

/// A running server that belongs to this process; dropping it stops it and removes its folder.
#[derive(Debug)]
pub(crate) struct Server<K: Kind> {
    pub(crate) kind: K,
    folder: TempDir,
    process: Child,
    guard: Guard,
}

impl<K: Kind> Server<K> {
    /// Starts a server and waits until it serves.
    ///
    /// `prepare` chooses ports and writes the settings into the folder. It is asked again, for other ports, when
    /// somebody else has taken one of them in between.
    pub(crate) fn start(mut prepare: impl FnMut(&Path) -> io::Result<K>) -> io::Result<Self> {
        let prefix = format!("oncebox-{}-", K::NAME.to_lowercase());
        let mut tries = 1;
        loop {
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir()?;
            let guard = Guard::start(folder.path())?;
            let kind = prepare(folder.path())?;
            match launch(&kind, folder.path()) {
                Ok(process) => return Ok(Self { kind, folder, process, guard }),
                Err(_) if tries < LAUNCH_TRIES && port_was_taken(folder.path()) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Where everything of this server is.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops the server and starts it again with the same ports and data; returns when it serves.
    ///
    /// A server that is already down, killed by a test for example, is just started.
    pub(crate) fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        if self.process.try_wait()?.is_none() {
            match mode {
                StopMode::Fast => kill(process_id(&self.process)?, Signal::SIGTERM)?,
                StopMode::Immediate => self.process.kill()?,
            }
        }
        let asked_at = Instant::now();
        while self.process.try_wait()?.is_none() {
            if asked_at.elapsed() > STOPPED_WITHIN {
                return Err(with_log(&format!("{} did not stop", K::NAME), self.folder()));
            }
            thread::sleep(POLL);
        }
        self.process = launch(&self.kind, self.folder.path())?;
        Ok(())
    }

    /// Stops the server and removes its folder, like dropping it, but says when that failed.
    pub(crate) fn stop(mut self) -> io::Result<()> {
        self.end()?;
        let left = self.folder.path();
        if left.exists() {
            return Err(io::Error::other(format!("cannot remove {}; remove it by hand", left.display())));
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(guard) = self.guard.release() {
            wait_for(guard, &mut self.process)?;
        }
        self.process.wait().map(drop)
    }
}

impl<K: Kind> Drop for Server<K> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A command for a program of a server: in the server's folder, with nothing of our environment.
pub(crate) fn command(program: impl AsRef<Path>, folder: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    // The variables of our caller may point at somebody else's server.
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("LC_ALL", "C.UTF-8").env("HOME", folder);
    // The folder is how the guard knows a process of the server, and Ctrl-C is not for the server.
    command.current_dir(folder).process_group(0).stdin(Stdio::null());
    command
}

/// A program on the path or in one of the folders for servers, which not every path names.
///
/// Fails, with the package to install, when it is nowhere.
pub(crate) fn find_program(program: &str, package: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from);
    let mut files = std::env::split_paths(&path).chain(usual).map(|folder| folder.join(program));
    files.find(|file| file.is_file()).ok_or_else(|| {
        let message = format!("the program `{program}` is not there: install Debian's package `{package}`");
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

/// Connects to a port of 127.0.0.1, for a question whose answer does not take long.
pub(crate) fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    Ok(stream)
}

/// Starts the server and waits until it serves; on failure its process has ended.
fn launch<K: Kind>(kind: &K, folder: &Path) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join(LOG))?;
    let mut server = kind.command(folder).stdout(log.try_clone()?).stderr(log).spawn()?;
    let started_at = Instant::now();
    loop {
        let ready = kind.is_ready(server.id()).unwrap_or(false);
        // Asked afterwards: the answer may have come from somebody else, who has the port.
        if let Some(status) = server.try_wait()? {
            return Err(with_log(&format!("{} ended with {status}", K::NAME), folder));
        }
        if ready {
            return Ok(server);
        }
        if started_at.elapsed() > READY_WITHIN {
            server.kill()?;
            server.wait()?;
            return Err(with_log(&format!("{} did not become ready", K::NAME), folder));
        }
        thread::sleep(POLL);
    }
}

fn port_was_taken(folder: &Path) -> bool {
    let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default().to_lowercase();
    ["already in use", "eaddrinuse", "addrinuse"].iter().any(|words| log.contains(words))
}

fn process_id(process: &Child) -> io::Result<Pid> {
    i32::try_from(process.id()).map(Pid::from_raw).map_err(io::Error::other)
}

/// A process that ends the server and removes its folder as soon as its standard input ends.
///
/// A destructor alone is not enough: it does not run for a `static`, nor in a test binary that is interrupted.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Option<Child>,
}

impl Guard {
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        // Knows the server, and whatever the server has started, by the folder it runs in; a number from a file might
        // by now be another process. Looks again afterwards, for a process that was just being started.
        let script = r#"
            read -r _
            ours() { find /proc/[0-9]*/cwd -maxdepth 0 -lname "$0*" 2>/dev/null | cut -d/ -f3; }
            for round in 1 2; do
                while ids=$(ours); [ -n "$ids" ]; do kill -KILL $ids; sleep 0.02; done
                rm -rf "$0"
            done"#;
        let mut command = command("/bin/sh", folder);
        command.arg("-c").arg(script).arg(fs::canonicalize(folder)?).current_dir("/");
        let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process: Some(process) })
    }

    /// Lets the guard do its work; the first caller gets the process to wait for.
    pub(crate) fn release(&mut self) -> Option<Child> {
        let mut process = self.process.take()?;
        drop(process.stdin.take());
        Some(process)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut process) = self.release() {
            let _ = process.wait();
        }
    }
}

/// Waits for a program that is stopping the server.
///
/// Meanwhile asks for the server's own end: until then a dead child keeps its id and looks alive.
pub(crate) fn wait_for(mut stopping: Child, server: &mut Child) -> io::Result<ExitStatus> {
    loop {
        server.try_wait()?;
        if let Some(status) = stopping.try_wait()? {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
}

/// A free port of 127.0.0.1 that the system gives to no outgoing connection.
///
/// A client that tries again and again while its server restarts could otherwise get the server's port for its own
/// end: it would then talk to itself, and the server would not get its port back.
pub(crate) fn free_port() -> io::Result<u16> {
    const FIRST: u16 = 10_000;
    const PORT_TRIES: u32 = 1_000;
    let ports = first_outgoing_port().saturating_sub(FIRST);
    for _ in 0..PORT_TRIES {
        let random = RandomState::new().hash_one(0);
        let port = random.checked_rem(u64::from(ports)).and_then(|offset| u16::try_from(offset).ok());
        let Some(port) = port.map(|offset| FIRST + offset) else { break };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    // This machine gives nearly all its ports to outgoing connections.
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn first_outgoing_port() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
}

/// The user this process acts as, which owns the folder it has just created.
pub(crate) fn effective_user(own_folder: &Path) -> io::Result<u32> {
    Ok(fs::metadata(own_folder)?.uid())
}

pub(crate) fn user(server: &str, name: &str) -> io::Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let remedy = format!("run `adduser --system --group {name}` or run as an ordinary user");
    found.ok_or_else(|| {
        io::Error::other(format!("{server} cannot run as root and there is no user `{name}`; {remedy}"))
    })
}

pub(crate) fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let (program, why) = (command.get_program().display(), String::from_utf8_lossy(&output.stderr));
    Err(io::Error::other(format!("`{program}` ended with {}: {}", output.status, why.trim())))
}

pub(crate) fn with_log(what: &str, folder: &Path) -> io::Error {
    let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(10)..];
    io::Error::other(format!("{what}; it logged last:\n{}", last.join("\n")))
}
/// A server for tests; `None`, with a line on stderr, when it is not installed and nobody asked for it.
///
/// `cargo xtask test` asks for every broker by setting `variable`: then a missing one fails the test.
///
/// # Panics
/// When it cannot be started, or is missing and asked for.
pub fn if_installed<T>(started: io::Result<T>, variable: &str) -> Option<T> {
    match started {
        Ok(server) => Some(server),
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::env::var_os(variable).is_none() => {
            // Not `eprintln`, which the test harness swallows for tests that pass.
            let _ = io::Write::write_all(&mut io::stderr(), format!("not run: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
