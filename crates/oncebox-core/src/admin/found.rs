//! What a store finds out about one message, put together.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{AttemptInfo, Conflict, DeliveryInfo, HandlerState, MessageInfo, Progress};
use crate::kinds::Kinds;
use crate::message::Message;

/// What a store has read about one message; [`Found::into_info`] says what it means, for all stores alike.
///
/// A store without one snapshot for all of it reads in the order of these fields. Then a message that moves on meanwhile
/// is seen where it was or where it is, and never as done before it is.
#[derive(Debug)]
pub struct Found {
    /// When its id was remembered.
    pub seen_at: Timestamp,
    /// Its place in the log; `None` when it was handled inline.
    pub seq: Option<i64>,
    /// What the log has of it, and since when; `None` when it was never there or was purged.
    pub logged: Option<(Timestamp, Message)>,
    /// Every handler the store knows.
    pub standing: Vec<Standing>,
    /// Its deliveries with a row of their own.
    pub deliveries: Vec<DeliveryInfo>,
    /// Every failed attempt with the name of its handler, oldest first.
    pub attempts: Vec<(String, AttemptInfo)>,
    /// The same id with other bytes, oldest first.
    pub conflicts: Vec<Conflict>,
}

/// Where a handler stands in the lane of a message.
#[derive(Debug)]
pub struct Standing {
    /// Its name.
    pub handler: String,
    /// The kinds it wants, as written.
    pub kinds: Vec<String>,
    /// Its cursor; `None` when the message has no lane.
    pub position: Option<i64>,
}

impl Found {
    /// One message and what became of it.
    pub fn into_info(self) -> MessageInfo {
        let mut histories: BTreeMap<String, Vec<AttemptInfo>> = BTreeMap::new();
        for (handler, attempt) in self.attempts {
            histories.entry(handler).or_default().push(attempt);
        }
        let received_at = match (&self.logged, self.deliveries.first()) {
            (Some((received_at, _)), _) => *received_at,
            (None, Some(delivery)) => delivery.received_at,
            (None, None) => self.seen_at,
        };
        // A delivery has a copy of the message, which may be all that is left of it.
        let copy = self.deliveries.first().map(|delivery| delivery.message.clone());
        let in_log = self.logged.is_some();
        let message = self.logged.map(|(_, message)| message).or(copy);

        let mut progress: BTreeMap<String, Progress> = BTreeMap::new();
        for mut delivery in self.deliveries {
            delivery.history = histories.remove(&delivery.handler).unwrap_or_default();
            progress.insert(delivery.handler.clone(), Progress::Delivery(Box::new(delivery)));
        }
        for Standing { handler, kinds, position } in self.standing {
            if progress.contains_key(&handler) {
                continue;
            }
            let history = histories.remove(&handler).unwrap_or_default();
            let wanted = match &message {
                Some(message) => wants(&kinds, &message.kind),
                // Its kind is forgotten with its payload, but who has failed at it has wanted it.
                None => !history.is_empty(),
            };
            let behind = in_log && position.zip(self.seq).is_some_and(|(position, seq)| position < seq);
            if wanted {
                progress.insert(handler, if behind { Progress::Waiting } else { Progress::Done { history } });
            }
        }
        let handlers =
            progress.into_iter().map(|(handler, progress)| HandlerState { handler, progress }).collect();
        MessageInfo::new(received_at, message, handlers, self.conflicts)
    }
}

fn wants(patterns: &[String], kind: &str) -> bool {
    let mut kinds = Kinds::default();
    for pattern in patterns {
        // What was registered has been checked; a pattern that is none wants nothing.
        let _ = kinds.add(pattern);
    }
    kinds.wants(kind)
}
