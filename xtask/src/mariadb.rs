//! A private MariaDB server for tests: its own data folder and port, gone when its owner is.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{chown, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::{Guard, LOG, StopMode, effective_user, free_port, succeed, user, wait_for, with_log};

/// Names the folder with the server programs, when they are not where Debian puts them and not on the path.
pub const PROGRAMS_VARIABLE: &str = "ONCEBOX_TEST_MARIADB_BIN";

const POLL: Duration = Duration::from_millis(10);
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
const LAUNCH_TRIES: u32 = 5;

/// A running MariaDB server that belongs to this process.
///
/// It listens on 127.0.0.1, lets `root` in without a password and loses no committed data when it is stopped or
/// killed. Dropping it stops it and removes its data. The same happens when this process dies without dropping it, be
/// it by `kill -9`, because a small guard process waits for our end of its pipe to close.
///
/// As root the server runs as the user `mysql`, because MariaDB refuses to run as root.
///
/// ```no_run
/// # use xtask::mariadb::PrivateMariadb;
/// # use xtask::postgres::StopMode;
/// let mut server = PrivateMariadb::start()?;
/// let url = server.url(); // mysql://root@127.0.0.1:PORT/mysql
/// server.restart(StopMode::Immediate)?; // the same url, after crash recovery
/// server.stop()?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateMariadb {
    home: Home,
    port: u16,
    server: Child,
    guard: Guard,
}

impl PrivateMariadb {
    /// Creates and starts a server and waits until it accepts connections; takes a few seconds.
    ///
    /// Fails when the server programs are not installed or the server does not start; the error then carries what
    /// it logged.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Like [`PrivateMariadb::start`], with more lines for its settings file.
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let home = Home::create()?;
        let guard = Guard::start(home.folder.path())?;
        let mut tries = 1;
        loop {
            let port = free_port()?;
            fs::write(home.settings_file(), home.settings(port) + settings)?;
            match home.launch(port) {
                Ok(server) => return Ok(Self { home, port, server, guard }),
                // Somebody may have taken the port in between.
                Err(_) if tries < LAUNCH_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of the server, for its superuser.
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/mysql", self.port)
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.home.data()
    }

    /// The folder with `mariadbd`.
    pub fn programs(&self) -> &Path {
        &self.home.programs
    }

    /// Stops the server and starts it again on the same port; returns when it accepts connections.
    ///
    /// A server that is already down, killed by a test for example, is just started.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        if self.server.try_wait()?.is_none() {
            match mode {
                StopMode::Fast => {
                    let id = self.server.id().to_string();
                    succeed(Command::new("kill").args(["-TERM", &id]))?;
                }
                // The next start recovers from the log.
                StopMode::Immediate => self.server.kill()?,
            }
        }
        let asked_at = Instant::now();
        while self.server.try_wait()?.is_none() {
            if asked_at.elapsed() > STOPPED_WITHIN {
                return Err(with_log("the MariaDB server did not stop", self.home.folder.path()));
            }
            thread::sleep(POLL);
        }
        self.server = self.home.launch(self.port)?;
        Ok(())
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

impl Drop for PrivateMariadb {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The folder with `mariadbd`: the one named by [`PROGRAMS_VARIABLE`], else the first on the path or among the usual
/// ones for servers.
///
/// Fails, with what to do, when there is none.
pub fn programs_folder() -> io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(PROGRAMS_VARIABLE) {
        let folder = PathBuf::from(folder);
        return if folder.join(SERVER).is_file() {
            Ok(folder)
        } else {
            Err(not_found(&format!("{PROGRAMS_VARIABLE} names {}, which has none", folder.display())))
        };
    }
    let remedy =
        format!("install Debian's package `mariadb-server`, or name its folder in {PROGRAMS_VARIABLE}");
    find(SERVER).ok_or_else(|| not_found(&remedy))
}

const SERVER: &str = "mariadbd";
const INSTALLER: &str = "mariadb-install-db";

/// The first folder with this program. Not every path names the folders for servers.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).find(|folder| folder.join(program).is_file())
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
        let folder = tempfile::Builder::new().prefix("oncebox-mariadb-").tempdir()?;
        let owner = if effective_user(folder.path())? == 0 { Some(user("MariaDB", "mysql")?) } else { None };
        let home = Self { programs, folder, owner };
        fs::create_dir(home.temporary())?;
        if let Some((user, group)) = owner {
            chown(home.folder.path(), Some(user), Some(group))?;
            chown(home.temporary(), Some(user), Some(group))?;
        }
        let installer = [home.programs.clone()].into_iter().chain(find(INSTALLER));
        let installer = installer
            .map(|folder| folder.join(INSTALLER))
            .find(|program| program.is_file())
            .ok_or_else(|| not_found(&format!("`{INSTALLER}` is not beside it")))?;
        let mut install = home.command(&installer);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        succeed(install.arg(format!("--datadir={}", home.data().display())))?;
        Ok(home)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    fn settings_file(&self) -> PathBuf {
        self.folder.path().join("server.cnf")
    }

