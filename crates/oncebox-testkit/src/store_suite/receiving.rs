//! Receiving: new, duplicate, conflict.

use oncebox_core::{Inbox, Message, Received, handler, run};

use crate::ledger::Verdict;
use crate::subject::{Subject, recording};

/// The plainest case of all.
pub async fn a_new_message_is_stored_and_a_copy_is_a_duplicate<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store()).on("order.placed", handler("charge", recording::<T>("charge")));
    run(inbox.clone()).drain().await.unwrap();
    let message = Message::new("order.placed", "{}").id("order-1");

    assert_eq!(inbox.receive(&[message.clone()]).await.unwrap(), [Received::New]);
    assert_eq!(inbox.receive(&[message]).await.unwrap(), [Received::Duplicate]);
    run(inbox).drain().await.unwrap();

    Verdict::of(&subject.effects().await, ["order-1"], &["charge"]).assert_clean();
}
