//! Faults while the lease of a long-running outside handler is prolonged.
//!
//! Leases are prolonged after a third of their ten seconds of real time, so the faults are tried side by side.

use std::time::Duration;

use futures_util::future::join_all;
use oncebox_core::admin::DeliveryFilter;
use oncebox_core::{Failure, Inbox, Message, Received, State, Store, handler, run};

use crate::fault_suite::journal::Journal;
use crate::fault_suite::points::naming;
use crate::fault_suite::scenario::PAST_EVERYTHING;
use crate::faults::{Fault, Faulty, How, Plan, Side};
use crate::subject::Subject;
use crate::wait::until;

/// A handler that is running when `renew` fails finishes, and its delivery ends.
pub async fn a_handler_whose_lease_cannot_be_renewed_still_finishes<T: Subject>(_available: T) {
    let faults = [How::ErrorOnce, How::ErrorForEver, How::Hang].into_iter().flat_map(|how| {
        [Side::Before, Side::After].map(|side| Fault { method: "renew", call: 1, side, how })
    });
    join_all(faults.map(|fault| naming(fault, outlive::<T>(fault)))).await;
}

async fn outlive<T: Subject>(fault: Fault) {
    let Some(subject) = T::create().await else { return };
    let (plan, journal) = (Plan::with(fault), Journal::create());
    let inbox = || {
        let store = Faulty::new(subject.store(), plan.clone());
        Inbox::with_state(store, (plan.clone(), journal.clone())).on("call.due", handler("call", calling))
    };
    let first = inbox();
    run(first.clone()).drain().await.unwrap();
    let message = Message::new("call.due", "").id("call-1");
    assert_eq!(first.receive(&[message]).await.unwrap(), [Received::New]);
    let runner = run(first).poll_every(Duration::from_millis(20));
    let called = until("the handler has finished", || async { !journal.of("call").is_empty() });
    tokio::select! {
        ended = runner => panic!("the runner ended by itself: {ended:?}"),
        () = called => {}
        () = plan.struck(), if fault.how == How::Hang => {}
    }
    plan.heal();
    let second = inbox();
    until("the delivery is done", || async {
        subject.clock().advance(PAST_EVERYTHING);
        run(second.clone()).drain().await.unwrap();
        subject.store().deliveries(&DeliveryFilter::all()).await.unwrap().is_empty()
    })
    .await;
    // The runner was dropped right after the call, so its outcome may not have been written: at least once.
    let calls = journal.of("call").len();
    assert!((1..=2).contains(&calls), "{calls} calls");
    assert_eq!(subject.stuck_transactions().await, 0);
}

/// Takes as long as it takes for the lease to be prolonged, or not to be.
async fn calling(State((plan, journal)): State<(Plan, Journal)>, message: Message) -> Result<(), Failure> {
    plan.struck().await;
    journal.note("call", &message.id, "");
    Ok(())
}
