//! Findings that every store has: what is wrong with handlers, deliveries and the outbox. What is wrong with a server
//! is tested with that server.

use oncebox_core::admin::{AdminStore, Finding, Severity};
use oncebox_core::{Failure, Inbox, Message, Received, Store};

use crate::fixtures::{HOUR, KIND, drain, failing, handler, message, receive, registered};
use crate::subject::{Subject, TxOf, recording};

/// Without those that name the server, on which other tests run, and their transactions are old when the clock of this
/// one is moved.
async fn findings<St: AdminStore>(store: &St) -> Vec<Finding> {
    let mut all = store.findings().await.unwrap();
    all.retain(|finding| !["clock-skew", "old-transaction", "connections"].contains(&finding.code));
    all
}

async fn codes<St: AdminStore>(store: &St) -> Vec<&'static str> {
    findings(store).await.iter().map(|finding| finding.code).collect()
}

/// Before the first message, and after many.
pub async fn a_healthy_store_has_no_findings<T: Subject>(subject: T) {
    assert_eq!(findings(&subject.store()).await, []);
    let charge = failing::<T>("charge", |_, attempt| attempt == 1);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a"), message("b")]).await;
    assert_eq!(findings(inbox.store()).await, [], "a message may wait for a moment");
    drain(&inbox).await;
    assert_eq!(findings(inbox.store()).await, [], "and may be tried again");
    let all = inbox.store().findings().await.unwrap();
    assert!(all.iter().all(|finding| finding.code != "clock-skew"), "{all:?}");
}

/// Who runs nothing, who is paused, and who does not come back for what failed.
pub async fn messages_that_nobody_takes_are_found<T: Subject>(subject: T) {
    let charge = failing::<T>("charge", |_, attempt| attempt == 1);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    let store = inbox.store();
    receive(&inbox, &[message("a"), message("b")]).await;
    subject.clock().advance(2 * HOUR);
    let found = findings(store).await;
    assert_eq!(codes(store).await, ["handler-behind"]);
    assert_eq!(found[0].severity, Severity::Fault);
    assert!(found[0].what.contains("`charge`") && found[0].what.contains("2 messages"), "{found:?}");
    assert!(found[0].what.contains("2 h"), "{found:?}");

    store.set_paused("charge", true).await.unwrap();
    assert_eq!(codes(store).await, ["handler-paused"]);
    store.set_paused("charge", false).await.unwrap();
    drain(&inbox).await;
    assert_eq!(findings(store).await, []);

    subject.clock().advance(HOUR);
    let found = findings(store).await;
    assert_eq!(codes(store).await, ["deliveries-overdue"]);
    assert!(found[0].what.contains("2 deliveries of handler `charge`"), "{found:?}");
    store.set_paused("charge", true).await.unwrap();
    assert_eq!(findings(store).await, [], "who is paused takes nothing");
    store.set_paused("charge", false).await.unwrap();
    drain(&inbox).await;
    assert_eq!(findings(store).await, []);
    let skew = store.findings().await.unwrap();
    assert!(skew.iter().any(|finding| finding.code == "clock-skew"), "three hours apart: {skew:?}");
}

/// What a person has to look at.
pub async fn dead_letters_and_conflicts_are_found<T: Subject>(subject: T) {
    let dies = |_: TxOf<T>, _: Message| async move { Err::<(), _>(Failure::permanent("no stock")) };
    let inbox = registered(
        Inbox::new(subject.store())
            .on(KIND, handler("charge", dies))
            .on(KIND, handler("ship", recording::<T>("ship"))),
    )
    .await;
    receive(&inbox, &[message("a"), message("b"), message("c")]).await;
    drain(&inbox).await;
    let found = findings(inbox.store()).await;
    assert_eq!(codes(inbox.store()).await, ["dead-letters"]);
    assert!(found[0].what.contains("`charge` has 3 dead letters"), "{found:?}");
    inbox.store().discard(&oncebox_core::admin::DeliveryFilter::dead("charge"), "a test").await.unwrap();
    assert_eq!(findings(inbox.store()).await, []);

    let other_bytes = Message::new(KIND, "other").id("a");
    assert_eq!(inbox.receive(&[other_bytes]).await.unwrap(), [Received::Conflict]);
    assert_eq!(codes(inbox.store()).await, ["conflicts"]);
}

/// Whether or not the sink has a name.
pub async fn outgoing_messages_that_nobody_sends_are_found<T: Subject>(subject: T) {
    let mut own = subject.begin().await;
    subject.store().publish(&mut own, &[message("out")]).await.unwrap();
    T::commit(own).await;
    assert_eq!(findings(&subject.store()).await, []);
    subject.clock().advance(HOUR);
    let found = findings(&subject.store()).await;
    assert_eq!(codes(&subject.store()).await, ["outbox-waiting"]);
    assert!(found[0].what.contains("1 outgoing message for the sink without a name"), "{found:?}");
}
