//! A private PgBouncer in transaction mode in front of a private Postgres, gone when its owner is.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::{effective_user, free_port, user};

const POLL: Duration = Duration::from_millis(10);
const READY_WITHIN: Duration = Duration::from_secs(30);
const LAUNCH_TRIES: u32 = 5;
const LOG: &str = "pgbouncer.log";

/// A running PgBouncer that belongs to this process.
///
/// Every role of the server gets in without a password. Dropping it stops it; so does the death of this process.
///
/// As root it runs as the user `postgres`, because PgBouncer refuses to run as root.
#[derive(Debug)]
pub struct PrivatePgBouncer {
    port: u16,
    guard: Child,
    // Removed by the guard, which outlives us, or by this when the guard was never started.
    _folder: TempDir,
}

impl PrivatePgBouncer {
    /// Starts it in front of the server at this port of 127.0.0.1 and waits until it accepts connections.
    ///
    /// Fails when PgBouncer is not installed or does not start; the error then carries what it logged.
    pub fn start(server_port: u16) -> io::Result<Self> {
        let program = program()?;
        let mut tries = 1;
        loop {
            let folder = tempfile::Builder::new().prefix("oncebox-pgbouncer-").tempdir()?;
            let owner =
                if effective_user(folder.path())? == 0 { Some(user("PgBouncer", "postgres")?) } else { None };
            if let Some((user, group)) = owner {
                chown(folder.path(), Some(user), Some(group))?;
            }
            let port = free_port()?;
            match launch(&program, folder.path(), owner, port, server_port) {
                Ok(guard) => return Ok(Self { port, guard, _folder: folder }),
                // Somebody may have taken the port in between.
                Err(_) if tries < LAUNCH_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of the server's database `postgres` through the pooler, for its superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PrivatePgBouncer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Debian's place first, then the path.
///
/// Fails, with what to do, when it is nowhere.
pub fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [PathBuf::from("/usr/sbin")].into_iter().chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join("pgbouncer")).find(|file| file.is_file());
    let missing = || io::Error::new(io::ErrorKind::NotFound, "install Debian's package `pgbouncer`");
    found.ok_or_else(missing)
}

fn launch(
    program: &Path,
    folder: &Path,
    owner: Option<(u32, u32)>,
    port: u16,
    server_port: u16,
) -> io::Result<Child> {
    fs::write(folder.join("users.txt"), "\"postgres\" \"\"\n")?;
    fs::write(folder.join("pgbouncer.ini"), settings(folder, port, server_port))?;
    // The guard holds the pooler as its child, and ends it when our end of the pipe closes.
    let script =
        r#""$0" "$1"/pgbouncer.ini & pooler=$!; read -r _; kill "$pooler"; wait "$pooler"; rm -rf "$1""#;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg(program).arg(folder);
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(folder).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    let mut guard = command.spawn()?;
    let started_at = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if started_at.elapsed() > READY_WITHIN {
            let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
            drop(guard.stdin.take());
            guard.wait()?;
            return Err(io::Error::other(format!(
                "PgBouncer did not become ready; it logged:\n{}",
                log.trim()
            )));
        }
        thread::sleep(POLL);
    }
    Ok(guard)
}

/// What the guide says about the pooler's settings, and what tests need besides.
fn settings(folder: &Path, port: u16, server_port: u16) -> String {
    let folder = folder.display();
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server_port} auth_user=postgres\n\
         [pgbouncer]\n\
         pool_mode = transaction\n\
         ignore_startup_parameters = extra_float_digits\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = trust\n\
         auth_file = {folder}/users.txt\n\
         logfile = {folder}/{LOG}\n\
         max_client_conn = 1000\n\
         default_pool_size = 10\n\
         ; Each test has a role and so a pool of its own, and the server has only so many sessions.\n\
         server_idle_timeout = 5\n"
    )
}
