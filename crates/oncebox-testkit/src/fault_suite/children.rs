//! Real processes that die: each child is this test binary, told by a variable what to do.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use oncebox_core::clock::ClockShift;
use serde::{Deserialize, Serialize};

use crate::fault_suite::journal::Journal;
use crate::fault_suite::points::METHODS;
use crate::fault_suite::{deadly, scenario};
use crate::faults::{Fault, How, Plan, Side};
use crate::subject::Subject;
use crate::wait::until;

/// The variable that makes a test binary a child.
const ORDER: &str = "ONCEBOX_TESTKIT_CHILD";

/// What a child is to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Live the scenario and die at this point of it: the method's place in the list, the call, before its effect.
    DieIn { method: usize, call: usize, before: bool },
    /// Run what is ready, with a message among it that kills the process.
    DrainDeadly,
    /// Run until killed.
    Run,
}

impl Role {
    pub(crate) fn die_in(fault: Fault) -> Self {
        let method = METHODS.iter().position(|method| *method == fault.method);
        let method = method.expect("faults are in methods of the list");
        Self::DieIn { method, call: fault.call, before: fault.side == Side::Before }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    address: String,
    journal: PathBuf,
    shift: i64,
    role: Role,
}

/// The test that a child runs; in the parent process it has nothing to do.
pub async fn work<T: Subject>() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let Order { address, journal, shift, role } =
        serde_json::from_str(&order).expect("an order from our parent");
    let subject = T::attach(&address).await;
    catch_up(&subject.clock(), shift);
    let journal = Journal::open(&journal);
    match role {
        Role::DieIn { method, call, before } => {
            let side = if before { Side::Before } else { Side::After };
            let plan = Plan::with(Fault { method: METHODS[method], call, side, how: How::Kill });
            let scenario = scenario::Scenario::start(&subject, subject.store(), plan, &journal);
            scenario.live().await.expect("nothing fails before the process dies");
        }
        Role::DrainDeadly => deadly::drain(&subject, &journal).await,
        Role::Run => deadly::run_until_killed(&subject, &journal).await,
    }
}

/// A child's clock starts where its parent's stands.
fn catch_up(clock: &ClockShift, shift: i64) {
    let behind = u64::try_from(shift - clock.micros()).unwrap_or(0);
    clock.advance(Duration::from_micros(behind));
}

/// A child process; killed when dropped, so that a failing case leaves nothing behind.
pub(crate) struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts this test binary again, on the same store, with nothing but the test that is for children.
    pub(crate) fn start<T: Subject>(subject: &T, journal: &Journal, test: &str, role: Role) -> Self {
        let order = Order {
            address: subject.address(),
            journal: journal.path().to_owned(),
            shift: subject.clock().micros(),
            role,
        };
        let output = journal.path().with_extension("output");
        let file = File::create(&output).unwrap();
        let binary = std::env::current_exe().expect("a test binary knows where it is");
        let child = Command::new(binary)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ORDER, serde_json::to_string(&order).unwrap())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .expect("the test binary can be started again");
        Self { child, output }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> Ended {
        let mut status: Option<ExitStatus> = None;
        until("the child ends", || {
            status = self.child.try_wait().expect("the child is ours");
            std::future::ready(status.is_some())
        })
        .await;
        let output = std::fs::read_to_string(&self.output).unwrap_or_default();
        Ended { signal: status.and_then(|status| status.signal()), output }
    }

    /// True while it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child is ours").is_none()
    }

    /// `kill -9`, and waits for its end.
    pub(crate) async fn kill(&mut self) -> Ended {
        self.child.kill().expect("the child is ours");
        self.ended().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    signal: Option<i32>,
    output: String,
}

impl Ended {
    /// True when it ended itself by `abort`; false when it finished.
    ///
    /// # Panics
    /// When it ended in any other way, or did not run the test at all.
    pub(crate) fn aborted(&self) -> bool {
        const ABORT: i32 = 6;
        assert!(!self.output.contains("panicked"), "a child failed: {}", self.output);
        assert!(self.output.contains("running 1 test"), "a child ran no test: {}", self.output);
        match self.signal {
            Some(ABORT) => true,
            None => false,
            Some(signal) => panic!("a child ended by signal {signal}: {}", self.output),
        }
    }
}

/// The name of a test in the calling module, as the test binary's `--exact` wants it.
pub fn test_in(module_path: &str, name: &str) -> String {
    match module_path.split_once("::") {
        Some((_crate, module)) => format!("{module}::{name}"),
        None => name.to_owned(),
    }
}
