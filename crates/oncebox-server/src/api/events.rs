//! `/api/v1/events`: what changes, as it changes, as Server-Sent Events.
//!
//! One task per process looks at the store, and only while somebody listens. What it sees goes to all listeners through
//! a short queue; who does not keep up is dropped, and comes back with a fresh status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::{Notify, broadcast, watch};

use super::answer::Problem;
use super::{sources, status};
use crate::access::{Actor, Changes};
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// The most listeners of one process.
const MOST_LISTENERS: usize = 64;
/// How many events a listener may be behind.
const QUEUE: usize = 256;
/// How often the store is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How often a silent stream says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How many new changes are told at once; who wants more reads the audit log.
const AUDIT_AT_ONCE: usize = 100;

/// Where events come together.
#[derive(Debug)]
pub(crate) struct Events {
    sender: broadcast::Sender<Happened>,
    listeners: Arc<AtomicUsize>,
    nudged: Notify,
    stopping: watch::Receiver<bool>,
}

/// One event: its name, and its data as JSON.
#[derive(Debug, Clone, PartialEq)]
struct Happened {
    name: &'static str,
    data: Arc<str>,
}

impl Happened {
    fn new(name: &'static str, value: &impl Serialize) -> Self {
        Self { name, data: serde_json::to_string(value).unwrap_or_default().into() }
    }

    fn to_event(&self) -> Event {
        Event::default().event(self.name).data(&*self.data)
    }
}

impl Events {
    pub(crate) fn new(stopping: watch::Receiver<bool>) -> Self {
        let (sender, _) = broadcast::channel(QUEUE);
        Self { sender, listeners: Arc::default(), nudged: Notify::new(), stopping }
    }

    /// Something has changed: look now, not in a second.
    pub(crate) fn nudge(&self) {
        self.nudged.notify_one();
    }

    fn listen(&self) -> Option<Listener> {
        let more = |count: usize| (count < MOST_LISTENERS).then_some(count + 1);
        self.listeners.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let place = Place(self.listeners.clone());
        Some(Listener { events: self.sender.subscribe(), stopping: self.stopping.clone(), _place: place })
    }

    /// Looks at the store once a second, while somebody listens, until the service stops.
    pub(crate) async fn watch<St: ServiceStore>(&self, app: &App<St>) {
        let mut stopping = self.stopping.clone();
        let mut seen = Seen::default();
        loop {
            if self.listeners.load(Ordering::Acquire) == 0 {
                seen = Seen::default();
            } else if let Ok(happened) = seen.look(app).await {
                for event in happened {
                    let _ = self.sender.send(event);
                }
            }
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = self.nudged.notified() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }
}

/// One who listens; gives its place back when it goes.
#[derive(Debug)]
struct Listener {
    events: broadcast::Receiver<Happened>,
    stopping: watch::Receiver<bool>,
    _place: Place,
}

#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listener {
    /// The next event; `None` when the service stops or this listener was too slow.
    async fn next(&mut self) -> Option<Happened> {
        tokio::select! {
            biased;
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
            // An error: it has missed some.
            event = self.events.recv() => event.ok(),
        }
    }
}

/// What changes, as it changes: `status` (a second apart at most), `handler`, `source`, `replay`, `audit`.
///
/// It begins with a `status`. A comment comes at least every ten seconds. The stream ends when the service stops, when
/// the token is revoked, or when the listener is too slow; then connect again.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events",
    responses((status = 200, content_type = "text/event-stream", body = String)),
)]
pub(crate) async fn events<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
) -> Result<Response, Problem> {
    let changes = app.access.changes();
    let listener = app.events.listen().ok_or(Problem::Unavailable("there are too many listeners"))?;
    let first = Happened::new("status", &status::read(&app).await?);
    app.events.nudge();
    let alive = KeepAlive::new().interval(HEARTBEAT).text("alive");
    Ok(Sse::new(told(app, actor, listener, changes, first)).keep_alive(alive).into_response())
}

