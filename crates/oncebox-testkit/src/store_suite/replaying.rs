//! Replays as things of their own: with a rate, with progress, stepped by anybody, cancelled by a person.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncebox_core::admin::{
    AdminStore, DeliveryFilter, DeliveryState, Replay, ReplayId, ReplayInfo, ReplayState,
};
use oncebox_core::{Failure, Inbox, Message, Store};

use crate::fixtures::{deliveries, drain, handler, ids, in_state, keyed, numbered, receive, registered};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf};
use crate::sweep::poll_then_drop;

const SECOND: Duration = Duration::from_secs(1);

/// Kills every message until it is mended.
async fn broken<T: Subject>(subject: &T, messages: &[Message]) -> (Inbox<T::Store>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let switch = mended.clone();
    let charge = move |mut tx: TxOf<T>, message: Message| {
        let mended = switch.load(Ordering::SeqCst);
        async move {
            T::record(&mut tx, Effect::of("charge", &message)).await?;
            if mended { Ok(()) } else { Err(Failure::permanent("no stock")) }
        }
    };
    let inbox = registered(Inbox::new(subject.store()).on("*", handler("charge", charge).ordered())).await;
    receive(&inbox, messages).await;
    drain(&inbox).await;
    (inbox, mended)
}

async fn start<St: AdminStore>(store: &St, filter: DeliveryFilter, rate: Option<u32>) -> ReplayInfo {
    store.start_replay(&Replay { filter, rate, actor: "ann".to_owned() }).await.unwrap()
}

async fn step<St: AdminStore>(store: &St, id: ReplayId, most: u64) -> ReplayInfo {
    store.step_replay(id, most).await.unwrap().unwrap()
}

/// How often each delivery has failed by now.
async fn failures<St: Store>(store: &St) -> Vec<usize> {
    deliveries(store, "charge").await.iter().map(|info| info.history.len()).collect()
}

/// Also when it dies again meanwhile, and by another process at each step.
pub async fn a_replay_in_steps_replays_each_letter_once<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(25)).await;
    let mut filter = DeliveryFilter::dead("charge");
    filter.error = Some("no stock".to_owned());
    let started = start(inbox.store(), filter, None).await;
    assert_eq!((started.state, started.matched, started.replayed), (ReplayState::Running, 25, 0));
    assert_eq!((started.replay.actor.as_str(), started.ended_at), ("ann", None));
    assert_eq!(failures(inbox.store()).await, [1; 25], "nothing happens before the first step");

    let mut steps = 0;
    let done = loop {
        let at = step(&subject.reopen().await, started.id, 10).await;
        drain(&inbox).await;
        steps += 1;
        assert_eq!(at.replayed, (steps * 10).min(25));
        if at.state != ReplayState::Running {
            break at;
        }
    };
    assert_eq!((done.state, done.replayed, steps), (ReplayState::Done, 25, 3));
    assert!(done.ended_at.unwrap() >= done.started_at);
    assert_eq!(failures(inbox.store()).await, [2; 25]);
    step(inbox.store(), started.id, 10).await;
    drain(&inbox).await;
    assert_eq!(failures(inbox.store()).await, [2; 25], "what has ended does nothing");
    let read = inbox.store().replay_info(started.id).await.unwrap().unwrap();
    assert_eq!(format!("{read:?}"), format!("{done:?}"));
    assert_eq!(read.replay.filter.error.as_deref(), Some("no stock"));
}

/// Not even when nobody has stepped for an hour: what was not used is lost.
pub async fn a_replay_goes_no_faster_than_its_rate<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(12)).await;
    let store = inbox.store();
    let began = Instant::now();
    let started = start(store, DeliveryFilter::dead("charge"), Some(1)).await;
    subject.clock().advance(3600 * SECOND);
    let first = step(store, started.id, 100).await.replayed;
    for _ in 0..6 {
        step(store, started.id, 100).await;
    }
    let at = step(store, started.id, 100).await;
    // The time this test takes by itself counts too.
    let most = 2 + began.elapsed().as_secs();
    assert!(first >= 1 && at.replayed <= most, "{first}, then {} of at most {most}", at.replayed);

    let mut last = at;
    for _ in 0..30 {
        subject.clock().advance(SECOND);
        let next = step(store, started.id, 100).await;
        assert!(next.replayed >= last.replayed);
        last = next;
    }
    assert_eq!((last.state, last.replayed), (ReplayState::Done, 12));
    assert!(store.start_replay(&Replay { rate: Some(0), ..last.replay }).await.is_err());
}

