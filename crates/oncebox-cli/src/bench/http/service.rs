//! The service as a process: this same binary, with a configuration of its own.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::connection::Connection;
use crate::target::Place;

/// The address may hold a password, so it goes through the environment.
const STORE: &str = "ONCEBOX_BENCH_STORE";
const PATIENCE: Duration = Duration::from_secs(60);

/// A running service; killed on drop.
pub(super) struct Service {
    child: Child,
    pub(super) address: SocketAddr,
    /// From starting the process until it said that it is ready.
    pub(super) start_ms: f64,
    /// Its configuration is in there.
    _folder: TempDir,
}

impl Service {
    /// Starts it and waits until it is ready.
    pub(super) async fn start(place: &Place) -> Result<Self, String> {
        let folder =
            tempfile::tempdir().map_err(|error| format!("no temporary folder can be made: {error}"))?;
        let path = folder.path().join("oncebox.toml");
        std::fs::write(&path, config(place)).map_err(|error| format!("{}: {error}", path.display()))?;
        let binary =
            std::env::current_exe().map_err(|error| format!("this binary cannot be found: {error}"))?;
        let started = Instant::now();
        let mut child = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(&path)
            .env(STORE, &place.url)
            .env_remove("ONCEBOX_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("the service cannot be started: {error}"))?;
        let stderr = child.stderr.take().ok_or("the service has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let address = tokio::time::timeout(PATIENCE, listening(&mut lines))
            .await
            .map_err(|_| "the service does not listen".to_owned())??;
        // Read on, or the service would wait for us some day.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let mut connection = Connection::open(address).await?;
        let question = b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n";
        while connection.ask(question).await? != 200 {
            if started.elapsed() > PATIENCE {
                return Err("the service does not become ready".to_owned());
            }
        }
        let start_ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(Self { child, address, start_ms, _folder: folder })
    }

    /// Its resident memory in MiB, where the system can tell: the most that is seen in this time.
    pub(super) async fn memory_at_rest(&self, time: Duration) -> Option<f64> {
        let started = Instant::now();
        let mut most = self.memory()?;
        while started.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(50)).await;
            most = most.max(self.memory()?);
        }
        Some((most * 10.0).round() / 10.0)
    }

    fn memory(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes / 1024.0)
    }

    /// Ends it as an operator would.
    pub(super) async fn stop(mut self) -> Result<(), String> {
        let id =
            self.child.id().and_then(|id| i32::try_from(id).ok()).ok_or("the service has ended by itself")?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGTERM)
            .map_err(|error| format!("the service cannot be stopped: {error}"))?;
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("the service ended with {status}")),
            Ok(Err(error)) => Err(format!("the service cannot be waited for: {error}")),
            Err(_) => Err("the service does not stop".to_owned()),
        }
    }
}

/// One handler that wants everything and is paused, so that every message waits.
fn config(place: &Place) -> String {
    // On SQLite the schema would be how the tables are called.
    let schema = if place.url.starts_with("sqlite:") { "" } else { &place.schema };
    format!(
        "[store]\nurl = \"${{{STORE}}}\"\nschema = \"{schema}\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n\
         [log]\nformat = \"json\"\n\
         [health]\nmax_lag = \"0s\"\n\
         [handler.paused]\non = [\"*\"]\nsql = \"select :id\"\npaused = true\n"
    )
}

async fn listening(lines: &mut Lines<BufReader<ChildStderr>>) -> Result<SocketAddr, String> {
    let mut last = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        if value["message"] == "listening"
            && let Some(address) = value["address"].as_str().and_then(|address| address.parse().ok())
        {
            return Ok(address);
        }
        last = line;
    }
    Err(format!("the service did not start: {last}"))
}
