//! What reaches the dead-letter exchange of a queue: only what is rejected.

#![allow(clippy::unwrap_used)]

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use oncebox_core::admin::{AdminStore, DeliveryFilter};
use oncebox_core::{Inbox, Incoming, Settle, Source, Store, UNREADABLE, run};
use oncebox_rabbitmq::{RabbitmqReceipt, RabbitmqSource, RabbitmqSourceConfig};
use oncebox_testkit::{Subject, until, within_deadline};
use sqlite::SqliteSubject;
use support::{Plain, fresh_name, shared_server};
use tokio::sync::oneshot;

/// A queue with a dead-letter exchange, and the queue behind that.
struct Queue {
    plain: Plain,
    url: String,
    name: String,
    letters: String,
}

impl Queue {
    async fn create(kind: &str) -> Option<Self> {
        let server = shared_server().await?;
        let plain = Plain::connect(&server.url()).await.unwrap();
        let (name, letters) = (fresh_name("with-exchange"), fresh_name("letters"));
        let text = |text: &str| AMQPValue::LongString(text.into());
        plain.create_queue(&letters, &[]).await;
        let arguments = [
            ("x-queue-type", text(kind)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&letters)),
        ];
        plain.create_queue(&name, &arguments).await;
        Some(Self { plain, url: server.url(), name, letters })
    }

    fn source(&self) -> RabbitmqSource {
        let config = RabbitmqSourceConfig::new(&self.url, &self.name)
            .return_after(Duration::from_millis(50))
            .dead_letter_exchange();
        RabbitmqSource::new("orders", config).unwrap()
    }

    async fn put(&self, id: Option<&str>) {
        let properties = BasicProperties::default().with_type("order.placed".into());
        let properties = match id {
            Some(id) => properties.with_message_id(id.into()),
            None => properties,
        };
        self.plain.publish("", &self.name, properties, b"body").await.unwrap();
    }

    /// Waits until everything is settled.
    async fn worked_off(&self) {
        until("the queue is empty and nothing comes back", || async {
            self.plain.ready(&self.name).await == 0 && self.plain.users(&self.name).await == 0
        })
        .await;
    }

    /// The ids of the dead letters, the first of which may take a moment to come.
    async fn dead_letters(&self) -> Vec<String> {
        until("there is a dead letter", || async { self.plain.ready(&self.letters).await > 0 }).await;
        let mut ids = Vec::new();
        while let Some(letter) = self.plain.take(&self.letters).await.unwrap() {
            let id = letter.properties.message_id().as_ref();
            ids.push(id.map_or("none", |id| id.as_str()).to_owned());
        }
        ids
    }
}

/// Takes so many messages.
async fn take(source: &mut RabbitmqSource, count: usize) -> Vec<Incoming<RabbitmqReceipt>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(source.next(count - taken.len()).await.unwrap());
    }
    taken
}

async fn only_what_is_rejected_is_a_dead_letter(kind: &str) {
    let Some(queue) = Queue::create(kind).await else { return };
    within_deadline(async {
        for id in ["accepted", "returned", "rejected", "open"] {
            queue.put(Some(id)).await;
        }
        let mut source = queue.source();
        let mut taken = take(&mut source, 4).await;
        drop(taken.pop());
        let settled = taken.into_iter().zip([Settle::Accept, Settle::Return, Settle::Reject]);
        source.settle(settled.map(|(one, how)| (one.receipt, how)).collect()).await.unwrap();
        let returned = take(&mut source, 1).await.remove(0);
        assert_eq!(returned.message.id, "returned");
        source.settle(vec![(returned.receipt, Settle::Accept)]).await.unwrap();
        drop(source);
        let mut source = queue.source();
        let open = take(&mut source, 1).await.remove(0);
        assert_eq!(open.message.id, "open");
        source.settle(vec![(open.receipt, Settle::Accept)]).await.unwrap();
        drop(source);
        queue.worked_off().await;
        assert_eq!(queue.dead_letters().await, ["rejected"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_classic_queue_only_what_is_rejected_is_a_dead_letter() {
    only_what_is_rejected_is_a_dead_letter("classic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_quorum_queue_only_what_is_rejected_is_a_dead_letter() {
    only_what_is_rejected_is_a_dead_letter("quorum").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_as_unreadable_is_no_dead_letter_of_the_queue() {
    let Some(queue) = Queue::create("classic").await else { return };
    let store = SqliteSubject::create().await.unwrap();
    within_deadline(async {
        queue.put(None).await;
        queue.put(Some("fine")).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = run(Inbox::new(store.store())).consume(queue.source()).with_graceful_shutdown(async {
            stopped.await.ok();
        });
        let runner = tokio::spawn(runner.into_future());
        let kept = DeliveryFilter::all().handler(UNREADABLE);
        until("both are stored", || async {
            let is_kept = store.store().deliveries(&kept).await.unwrap().len() == 1;
            is_kept && store.store().message("orders", "fine").await.unwrap().is_some()
        })
        .await;
        stop.send(()).unwrap();
        runner.await.unwrap().unwrap();
        queue.worked_off().await;

        // Letters come one after the other: whatever came before this one would be seen.
        queue.put(Some("rejected")).await;
        let mut source = queue.source();
        let rejected = take(&mut source, 1).await.remove(0);
        source.settle(vec![(rejected.receipt, Settle::Reject)]).await.unwrap();
        assert_eq!(queue.dead_letters().await, ["rejected"]);
    })
    .await;
}
