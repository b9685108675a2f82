//! Claims: nobody skips a message, and a message that kills the process is found.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::admin::DeliveryState;
use oncebox_core::store::{
    ABANDONED_AFTER, Ahead, Claim, LaneBound, LaneRow, MoveLanes, ReadLanes, Token, TxLimits,
};
use oncebox_core::store::{Commit, Connection};
use oncebox_core::{Attempt, ErrorKind, Failure, Inbox, Kinds, Message, Store, run};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::fixtures::{
    HOUR, KIND, assert_once, delivery, drain, handler, ids, in_state, killed_at, message, numbered, receive,
    registered, start,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};
use crate::wait::until;

/// A receiver that is slow to commit is not skipped by readers that are ahead of it.
pub async fn slow_and_fast_receivers_lose_nothing_to_runners<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")).batch(20));
    let first = registered(inbox(subject.store())).await;
    let poll = Duration::from_millis(5);
    let one = start(run(first.clone()).concurrency(2).poll_every(poll));
    let two = start(run(inbox(subject.reopen().await)).concurrency(2).poll_every(poll));
    let mut receivers = JoinSet::new();
    for receiver in 0..4 {
        let inbox = Inbox::new(subject.reopen().await);
        receivers.spawn(async move {
            for lot in 0..15 {
                // Large lots are slow to commit, small ones overtake them.
                let count = if receiver % 2 == 0 { 60 } else { 3 };
                let messages: Vec<Message> =
                    (0..count).map(|number| message(format!("{receiver}-{lot}-{number}"))).collect();
                receive(&inbox, &messages).await;
            }
        });
    }
    receivers.join_all().await;
    let all: Vec<Message> = (0..4)
        .flat_map(|receiver| (0..15).map(move |lot| (receiver, lot)))
        .flat_map(|(receiver, lot)| {
            let count = if receiver % 2 == 0 { 60 } else { 3 };
            (0..count).map(move |number| message(format!("{receiver}-{lot}-{number}")))
        })
        .collect();
    until("everything is handled", || async { subject.effects().await.len() >= all.len() }).await;
    one.stop().await;
    two.stop().await;
    assert_once(&subject, &all, &["charge"]).await;
}

/// Hangs for ever in this message, as a process does that is about to be killed.
fn killer<T: Subject>(subject: &T, max_attempts: u32) -> (Inbox<T::Store>, Arc<Notify>) {
    let entered = Arc::new(Notify::new());
    let bell = entered.clone();
    let charge = move |mut tx: TxOf<T>, message: Message, Attempt(_): Attempt| {
        let bell = bell.clone();
        async move {
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            if message.id == "killer" {
                bell.notify_one();
                std::future::pending::<()>().await;
            }
            Ok::<(), Failure>(())
        }
    };
    let charge = handler("charge", charge).max_attempts(max_attempts);
    (Inbox::new(subject.store()).on(KIND, charge), entered)
}

/// Kills the process in the killer message again and again, until it is not run any more; answers how often.
async fn kill_until_dead<T: Subject>(subject: &T, inbox: &Inbox<T::Store>, entered: &Notify) -> usize {
    let mut kills = 0;
    for _ in 0..20 {
        let draining = run(inbox.clone()).drain();
        let killed = tokio::select! {
            drained = draining => {
                drained.unwrap();
                false
            }
            () = entered.notified() => true,
        };
        kills += usize::from(killed);
        // The server takes a moment to notice that the process is gone.
        assert_eq!(subject.stuck_transactions().await, 0);
        let dead = in_state(inbox.store(), "charge", DeliveryState::Dead).await;
        if !killed && dead == ["killer"] {
            return kills;
        }
        subject.clock().advance(HOUR);
    }
    panic!("the killer is not dead: {:?}", crate::fixtures::deliveries(inbox.store(), "charge").await);
}

/// Alone in its lane, it is dead after exactly as many kills as it has attempts.
pub async fn a_message_that_kills_the_process_is_dead_after_its_attempts<T: Subject>(subject: T) {
    let (inbox, entered) = killer(&subject, 3);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("killer")]).await;
    assert_eq!(kill_until_dead(&subject, &inbox, &entered).await, 3);
    assert_eq!(subject.effects().await, []);
    let dead = delivery(inbox.store(), "charge").await;
    assert_eq!(dead.message.payload, message("killer").payload);
    assert!(dead.history.len() >= 3, "{:?}", dead.history);
}