/// While the letters die again, so that one replayed twice would show.
pub async fn processes_that_step_at_the_same_time_share_a_replay<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(60)).await;
    let started = start(inbox.store(), DeliveryFilter::dead("charge"), None).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let store = subject.reopen().await;
        tasks.push(tokio::spawn(async move {
            while step(&store, started.id, 4).await.state == ReplayState::Running {}
        }));
    }
    while tasks.iter().any(|task| !task.is_finished()) {
        drain(&inbox).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    drain(&inbox).await;
    let done = inbox.store().replay_info(started.id).await.unwrap().unwrap();
    assert_eq!((done.state, done.replayed), (ReplayState::Done, 60));
    assert_eq!(failures(inbox.store()).await, [2; 60]);
}

/// A process dies at any place: the letters and the progress are one commit.
pub async fn a_step_that_is_given_up_is_done_or_was_never_begun<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(30)).await;
    let started = start(inbox.store(), DeliveryFilter::dead("charge"), None).await;
    let mut polls = 0;
    loop {
        let store = subject.reopen().await;
        let ended = poll_then_drop(store.step_replay(started.id, 1), polls % 24).await;
        drop(store);
        polls += 1;
        let at = inbox.store().replay_info(started.id).await.unwrap().unwrap();
        if ended.is_some() && at.state == ReplayState::Done {
            break;
        }
        assert!(polls < 3000, "no end in sight: {at:?}");
    }
    drain(&inbox).await;
    let done = inbox.store().replay_info(started.id).await.unwrap().unwrap();
    assert_eq!(done.replayed, 30);
    assert_eq!(failures(inbox.store()).await, [2; 30]);
}

/// What was replayed stays replayed; the rest stays dead.
pub async fn a_cancelled_replay_goes_no_further<T: Subject>(subject: T) {
    let (inbox, mended) = broken(&subject, &numbered(10)).await;
    let store = inbox.store();
    mended.store(true, Ordering::SeqCst);
    let started = start(store, DeliveryFilter::dead("charge"), None).await;
    step(store, started.id, 4).await;
    let cancelled = store.cancel_replay(started.id).await.unwrap().unwrap();
    assert_eq!((cancelled.state, cancelled.replayed), (ReplayState::Cancelled, 4));
    assert!(cancelled.ended_at.is_some());
    subject.clock().advance(SECOND);
    for at in [step(store, started.id, 100).await, store.cancel_replay(started.id).await.unwrap().unwrap()] {
        assert_eq!(format!("{at:?}"), format!("{cancelled:?}"));
    }
    drain(&inbox).await;
    assert_eq!(in_state(store, "charge", DeliveryState::Dead).await.len(), 6);
    assert_eq!(ids(&subject, "charge").await.len(), 4);

    let nobody = ReplayId(i64::MAX);
    assert!(store.step_replay(nobody, 1).await.unwrap().is_none());
    assert!(store.cancel_replay(nobody).await.unwrap().is_none());
    assert!(store.replay_info(nobody).await.unwrap().is_none());
}

