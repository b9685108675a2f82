//! Keeps messages that cannot be taken in as they are (no id, a broken limit) as dead letters, with their payload.

use std::collections::HashSet;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::counters::Counter;
use crate::engine::receive::MOST_BYTES;
use crate::error::{Error, ErrorKind};
use crate::failure::storable;
use crate::headers::size_of_header;
use crate::inbox::Inbox;
use crate::limits::{LONGEST_HEADERS, LONGEST_ID, LONGEST_KEY, LONGEST_KIND, LONGEST_SCOPE};
use crate::mapping::hex;
use crate::message::Message;
use crate::source::{Settle, UNREADABLE};
use crate::store::{Arrival, Commit, Connection, Park, ParkState, ReadInline, Received, Store, TxLimits};

/// The header that keeps an id which cannot be one.
const ID_AS_IT_CAME: &str = "unreadable-id";

/// A message and why it cannot be taken in.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable {
    message: Message,
    fault: String,
}

impl Unreadable {
    /// Makes the message one that a store can hold: an id of its own, and nothing over a limit but the payload.
    pub(crate) fn new(mut message: Message, fault: String) -> Self {
        // Without its scope an id is no longer its own.
        let has_scope = holds(&message.scope, 0, LONGEST_SCOPE);
        if !has_scope || !holds(&message.id, 1, LONGEST_ID) {
            let came = message.id.escape_debug().to_string();
            message.id = own_id(&message);
            if !came.is_empty() {
                let cut = came.char_indices().nth(2 * LONGEST_ID).map_or(came.len(), |(place, _)| place);
                message.headers.push(ID_AS_IT_CAME, came[..cut].to_owned());
            }
        }
        if !has_scope {
            message.scope.clear();
        }
        if !holds(&message.kind, 1, LONGEST_KIND) {
            message.kind = UNREADABLE.to_owned();
        }
        message.key = message.key.filter(|key| holds(key, 1, LONGEST_KEY));
        let mut room = LONGEST_HEADERS;
        message.headers.retain(|name, value| {
            let size = size_of_header(name, value);
            let fits = size <= room;
            room -= if fits { size } else { 0 };
            fits
        });
        Self { message, fault: storable(fault) }
    }
}

