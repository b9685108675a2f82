//! A private Postgres server for tests: its own data folder and port, gone when its owner is.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, chown, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use crate::server::StopMode;
use crate::server::{LOG, effective_user, free_port, succeed, user, wait_for, with_log};

/// Names the folder with the server programs, when they are not where Debian puts them and not on the path.
pub const PROGRAMS_VARIABLE: &str = "ONCEBOX_TEST_POSTGRES_BIN";

const POLL: Duration = Duration::from_millis(10);
const READY_WITHIN: Duration = Duration::from_secs(60);
const LAUNCH_TRIES: u32 = 5;

/// A running Postgres server that belongs to this process.
///
/// It listens on 127.0.0.1, trusts every connection and loses no committed data when it is stopped or killed.
/// Dropping it stops it and removes its data. The same happens when this process dies without dropping it, be it
/// by `kill -9`, because a small guard process waits for our end of its pipe to close.
///
/// As root the server runs as the user `postgres`, because Postgres refuses to run as root.
///
/// ```no_run
/// # use xtask::postgres::{PrivatePostgres, StopMode};
/// let mut server = PrivatePostgres::start()?;
/// let url = server.url(); // postgres://postgres@127.0.0.1:PORT/postgres
/// server.restart(StopMode::Immediate)?; // the same url, after crash recovery
/// server.stop()?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivatePostgres {
    home: Home,
    port: u16,
    server: Child,
    guard: Guard,
}

