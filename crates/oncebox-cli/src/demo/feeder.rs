//! The at-least-once source of the demo: it hands messages to runners over pipes, and hands them over again
//! when a runner dies without having acknowledged them.

use std::collections::{HashMap, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oncebox::clock::Seed;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::target::Place;

/// How many messages a runner may have unacknowledged.
const WINDOW: usize = 400;

/// Deliveries still to be made, and those a runner has not acknowledged.
pub(crate) struct Feeder {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    queue: VecDeque<String>,
    unacknowledged: HashMap<u64, (usize, String)>,
    next_receipt: u64,
    /// Nothing is handed over beyond this many deliveries: whoever kills runners raises it.
    allowed: u64,
    deliveries: u64,
}

impl Feeder {
    /// Each message is to be delivered 1 to `most_copies` times, copies near and far from each other.
    pub(crate) fn new(ids: &[String], most_copies: u64, seed: &Seed) -> Arc<Self> {
        let mut deliveries: Vec<(u64, &String)> = Vec::new();
        for (place, id) in ids.iter().enumerate() {
            let place = place as u64 * 10;
            for copy in 0..=(seed.next() % most_copies.max(1)) {
                // Half of the copies come right behind the message, in the same batch; the others much later.
                let distance =
                    if copy == 0 || seed.next().is_multiple_of(2) { 20 } else { ids.len() as u64 * 5 };
                deliveries.push((place + seed.next() % distance.max(1), id));
            }
        }
        deliveries.sort();
        let queue = deliveries.into_iter().map(|(_, id)| id.clone()).collect();
        Arc::new(Self {
            state: Mutex::new(State {
                queue,
                unacknowledged: HashMap::new(),
                next_receipt: 0,
                allowed: 0,
                deliveries: 0,
            }),
            changed: Notify::new(),
        })
    }

    pub(crate) fn planned(&self) -> u64 {
        self.lock().queue.len() as u64
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.lock().deliveries
    }

    pub(crate) fn is_finished(&self) -> bool {
        let state = self.lock();
        state.queue.is_empty() && state.unacknowledged.is_empty()
    }

    /// Lets deliveries go on up to this many.
    pub(crate) fn allow(&self, deliveries: u64) {
        self.lock().allowed = deliveries;
        self.changed.notify_waiters();
    }

    /// Returns when so many deliveries have been made, or none are left.
    pub(crate) async fn reached(&self, deliveries: u64) {
        self.wait_until(|state| state.deliveries >= deliveries || state.queue.is_empty()).await;
    }

    /// Returns when everything is acknowledged.
    pub(crate) async fn finished(&self) {
        self.wait_until(|state| state.queue.is_empty() && state.unacknowledged.is_empty()).await;
    }

    async fn wait_until(&self, is_true: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_true(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// The next deliveries for a runner; waits until there are some.
    async fn next_for(&self, runner: usize) -> Vec<(u64, String)> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let taken = self.take(runner);
            if !taken.is_empty() {
                self.changed.notify_waiters();
                return taken;
            }
            changed.await;
        }
    }

    fn take(&self, runner: usize) -> Vec<(u64, String)> {
        let mut state = self.lock();
        let own = state.unacknowledged.values().filter(|(owner, _)| *owner == runner).count();
        let allowed = usize::try_from(state.allowed.saturating_sub(state.deliveries)).unwrap_or(usize::MAX);
        let count = WINDOW.saturating_sub(own).min(allowed).min(state.queue.len()).min(100);
        let ids: Vec<String> = state.queue.drain(..count).collect();
        let mut taken = Vec::with_capacity(count);
        for id in ids {
            let receipt = state.next_receipt;
            state.next_receipt += 1;
            state.deliveries += 1;
            state.unacknowledged.insert(receipt, (runner, id.clone()));
            taken.push((receipt, id));
        }
        taken
    }

    fn settle(&self, line: &str) {
        let mut words = line.split(' ');
        let (Some(word), Some(Ok(receipt))) = (words.next(), words.next().map(str::parse::<u64>)) else {
            return;
        };
        let mut state = self.lock();
        let settled = state.unacknowledged.remove(&receipt);
        if let (Some((_, id)), "return") = (settled, word) {
            state.queue.push_back(id);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// What a dead runner has not acknowledged is delivered again.
    fn lost_runner(&self, runner: usize) {
        let mut state = self.lock();
        let receipts: Vec<u64> = state
            .unacknowledged
            .iter()
            .filter(|(_, (owner, _))| *owner == runner)
            .map(|(receipt, _)| *receipt)
            .collect();
        for receipt in receipts {
            if let Some((_, id)) = state.unacknowledged.remove(&receipt) {
                state.queue.push_front(id);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running process of the demo.
pub(crate) struct Runner {
    child: Child,
    writer: JoinHandle<Option<ChildStdin>>,
    reader: JoinHandle<()>,
    feeder: Arc<Feeder>,
    number: usize,
}

impl Runner {
    /// Starts this program again as a runner. `number` is never used twice.
    pub(crate) fn start(feeder: &Arc<Feeder>, place: &Place, number: usize) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut child = Command::new(program)
            .args(["demo-runner", "--store", &place.url, "--schema", &place.schema])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("a runner could not be started: {error}"))?;
        let stdin = child.stdin.take().ok_or("a runner has no stdin")?;
        let stdout = child.stdout.take().ok_or("a runner has no stdout")?;
        let source = feeder.clone();
        let writer = tokio::spawn(write_deliveries(source, stdin, number));
        let source = feeder.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                source.settle(&line);
            }
        });
        Ok(Self { child, writer, reader, feeder: feeder.clone(), number })
    }

    /// `kill -9`, then delivers again what it had.
    pub(crate) async fn kill(mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|error| format!("a runner could not be killed: {error}"))?;
        self.bury().await;
        Ok(())
    }

    /// Stops or continues the process (`SIGSTOP`, `SIGCONT`).
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or("a runner has ended")?;
        kill(Pid::from_raw(pid), signal).map_err(|error| format!("a runner could not be signalled: {error}"))
    }

    /// The status with which it ended by itself, if it has.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Closes its stdin and waits until it has finished what it had begun.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        self.writer.abort();
        let _ = (&mut self.writer).await;
        let status =
            self.child.wait().await.map_err(|error| format!("a runner could not be waited for: {error}"))?;
        self.bury().await;
        if status.success() { Ok(()) } else { Err(format!("a runner failed: {status}")) }
    }

    async fn bury(&mut self) {
        self.writer.abort();
        // Acknowledgements it has written before it died still count.
        let _ = (&mut self.reader).await;
        self.feeder.lost_runner(self.number);
    }
}

async fn write_deliveries(feeder: Arc<Feeder>, mut stdin: ChildStdin, runner: usize) -> Option<ChildStdin> {
    loop {
        let mut text = String::new();
        for (receipt, id) in feeder.next_for(runner).await {
            text.push_str(&format!("{receipt} {id}\n"));
        }
        if stdin.write_all(text.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return None;
        }
    }
}