fn told<St: ServiceStore>(
    app: Arc<App<St>>,
    actor: Actor,
    listener: Listener,
    changes: Changes,
    first: Happened,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((Some(first), listener, changes), move |(first, mut listener, mut changes)| {
        let (app, actor) = (app.clone(), actor.clone());
        async move {
            if let Some(first) = first {
                let event = first.to_event().retry(EVERY);
                return Some((Ok(event), (None, listener, changes)));
            }
            loop {
                let happened = tokio::select! {
                    happened = listener.next() => happened?,
                    () = changes.next() => {
                        if app.access.still_allows(&actor) {
                            continue;
                        }
                        return None;
                    }
                };
                // A token may also have expired meanwhile, which changes nothing.
                if !app.access.still_allows(&actor) {
                    return None;
                }
                return Some((Ok(happened.to_event()), (None, listener, changes)));
            }
        }
    })
}

/// What was told last, to tell only what is new.
#[derive(Debug, Default)]
struct Seen {
    status: Option<view::Status>,
    handlers: BTreeMap<String, bool>,
    sources: BTreeMap<String, (bool, Option<bool>, Option<String>)>,
    replays: BTreeMap<i64, view::Replay>,
    audit: Option<i64>,
}

#[derive(Debug, Serialize)]
struct HandlerChanged<'a> {
    handler: &'a str,
    paused: bool,
}

impl Seen {
    async fn look<St: ServiceStore>(&mut self, app: &App<St>) -> Result<Vec<Happened>, Problem> {
        let mut happened = Vec::new();
        let status = status::read(app).await?;
        for one in &status.handlers {
            let before = self.handlers.insert(one.handler.clone(), one.paused);
            if self.status.is_some() && before != Some(one.paused) {
                let changed = HandlerChanged { handler: &one.handler, paused: one.paused };
                happened.push(Happened::new("handler", &changed));
            }
        }
        for source in sources::all(app) {
            let now = (source.paused, source.connected, source.error.clone());
            let before = self.sources.insert(source.source.clone(), now.clone());
            if self.status.is_some() && before.as_ref() != Some(&now) {
                happened.push(Happened::new("source", &source));
            }
        }
        self.look_at_replays(app, &mut happened).await?;
        self.look_at_audit(app, &mut happened).await?;
        if self.status.as_ref() != Some(&status) {
            happened.push(Happened::new("status", &status));
            self.status = Some(status);
        }
        Ok(happened)
    }

    async fn look_at_replays<St: ServiceStore>(
        &mut self,
        app: &App<St>,
        happened: &mut Vec<Happened>,
    ) -> Result<(), Problem> {
        let store = app.inbox.store();
        let found = super::answer::asked(store.replays(false, 20)).await?;
        for replay in found.iter().rev().map(view::replay) {
            let before = self.replays.insert(replay.replay, replay.clone());
            if self.status.is_some() && before.as_ref() != Some(&replay) {
                happened.push(Happened::new("replay", &replay));
            }
        }
        Ok(())
    }

    async fn look_at_audit<St: ServiceStore>(
        &mut self,
        app: &App<St>,
        happened: &mut Vec<Happened>,
    ) -> Result<(), Problem> {
        let newest = super::answer::asked(app.inbox.store().audit(None, AUDIT_AT_ONCE)).await?;
        let last = self.audit.unwrap_or_else(|| newest.first().map_or(0, |entry| entry.number));
        for entry in newest.iter().rev().filter(|entry| entry.number > last) {
            happened.push(Happened::new("audit", &view::audited(entry)));
        }
        self.audit = Some(newest.first().map_or(last, |entry| entry.number.max(last)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: usize) -> Happened {
        Happened::new("audit", &number)
    }

    #[tokio::test]
    async fn a_listener_that_does_not_keep_up_is_dropped_and_the_others_are_not() {
        let (_stop, stopping) = watch::channel(false);
        let events = Events::new(stopping);
        let (mut slow, mut quick) = (events.listen().unwrap(), events.listen().unwrap());
        for number in 0..=QUEUE {
            events.sender.send(event(number)).unwrap();
            assert_eq!(quick.next().await, Some(event(number)));
        }
        assert_eq!(slow.next().await, None);
    }

    #[tokio::test]
    async fn there_are_only_so_many_listeners_and_a_place_is_given_back() {
        let (stop, stopping) = watch::channel(false);
        let events = Events::new(stopping);
        let mut all: Vec<Listener> = (0..MOST_LISTENERS).map(|_| events.listen().unwrap()).collect();
        assert!(events.listen().is_none());
        all.pop();
        let mut last = events.listen().unwrap();
        stop.send_replace(true);
        assert_eq!(last.next().await, None, "it ends when the service stops");
    }
}
