//! What a service does on its own beside serving: it reads who may ask and what is paused, and steps running replays.

use std::time::Duration;

use oncebox::admin::{AdminStore, ReplayState};
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
const MOST_REPLAYS: usize = 100;

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
    let mut was_good = true;
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = app.replaying.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        // A step waits for the batches of an ordered handler, within the limits of the store; it may be given up anywhere.
        let round = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            round = step_all(app) => round,
        };
        note(&mut was_good, Ok(round), "replays");
    }
}

async fn step_all<St: ServiceStore>(app: &App<St>) -> Result<(), Error> {
    let store = app.inbox.store();
    let running = store.replays(true, MOST_REPLAYS).await?;
    let mut open: Vec<_> = running.iter().map(|replay| (replay.id, replay.replayed)).collect();
    // In turn, so that a long one does not keep the others waiting.
    while !open.is_empty() {
        let mut more = Vec::new();
        for (id, before) in open {
            let Some(now) = store.step_replay(id, AT_ONCE).await? else { continue };
            // One whose rate is used up waits for the next round, and so does one that another process is stepping.
            if now.state == ReplayState::Running && now.replayed >= before + AT_ONCE {
                more.push((id, now.replayed));
            }
        }
        open = more;
    }
    Ok(())
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