/// Its neighbours in the batch are run alone and done, none of them dead for another's crash.
pub async fn the_neighbours_of_a_message_that_kills_the_process_are_unharmed<T: Subject>(subject: T) {
    for (round, max_attempts) in [(0, 3), (1, 1)] {
        let (inbox, entered) = killer(&subject, max_attempts);
        let inbox = registered(inbox).await;
        // One lane, so that all of them are in the batch that dies.
        let neighbours: Vec<Message> =
            (0..10).map(|number| message(format!("{round}-{number}")).key("one lane")).collect();
        receive(&inbox, &neighbours[..5]).await;
        receive(&inbox, &[message("killer").key("one lane").scope(round.to_string())]).await;
        receive(&inbox, &neighbours[5..]).await;
        let kills = kill_until_dead(&subject, &inbox, &entered).await;
        let most = usize::try_from(max_attempts).unwrap() + 1;
        assert!(kills <= most, "{kills} kills with {max_attempts} attempts");
        let done = ids(&subject, "charge").await;
        let of_round: Vec<&String> = done.iter().filter(|id| id.starts_with(&format!("{round}-"))).collect();
        assert_eq!(of_round.len(), 10, "each once: {done:?}");
        assert!(inbox.store().forget("charge").await.unwrap());
    }
}

/// For first attempts that share a transaction because they all have rows: with one attempt each, too.
pub async fn the_neighbours_of_a_scheduled_killer_are_unharmed<T: Subject>(subject: T) {
    let (inbox, entered) = killer(&subject, 1);
    let inbox = registered(inbox).await;
    let at = jiff::Timestamp::now() + HOUR;
    let neighbours = numbered(6);
    let scheduled = |messages: &[Message]| -> Vec<Message> {
        messages.iter().map(|message| message.clone().not_before(at)).collect()
    };
    receive(&inbox, &scheduled(&neighbours[..3])).await;
    receive(&inbox, &scheduled(&[message("killer")])).await;
    receive(&inbox, &scheduled(&neighbours[3..])).await;
    drain(&inbox).await;
    subject.clock().advance(2 * HOUR);
    kill_until_dead(&subject, &inbox, &entered).await;
    assert_once(&subject, &neighbours, &["charge"]).await;
}

/// The mark of a living process is respected, that of a dead one is taken over after its time.
pub async fn lanes_of_a_dead_process_are_taken_over<T: Subject>(subject: T) {
    let (inbox, entered) = killer(&subject, 2);
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("killer").key("k"), message("behind").key("k")]).await;
    killed_at(run(inbox.clone()).drain(), entered.notified()).await;
    assert_eq!(subject.stuck_transactions().await, 0);
    let healthy = Inbox::new(subject.reopen().await).on(KIND, handler("charge", recording::<T>("charge")));
    drain(&healthy).await;
    assert_eq!(subject.effects().await, [], "the mark is young");

    subject.clock().advance(ABANDONED_AFTER + Duration::from_secs(1));
    drain(&healthy).await;
    assert_once(&subject, &[message("killer"), message("behind")], &["charge"]).await;
}

const LIMITS: TxLimits = TxLimits { statement: Duration::from_secs(10) };

