//! A private Redis server for tests: its own data folder and port, gone when its owner is.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certificates::Certificates;
use crate::server::{self, Kind, Server, StopMode, connect, find_program, free_port};

const PACKAGE: &str = "redis-server";

/// A running Redis server that belongs to this process.
///
/// It listens on 127.0.0.1, lets everybody in and loses nothing it has acknowledged when it is stopped or killed.
/// Dropping it stops it and removes its data. The same happens when this process dies without dropping it, be it by
/// `kill -9`, because a small guard process waits for our end of its pipe to close.
///
/// ```no_run
/// # use xtask::redis::PrivateRedis;
/// # use xtask::server::StopMode;
/// let mut server = PrivateRedis::start()?;
/// let url = server.url(); // redis://127.0.0.1:PORT
/// server.restart(StopMode::Immediate)?; // the same url and data
/// server.stop()?;
///
/// let server = PrivateRedis::start_with("requirepass secret\n")?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateRedis {
    server: Server<Redis>,
}

impl PrivateRedis {
    /// Starts a server and waits until it answers; takes a fraction of a second.
    ///
    /// Fails with [`io::ErrorKind::NotFound`] when Redis is not installed. Fails when it does not start; the error
    /// then carries what it logged.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Like [`PrivateRedis::start`], with more lines for its settings file, for a password for example.
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let program = program()?;
        Ok(Self { server: Server::start(|folder| Redis::prepare(&program, folder, settings, None))? })
    }

    /// Like [`PrivateRedis::start`], with a second port for TLS: [`PrivateRedis::tls_url`].
    pub fn start_tls() -> io::Result<Self> {
        Self::start_tls_with("")
    }

    /// Like [`PrivateRedis::start_tls`], for clients that have a certificate of the same authority only.
    pub fn start_mutual_tls() -> io::Result<Self> {
        // The last of two lines counts.
        Self::start_tls_with("tls-auth-clients yes\n")
    }

    fn start_tls_with(settings: &str) -> io::Result<Self> {
        let program = program()?;
        let server = Server::start(|folder| {
            let tls = (free_port()?, Certificates::create(folder)?);
            Redis::prepare(&program, folder, settings, Some(tls))
        })?;
        Ok(Self { server })
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.server.kind.port
    }

    /// The address for TLS, when the server was started with [`PrivateRedis::start_tls`].
    pub fn tls_url(&self) -> Option<String> {
        let (port, _) = self.server.kind.tls.as_ref()?;
        Some(format!("rediss://127.0.0.1:{port}"))
    }

    /// The files of its certificates, when it listens for TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.server.kind.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Stops the server and starts it again on the same ports and data; returns when it answers.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        self.server.restart(mode)
    }

    /// Stops the server and removes its data, like dropping it, but says when that failed.
    pub fn stop(self) -> io::Result<()> {
        self.server.stop()
    }
}

/// Where `redis-server` is.
///
/// Fails, with what to do, when it is nowhere.
pub fn program() -> io::Result<PathBuf> {
    find_program("redis-server", PACKAGE)
}

#[derive(Debug)]
struct Redis {
    program: PathBuf,
    port: u16,
    tls: Option<(u16, Certificates)>,
}

impl Redis {
    fn prepare(
        program: &Path,
        folder: &Path,
        settings: &str,
        tls: Option<(u16, Certificates)>,
    ) -> io::Result<Self> {
        let kind = Self { program: program.to_owned(), port: free_port()?, tls };
        fs::create_dir(folder.join("data"))?;
        fs::write(folder.join("redis.conf"), kind.settings(folder) + settings)?;
        Ok(kind)
    }

    fn settings(&self, folder: &Path) -> String {
        let (port, data) = (self.port, folder.join("data"));
        let mut settings = format!(
            "bind 127.0.0.1\n\
             port {port}\n\
             dir {}\n\
             # Tests kill the server and then count what was acknowledged.\n\
             appendonly yes\n\
             appendfsync always\n\
             save \"\"\n",
            data.display()
        );
        if let Some((port, files)) = &self.tls {
            settings += &format!(
                "tls-port {port}\n\
                 tls-cert-file {}\n\
                 tls-key-file {}\n\
                 tls-ca-cert-file {}\n\
                 tls-auth-clients no\n",
                files.certificate.display(),
                files.key.display(),
                files.authority.display()
            );
        }
        settings
    }
}

impl Kind for Redis {
    const NAME: &'static str = "Redis";

    fn command(&self, folder: &Path) -> Command {
        let mut command = server::command(&self.program, folder);
        command.arg(folder.join("redis.conf"));
        command
    }

    fn is_ready(&self, process: u32) -> io::Result<bool> {
        let mut stream = connect(self.port)?;
        stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        let answer = lines.next().transpose()?.unwrap_or_default();
        if answer.starts_with("-NOAUTH") {
            return Ok(true);
        }
        let own = format!("process_id:{process}");
        // While it reads its data it refuses the first and answers the second.
        Ok(answer == "+PONG" && lines.map_while(Result::ok).any(|line| line == own))
    }
}
