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
pub const METHODS: [&str; 29] = [
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
    "wanted_kinds",
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

/// The faults to try in one method, on both sides of the effect: at its first, middle and last call where that is
/// cheap, else at the first two of these, or at one when later calls are hit as well.
pub(crate) async fn faults_in<T: Subject>(calls: &Calls, method: &'static str, how: How) -> Vec<Fault> {
    let calls = calls.get_or_init(learn::<T>).await;
    let Some(&last) = calls.get(method) else { return Vec::new() };
    let middle = last.div_ceil(2);
    let mut points = match how {
        How::ErrorOnce | How::Hang => vec![1, middle, last],
        How::Stall | How::Kill => vec![1, middle],
        How::ErrorForEver | How::Broken => vec![middle],
    };
    points.dedup();
    let sides = [Side::Before, Side::After];
    points.into_iter().flat_map(|call| sides.map(|side| Fault { method, call, side, how })).collect()
}

/// Hints and outcomes that come close together share a call, and each round of a drain claims and leases once, however
/// much has come to an end since the last, and receivers ask every ten seconds which kinds are wanted: a run may have
/// fewer calls than the one that counted.
pub(crate) fn may_be_missed(fault: Fault) -> bool {
    fault.call > 1 && matches!(fault.method, "announce" | "settle" | "lease" | "claim" | "wanted_kinds")
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
    assert!(plan.has_struck() || may_be_missed(fault), "the fault never happened");
    check(&subject, &journal).await;
}

/// Stands still in this method, on both sides of its effect, while another process takes over and finishes; then
/// goes on with what it believes to hold.
///
/// # Panics
/// When an invariant does not hold; the text names the fault.
pub async fn stall_in<T: Subject>(calls: &Calls, method: &'static str) {
    for fault in faults_in::<T>(calls, method, How::Stall).await {
        // Behind a begun transaction others wait, as they should; here everybody else must get on.
        if fault.side == Side::After && method.starts_with("begin_") {
            continue;
        }
        let Some(subject) = T::create().await else { return };
        naming(fault, be_overtaken(subject, fault)).await;
    }
}

async fn be_overtaken<T: Subject>(subject: T, fault: Fault) {
    let (plan, journal) = (Plan::with(fault), Journal::create());
    let slow = Scenario::start(&subject, subject.store(), plan.clone(), &journal);
    let mut slow_life = Box::pin(slow.live());
    tokio::select! {
        lived = &mut slow_life => {
            assert!(may_be_missed(fault), "the fault never happened: {lived:?}");
            return;
        }
        () = plan.struck() => {}
    }
    subject.clock().advance(PAST_EVERYTHING);
    let quick = Scenario::start(&subject, subject.reopen().await, Plan::none(), &journal);
    quick.live().await.expect("nobody is in the way");
    quick.finish().await;
    plan.heal();
    // It may find out that it has been overtaken, and say so.
    let _ = slow_life.await;
    quick.finish().await;
    check(&subject, &journal).await;
}

/// A process stands still with work in hand; so does the one that took the work over; then the first goes on.
pub async fn an_overtaken_process_leaves_the_work_to_its_successor<T: Subject>(_available: T) {
    for method in ["begin_lanes", "begin_leased"] {
        let fault = Fault { method, call: 1, side: Side::Before, how: How::Stall };
        let Some(subject) = T::create().await else { return };
        naming(fault, be_overtaken_by_a_slow_one(subject, fault)).await;
    }
}

async fn be_overtaken_by_a_slow_one<T: Subject>(subject: T, fault: Fault) {
    let journal = Journal::create();
    let (first_plan, second_plan) = (Plan::with(fault), Plan::with(fault));
    let first = Scenario::start(&subject, subject.store(), first_plan.clone(), &journal);
    let mut first_life = Box::pin(first.live());
    tokio::select! {
        lived = &mut first_life => panic!("the fault never happened: {lived:?}"),
        () = first_plan.struck() => {}
    }
    subject.clock().advance(PAST_EVERYTHING);
    let second = Scenario::start(&subject, subject.reopen().await, second_plan.clone(), &journal);
    let mut second_life = Box::pin(second.live());
    tokio::select! {
        lived = &mut second_life => panic!("the work was not taken over: {lived:?}"),
        () = second_plan.struck() => {}
    }
    // Each may find out that it has been overtaken, and say so.
    first_plan.heal();
    let _ = first_life.await;
    second_plan.heal();
    let _ = second_life.await;
    let last = Scenario::start(&subject, subject.reopen().await, Plan::none(), &journal);
    last.live().await.expect("nobody is in the way");
    last.finish().await;
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
