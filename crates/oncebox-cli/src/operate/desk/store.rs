//! The store itself, with or without a service on it.

use std::time::Duration;

use oncebox::admin::{
    AdminStore, Audit, DeliveryFilter, MessageSearch, OutgoingFilter, Replay as NewReplay, ReplayId,
};
use oncebox::store::Count;
use oncebox::{Error, ErrorKind, Inbox, Message, Received};
use oncebox_server::view::{self, Audited, Outgoing, Replay, Status, Whole};
use serde_json::{Value, json};

use super::super::screen::safe;
use super::{COUNTED, Desk, Done, Found, Listed, PAGE, Part};

/// A store, and whoever runs this command.
pub(in crate::operate) struct StoreDesk<St> {
    store: St,
}

impl<St: AdminStore> StoreDesk<St> {
    pub(in crate::operate) fn new(store: St) -> Self {
        Self { store }
    }

    /// Writes a change down before it is made; what cannot be written down is not done.
    async fn write_down(&self, action: &str, target: &str, details: Value) -> Done<()> {
        self.store.add_audit(&change(action, target, details.to_string())).await.map_err(told).map(drop)
    }
}

/// A change by whoever runs this command.
pub(in crate::operate) fn change(action: &str, target: &str, details: String) -> Audit {
    Audit { actor: actor(), action: action.to_owned(), target: target.to_owned(), details }
}

fn actor() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".to_owned());
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{user}@{}", machine.trim())
}

fn told(error: Error) -> String {
    match error.kind() {
        ErrorKind::Schema => {
            format!("{error}; `oncebox migrate` makes the tables, `--schema` names others")
        }
        _ => error.to_string(),
    }
}

impl<St: AdminStore> Desk for StoreDesk<St> {
    async fn status(&self) -> Done<Status> {
        let store = &self.store;
        let handlers = store.handlers().await.map_err(told)?;
        let outbox = store.outbox().await.map_err(told)?;
        Ok(view::status(&handlers, &outbox, &store.counts().await.map_err(told)?))
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Done<Listed> {
        let found = self.store.deliveries(filter).await.map_err(told)?;
        let more = filter.limit.is_some_and(|limit| found.len() >= limit);
        Ok(Listed { deliveries: found.iter().map(view::delivery).collect(), more })
    }

    async fn outgoing(&self, filter: &OutgoingFilter) -> Done<Vec<Outgoing>> {
        let found = self.store.outgoing(filter).await.map_err(told)?;
        Ok(found.iter().map(view::outgoing).collect())
    }

    async fn messages(&self, search: &MessageSearch, cursor: Option<&str>) -> Done<Found> {
        let mut search = search.clone();
        let wrong = |_| "`--cursor` is not what the search before said".to_owned();
        search.before = cursor.map(str::parse).transpose().map_err(wrong)?;
        let page = self.store.messages(&search).await.map_err(told)?;
        let next = page.next.map(|place| place.to_string());
        Ok(Found { messages: page.messages.iter().map(view::hit).collect(), next })
    }

    async fn message(&self, scope: &str, id: &str) -> Done<Option<Whole>> {
        let found = self.store.message(scope, id).await.map_err(told)?;
        Ok(found.map(|found| view::whole(scope, id, &found)))
    }

    async fn count_dead(&self, filter: &DeliveryFilter) -> Done<u64> {
        self.store.count_deliveries(filter, COUNTED).await.map_err(told)
    }

    async fn start_replay(&self, filter: &DeliveryFilter, rate: Option<u32>) -> Done<Replay> {
        self.write_down("replay", &view::letters(filter), json!({ "rate": rate })).await?;
        let replay = NewReplay { filter: filter.clone(), rate, actor: actor() };
        Ok(view::replay(&self.store.start_replay(&replay).await.map_err(told)?))
    }

    async fn step_replay(&self, replay: i64) -> Done<Replay> {
        let stepped = self.store.step_replay(ReplayId(replay), PAGE as u64).await.map_err(told)?;
        stepped.map(|info| view::replay(&info)).ok_or_else(|| gone(replay))
    }

    fn pace(&self, rate: Option<u32>) -> Duration {
        // Without a rate every step is a full one.
        rate.map_or(Duration::ZERO, |_| Duration::from_millis(100))
    }

    async fn cancel_replay(&self, replay: i64) -> Done<Replay> {
        self.write_down("cancel-replay", &replay.to_string(), json!({})).await?;
        let cancelled = self.store.cancel_replay(ReplayId(replay)).await.map_err(told)?;
        cancelled.map(|info| view::replay(&info)).ok_or_else(|| gone(replay))
    }

    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Done<u64> {
        self.write_down("discard", &view::letters(filter), json!({ "reason": reason })).await?;
        // In steps, so that no statement locks too many rows.
        let filter = filter.clone().limit(PAGE);
        let mut discarded = 0;
        loop {
            let step = self.store.discard(&filter, reason).await.map_err(told)?;
            discarded += step;
            if step < PAGE as u64 {
                return Ok(discarded);
            }
        }
    }

    async fn set_paused(&self, part: Part<'_>, paused: bool) -> Done<bool> {
        let action = if paused { "pause" } else { "resume" };
        match part {
            Part::Handler(name) => {
                let known = self.store.handlers().await.map_err(told)?;
                if !known.iter().any(|handler| handler.name == name) {
                    return Ok(false);
                }
                self.write_down(action, name, json!({ "handler": name })).await?;
                self.store.set_paused(name, paused).await.map_err(told)
            }
            // The store does not know which sources there are, so any name is one.
            Part::Source(name) => {
                oncebox::admin::check_name("source", name).map_err(told)?;
                self.write_down(action, name, json!({ "source": name })).await?;
                self.store.set_source_paused(name, paused).await.map_err(told)?;
                let name = safe(name);
                eprintln!(
                    "a store cannot tell whether there is a source `{name}`: a service can, with --server"
                );
                Ok(true)
            }
        }
    }

    async fn send(&self, message: Message) -> Done<String> {
        let target = format!("{}/{}", message.scope, message.id);
        self.write_down("send", &target, json!({ "kind": message.kind })).await?;
        let inbox = Inbox::new(self.store.clone());
        let received = inbox.receive(std::slice::from_ref(&message)).await.map_err(told)?;
        let word = match received.first() {
            Some(Received::New) => "new",
            Some(Received::Duplicate) => "duplicate",
            _ => "conflict",
        };
        // No runner of this process does it. Whether somebody wants the kind is not known here, so that is not counted.
        let name = if word == "new" { "received" } else { word };
        let count = Count { handler: String::new(), name: name.to_owned(), value: 1 };
        if let Err(error) = self.store.add_counts(&[count]).await {
            eprintln!("the message is stored, but could not be counted: {error}");
        }
        Ok(word.to_owned())
    }

    async fn audit(&self, before: Option<i64>, limit: usize) -> Done<Vec<Audited>> {
        let found = self.store.audit(before, limit).await.map_err(told)?;
        Ok(found.iter().map(view::audited).collect())
    }
}

fn gone(replay: i64) -> String {
    format!("there is no replay {replay} any more")
}
