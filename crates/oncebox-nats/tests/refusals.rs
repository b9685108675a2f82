//! A stream that takes some messages of a lot and refuses the others.

#![allow(clippy::unwrap_used)]

#[path = "../../oncebox-sqlite/tests/support/mod.rs"]
mod sqlite;
mod support;

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use oncebox_core::admin::{AdminStore, OutgoingFilter, OutgoingState};
use oncebox_core::{Inbox, Message, SendFailure, Sink, Store, run};
use oncebox_nats::{NatsSink, NatsSinkConfig};
use oncebox_testkit::{Subject, within_deadline};
use sqlite::SqliteSubject;
use support::{Plain, fresh_number, shared_server};

/// How many messages the stream has room for.
const ROOM: usize = 5;
/// The most bytes of a message there, headers included.
const MOST_BYTES: i32 = 1000;

/// A stream that is soon full and takes no large messages.
struct Narrow {
    plain: Plain,
    url: String,
    stream: String,
}

impl Narrow {
    async fn create() -> Option<Self> {
        let server = shared_server().await?;
        let plain = Plain::connect(&server.url()).await;
        let stream = format!("narrow-{}", fresh_number());
        let settings = Config {
            max_messages: i64::try_from(ROOM).unwrap(),
            max_message_size: MOST_BYTES,
            discard: DiscardPolicy::New,
            ..Config::default()
        };
        plain.create_stream_with(&stream, &format!("{stream}.>"), settings).await;
        Some(Self { plain, url: server.url(), stream })
    }

    fn sink(&self) -> NatsSink {
        NatsSink::new(NatsSinkConfig::new(&self.url).prefix(&self.stream)).unwrap()
    }

    /// The ids in the stream, oldest first.
    async fn ids(&self) -> Vec<String> {
        let messages = self.plain.messages(&self.stream).await.unwrap();
        let id = |message: &async_nats::jetstream::Message| {
            message.headers.as_ref().unwrap().get("Nats-Msg-Id").unwrap().to_string()
        };
        messages.iter().map(id).collect()
    }

    /// Takes everything out of the stream.
    async fn empty(&self) {
        self.plain.jetstream.get_stream(&self.stream).await.unwrap().purge().await.unwrap();
    }
}

/// Ten messages, of which the third and the sixth are too large.
fn lot() -> Vec<Message> {
    let message = |number: usize| {
        let size = if matches!(number, 2 | 5) { 2000 } else { 10 };
        Message::new("order.paid", vec![b'x'; size]).id(number.to_string())
    };
    (0..10).map(message).collect()
}

/// What finds room.
const TAKEN: [&str; ROOM] = ["0", "1", "3", "4", "6"];
const TOO_LARGE: [&str; 2] = ["2", "5"];
/// What comes when the stream is full.
const TOO_LATE: [&str; 3] = ["7", "8", "9"];

#[tokio::test]
async fn exactly_what_the_stream_refuses_is_not_confirmed() {
    let Some(narrow) = Narrow::create().await else { return };
    within_deadline(async {
        let lot = lot();
        let answers = narrow.sink().send(&lot).await.unwrap();
        for (message, answer) in lot.iter().zip(&answers) {
            let id = message.id.as_str();
            match answer {
                Ok(()) => assert!(TAKEN.contains(&id), "{id} was refused"),
                Err(SendFailure::Permanent(why)) => {
                    assert!(TOO_LARGE.contains(&id) && why.contains("too large"), "{id}: {why}");
                }
                Err(SendFailure::Retry(why)) => {
                    assert!(TOO_LATE.contains(&id) && why.contains("maximum messages"), "{id}: {why}");
                }
            }
        }
        assert_eq!(narrow.ids().await, TAKEN);
    })
    .await;
}

/// The ids in the outbox and how they stand.
async fn outbox(store: &SqliteSubject) -> Vec<(String, OutgoingState)> {
    let outgoing = store.store().outgoing(&OutgoingFilter::default()).await.unwrap();
    outgoing.into_iter().map(|info| (info.id, info.state)).collect()
}

fn standing(ids: &[&str], state: OutgoingState) -> Vec<(String, OutgoingState)> {
    ids.iter().map(|id| ((*id).to_owned(), state)).collect()
}

#[tokio::test]
async fn exactly_what_the_stream_refuses_stays_in_the_outbox_and_is_sent_when_there_is_room() {
    let Some(narrow) = Narrow::create().await else { return };
    let store = SqliteSubject::create().await.unwrap();
    within_deadline(async {
        let mut own = store.begin().await;
        store.store().publish(&mut own, &lot()).await.unwrap();
        SqliteSubject::commit(own).await;
        let inbox = Inbox::new(store.store());
        let dead = standing(&TOO_LARGE, OutgoingState::Dead);
        let retrying = standing(&TOO_LATE, OutgoingState::Retrying);

        run(inbox.clone()).relay(narrow.sink()).drain().await.unwrap();
        assert_eq!(narrow.ids().await, TAKEN);
        assert_eq!(outbox(&store).await, [dead.clone(), retrying].concat());

        // The server remembers ids for a while to drop copies; those of messages that it refused are not among them.
        narrow.empty().await;
        store.clock().advance(Duration::from_secs(3600));
        run(inbox).relay(narrow.sink()).drain().await.unwrap();
        assert_eq!(narrow.ids().await, TOO_LATE);
        assert_eq!(outbox(&store).await, dead);
    })
    .await;
}
