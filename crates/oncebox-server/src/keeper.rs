//! What a service does on its own beside serving: it reads who may ask and what is paused, and steps running replays.

use std::collections::BTreeSet;
use std::time::Duration;

use oncebox::admin::{AdminStore, ReplayId, ReplayState};
use oncebox::{Error, Inbox};
use tokio::sync::{Mutex, watch};

use crate::service::App;
use crate::stores::ServiceStore;

/// How often tokens, pauses and replays are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How long the store may take for one look.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many letters one step replays.
const AT_ONCE: u64 = 500;
/// The most replays that are stepped in one round.
const MOST_REPLAYS: usize = 1000;

/// Brings what the store says of paused sources to the inbox of this process.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    renewing: Mutex<()>,
}

impl Pauses {
    /// Reads the store.
    pub(crate) async fn renew<St: AdminStore>(&self, inbox: &Inbox<St>) -> Result<(), Error> {
        // One reader after the other: an answer from before a change must not undo it.
        let _turn = self.renewing.lock().await;
        let paused = inbox.store().paused_sources().await?;
        for name in inbox.paused_sources().iter().filter(|name| !paused.contains(name)) {
            inbox.resume_source(name);
        }
        for name in &paused {
            inbox.pause_source(name);
        }
        Ok(())
    }
}

/// Reads tokens and pauses every second until the service stops.
pub(crate) async fn keep_access<St: ServiceStore>(app: &App<St>, mut stopping: watch::Receiver<bool>) {
    let mut was_good = true;
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        let look = async {
            app.access.renew(app.inbox.store()).await?;
            app.pauses.renew(&app.inbox).await
        };
        note(&mut was_good, tokio::time::timeout(PATIENCE, look).await, "tokens and paused sources");
    }
}

/// Steps running replays until the service stops; any number of processes may do so.
pub(crate) async fn keep_replaying<St: ServiceStore>(app: &App<St>, mut stopping: watch::Receiver<bool>) {
    let (mut was_good, mut told) = (true, BTreeSet::new());
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = app.replaying.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        // A step waits for the batches of an ordered handler, within the limits of the store; it may be given up anywhere.
        let round = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            round = step_all(app.inbox.store(), &mut told) => round,
        };
        note(&mut was_good, Ok(round), "replays");
    }
}

async fn step_all<St: AdminStore>(store: &St, told: &mut BTreeSet<ReplayId>) -> Result<(), Error> {
    let mut round = Round::begin(store, told).await?;
    while !round.open.is_empty() {
        round.turn(store).await;
    }
    round.failed.map_or(Ok(()), Err)
}

/// The replays that still have something to do now, and how far they were.
struct Round {
    open: Vec<(ReplayId, u64)>,
    /// What went wrong with one of them; the others go on.
    failed: Option<Error>,
}

impl Round {
    /// All that are running, but for those of another version, which is said once of each.
    async fn begin<St: AdminStore>(store: &St, told: &mut BTreeSet<ReplayId>) -> Result<Self, Error> {
        let mut open = Vec::new();
        for replay in store.replays(true, MOST_REPLAYS).await? {
            if replay.state == ReplayState::Running {
                open.push((replay.id, replay.replayed));
            } else if told.insert(replay.id) {
                let replay = replay.id.0;
                tracing::warn!(replay, "another version wrote this replay, and this one leaves it alone");
            }
        }
        Ok(Self { open, failed: None })
    }

    /// One step of each, so that a long one does not keep the others waiting.
    async fn turn<St: AdminStore>(&mut self, store: &St) {
        let mut more = Vec::new();
        for (id, before) in self.open.drain(..) {
            match store.step_replay(id, AT_ONCE).await {
                // One whose rate is used up waits for the next round, and so does one that another process is stepping.
                Ok(Some(now)) if now.state == ReplayState::Running && now.replayed >= before + AT_ONCE => {
                    more.push((id, now.replayed));
                }
                Ok(_) => {}
                Err(error) => self.failed = Some(error),
            }
        }
        self.open = more;
    }
}

