//! Many at once: no deadlock surfaces, nothing is lost, and cleaning up does not get in the way.

#[allow(dead_code)]
mod support;

use std::time::Duration;

use oncebox_core::store::Retention;
use oncebox_core::{Failure, Inbox, Message, Received, Store, handler, run};
use oncebox_mariadb::MariaTx;
use oncebox_testkit::{Effect, Subject};
use support::MariaSubject;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn batch(from: usize, count: usize) -> Vec<Message> {
    (from..from + count).map(|number| Message::new("order", "x").id(number.to_string())).collect()
}

/// Batches of the same ids in opposite order, stored and inline, a few hundred times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_in_opposite_order_never_surface_a_deadlock() {
    let Some(subject) = MariaSubject::create().await else { return };
    let charge = |mut tx: MariaTx, message: Message| async move {
        MariaSubject::record(&mut tx, Effect::of("charge", &message)).await?;
        Ok::<(), Failure>(())
    };
    // Inboxes of their own, because receivers of one share their statements.
    let inboxes: Vec<_> = futures_util::future::join_all((0..4).map(|_| subject.reopen())).await;
    let inboxes: Vec<_> =
        inboxes.into_iter().map(|store| Inbox::new(store).on("order", handler("charge", charge))).collect();
    inboxes[0].register().await.unwrap();
    const ROUNDS: usize = 250;
    let tasks = inboxes.iter().cloned().enumerate().map(|(number, inbox)| {
        tokio::spawn(async move {
            let mut new = 0;
            for round in 0..ROUNDS {
                let mut messages = batch(round * 20, 20);
                if number % 2 == 1 {
                    messages.reverse();
                }
                if number < 2 {
                    let answers = inbox.receive(&messages).await.unwrap();
                    new += answers.iter().filter(|answer| **answer == Received::New).count();
                } else {
                    inbox.process_all(messages).await.unwrap();
                }
            }
            new
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.unwrap();
    }
    run(inboxes[0].clone()).drain().await.unwrap();
    let mut ids: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.id).collect();
    assert_eq!(ids.len(), ROUNDS * 20);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), ROUNDS * 20);
}

/// Sixteen receivers and a purge that removes what they wrote a moment ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_receivers_and_a_purge_get_along() {
    let Some(subject) = MariaSubject::create().await else { return };
    let charge = |mut tx: MariaTx, message: Message| async move {
        MariaSubject::record(&mut tx, Effect::of("charge", &message)).await?;
        Ok::<(), Failure>(())
    };
    let stores: Vec<_> =
        futures_util::future::join_all((0..16).map(|_| subject.store_with_one_connection())).await;
    let inbox = Inbox::new(subject.store()).on("order", handler("charge", charge).batch(100));
    inbox.register().await.unwrap();
    let receiving: Vec<_> = stores
        .into_iter()
        .enumerate()
        .map(|(number, store)| {
            let inbox = Inbox::new(store);
            tokio::spawn(async move {
                for round in 0..25 {
                    let answers = inbox.receive(&batch(number * 10_000 + round * 20, 20)).await.unwrap();
                    assert_eq!(answers, vec![Received::New; 20]);
                }
            })
        })
        .collect();
    let purging = tokio::spawn({
        let (store, clock) = (subject.store(), subject.clock());
        async move {
            let retention = Retention { keep: DAY, payload: DAY, step: 100 };
            let mut removed = 0;
            for _ in 0..60 {
                clock.advance(DAY + DAY);
                removed += store.purge(&retention).await.unwrap().messages;
            }
            removed
        }
    });
    let draining = tokio::spawn(run(inbox.clone()).drain());
    for task in receiving {
        task.await.unwrap();
    }
    purging.await.unwrap();
    draining.await.unwrap().unwrap();
    run(inbox).drain().await.unwrap();
    let mut ids: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.id).collect();
    assert_eq!(ids.len(), 16 * 25 * 20);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 16 * 25 * 20);
}
