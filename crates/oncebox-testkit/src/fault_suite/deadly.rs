//! A message that kills the process that handles it.

use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::{Failure, Inbox, Message, Received, State, Store, handler, run};

use crate::fault_suite::children::{Process, Role};
use crate::fault_suite::journal::Journal;
use crate::fault_suite::scenario::PAST_EVERYTHING;
use crate::ledger::{Effect, Verdict};
use crate::subject::{Subject, TxOf};

/// What the children of this file handle.
pub(crate) const KIND: &str = "payment.due";
const DEADLY: &str = "deadly";
const ATTEMPTS: u32 = 3;

/// Writes an effect and publishes a message whose id the effect carries.
pub(crate) async fn paying<T: Subject>(mut tx: TxOf<T>, message: Message) -> Result<(), Failure> {
    let outgoing = tx.publish(Message::new("payment.made", message.id.clone())).await?;
    let effect = Effect { id: message.id, handler: "pay".to_owned(), note: outgoing };
    T::record(&mut tx, effect).await?;
    Ok(())
}

async fn paying_or_dying<T: Subject>(mut tx: TxOf<T>, message: Message) -> Result<(), Failure> {
    T::record(&mut tx, Effect::of("pay", &message)).await?;
    if message.id == DEADLY {
        std::process::abort();
    }
    Ok(())
}

async fn mailing_or_dying(State(journal): State<Journal>, message: Message) -> Result<(), Failure> {
    if message.id == DEADLY {
        std::process::abort();
    }
    journal.note("mail", &message.id, "");
    Ok(())
}

fn inbox<T: Subject>(store: T::Store, journal: &Journal) -> Inbox<T::Store, Journal> {
    Inbox::with_state(store, journal.clone())
        .on(KIND, handler("pay", paying_or_dying::<T>).max_attempts(ATTEMPTS))
        .on("mail.due", handler("mail", mailing_or_dying).max_attempts(ATTEMPTS))
}

/// A child's work: everything that is ready.
pub(crate) async fn drain<T: Subject>(subject: &T, journal: &Journal) {
    run(inbox::<T>(subject.store(), journal)).drain().await.expect("nothing fails before the process dies");
}

/// A child's work: a runner as in production.
pub(crate) async fn run_until_killed<T: Subject>(subject: &T, journal: &Journal) {
    let inbox = Inbox::with_state(subject.store(), journal.clone()).on(KIND, handler("pay", paying::<T>));
    run(inbox)
        .relay(journal.clone())
        .poll_every(std::time::Duration::from_millis(5))
        .await
        .expect("the runner starts");
}

/// Dead after exactly as many deaths as it has attempts, its bytes kept; the others of its batch are handled once.
pub async fn a_message_that_kills_the_process_is_dead_after_its_attempts<T: Subject>(subject: T, test: &str) {
    let journal = Journal::create();
    let neighbours = deliver::<T>(&subject, &journal, KIND).await;
    deaths_until_idle(&subject, &journal, test).await;

    let expected = neighbours.iter().map(String::as_str);
    Verdict::of(&subject.effects().await, expected, &["pay"]).assert_clean();
    only_the_deadly_is_dead(&subject, "pay").await;
}

/// The same for a handler that works outside the database.
pub async fn a_message_that_kills_an_outside_handler_is_dead_after_its_attempts<T: Subject>(
    subject: T,
    test: &str,
) {
    let journal = Journal::create();
    let neighbours = deliver::<T>(&subject, &journal, "mail.due").await;
    deaths_until_idle(&subject, &journal, test).await;

    assert_eq!(journal.ids("mail"), neighbours.into_iter().collect(), "each at least once");
    only_the_deadly_is_dead(&subject, "mail").await;
}

/// Stores the deadly message among neighbours of the same lane and of others; answers the neighbours' ids.
async fn deliver<T: Subject>(subject: &T, journal: &Journal, kind: &str) -> Vec<String> {
    let inbox = inbox::<T>(subject.store(), journal);
    run(inbox.clone()).drain().await.unwrap();
    let mut messages = Vec::new();
    for number in 0..6 {
        if number == 2 {
            messages.push(Message::new(kind, "deadly bytes").id(DEADLY).key("same"));
        }
        let neighbour = Message::new(kind, "").id(format!("neighbour-{number}"));
        messages.push(if number < 4 { neighbour.key("same") } else { neighbour });
    }
    let answers = inbox.receive(&messages).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == Received::New));
    messages.into_iter().map(|message| message.id).filter(|id| id != DEADLY).collect()
}

async fn deaths_until_idle<T: Subject>(subject: &T, journal: &Journal, test: &str) {
    let mut deaths = 0;
    let mut quiet = 0;
    // A child that finds nothing due ends well; the second such child in a row could only find the same.
    while quiet < 2 {
        subject.clock().advance(PAST_EVERYTHING);
        if Process::start(subject, journal, test, Role::DrainDeadly).ended().await.aborted() {
            deaths += 1;
            quiet = 0;
            assert!(deaths <= ATTEMPTS, "the message killed more processes than it has attempts");
        } else {
            quiet += 1;
        }
    }
    assert_eq!(deaths, ATTEMPTS, "processes killed");
}

async fn only_the_deadly_is_dead<T: Subject>(subject: &T, handler: &str) {
    let left = subject.store().deliveries(&DeliveryFilter::all()).await.unwrap();
    assert_eq!(left.len(), 1, "{left:#?}");
    let dead = &left[0];
    assert_eq!((dead.handler.as_str(), dead.message.id.as_str()), (handler, DEADLY));
    assert_eq!(dead.state, DeliveryState::Dead, "{dead:#?}");
    assert_eq!(&dead.message.payload[..], b"deadly bytes");
    assert_eq!(subject.stuck_transactions().await, 0);
}
