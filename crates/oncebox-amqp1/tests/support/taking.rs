//! A source whose messages are taken and settled by hand.

use std::time::Duration;

use oncebox_amqp1::{Amqp1Receipt, Amqp1Source, Amqp1SourceConfig};
use oncebox_core::{Incoming, Message, Settle, Source};
use oncebox_testkit::DEADLINE;

use super::plain;

pub(crate) type Lot = Vec<Incoming<Amqp1Receipt>>;

pub(crate) fn config(port: u16, queue: &str) -> Amqp1SourceConfig {
    Amqp1SourceConfig::new(format!("amqp://guest:guest@127.0.0.1:{port}"), format!("/amq/queue/{queue}"))
        .idle_timeout(Duration::from_secs(4))
        .return_after(Duration::from_millis(300))
}

pub(crate) fn source(config: Amqp1SourceConfig) -> Amqp1Source {
    Amqp1Source::new("orders", config).unwrap()
}

pub(crate) async fn put(port: u16, queue: &str, ids: &[&str]) {
    let message = |id: &&str| {
        let message = Message::with_id(*id, "order.placed", "x");
        plain::message_for(&plain::delivery(&message, Some(id.as_bytes())))
    };
    let messages: Vec<_> = ids.iter().map(message).collect();
    plain::send(port, &format!("/amq/queue/{queue}"), &messages).await.unwrap();
}

/// What comes next; errors are passed over, as the engine does.
async fn next(source: &mut Amqp1Source) -> Lot {
    let answered = async {
        loop {
            match source.next(1000).await {
                Ok(lot) => return lot,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("something comes")
}

/// Takes until all of these have come, and gives back every receipt.
pub(crate) async fn take(source: &mut Amqp1Source, ids: &[&str]) -> Lot {
    let mut all: Lot = Vec::new();
    while ids.iter().any(|id| all.iter().all(|one| one.message.id != *id)) {
        all.extend(next(source).await);
    }
    all
}

pub(crate) async fn settle(source: &mut Amqp1Source, lot: Lot, how: Settle) {
    let settled = lot.into_iter().map(|one| (one.receipt, how)).collect();
    source.settle(settled).await.unwrap();
}

/// The ids, in order.
pub(crate) fn ids(lot: &Lot) -> Vec<&str> {
    let mut ids: Vec<_> = lot.iter().map(|one| one.message.id.as_str()).collect();
    ids.sort_unstable();
    ids
}
