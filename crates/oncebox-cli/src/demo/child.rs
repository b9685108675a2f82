//! A runner as a child process, fed over pipes.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::feeder::{Feeder, id_of};
use crate::target::Place;

/// How long a killed process may take to be gone: it may wait for a disk.
const PATIENCE_WITH_THE_DEAD: Duration = Duration::from_secs(30);

/// A running process of the demo.
pub(crate) struct Runner {
    child: Child,
    writer: JoinHandle<Option<ChildStdin>>,
    reader: JoinHandle<()>,
    feeder: Arc<Feeder>,
    pub(crate) number: usize,
    /// When it is to go on, while it is frozen.
    pub(crate) frozen_until: Option<Instant>,
}

impl Runner {
    /// Starts this program again as a runner. `number` is never used twice.
    pub(crate) fn start(feeder: &Arc<Feeder>, place: &Place, number: usize) -> Result<Self, String> {
        let mut command = Command::new(this_program()?);
        command.arg0("oncebox");
        command.args(["demo-runner", "--store", &place.url, "--schema", &place.schema]);
        // A transaction that is silent for longer is ended by the server. Some frozen runners find theirs ended and their
        // lanes with others; some hold them still and go on.
        let timeout = if number.is_multiple_of(2) { "3" } else { "30" };
        command.args(["--timeout", timeout]);
        Self::spawn(command, feeder, number)
    }

    fn spawn(mut command: Command, feeder: &Arc<Feeder>, number: usize) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // In a group of its own a Ctrl-C in the terminal is for the demo only, which then ends its runners.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| format!("a runner could not be started: {error}"))?;
        let stdin = child.stdin.take().ok_or("a runner has no stdin")?;
        let stdout = child.stdout.take().ok_or("a runner has no stdout")?;
        let writer = tokio::spawn(write_deliveries(feeder.clone(), stdin, number));
        let source = feeder.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                source.settle(&line);
            }
        });
        Ok(Self { child, writer, reader, feeder: feeder.clone(), number, frozen_until: None })
    }

    /// `kill -9`, also of a frozen one, then delivers again what it had. Answers how much that was.
    ///
    /// Fails when it had ended by itself before.
    pub(crate) async fn kill(&mut self) -> Result<usize, String> {
        let (status, held) = self.end().await?;
        match status.signal() {
            Some(signal) if signal == Signal::SIGKILL as i32 => Ok(held),
            _ => Err(format!("a runner ended by itself: {status}")),
        }
    }

    /// The same, whether it still runs or not.
    pub(crate) async fn end(&mut self) -> Result<(ExitStatus, usize), String> {
        let told = |error: std::io::Error| format!("a runner could not be killed: {error}");
        self.child.start_kill().map_err(told)?;
        let status = match timeout(PATIENCE_WITH_THE_DEAD, self.child.wait()).await {
            Ok(gone) => gone.map_err(told)?,
            Err(_) => return Err(format!("a killed runner is still there after {PATIENCE_WITH_THE_DEAD:?}")),
        };
        Ok((status, self.bury().await))
    }

    /// Stops the process for so long (`SIGSTOP`), and delivers to others what it had.
    pub(crate) fn freeze(&mut self, time: Duration) -> Result<(), String> {
        self.signal(Signal::SIGSTOP)?;
        self.feeder.frozen(self.number);
        self.frozen_until = Some(Instant::now() + time);
        Ok(())
    }

    /// Lets it go on (`SIGCONT`) when its time is over.
    pub(crate) fn thaw_if_due(&mut self) -> Result<(), String> {
        if self.frozen_until.is_some_and(|until| until <= Instant::now()) {
            self.frozen_until = None;
            self.signal(Signal::SIGCONT)?;
            self.feeder.awake(self.number);
        }
        Ok(())
    }

    /// The status with which it ended by itself, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Closes its stdin and waits until it has finished what it had begun. Kills it when it does not.
    pub(crate) async fn stop(&mut self, patience: Duration) -> Result<(), String> {
        self.writer.abort();
        let _ = (&mut self.writer).await;
        let Ok(ended) = timeout(patience, self.child.wait()).await else {
            self.end().await?;
            return Err(format!("a runner did not end within {patience:?} after it was told to"));
        };
        let status = ended.map_err(|error| format!("a runner could not be waited for: {error}"))?;
        self.bury().await;
        if status.success() { Ok(()) } else { Err(format!("a runner failed: {status}")) }
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or("a runner has ended")?;
        kill(Pid::from_raw(pid), signal).map_err(|error| format!("a runner could not be signalled: {error}"))
    }

    async fn bury(&mut self) -> usize {
        self.writer.abort();
        // A poll of it that is under way on another thread would take deliveries for nobody.
        if !self.writer.is_finished() {
            let _ = (&mut self.writer).await;
        }
        // Acknowledgements it has written before it died still count.
        if !self.reader.is_finished() {
            let _ = (&mut self.reader).await;
        }
        self.feeder.lost(self.number)
    }
}

/// On Linux the one that is running, even when its file was built anew meanwhile.
fn this_program() -> Result<PathBuf, String> {
    let itself = Path::new("/proc/self/exe");
    if itself.exists() {
        return Ok(itself.to_owned());
    }
    std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))
}

async fn write_deliveries(feeder: Arc<Feeder>, mut stdin: ChildStdin, runner: usize) -> Option<ChildStdin> {
    loop {
        let mut text = String::new();
        for (receipt, message) in feeder.next_for(runner).await {
            text.push_str(&format!("{receipt} {}\n", id_of(message)));
        }
        if stdin.write_all(text.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use oncebox::clock::Seed;

    use super::*;

    /// It would hide a fault of the runner, and count as a kill.
    #[tokio::test]
    async fn a_runner_that_ended_by_itself_was_not_killed() {
        let feeder = Feeder::new(1, 1, &Seed::fixed(1));
        let mut runner = Runner::spawn(Command::new("false"), &feeder, 1).expect("it is there");
        // Its stdout is closed.
        (&mut runner.reader).await.expect("it ends");
        let error = runner.kill().await.expect_err("it is gone");
        assert!(error.contains("ended by itself"), "{error}");
    }

    #[tokio::test]
    async fn a_runner_that_does_not_end_is_killed_and_told_of() {
        let feeder = Feeder::new(1, 1, &Seed::fixed(1));
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut runner = Runner::spawn(command, &feeder, 1).expect("sleep is there");
        let error = runner.stop(Duration::from_millis(20)).await.expect_err("it sleeps on");
        assert!(error.contains("did not end within 20ms"), "{error}");
        assert!(runner.ended().is_some(), "it is dead");
    }
}