/// Either the step came first or the cancelling did.
pub async fn a_replay_cancelled_in_the_middle_of_a_step_is_whole<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(20)).await;
    let other = subject.reopen().await;
    for _ in 0..8 {
        let started = start(inbox.store(), DeliveryFilter::dead("charge"), None).await;
        let (stepped, cancelled) =
            tokio::join!(inbox.store().step_replay(started.id, 5), other.cancel_replay(started.id));
        stepped.unwrap();
        assert_eq!(cancelled.unwrap().unwrap().state, ReplayState::Cancelled);
        let at = inbox.store().replay_info(started.id).await.unwrap().unwrap();
        let alive = 20 - in_state(inbox.store(), "charge", DeliveryState::Dead).await.len() as u64;
        assert_eq!((at.state, at.replayed), (ReplayState::Cancelled, alive));
        assert!(alive == 0 || alive == 5, "{alive}");
        drain(&inbox).await;
    }
}

/// Step by step as all at once.
pub async fn a_replay_in_steps_keeps_the_order_of_a_key<T: Subject>(subject: T) {
    let messages: Vec<Message> = (0..12).map(|number| keyed(format!("{number:02}"), "k")).collect();
    let (inbox, mended) = broken(&subject, &messages).await;
    mended.store(true, Ordering::SeqCst);
    let started = start(inbox.store(), DeliveryFilter::dead("charge"), None).await;
    while step(inbox.store(), started.id, 5).await.state == ReplayState::Running {
        drain(&inbox).await;
    }
    drain(&inbox).await;
    let expected: Vec<String> = messages.into_iter().map(|message| message.id).collect();
    assert_eq!(ids(&subject, "charge").await, expected);
}

/// Newest first; a limit in the filter is a limit of all its steps together.
pub async fn replays_are_listed_and_keep_the_limit_of_their_filter<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(9)).await;
    let store = inbox.store();
    let limited = start(store, DeliveryFilter::dead("charge").limit(5), None).await;
    assert_eq!(limited.matched, 5);
    assert_eq!(step(store, limited.id, 3).await.state, ReplayState::Running);
    let nothing = start(store, DeliveryFilter::dead("nobody"), Some(7)).await;
    assert_eq!(nothing.matched, 0);
    let running = store.replays(true, 10).await.unwrap();
    assert_eq!(running.iter().map(|one| one.id).collect::<Vec<_>>(), [nothing.id, limited.id]);
    assert_eq!(running[0].replay.rate, Some(7));
    let done = step(store, limited.id, 3).await;
    assert_eq!((done.state, done.replayed), (ReplayState::Done, 5));
    subject.clock().advance(SECOND);
    assert_eq!(step(store, nothing.id, 3).await.state, ReplayState::Done);
    assert_eq!(store.replays(true, 10).await.unwrap().len(), 0);
    assert_eq!(store.replays(false, 1).await.unwrap()[0].id, nothing.id);
    assert_eq!(store.replays(false, 10).await.unwrap().len(), 2);
}

/// It is shown as what it is, nobody steps it, and it can be cancelled.
pub async fn a_replay_of_a_newer_version_stops_no_other<T: Subject>(subject: T) {
    let (inbox, _) = broken(&subject, &numbered(3)).await;
    let store = inbox.store();
    let strange = start(store, DeliveryFilter::dead("charge"), None).await;
    let known = start(store, DeliveryFilter::dead("charge"), None).await;
    subject.write_as_newer(strange.id.0, "nobody").await;
    for running in [true, false] {
        let all = store.replays(running, 10).await.unwrap();
        let all: Vec<_> = all.iter().map(|one| (one.id, one.state, one.replay.actor.as_str())).collect();
        let expected =
            [(known.id, ReplayState::Running, "ann"), (strange.id, ReplayState::Unreadable, "ann")];
        assert_eq!(all, expected);
    }
    let at = step(store, strange.id, 10).await;
    assert_eq!((at.state, at.replayed, at.matched), (ReplayState::Unreadable, 0, 3));
    let nothing = &store.replay_info(strange.id).await.unwrap().unwrap().replay.filter;
    assert_eq!(store.count_deliveries(nothing, 10).await.unwrap(), 0, "its filter matches nothing");
    assert_eq!(step(store, known.id, 10).await.replayed, 3);
    let cancelled = store.cancel_replay(strange.id).await.unwrap().unwrap();
    assert_eq!(cancelled.state, ReplayState::Cancelled);
}