/// Says when it begins to fail and when it is well again, not every second.
fn note(was_good: &mut bool, done: Result<Result<(), Error>, tokio::time::error::Elapsed>, what: &str) {
    let error = match done {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("the store did not answer within {PATIENCE:?}")),
    };
    match &error {
        Some(error) if *was_good => {
            tracing::warn!(what, error = %error.escape_debug(), "the store could not be asked");
        }
        None if !*was_good => tracing::info!(what, "the store answers again"),
        _ => {}
    }
    *was_good = error.is_none();
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use oncebox::admin::{DeliveryFilter, Replay, ReplayInfo};
    use oncebox::{Failure, Message, SqliteStore, handler, run};

    use super::*;

    /// A store with so many dead letters of each kind.
    async fn broken(folder: &tempfile::TempDir, letters: &[(&str, usize)]) -> SqliteStore {
        let store = SqliteStore::open(folder.path().join("a.db").to_str().unwrap()).await.unwrap();
        store.migrate().await.unwrap();
        let dies = |_: Message| async { Err::<(), _>(Failure::permanent("no stock")) };
        let inbox = Inbox::new(store.clone()).on("*", handler("charge", dies));
        run(inbox.clone()).drain().await.unwrap();
        for (kind, count) in letters {
            let messages: Vec<Message> =
                (0..*count).map(|number| Message::new(*kind, "x").id(format!("{kind}-{number}"))).collect();
            inbox.receive(&messages).await.unwrap();
        }
        run(inbox).drain().await.unwrap();
        store
    }

    async fn start(store: &SqliteStore, kind: &str, rate: Option<u32>) -> ReplayId {
        let filter = DeliveryFilter::dead("charge").kind(kind);
        store.start_replay(&Replay { filter, rate, actor: "ann".to_owned() }).await.unwrap().id
    }

    async fn at(store: &SqliteStore, id: ReplayId) -> ReplayInfo {
        store.replay_info(id).await.unwrap().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_replay_does_not_keep_a_short_one_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let store = broken(&folder, &[("long", 1200), ("short", 10)]).await;
        // The newest is stepped first, so the long one.
        let short = start(&store, "short", None).await;
        let long = start(&store, "long", None).await;
        let mut round = Round::begin(&store, &mut BTreeSet::new()).await.unwrap();
        round.turn(&store).await;
        assert_eq!(at(&store, long).await.replayed, AT_ONCE);
        assert_eq!(at(&store, short).await.state, ReplayState::Done, "it had its turn");
        step_all(&store, &mut BTreeSet::new()).await.unwrap();
        let done = at(&store, long).await;
        assert_eq!((done.state, done.replayed), (ReplayState::Done, 1200));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_with_a_rate_keeps_it_and_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let store = broken(&folder, &[("slow", 100), ("fast", 700)]).await;
        let began = Instant::now();
        let fast = start(&store, "fast", None).await;
        let slow = start(&store, "slow", Some(1)).await;
        for _ in 0..5 {
            step_all(&store, &mut BTreeSet::new()).await.unwrap();
        }
        let now = at(&store, slow).await;
        // The time this test takes by itself counts too.
        let most = 2 + began.elapsed().as_secs();
        assert!(now.state == ReplayState::Running && now.replayed <= most, "{now:?}, at most {most}");
        assert_eq!(at(&store, fast).await.state, ReplayState::Done);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_of_another_version_is_left_alone_and_the_others_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = broken(&folder, &[("known", 3), ("strange", 3)]).await;
        let known = start(&store, "known", None).await;
        let strange = start(&store, "strange", None).await;
        let sql = "update oncebox_replay set filter = '{\"colour\":\"red\"}' where id = ?1";
        sqlx::query(sql).bind(strange.0).execute(store.pool()).await.unwrap();
        let mut told = BTreeSet::new();
        step_all(&store, &mut told).await.unwrap();
        assert_eq!(at(&store, known).await.state, ReplayState::Done);
        let left = at(&store, strange).await;
        assert_eq!((left.state, left.replayed), (ReplayState::Unreadable, 0));
        assert_eq!(told, [strange].into());
    }
}
