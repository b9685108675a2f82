//! Processes killed at every store call, and at any moment.

use oncebox_core::clock::Seed;
use oncebox_core::{Inbox, Message, Received, Store, handler, run};

use crate::fault_suite::children::{Process, Role};
use crate::fault_suite::deadly::{KIND, paying};
use crate::fault_suite::invariants::check;
use crate::fault_suite::journal::Journal;
use crate::fault_suite::points::{Calls, faults_in, may_be_missed, naming};
use crate::fault_suite::scenario::{PAST_EVERYTHING, Scenario};
use crate::faults::{Fault, How, Plan};
use crate::ledger::Verdict;
use crate::subject::Subject;
use crate::wait::until;

/// A child dies in this method at each of its points; this process finishes what it left.
///
/// # Panics
/// When an invariant does not hold; the text names the fault.
pub async fn die_in<T: Subject>(calls: &Calls, method: &'static str, test: &str) {
    for fault in faults_in::<T>(calls, method, How::Kill).await {
        let Some(subject) = T::create().await else { return };
        naming(fault, take_over(subject, fault, test)).await;
    }
}

async fn take_over<T: Subject>(subject: T, fault: Fault, test: &str) {
    let journal = Journal::create();
    let ended = Process::start(&subject, &journal, test, Role::die_in(fault)).ended().await;
    assert!(ended.aborted() || may_be_missed(fault), "the child was to die: {ended:?}");
    // The child moved its own clock; this is later than it can have been.
    subject.clock().advance(PAST_EVERYTHING * 20);
    let scenario = Scenario::start(&subject, subject.reopen().await, Plan::none(), &journal);
    scenario.live().await.expect("nothing fails any more");
    scenario.finish().await;
    check(&subject, &journal).await;
}

/// How often the runner is killed.
const KILLS: usize = 10;

/// `kill -9` of the runner at any moment, again and again, while messages and copies of them come in.
pub async fn a_runner_killed_at_any_moment_loses_and_doubles_nothing<T: Subject>(subject: T, test: &str) {
    let journal = Journal::create();
    let seed = Seed::fixed(7);
    let inbox = Inbox::with_state(subject.store(), journal.clone()).on(KIND, handler("pay", paying::<T>));
    run(inbox.clone()).drain().await.unwrap();
    let mut acknowledged: Vec<Message> = Vec::new();
    for _ in 0..KILLS {
        let mut child = Process::start(&subject, &journal, test, Role::Run);
        let wanted = subject.effects().await.len() + 1 + usize::try_from(seed.next() % 25).unwrap();
        // Deliver until the ledger has grown by so much, then kill at once, whatever the child is doing.
        while subject.effects().await.len() < wanted {
            assert!(child.is_running(), "the runner ended by itself: {:?}", child.ended().await);
            let number = acknowledged.len();
            let fresh: Vec<Message> = (number..number + 3).map(payment).collect();
            assert_eq!(inbox.receive(&fresh).await.unwrap(), [Received::New; 3]);
            acknowledged.extend(fresh);
            let some = usize::try_from(seed.next()).unwrap_or(0) % acknowledged.len();
            let copies: Vec<Message> = acknowledged[some..].iter().take(5).cloned().collect();
            let answers = inbox.receive(&copies).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == Received::Duplicate), "{answers:?}");
        }
        child.kill().await;
        subject.clock().advance(PAST_EVERYTHING);
    }
    let inbox =
        Inbox::with_state(subject.reopen().await, journal.clone()).on(KIND, handler("pay", paying::<T>));
    let expected: Vec<&str> = acknowledged.iter().map(|message| message.id.as_str()).collect();
    until("everything acknowledged has its effect", || async {
        subject.clock().advance(PAST_EVERYTHING);
        run(inbox.clone()).relay(journal.clone()).drain().await.unwrap();
        let outbox = inbox.store().outbox().await.unwrap();
        outbox.iter().all(|sink| sink.waiting == 0)
            && Verdict::of(&subject.effects().await, expected.iter().copied(), &["pay"]).lost.is_empty()
    })
    .await;
    let effects = subject.effects().await;
    Verdict::of(&effects, expected, &["pay"]).assert_clean();
    let committed = effects.into_iter().map(|effect| (effect.note, effect.id)).collect();
    assert_eq!(journal.sent(), committed, "sent (left) and committed (right) outgoing messages");
    assert_eq!(subject.stuck_transactions().await, 0);
}

fn payment(number: usize) -> Message {
    let id = format!("payment-{number}");
    Message::new(KIND, id.clone()).id(id).key(number % 7)
}
