//! A private NATS server for tests: its own data folder and port, gone when its owner is.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certificates::Certificates;
use crate::server::{self, Kind, Server, StopMode, connect, find_program, free_port};

const PACKAGE: &str = "nats-server";

/// A running NATS server with JetStream that belongs to this process.
///
/// It listens on 127.0.0.1 and lets everybody in. What JetStream has acknowledged is there after the server was
/// stopped or killed; version 2.9 has no setting that makes it also survive the loss of power. Dropping it stops it
/// and removes its data. The same happens when this process dies without dropping it, be it by `kill -9`, because a
/// small guard process waits for our end of its pipe to close.
///
/// ```no_run
/// # use xtask::nats::PrivateNats;
/// # use xtask::server::StopMode;
/// let mut server = PrivateNats::start()?;
/// let url = server.url(); // nats://127.0.0.1:PORT
/// server.restart(StopMode::Immediate)?; // the same url and streams
/// server.stop()?;
///
/// let server = PrivateNats::start_with("authorization { user: ann, password: secret }")?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateNats {
    server: Server<Nats>,
}

impl PrivateNats {
    /// Starts a server and waits until it takes connections; takes a fraction of a second.
    ///
    /// Fails with [`io::ErrorKind::NotFound`] when NATS is not installed. Fails when it does not start; the error then
    /// carries what it logged.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Like [`PrivateNats::start`], with more lines for its settings file, for a password or a token for example.
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let program = program()?;
        Ok(Self { server: Server::start(|folder| Nats::prepare(&program, folder, settings, None))? })
    }

    /// Like [`PrivateNats::start`], but takes only connections with TLS.
    pub fn start_tls() -> io::Result<Self> {
        let program = program()?;
        let server =
            Server::start(|folder| Nats::prepare(&program, folder, "", Some(Certificates::create(folder)?)))?;
        Ok(Self { server })
    }

    /// The address of the server: `tls://` when it takes only connections with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.certificates().is_some() { "tls" } else { "nats" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.server.kind.port
    }

    /// The files of its certificates, when it was started with [`PrivateNats::start_tls`].
    pub fn certificates(&self) -> Option<&Certificates> {
        self.server.kind.certificates.as_ref()
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Stops the server and starts it again on the same port and data; returns when it takes connections.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        self.server.restart(mode)
    }

    /// Stops the server and removes its data, like dropping it, but says when that failed.
    pub fn stop(self) -> io::Result<()> {
        self.server.stop()
    }
}

/// Where `nats-server` is.
///
/// Fails, with what to do, when it is nowhere.
pub fn program() -> io::Result<PathBuf> {
    find_program("nats-server", PACKAGE)
}

#[derive(Debug)]
struct Nats {
    program: PathBuf,
    /// Told to every client, so we know that it is ours who answers.
    name: String,
    port: u16,
    certificates: Option<Certificates>,
}

impl Nats {
    fn prepare(
        program: &Path,
        folder: &Path,
        settings: &str,
        certificates: Option<Certificates>,
    ) -> io::Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = Self { program: program.to_owned(), name, port: free_port()?, certificates };
        fs::write(folder.join("nats.conf"), kind.settings(folder) + settings)?;
        Ok(kind)
    }

    fn settings(&self, folder: &Path) -> String {
        let Self { name, port, .. } = self;
        let data = folder.join("data");
        let mut settings = format!(
            "server_name: \"{name}\"\n\
             listen: \"127.0.0.1:{port}\"\n\
             # Limits of its own: otherwise it asks for a share of the disk that a full one does not have.\n\
             jetstream {{ store_dir: \"{}\", max_memory_store: 256MB, max_file_store: 4GB }}\n\
             max_payload: 8MB\n",
            data.display()
        );
        if let Some(files) = &self.certificates {
            settings += &format!(
                "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\n",
                files.certificate.display(),
                files.key.display()
            );
        }
        settings
    }
}

impl Kind for Nats {
    const NAME: &'static str = "NATS";

    fn command(&self, folder: &Path) -> Command {
        let mut command = server::command(&self.program, folder);
        command.arg("--config").arg(folder.join("nats.conf"));
        command
    }

    /// It greets before it asks for a password or for TLS, and listens only when its streams are there.
    fn is_ready(&self, _process: u32) -> io::Result<bool> {
        let mut greeting = String::new();
        BufReader::new(connect(self.port)?).read_line(&mut greeting)?;
        let Some(about) = greeting.strip_prefix("INFO ") else { return Ok(false) };
        let about: serde_json::Value = serde_json::from_str(about)?;
        Ok(about["server_name"] == self.name.as_str() && about["jetstream"] == true)
    }
}
