//! A private Mosquitto (MQTT) server for tests: its own data folder and port, gone when its owner is.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certificates::Certificates;
use crate::server::{self, Kind, Server, StopMode, connect, find_program, free_port};

const PACKAGE: &str = "mosquitto";

/// A running Mosquitto server that belongs to this process.
///
/// It listens on 127.0.0.1, lets everybody in and drops no message for want of room. [`StopMode::Fast`] keeps
/// sessions, queued messages and retained ones. [`StopMode::Immediate`] may lose what came in the last second, also
/// what was acknowledged: Mosquitto has no log to recover from and saves all it has once a second. Dropping it stops
/// it and removes its data. The same happens when this process dies without dropping it, be it by `kill -9`, because a
/// small guard process waits for our end of its pipe to close.
///
/// ```no_run
/// # use xtask::mosquitto::PrivateMosquitto;
/// # use xtask::server::StopMode;
/// let mut server = PrivateMosquitto::start()?;
/// let url = server.url(); // mqtt://127.0.0.1:PORT
/// server.restart(StopMode::Fast)?; // the same url and sessions
/// server.stop()?;
///
/// let server = PrivateMosquitto::start_with("allow_anonymous false\npassword_file /tmp/passwords\n")?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateMosquitto {
    server: Server<Mosquitto>,
}

impl PrivateMosquitto {
    /// Starts a server and waits until it takes connections; takes a fraction of a second.
    ///
    /// Fails with [`io::ErrorKind::NotFound`] when Mosquitto is not installed. Fails when it does not start; the error
    /// then carries what it logged.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Like [`PrivateMosquitto::start`], with more lines for its settings file, for passwords for example.
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let program = program()?;
        Ok(Self { server: Server::start(|folder| Mosquitto::prepare(&program, folder, settings, None))? })
    }

    /// Like [`PrivateMosquitto::start`], with a second port for TLS: [`PrivateMosquitto::tls_url`].
    pub fn start_tls() -> io::Result<Self> {
        Self::start_tls_with(|_| String::new())
    }

    /// Like [`PrivateMosquitto::start_tls`], for clients that have a certificate of the same authority only.
    pub fn start_mutual_tls() -> io::Result<Self> {
        Self::start_tls_with(|files| {
            format!("cafile {}\nrequire_certificate true\n", files.authority.display())
        })
    }

    /// The settings stand after the port for TLS, so they are about that one.
    fn start_tls_with(settings: impl Fn(&Certificates) -> String) -> io::Result<Self> {
        let program = program()?;
        let server = Server::start(|folder| {
            let certificates = Certificates::create(folder)?;
            let settings = settings(&certificates);
            Mosquitto::prepare(&program, folder, &settings, Some((free_port()?, certificates)))
        })?;
        Ok(Self { server })
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port())
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.server.kind.port
    }

    /// The address for TLS, when the server was started with [`PrivateMosquitto::start_tls`].
    pub fn tls_url(&self) -> Option<String> {
        let (port, _) = self.server.kind.tls.as_ref()?;
        Some(format!("mqtts://127.0.0.1:{port}"))
    }

    /// The files of its certificates, when it listens for TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.server.kind.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Stops the server and starts it again on the same ports and data; returns when it takes connections.
    pub fn restart(&mut self, mode: StopMode) -> io::Result<()> {
        self.server.restart(mode)
    }

    /// Stops the server and removes its data, like dropping it, but says when that failed.
    pub fn stop(self) -> io::Result<()> {
        self.server.stop()
    }
}

/// Where `mosquitto` is.
///
/// Fails, with what to do, when it is nowhere.
pub fn program() -> io::Result<PathBuf> {
    find_program("mosquitto", PACKAGE)
}

#[derive(Debug)]
struct Mosquitto {
    program: PathBuf,
    port: u16,
    tls: Option<(u16, Certificates)>,
}

impl Mosquitto {
    fn prepare(
        program: &Path,
        folder: &Path,
        settings: &str,
        tls: Option<(u16, Certificates)>,
    ) -> io::Result<Self> {
        let kind = Self { program: program.to_owned(), port: free_port()?, tls };
        fs::create_dir(folder.join("data"))?;
        fs::write(folder.join("mosquitto.conf"), kind.settings(folder) + settings)?;
        Ok(kind)
    }

    fn settings(&self, folder: &Path) -> String {
        let (port, data) = (self.port, folder.join("data"));
        let mut settings = format!(
            "# Root would otherwise become somebody who may not write here.\n\
             user root\n\
             allow_anonymous true\n\
             log_dest stderr\n\
             persistence true\n\
             persistence_location {}/\n\
             autosave_interval 1\n\
             # None of these drops a message: 0 means no limit.\n\
             max_queued_messages 0\n\
             max_queued_bytes 0\n\
             max_inflight_messages 100\n\
             set_tcp_nodelay true\n\
             listener {port} 127.0.0.1\n",
            data.display()
        );
        if let Some((port, files)) = &self.tls {
            settings += &format!(
                "listener {port} 127.0.0.1\n\
                 certfile {}\n\
                 keyfile {}\n",
                files.certificate.display(),
                files.key.display()
            );
        }
        settings
    }
}

impl Kind for Mosquitto {
    const NAME: &'static str = "Mosquitto";

    fn command(&self, folder: &Path) -> Command {
        let mut command = server::command(&self.program, folder);
        command.arg("-c").arg(folder.join("mosquitto.conf"));
        command
    }

    /// It answers who wants in, be it with a refusal.
    fn is_ready(&self, _process: u32) -> io::Result<bool> {
        if let Some((port, _)) = &self.tls {
            connect(*port)?;
        }
        let mut stream = connect(self.port)?;
        stream.write_all(b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        stream.write_all(b"\xe0\0")?;
        Ok(answer[..2] == [0x20, 2])
    }
}