/// The same fence for lanes as for leases.
pub async fn who_has_lost_a_lane_commits_nothing<T: Subject>(subject: T) {
    let store = subject.store();
    let inbox = Inbox::new(store.clone()).on(KIND, handler("charge", recording::<T>("charge")));
    let inbox = registered(inbox).await;
    receive(&inbox, &[message("a")]).await;
    let claim = |token| Claim { handler: "charge", token, lanes: 32, limit: 10 };
    let lane = store.claim(&claim(Token(1))).await.unwrap()[0].lane;
    assert_eq!(store.claim(&claim(Token(2))).await.unwrap(), [], "it is claimed");
    subject.clock().advance(HOUR);
    let taken = store.claim(&claim(Token(2))).await.unwrap();
    assert_eq!((taken[0].lane, taken[0].suspects), (lane, Some(10)));

    let kinds = Kinds { exact: vec![KIND.to_owned()], prefixes: Vec::new() };
    let bounds = [LaneBound { lane, upto: None }];
    let read = |token| ReadLanes {
        handler: "charge",
        token,
        lanes: &bounds,
        limit: 10,
        kinds: &kinds,
        ordered: false,
        limits: LIMITS,
    };
    assert!(store.begin_lanes(&read(Token(1))).await.unwrap().is_none());
    let seq = {
        let batch = store.begin_lanes(&read(Token(2))).await.unwrap().unwrap();
        let seq = batch.rows[0].seq;
        batch.connection.rollback().await;
        seq
    };
    let mut zombie = store.begin_plain(LIMITS).await.unwrap();
    T::record(&mut zombie, Effect::of("zombie", &message("a"))).await.unwrap();
    let lanes = MoveLanes {
        handler: "charge".to_owned(),
        token: Token(1),
        positions: vec![(lane, seq)],
        keep: false,
    };
    let error = store.commit(zombie, Commit { lanes: Some(lanes), ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    store.release("charge", Token(1)).await.unwrap();
    store.release("charge", Token(2)).await.unwrap();
    drain(&inbox).await;
    assert_once(&subject, &[message("a")], &["charge"]).await;
}

/// Messages read ahead are run only where their lane still stands; a store that reads nothing ahead just reads.
pub async fn what_was_read_ahead_is_taken_only_where_its_lane_stands<T: Subject>(subject: T) {
    let store = subject.store();
    let inbox = Inbox::new(store.clone()).on(KIND, handler("charge", recording::<T>("charge")));
    let inbox = registered(inbox).await;
    let sent: Vec<Message> = (0..20).map(|number| message(format!("m{number}")).key("k")).collect();
    receive(&inbox, &sent).await;
    let token = Token(1);
    let claim = Claim { handler: "charge", token, lanes: 32, limit: 5 };
    let lane = store.claim(&claim).await.unwrap()[0].lane;
    let kinds = Kinds { exact: vec![KIND.to_owned()], prefixes: Vec::new() };
    let bounds = [LaneBound { lane, upto: None }];
    let read = ReadLanes {
        handler: "charge",
        token,
        lanes: &bounds,
        limit: 5,
        kinds: &kinds,
        ordered: false,
        limits: LIMITS,
    };
    let names =
        |rows: &[LaneRow]| -> Vec<String> { rows.iter().map(|row| row.to_message().unwrap().id).collect() };
    let batch = store.begin_lanes(&read).await.unwrap().unwrap();
    assert_eq!(names(&batch.rows), ["m0", "m1", "m2", "m3", "m4"]);
    let from = vec![(lane, batch.rows[4].seq)];
    let rows = store.read_ahead(&read, &from).await.unwrap();
    batch.connection.rollback().await;
    let Some(rows) = rows else {
        // This store reads nothing ahead, or not through a pooler: then nobody has anything to hand in.
        store.release("charge", token).await.unwrap();
        drain(&inbox).await;
        return assert_once(&subject, &sent, &["charge"]).await;
    };
    assert_eq!(names(&rows), ["m5", "m6", "m7", "m8", "m9"]);
    assert_eq!(rows[0].to_message().unwrap().payload, sent[5].payload);
    let ahead = Ahead { from: from.clone(), rows };

    // The batch before them was not committed: they are not next.
    let batch = store.begin_lanes_ahead(&read, ahead.clone()).await.unwrap().unwrap();
    assert_eq!(names(&batch.rows), ["m0", "m1", "m2", "m3", "m4"]);
    let lanes = MoveLanes { handler: "charge".to_owned(), token, positions: from, keep: true };
    store.commit(batch.connection, Commit { lanes: Some(lanes), ..Commit::default() }).await.unwrap();

    // Now they are; but not for somebody who has lost the lane.
    let stranger = ReadLanes { token: Token(2), ..read };
    assert!(store.begin_lanes_ahead(&stranger, ahead.clone()).await.unwrap().is_none());
    let batch = store.begin_lanes_ahead(&read, ahead).await.unwrap().unwrap();
    assert_eq!(names(&batch.rows), ["m5", "m6", "m7", "m8", "m9"]);
    batch.connection.rollback().await;
    store.release("charge", token).await.unwrap();
    drain(&inbox).await;
    assert_once(&subject, &sent[5..], &["charge"]).await;
}

/// More than one batch waits in every lane, so that batches are read ahead, while two processes take turns.
pub async fn full_lanes_are_run_once_by_processes_that_read_ahead<T: Subject>(subject: T) {
    let inbox = |store| Inbox::new(store).on(KIND, handler("charge", recording::<T>("charge")).batch(16));
    let first = registered(inbox(subject.store())).await;
    let all: Vec<Message> = (0..2000).map(|number| message(format!("m{number}"))).collect();
    receive(&first, &all).await;
    let one = start(run(first).concurrency(2));
    let two = start(run(inbox(subject.reopen().await)).concurrency(2));
    until("everything is handled", || async { subject.effects().await.len() >= all.len() }).await;
    one.stop().await;
    two.stop().await;
    assert_once(&subject, &all, &["charge"]).await;
}

/// A message of one handler that hangs does not keep others from their lanes.
pub async fn a_hanging_handler_does_not_stop_the_others<T: Subject>(subject: T) {
    if !T::FACTS.parallel_transactions {
        return;
    }
    let stuck = |_: TxOf<T>| async {
        std::future::pending::<()>().await;
        Ok::<(), Failure>(())
    };
    let inbox = Inbox::new(subject.store())
        .on("stuck", handler("stuck", stuck))
        .on(KIND, handler("charge", recording::<T>("charge")));
    let inbox = registered(inbox).await;
    let running = tokio::spawn(run(inbox.clone()).into_future());
    receive(&inbox, &[Message::new("stuck", "x")]).await;
    receive(&inbox, &numbered(20)).await;
    until("the others are handled", || async { subject.effects().await.len() >= 20 }).await;
    running.abort();
    let _ = running.await;
    assert_once(&subject, &numbered(20), &["charge"]).await;
}
