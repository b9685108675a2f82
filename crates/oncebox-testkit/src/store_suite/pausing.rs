//! Pausing a handler: for every process, until it is resumed.

use oncebox_core::{Failure, Inbox, Message, Processed, Store};

use crate::fixtures::{
    HOUR, KIND, assert_once, drain, failing, handler, ids, message, numbered, receive, registered,
};
use crate::subject::{Subject, recording};

/// Nothing is lost meanwhile, and the other handlers go on.
pub async fn a_paused_handler_runs_nothing_until_it_is_resumed<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", recording::<T>("ship")));
    let inbox = registered(inbox).await;
    assert!(inbox.store().set_paused("ship", true).await.unwrap());
    receive(&inbox, &numbered(5)).await;
    drain(&inbox).await;
    assert_eq!((ids(&subject, "charge").await.len(), ids(&subject, "ship").await.len()), (5, 0));
    let known = inbox.store().handlers().await.unwrap();
    let ship = known.iter().find(|known| known.name == "ship").unwrap();
    assert_eq!((ship.paused, ship.waiting), (true, 5));

    assert!(inbox.store().set_paused("ship", false).await.unwrap());
    drain(&inbox).await;
    assert_once(&subject, &numbered(5), &["charge", "ship"]).await;
}

/// A restart does not resume it, nor does registering it again.
pub async fn a_pause_is_remembered_by_the_store<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")));
    let first = registered(inbox(subject.store())).await;
    first.store().set_paused("charge", true).await.unwrap();
    receive(&first, &[message("a")]).await;
    let second = inbox(subject.reopen().await);
    drain(&second).await;
    assert_eq!(subject.effects().await, []);
    first.store().set_paused("charge", false).await.unwrap();
    drain(&second).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// Rows of their own wait too: retries, and what works outside the database.
pub async fn retries_and_outside_calls_of_a_paused_handler_wait<T: Subject>(subject: T) {
    let call = |_: Message| async { Err::<(), _>(Failure::permanent("called")) };
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", failing::<T>("charge", |_, attempt| attempt == 1)))
        .on(KIND, handler("call", call));
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    inbox.store().set_paused("call", true).await.unwrap();
    drain(&inbox).await;
    inbox.store().set_paused("charge", true).await.unwrap();
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(subject.effects().await, []);
    let status = inbox.store().handlers().await.unwrap();
    assert!(status.iter().all(|known| known.dead == 0), "{status:?}");

    for name in ["charge", "call"] {
        inbox.store().set_paused(name, false).await.unwrap();
    }
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
    let status = inbox.store().handlers().await.unwrap();
    assert_eq!(status.iter().map(|known| known.dead).sum::<u64>(), 1);
}

/// A name nobody has is a mistake that is told.
pub async fn pausing_an_unknown_handler_says_so<T: Subject>(subject: T) {
    let store = subject.store();
    assert!(!store.set_paused("nobody", true).await.unwrap());
    let inbox = registered(Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")))).await;
    assert_eq!(inbox.process(message("a")).await.unwrap(), Processed::Done);
}
