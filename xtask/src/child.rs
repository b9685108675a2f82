//! A program that xtask runs and never leaves behind.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Error;
use crate::interrupt;

const POLL: Duration = Duration::from_millis(20);
const GRACE: Duration = Duration::from_secs(5);

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited by itself.
    Exited(ExitStatus),
    /// It was still running at the limit and was stopped.
    TooLong,
}

/// Runs a program to its end; its output goes straight through.
///
/// When interrupted, stops the program with everything it started and returns [`Error::Interrupted`].
pub fn run(command: &mut Command) -> Result<Ending, Error> {
    run_for(command, Duration::MAX)
}

/// Like [`run`], but stops the program when it is still running after `limit`.
pub fn run_for(command: &mut Command, limit: Duration) -> Result<Ending, Error> {
    interrupt::check()?;
    let started_at = Instant::now();
    let mut group = Group::spawn(command)?;
    loop {
        if let Some(status) = group.status()? {
            return Ok(Ending::Exited(status));
        }
        interrupt::check()?;
        if started_at.elapsed() >= limit {
            return Ok(Ending::TooLong);
        }
        thread::sleep(POLL);
    }
}

/// A child that leads its own process group.
///
/// Ctrl-C on a terminal therefore reaches only xtask, which then stops the whole group: cargo, the compilers and
/// the test binaries.
struct Group {
    leader: Child,
    running: bool,
}

impl Group {
    fn spawn(command: &mut Command) -> Result<Self, Error> {
        command.stdin(Stdio::null()).process_group(0);
        let leader = command.spawn().map_err(|error| {
            Error::Environment(format!("cannot run `{}`: {error}", command.get_program().display()))
        })?;
        Ok(Self { leader, running: true })
    }

    fn status(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status = self
            .leader
            .try_wait()
            .map_err(|error| Error::Environment(format!("cannot wait for a program: {error}")))?;
        self.running = status.is_none();
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        let Ok(id) = i32::try_from(self.leader.id()) else { return };
        // Fails only when the group is already gone, which is what we want.
        let _ = killpg(Pid::from_raw(id), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.running {
            return;
        }
        self.signal(Signal::SIGTERM);
        let asked_at = Instant::now();
        while asked_at.elapsed() < GRACE && matches!(self.leader.try_wait(), Ok(None)) {
            thread::sleep(POLL);
        }
        // The leader may be gone while one of its children ignores SIGTERM.
        self.signal(Signal::SIGKILL);
        let _ = self.leader.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_passed_on() {
        let ending = run(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        let Ending::Exited(status) = ending else { panic!("{ending:?}") };
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_program_over_its_limit_is_stopped_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let id_file = folder.path().join("id");
        let script = format!("sleep 600 & echo $! > {}; wait", id_file.display());
        let ending = run_for(Command::new("sh").args(["-c", &script]), Duration::from_millis(500)).unwrap();
        assert_eq!(ending, Ending::TooLong);

        let id = std::fs::read_to_string(&id_file).unwrap();
        let stat_file = format!("/proc/{}/stat", id.trim());
        let stopped_at = Instant::now();
        // The signal has been sent, but nobody tells us when a grandchild has died of it.
        while std::fs::read_to_string(&stat_file).is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(stopped_at.elapsed() < Duration::from_secs(10), "the child of the program still runs");
            thread::sleep(POLL);
        }
    }
}