/// Keeps messages in one commit where that works, and answers how to settle each; fails when the store is away.
pub(crate) async fn keep<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    unreadable: &[Unreadable],
) -> Result<Vec<Settle>, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    if unreadable.is_empty() {
        return Ok(Vec::new());
    }
    if !inbox.settings.remembers {
        tracing::error!(
            source,
            "an inbox that remembers nothing cannot keep unreadable messages; they are rejected"
        );
        return Ok(vec![Settle::Reject; unreadable.len()]);
    }
    let mut settled = Vec::with_capacity(unreadable.len());
    let mut rest = unreadable;
    while !rest.is_empty() {
        let (lot, later) = rest.split_at(fitting(rest));
        rest = later;
        match keep_together(inbox, source, lot).await {
            Ok(()) => settled.extend(lot.iter().map(|_| Settle::Accept)),
            // One of them is refused; which one?
            Err(error) if error.kind() == ErrorKind::Invalid => {
                for one in lot {
                    settled.push(keep_alone(inbox, source, one).await?);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(settled)
}

/// How many go into one statement: at least one.
fn fitting(unreadable: &[Unreadable]) -> usize {
    let mut bytes = 0;
    let fits = |one: &&Unreadable| {
        bytes += one.message.size();
        bytes <= MOST_BYTES
    };
    unreadable.iter().take_while(fits).count().max(1)
}

/// Only what can never be stored is given up: tables may be made later, a server may be mended.
async fn keep_alone<St, S>(inbox: &Inbox<St, S>, source: &str, one: &Unreadable) -> Result<Settle, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    match keep_together(inbox, source, std::slice::from_ref(one)).await {
        Ok(()) => Ok(Settle::Accept),
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let id = &one.message.id;
            tracing::error!(source, id, %error, "an unreadable message cannot be stored either; it is rejected");
            Ok(Settle::Reject)
        }
        Err(error) => Err(error),
    }
}

async fn keep_together<St, S>(
    inbox: &Inbox<St, S>,
    source: &str,
    unreadable: &[Unreadable],
) -> Result<(), Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let mut known = HashSet::new();
    let (mut arrivals, mut faults) = (Vec::new(), Vec::new());
    for one in unreadable {
        let arrival = Arrival::new(&one.message);
        if known.insert(arrival.identity) {
            faults.push(one.fault.as_str());
            arrivals.push(arrival);
        }
    }
    let limits = TxLimits { statement: Duration::from_secs(30) };
    let batch = inbox.store.begin_inline(&ReadInline { arrivals: &arrivals, ordered: &[], limits }).await?;
    let new = arrivals.iter().zip(&faults).zip(&batch.received);
    let park: Vec<Park> = new
        .filter(|(_, received)| **received == Received::New)
        .map(|((arrival, fault), _)| Park {
            handler: UNREADABLE.to_owned(),
            message: arrival.to_message(),
            state: ParkState::Dead,
            // Reading it was the attempt that failed.
            attempts: 1,
            error: Some(format!("from source `{source}`: {fault}")),
        })
        .collect();
    let kept = park.len();
    if kept == 0 {
        // Only copies; a conflict is written by the store and wants its commit.
        if batch.received.iter().all(|received| *received == Received::Duplicate) {
            batch.connection.rollback().await;
            return Ok(());
        }
    }
    inbox.store.commit(batch.connection, Commit { park, ..Commit::default() }).await?;
    if kept > 0 {
        inbox.shared.counters.add("", Counter::Refused, kept);
        inbox.shared.counters.add(UNREADABLE, Counter::Dead, kept);
        let why = faults[0];
        tracing::error!(source, kept, why, "messages could not be read; they are kept as dead letters");
    }
    Ok(())
}

fn holds(text: &str, least: usize, most: usize) -> bool {
    (least..=most).contains(&text.len()) && !text.contains('\0')
}

/// The same delivery always gets the same id, so that its copies are duplicates.
fn own_id(message: &Message) -> String {
    let mut hasher = Sha256::new();
    let headers = message.headers.to_stored();
    for part in [&message.scope, &message.id, &message.kind, &headers] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(&message.payload);
    format!("{UNREADABLE}-{}", &hex(&hasher.finalize())[..32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn whatever_came_can_be_held_and_keeps_its_payload() {
        let long = "ü".repeat(600);
        for message in [
            Message::with_id("", "", "body"),
            Message::with_id(long.clone(), long.clone(), "body").key(&long),
            Message::with_id("a\0b", "k\0", "body").key("\0"),
            Message::with_id("a", "k", "body").scope(&long),
            Message::with_id("a", "k", "body").scope("\0"),
            Message::with_id("a", "k", "body").header("big", vec![1; 70_000]).header("small", "s"),
        ] {
            let kept = Unreadable::new(message, "why".to_owned()).message;
            Limits::default().check(&kept).unwrap();
            assert_eq!(kept.payload, "body");
        }
        let kept = Unreadable::new(Message::with_id(long.clone(), "k", "x"), String::new()).message;
        assert!(kept.headers.text(ID_AS_IT_CAME).unwrap().starts_with("üüü"));
        let other = Unreadable::new(Message::with_id(long + "y", "k", "x"), String::new()).message;
        assert_ne!(kept.id, other.id, "different ids stay different messages");
        let scoped =
            |scope: String| Unreadable::new(Message::with_id("a", "k", "x").scope(scope), String::new());
        assert_ne!(scoped("s".repeat(300)).message.id, scoped("t".repeat(300)).message.id);
        let fault = Unreadable::new(Message::with_id("", "k", "x"), "why".repeat(10_000)).fault;
        assert!(fault.len() < 10_000, "it is stored, too");
    }
}
