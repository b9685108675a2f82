//! A private RabbitMQ server for tests: its own data folder and ports, gone when its owner is.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::certificates::Certificates;
use crate::server::{self, Kind, Server, StopMode, connect, find_program, free_port};

const PACKAGE: &str = "rabbitmq-server";
/// Debian's program of this name on the path is another one, which only serves the system's own server.
const DEBIAN_PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
const PORT_MAPPER_WITHIN: Duration = Duration::from_secs(30);

/// A running RabbitMQ server that belongs to this process.
///
/// It listens on 127.0.0.1, for AMQP 0-9-1 and AMQP 1.0 on the same port, lets in `guest` with the password `guest`,
/// and keeps durable queues and persistent messages when it is stopped or killed. Dropping it stops it and removes
/// its data. The same happens when this process dies without dropping it, be it by `kill -9`, because a small guard
/// process waits for our end of its pipe to close.
///
/// Any number may run at the same time: each has a port mapper (`epmd`) of its own, which ends with it.
///
/// ```no_run
/// # use xtask::rabbitmq::PrivateRabbitmq;
/// # use xtask::server::StopMode;
/// let mut server = PrivateRabbitmq::start()?;
/// let url = server.url(); // amqp://guest:guest@127.0.0.1:PORT
/// server.close_connections()?; // clients must connect again
/// server.restart(StopMode::Immediate)?; // the same url and queues
/// server.stop()?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PrivateRabbitmq {
    server: Server<Rabbitmq>,
}

impl PrivateRabbitmq {
    /// Starts a server and waits until it takes connections of both protocols; takes several seconds.
    ///
    /// Fails with [`io::ErrorKind::NotFound`] when RabbitMQ is not installed. Fails when it does not start; the error
    /// then carries what it logged.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Like [`PrivateRabbitmq::start`], with more lines for its settings file, `rabbitmq.conf`.
    ///
    /// The user `guest` must stay, because waiting for the server means to log in.
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let programs = programs_folder()?;
        let server = Server::start(|folder| Rabbitmq::prepare(&programs, folder, settings, None))?;
        Ok(Self { server })
    }

    /// Like [`PrivateRabbitmq::start`], with a second port for TLS: [`PrivateRabbitmq::tls_url`].
    ///
    /// There a client may log in with a certificate of the same authority, as the user with the certificate's name.
    pub fn start_tls() -> io::Result<Self> {
        Self::start_tls_with("")
    }

    /// Like [`PrivateRabbitmq::start_tls`], but on the port for TLS nobody is let in without such a certificate.
    pub fn start_mutual_tls() -> io::Result<Self> {
        Self::start_tls_with("ssl_options.fail_if_no_peer_cert = true\n")
    }

    fn start_tls_with(settings: &str) -> io::Result<Self> {
        let programs = programs_folder()?;
        let server = Server::start(|folder| {
            let certificates = Certificates::create(folder)?;
            Rabbitmq::prepare(&programs, folder, settings, Some((free_port()?, certificates)))
        })?;
        Ok(Self { server })
    }

    /// The address of the server, for `guest`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port())
    }

    /// The port of 127.0.0.1 it listens on, for both protocols.
    pub fn port(&self) -> u16 {
        self.server.kind.port
    }

    /// The address for TLS, when the server was started with [`PrivateRabbitmq::start_tls`].
    pub fn tls_url(&self) -> Option<String> {
        let (port, _) = self.server.kind.tls.as_ref()?;
        Some(format!("amqps://guest:guest@127.0.0.1:{port}"))
    }

    /// The files of its certificates, when it listens for TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.server.kind.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Runs `rabbitmqctl` with these arguments and gives back what it printed; takes a second or two.
    pub fn control(&self, arguments: &[&str]) -> io::Result<String> {
        let kind = &self.server.kind;
        let mut command = kind.program("rabbitmqctl", self.folder());
        let output = command.arg("--quiet").args(arguments).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("`rabbitmqctl {}` failed: {}", arguments.join(" "), why.trim())))
    }

    /// Closes the connections of all clients, as an operator may; takes a second or two.
    ///
    /// Those of AMQP 0-9-1 are told so (`CONNECTION_FORCED`). Those of AMQP 1.0 just break, because RabbitMQ 3.10 does
    /// not know them among its connections.
    pub fn close_connections(&self) -> io::Result<()> {
        let close = "[catch rabbit_reader:shutdown(rabbit_connection_sup:reader(Connection), \"by a test\") \
                     || Listener <- maps:keys(ranch:info()), \
                     Connection <- ranch:procs(Listener, connections)].";
        self.control(&["eval", close]).map(drop)
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

/// The folder with RabbitMQ's own programs, `rabbitmq-server` and `rabbitmqctl`.
///
/// Fails, with what to do, when there is none.
pub fn programs_folder() -> io::Result<PathBuf> {
    let debian = Path::new(DEBIAN_PROGRAMS);
    if debian.join("rabbitmq-server").is_file() {
        return Ok(debian.to_owned());
    }
    let program = find_program("rabbitmq-server", PACKAGE)?;
    Ok(program.parent().unwrap_or(debian).to_owned())
}

#[derive(Debug)]
struct Rabbitmq {
    programs: PathBuf,
    /// Told to every client, so we know that it is ours who answers.
    name: String,
    port: u16,
    nodes_port: u16,
    tls: Option<(u16, Certificates)>,
    port_mapper: PortMapper,
}

impl Rabbitmq {
    fn prepare(
        programs: &Path,
        folder: &Path,
        settings: &str,
        tls: Option<(u16, Certificates)>,
    ) -> io::Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (port, nodes_port) = (free_port()?, free_port()?);
        fs::write(folder.join("plugins"), "[rabbitmq_amqp1_0,rabbitmq_auth_mechanism_ssl].\n")?;
        fs::write(folder.join(".erlang.cookie"), &name)?;
        fs::set_permissions(folder.join(".erlang.cookie"), fs::Permissions::from_mode(0o400))?;
        let kind = Self {
            programs: programs.to_owned(),
            name,
            port,
            nodes_port,
            tls,
            port_mapper: PortMapper::start(folder)?,
        };
        fs::write(folder.join("rabbitmq.conf"), kind.settings() + settings)?;
        Ok(kind)
    }

    fn settings(&self) -> String {
        let Self { name, port, .. } = self;
        let mut settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\n\
             cluster_name = {name}\n\
             log.file = false\n\
             log.console = true\n\
             # A machine that runs tests is often short of disk and memory, which would block publishers.\n\
             disk_free_limit.absolute = 10MB\n\
             vm_memory_high_watermark.relative = 0.9\n"
        );
        if let Some((port, files)) = &self.tls {
            settings += &format!(
                "listeners.ssl.1 = 127.0.0.1:{port}\n\
                 ssl_options.cacertfile = {}\n\
                 ssl_options.certfile = {}\n\
                 ssl_options.keyfile = {}\n\
                 # Clients may show a certificate, to log in with it.\n\
                 ssl_options.verify = verify_peer\n\
                 ssl_options.fail_if_no_peer_cert = false\n\
                 auth_mechanisms.1 = PLAIN\n\
                 auth_mechanisms.2 = AMQPLAIN\n\
                 auth_mechanisms.3 = EXTERNAL\n",
                files.authority.display(),
                files.certificate.display(),
                files.key.display()
            );
        }
        settings
    }

    /// One of RabbitMQ's programs; all of them need to be told whose they are.
    fn program(&self, program: &str, folder: &Path) -> Command {
        let mut command = server::command(self.programs.join(program), folder);
        command
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.port_mapper.port.to_string())
            .env("RABBITMQ_NODENAME", "oncebox@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.nodes_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq"))
            .env("RABBITMQ_CONF_ENV_FILE", folder.join("no-such-file"));
        command
    }

    /// Logs in as a client would and opens the virtual host.
    fn opens(&self) -> io::Result<bool> {
        let mut stream = connect(self.port)?;
        stream.write_all(b"AMQP\0\0\x09\x01")?;
        let start = frame(&mut stream)?;
        let greets = start.starts_with(&[0, 10, 0, 10]);
        if !greets || !start.windows(self.name.len()).any(|part| part == self.name.as_bytes()) {
            return Ok(false);
        }
        stream.write_all(&method(b"\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US"))?;
        let tune = frame(&mut stream)?;
        if !tune.starts_with(&[0, 10, 0, 30]) || tune.len() < 10 {
            return Ok(false);
        }
        // The limits it offers, and no heartbeats.
        let agree = [b"\0\x0a\0\x1f".as_slice(), &tune[4..10], b"\0\0"].concat();
        stream.write_all(&method(&agree))?;
        stream.write_all(&method(b"\0\x0a\0\x28\x01/\0\0"))?;
        if !frame(&mut stream)?.starts_with(&[0, 10, 0, 41]) {
            return Ok(false);
        }
        stream.write_all(&method(b"\0\x0a\0\x32\0\xc8\0\0\0\0\0"))?;
        Ok(frame(&mut stream)?.starts_with(&[0, 10, 0, 51]))
    }

    fn speaks_amqp_1(&self) -> io::Result<bool> {
        let header = *b"AMQP\x03\x01\0\0";
        let mut stream = connect(self.port)?;
        stream.write_all(&header)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(answer == header)
    }
}

