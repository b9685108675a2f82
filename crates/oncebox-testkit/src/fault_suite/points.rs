//! Fails inside the process, before and after the effect of every store call, and counts effects.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::sync::OnceCell;

use crate::fault_suite::invariants::check;
use crate::fault_suite::journal::Journal;
use crate::fault_suite::scenario::{PAST_EVERYTHING, Scenario};
use crate::faults::{Fault, How, Plan, Side};
use crate::subject::Subject;

/// Every method of a store that the scenario calls; `renew` needs time to pass and has a case of its own.
pub const METHODS: [&str; 28] = [
    "receive",
    "register",
    "claim",
    "release",
    "begin_lanes",
    "begin_leased",
    "begin_inline",
    "begin_plain",
    "commit",
    "lease",
    "settle",
    "once",
    "publish",
    "lease_outgoing",
    "settle_outgoing",
    "set_paused",
    "forget",
    "deliveries",
    "replay",
    "discard",
    "replay_outgoing",
    "conflicts",
    "handlers",
    "outbox",
    "add_counts",
    "counts",
    "purge",
    "announce",
];

/// How often each method is called, learnt once per test binary.
pub type Calls = OnceCell<BTreeMap<&'static str, usize>>;

/// Fails this method in this way at each of its points, each time on a fresh store.
///
/// # Panics
/// When an invariant does not hold; the text names the fault.
pub async fn fail_in<T: Subject>(calls: &Calls, method: &'static str, how: How) {
    for fault in faults_in::<T>(calls, method, how).await {
        let Some(subject) = T::create().await else { return };
        naming(fault, survive(subject, fault)).await;
    }
}

/// The faults to try in one method: its first, middle and last call, on both sides of the effect.
pub(crate) async fn faults_in<T: Subject>(calls: &Calls, method: &'static str, how: How) -> Vec<Fault> {
    let calls = calls.get_or_init(learn::<T>).await;
    let points = match calls.get(method).copied().unwrap_or(0) {
        0 => Vec::new(),
        // How many hints follow the first depends on how fast the machine is.
        _ if method == "announce" => vec![1],
        few @ 1..=3 => (1..=few).collect(),
        many => vec![1, many / 2, many],
    };
    let sides = [Side::Before, Side::After];
    points
        .into_iter()
        .flat_map(|call| sides.map(|side| Fault { method, call, side, how }))
        .collect()
}

/// Lives without a fault and counts calls.
async fn learn<T: Subject>() -> BTreeMap<&'static str, usize> {
    let Some(subject) = T::create().await else { return BTreeMap::new() };
    let (plan, journal) = (Plan::none(), Journal::create());
    Scenario::start(&subject, subject.store(), plan.clone(), &journal).live().await.unwrap();
    let calls = plan.calls();
    assert!(METHODS.iter().all(|method| calls.contains_key(method)), "not every method is called: {calls:?}");
    calls
}

/// Nothing fails: the scenario itself is right, and it calls every method of the list.
pub async fn without_a_fault_everything_holds<T: Subject>(subject: T) {
    let (plan, journal) = (Plan::none(), Journal::create());
    let scenario = Scenario::start(&subject, subject.store(), plan.clone(), &journal);
    scenario.live().await.unwrap();
    for method in plan.calls().keys() {
        assert!(METHODS.contains(method), "`{method}` is called and has no fault point");
    }
    scenario.finish().await;
    check(&subject, &journal).await;
}

/// Lives with one fault, goes on as a restarted process would, and checks.
async fn survive<T: Subject>(subject: T, fault: Fault) {
    let (plan, journal) = (Plan::with(fault), Journal::create());
    let store = subject.store();
    let mut failures = 0;
    loop {
        let scenario = Scenario::start(&subject, store.clone(), plan.clone(), &journal);
        let lived = match fault.how {
            How::Hang if !plan.has_struck() => tokio::select! {
                lived = scenario.live() => lived.map(|()| true),
                () = plan.struck() => Ok(false),
            },
            _ => scenario.live().await.map(|()| true),
        };
        match lived {
            Ok(true) => {
                plan.heal();
                scenario.finish().await;
                break;
            }
            Ok(false) => {}
            Err(error) => {
                failures += 1;
                assert!(failures < 10, "the scenario keeps failing: {error}");
                // "For ever" is until somebody has mended it.
                if failures == 2 {
                    plan.heal();
                }
            }
        }
        subject.clock().advance(PAST_EVERYTHING);
    }
    assert!(plan.has_struck(), "the fault never happened");
    check(&subject, &journal).await;
}

/// Says which fault it was when something does not hold.
pub(crate) async fn naming(fault: Fault, case: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(case).catch_unwind().await {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        let Fault { method, call, side, how } = fault;
        panic!("{how:?} {side:?} call {call} of `{method}`: {text}");
    }
}
