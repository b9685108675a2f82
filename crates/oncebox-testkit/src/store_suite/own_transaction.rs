//! The caller's own transaction: `once` and `publish`.

use oncebox_core::{Failure, Inbox, Message, Once, Store, run};

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{HOUR, KIND, assert_once, drain, handler, message, numbered, receive, registered};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};

async fn once<T: Subject>(subject: &T, own: &mut T::Own, handler: &str, id: &str) -> Once {
    subject.store().once(own, handler, id).await.unwrap()
}

/// First until somebody has committed it, then never again.
pub async fn once_is_first_until_it_is_committed<T: Subject>(subject: T) {
    let mut own = subject.begin().await;
    assert_eq!(once(&subject, &mut own, "import", "may.csv").await, Once::First);
    T::record(&mut own, Effect::of("import", &message("may.csv"))).await.unwrap();
    T::rollback(own).await;

    let mut own = subject.begin().await;
    assert_eq!(once(&subject, &mut own, "import", "may.csv").await, Once::First, "it was rolled back");
    T::record(&mut own, Effect::of("import", &message("may.csv"))).await.unwrap();
    T::commit(own).await;

    let mut own = subject.begin().await;
    assert_eq!(once(&subject, &mut own, "import", "may.csv").await, Once::Again);
    T::rollback(own).await;
    assert_once(&subject, &[message("may.csv")], &["import"]).await;
}

/// Names and ids are told apart, from each other and from received messages.
pub async fn once_tells_handlers_and_ids_apart<T: Subject>(subject: T) {
    receive(&Inbox::new(subject.store()), &[message("b").scope("a")]).await;
    let mut own = subject.begin().await;
    for (name, id) in [("a", "b"), ("a", "B"), ("A", "b"), ("a", "b "), ("a", "1"), ("a", "01")] {
        assert_eq!(once(&subject, &mut own, name, id).await, Once::First, "{name} {id}");
        assert_eq!(
            once(&subject, &mut own, name, id).await,
            Once::Again,
            "{name} {id}, in the same transaction"
        );
    }
    T::commit(own).await;
}

/// A unique violation would abort the whole transaction on Postgres.
pub async fn a_transaction_works_on_after_once_said_again<T: Subject>(subject: T) {
    let store = subject.store();
    let charge = move |mut tx: TxOf<T>, message: Message| {
        let store = store.clone();
        async move {
            for _ in 0..2 {
                store.once(&mut tx, "charge", "the same for all").await?;
            }
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            Ok::<(), Failure>(())
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &numbered(5)).await;
    drain(&inbox).await;
    assert_once(&subject, &numbered(5), &["charge"]).await;
}

/// The second waits for the first and believes what became of it.
pub async fn two_transactions_at_once_are_never_both_first<T: Subject>(subject: T) {
    if !T::FACTS.parallel_transactions {
        return;
    }
    for commits in [true, false] {
        let id = format!("commits: {commits}");
        let mut first = subject.begin().await;
        assert_eq!(once(&subject, &mut first, "import", &id).await, Once::First);
        let mut second = subject.begin().await;
        let waiting = once(&subject, &mut second, "import", &id);
        let end = async {
            // The other one is polled first, so that it has begun to wait.
            tokio::task::yield_now().await;
            if commits { T::commit(first).await } else { T::rollback(first).await }
        };
        let (answer, ()) = tokio::join!(waiting, end);
        assert_eq!(answer, if commits { Once::Again } else { Once::First });
        T::rollback(second).await;
    }
}

/// Sent when the transaction committed, and only then.
pub async fn publish_belongs_to_the_callers_transaction<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let broker = MemoryBroker::new(1, Manners::GOOD);
    let outgoing = |id: &str| Message::new("csv.imported", "x").id(id).header("by", "hand").key("k");

    let mut own = subject.begin().await;
    subject.store().publish(&mut own, &[outgoing("rolled-back")]).await.unwrap();
    T::rollback(own).await;
    let mut own = subject.begin().await;
    subject.store().publish(&mut own, &[outgoing("one"), outgoing("two")]).await.unwrap();
    T::record(&mut own, Effect::of("import", &message("a"))).await.unwrap();
    T::commit(own).await;

    run(inbox).relay(broker.clone()).drain().await.unwrap();
    let sent = broker.sent();
    assert_eq!(sent.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((sent[0].kind.as_str(), sent[0].headers.text("by")), ("csv.imported", Some("hand")));
    assert_once(&subject, &[message("a")], &["import"]).await;
}

/// Outside a transaction they would commit alone, before or without the work.
pub async fn once_and_publish_are_refused_outside_a_transaction<T: Subject>(subject: T) {
    for _ in 0..2 {
        let answer = subject.once_outside_transaction().await;
        assert!(answer.contains("transaction"), "{answer}");
        let answer = subject.publish_outside_transaction(Message::new("ghost", "x")).await;
        assert!(answer.contains("transaction"), "{answer}");
    }
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(subject.store())).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(broker.sent(), []);
    assert_eq!(subject.stuck_transactions().await, 0);
}

/// A message that breaks a limit is refused before it is written, and spoils nothing.
pub async fn publish_refuses_what_breaks_a_limit<T: Subject>(subject: T) {
    let mut own = subject.begin().await;
    for wrong in
        [Message::new("", "x"), message(""), message("a").key("k".repeat(600)), message("x".repeat(513))]
    {
        let error = subject.store().publish(&mut own, &[wrong]).await.unwrap_err();
        assert_eq!(error.kind(), oncebox_core::ErrorKind::Invalid, "{error}");
    }
    T::record(&mut own, Effect::of("import", &message("a"))).await.unwrap();
    T::commit(own).await;
    assert_once(&subject, &[message("a")], &["import"]).await;
}

/// What `once` remembers, it remembers as long as message ids.
pub async fn once_is_remembered_as_long_as_message_ids<T: Subject>(subject: T) {
    let store = subject.store();
    let retention = oncebox_core::store::Retention { keep: 2 * HOUR, payload: HOUR, step: 100 };
    for (wait, expected) in [(HOUR, Once::First), (2 * HOUR, Once::Again), (HOUR, Once::First)] {
        store.purge(&retention).await.unwrap();
        let mut own = subject.begin().await;
        assert_eq!(once(&subject, &mut own, "import", "may.csv").await, expected);
        T::commit(own).await;
        subject.clock().advance(wait);
    }
}