impl Kind for Rabbitmq {
    const NAME: &'static str = "RabbitMQ";

    fn command(&self, folder: &Path) -> Command {
        let mut command = self.program("rabbitmq-server", folder);
        // Otherwise a shell stays around the server, which a signal would kill instead. There is no input all the
        // same.
        command.env("RABBITMQ_ALLOW_INPUT", "true");
        let arguments = "-noinput -kernel inet_dist_use_interface {127,0,0,1}";
        command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", arguments);
        command
    }

    fn is_ready(&self, _process: u32) -> io::Result<bool> {
        if let Some((port, _)) = &self.tls {
            connect(*port)?;
        }
        Ok(self.opens()? && self.speaks_amqp_1()?)
    }
}

/// The payload of the next frame.
fn frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut payload = vec![0; usize::try_from(length.min(1 << 20)).map_err(io::Error::other)? + 1];
    stream.read_exact(&mut payload)?;
    payload.pop(); // the mark at the end of a frame
    Ok(payload)
}

/// The frame of a method of the connection.
fn method(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    [b"\x01\0\0".as_slice(), &length, payload, b"\xce"].concat()
}

/// Tells `rabbitmqctl` on which port the server listens for it. RabbitMQ would start one by itself, which stays for
/// ever; this one ends with the server's folder.
#[derive(Debug)]
struct PortMapper {
    port: u16,
    process: Child,
}

impl PortMapper {
    fn start(folder: &Path) -> io::Result<Self> {
        let program = find_program("epmd", "erlang-base")?;
        let port = free_port()?;
        let mut command = server::command(program, folder);
        command.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut mapper = Self { port, process };
        let started_at = Instant::now();
        while connect(port).is_err() {
            if mapper.process.try_wait()?.is_some() || started_at.elapsed() > PORT_MAPPER_WITHIN {
                return Err(io::Error::other("the port mapper `epmd` of RabbitMQ did not start"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(mapper)
    }
}

impl Drop for PortMapper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