    fn settings(&self, port: u16) -> String {
        let folder = self.folder.path().display();
        format!(
            "[mariadbd]\n\
             datadir = {folder}/data\n\
             socket = {folder}/socket\n\
             pid_file = {folder}/server.pid\n\
             bind_address = 127.0.0.1\n\
             port = {port}\n\
             max_connections = 400\n\
             innodb_buffer_pool_size = 64M\n\
             # Each test has tables of its own, all at once many more than a server has room for unless told.\n\
             table_definition_cache = 10000\n\
             table_open_cache = 10000\n\
             # Room for the largest message that the library takes unless told otherwise.\n\
             max_allowed_packet = 64M\n\
             # Tests kill the server and then count what was committed.\n\
             innodb_flush_log_at_trx_commit = 1\n\
             # Tests that stop half-way leave sessions behind, which must not add up.\n\
             max_connect_errors = 1000000\n"
        )
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // MYSQL_HOME, MYSQL_TCP_PORT and the like would point at somebody else's server.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        // A server that starts removes the temporary tables it finds, also those of another that shares the folder.
        command.env("TMPDIR", self.temporary());
        // Our working directory may be closed to the server's user, and Ctrl-C is not for the server.
        command.current_dir(self.folder.path()).process_group(0).stdin(Stdio::null());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    /// Starts the server and waits until it accepts connections; on failure nothing is left running.
    fn launch(&self, port: u16) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.path().join(LOG))?;
        if let Some((user, group)) = self.owner {
            fchown(&log, Some(user), Some(group))?;
        }
        let mut command = self.command(&self.programs.join(SERVER));
        command.arg(format!("--defaults-file={}", self.settings_file().display()));
        let mut server = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let started_at = Instant::now();
        loop {
            if let Some(status) = server.try_wait()? {
                return Err(with_log(&format!("the MariaDB server ended with {status}"), self.folder.path()));
            }
            if self.is_ready(server.id(), port) {
                return Ok(server);
            }
            if started_at.elapsed() > READY_WITHIN {
                server.kill()?;
                server.wait()?;
                return Err(with_log("the MariaDB server did not become ready", self.folder.path()));
            }
            thread::sleep(POLL);
        }
    }

    /// Its process id is in its file, so the port is its own, and it greets who connects.
    fn is_ready(&self, server: u32, port: u16) -> bool {
        let id = fs::read_to_string(self.folder.path().join("server.pid")).unwrap_or_default();
        id.trim() == server.to_string() && greets(port).unwrap_or(false)
    }
}

fn greets(port: u16) -> io::Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, READY_WITHIN)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting)?;
    // The version of the protocol, which is 255 for an error.
    Ok(greeting[4] == 10)
}

fn not_found(what: &str) -> io::Error {
    let message = format!("the MariaDB server program `{SERVER}` is not there: {what}");
    io::Error::new(io::ErrorKind::NotFound, message)
}