impl PrivatePostgres {
    /// Creates and starts a server and waits until it accepts connections; takes a second or two.
    ///
    /// Fails when the server programs are not installed or the server does not start; the error then carries what
    /// it logged.
    pub fn start() -> io::Result<Self> {
        let home = Home::create()?;
        let guard = Guard::start(&home)?;
        let mut tries = 1;
        loop {
            let port = free_port()?;
            // Goes before `postgresql.conf`, in which initdb has noted what works on this machine.
            fs::write(home.data().join("postgresql.auto.conf"), home.settings(port))?;
            match home.launch() {
                Ok(server) => return Ok(Self { home, port, server, guard }),
                // Somebody may have taken the port in between.
                Err(_) if tries < LAUNCH_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of the server's database `postgres`, for its superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data folder, for [`restart_server`] in another process.
    pub fn data(&self) -> PathBuf {
        self.home.data()
    }

    /// The folder with the programs of this server's version: `psql`, `pg_ctl`, `pg_dump` and so on.
    pub fn programs(&self) -> &Path {
        &self.home.programs
    }

    /// Stops the server and starts it again on the same port; returns when it accepts connections.
    ///
    /// A server that is already down, killed by a test for example, is just started.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        let mut stop = self.home.command("pg_ctl");
        stop.args(["stop", option(mode), "--silent", "--pgdata"]).arg(self.home.data());
        let stopped = wait_for(stop.stderr(Stdio::null()).spawn()?, &mut self.server)?;
        if !stopped.success() && self.server.try_wait()?.is_none() {
            return Err(with_log("`pg_ctl stop` failed", self.home.folder.path()));
        }
        self.server.wait()?;
        let mut tries = 1;
        loop {
            match self.home.launch() {
                Ok(server) => {
                    self.server = server;
                    return Ok(());
                }
                // Sessions of a killed server may hold its shared memory for a moment longer.
                Err(_) if tries < LAUNCH_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Stops the server and removes its data, like dropping it, but says when that failed.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()?;
        let left = self.home.folder.path();
        if left.exists() {
            return Err(io::Error::other(format!("cannot remove {}; remove it by hand", left.display())));
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(guard) = self.guard.release() {
            wait_for(guard, &mut self.server)?;
        }
        self.server.wait().map(drop)
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Restarts the server of a data folder, also when another process started it; returns when it accepts connections.
///
/// The process that started it still stops it. All users of the server lose their connections, so a test that
/// restarts should rather start a server of its own.
pub fn restart_server(data: &Path, mode: StopMode) -> io::Result<()> {
    let owner = fs::metadata(data)?;
    let folder = data.parent().unwrap_or(data);
    let mut pg_ctl = Command::new(programs_folder()?.join("pg_ctl"));
    pg_ctl.arg("restart").arg(option(mode)).arg("--silent").arg("--pgdata").arg(data);
    pg_ctl.arg("--log").arg(folder.join(LOG)).current_dir(folder).stdin(Stdio::null());
    if owner.uid() != effective_user(TempDir::new()?.path())? {
        pg_ctl.uid(owner.uid()).gid(owner.gid());
    }
    // Not captured: the server would inherit the pipe, and the end of the output would never come.
    let status = pg_ctl.stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(with_log("`pg_ctl restart` failed", folder)) }
}

/// The folder with the server programs: the one named by [`PROGRAMS_VARIABLE`], else Debian's with the highest
/// version, else the first on the path.
///
/// Fails, with what to do, when there is none.
pub fn programs_folder() -> io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(PROGRAMS_VARIABLE) {
        let folder = PathBuf::from(folder);
        return if has_programs(&folder) {
            Ok(folder)
        } else {
            Err(not_found(&format!("{PROGRAMS_VARIABLE} names {}, which has none", folder.display())))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest = debian_folders(Path::new("/usr/lib/postgresql"));
    let found = newest.into_iter().chain(std::env::split_paths(&path)).find(|folder| has_programs(folder));
    let remedy =
        format!("install Debian's package `postgresql`, or name their folder in {PROGRAMS_VARIABLE}");
    found.ok_or_else(|| not_found(&remedy))
}

fn option(mode: StopMode) -> &'static str {
    match mode {
        StopMode::Fast => "--mode=fast",
        StopMode::Immediate => "--mode=immediate",
    }
}

/// The folder of one server, and what it takes to run programs in it.
#[derive(Debug)]
struct Home {
    programs: PathBuf,
    folder: TempDir,
    /// User and group of the server, when not ours.
    owner: Option<(u32, u32)>,
}

impl Home {
    fn create() -> io::Result<Self> {
        let programs = programs_folder()?;
        let folder = tempfile::Builder::new().prefix("oncebox-postgres-").tempdir()?;
        let owner =
            if effective_user(folder.path())? == 0 { Some(user("Postgres", "postgres")?) } else { None };
        if let Some((user, group)) = owner {
            chown(folder.path(), Some(user), Some(group))?;
        }
        let home = Self { programs, folder, owner };
        let mut initdb = home.command("initdb");
        initdb.args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--locale=C.UTF-8",
            "--encoding=UTF8",
        ]);
        succeed(initdb.arg("--pgdata").arg(home.data()))?;
        Ok(home)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn settings(&self, port: u16) -> String {
        let folder = self.folder.path().display();
        format!(
            "listen_addresses = '127.0.0.1'\n\
             port = {port}\n\
             unix_socket_directories = '{folder}'\n\
             max_connections = 200\n\
             shared_buffers = '32MB'\n\
             # Tests kill the server and then count what was committed.\n\
             fsync = on\n\
             timezone = 'UTC'\n\
             log_timezone = 'UTC'\n"
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // PGDATA, PGPORT and the like would point at somebody else's server.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        // Our working directory may be closed to the server's user, and Ctrl-C is not for the server.
        command.current_dir(self.folder.path()).process_group(0).stdin(Stdio::null());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    /// Starts the server and waits until it accepts connections; on failure nothing is left running.
    fn launch(&self) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.path().join(LOG))?;
        if let Some((user, group)) = self.owner {
            fchown(&log, Some(user), Some(group))?;
        }
        let mut command = self.command("postgres");
        let mut server = command.arg("-D").arg(self.data()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let started_at = Instant::now();
        loop {
            if let Some(status) = server.try_wait()? {
                return Err(with_log(
                    &format!("the Postgres server ended with {status}"),
                    self.folder.path(),
                ));
            }
            if is_ready(&self.data(), server.id()) {
                return Ok(server);
            }
            if started_at.elapsed() > READY_WITHIN {
                server.kill()?;
                server.wait()?;
                return Err(with_log("the Postgres server did not become ready", self.folder.path()));
            }
            thread::sleep(POLL);
        }
    }
}

/// A process that stops the server and removes its folder as soon as its standard input ends.
///
/// A destructor alone is not enough: it does not run for a `static`, nor in a test binary that is interrupted.
#[derive(Debug)]
struct Guard {
    process: Option<Child>,
}

impl Guard {
    fn start(home: &Home) -> io::Result<Self> {
        let script = r#"read -r _; "$0" stop --mode=immediate --pgdata="$1"/data; rm -rf "$1""#;
        let mut command = home.command("/bin/sh"); // an absolute path is not looked up among the programs
        command.arg("-c").arg(script).arg(home.programs.join("pg_ctl")).arg(home.folder.path());
        let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process: Some(process) })
    }

    /// Lets the guard do its work; the first caller gets the process to wait for.
    fn release(&mut self) -> Option<Child> {
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

/// Reads what the server writes into its lock file: its process id first, its state in the eighth line.
fn is_ready(data: &Path, server: u32) -> bool {
    let Ok(lock) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = lock.lines().map(str::trim);
    lines.next() == Some(server.to_string().as_str()) && lines.nth(6) == Some("ready")
}

fn debian_folders(parent: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut folders: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .collect();
    folders.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    folders.into_iter().map(|(_, folder)| folder).collect()
}

fn has_programs(folder: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"].iter().all(|program| folder.join(program).is_file())
}

fn not_found(what: &str) -> io::Error {
    let message = format!("the Postgres server programs (initdb, pg_ctl, postgres) are not there: {what}");
    io::Error::new(io::ErrorKind::NotFound, message)
}
