//! The table of effects, and the check that counts them.

use std::collections::{BTreeMap, BTreeSet};

use oncebox_core::Message;

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The message's id.
    pub id: String,
    /// Who wrote it.
    pub handler: String,
    /// The message's key, or whatever the handler wants to note.
    pub note: String,
}

impl Effect {
    /// The effect of a handler on a message; the note is the key.
    pub fn of(handler: &str, message: &Message) -> Self {
        Self {
            id: message.id.clone(),
            handler: handler.to_owned(),
            note: message.key.clone().unwrap_or_default(),
        }
    }
}

/// What is wrong with a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// (id, handler) pairs that should have an effect and have none.
    pub lost: Vec<(String, String)>,
    /// (id, handler) pairs with more than one effect.
    pub doubled: Vec<(String, String)>,
    /// Effects nobody asked for.
    pub unexpected: Vec<(String, String)>,
}

impl Verdict {
    /// Compares the ledger with the ids that were acknowledged, for each of these handlers.
    pub fn of<'a>(effects: &[Effect], ids: impl IntoIterator<Item = &'a str>, handlers: &[&str]) -> Self {
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for effect in effects {
            *counts.entry((effect.id.clone(), effect.handler.clone())).or_default() += 1;
        }
        let expected: BTreeSet<(String, String)> = ids
            .into_iter()
            .flat_map(|id| handlers.iter().map(move |handler| (id.to_owned(), (*handler).to_owned())))
            .collect();
        Self {
            lost: expected.iter().filter(|pair| !counts.contains_key(*pair)).cloned().collect(),
            doubled: counts.iter().filter(|(_, count)| **count > 1).map(|(pair, _)| pair.clone()).collect(),
            unexpected: counts.keys().filter(|pair| !expected.contains(*pair)).cloned().collect(),
        }
    }

    /// True when every effect is there exactly once.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.unexpected.is_empty()
    }

    /// Panics with what is wrong.
    ///
    /// # Panics
    /// When anything is lost, doubled or unexpected.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(
            self.is_clean(),
            "lost {}: {:?}; doubled {}: {:?}; unexpected {}: {:?}",
            self.lost.len(),
            &self.lost[..self.lost.len().min(5)],
            self.doubled.len(),
            &self.doubled[..self.doubled.len().min(5)],
            self.unexpected.len(),
            &self.unexpected[..self.unexpected.len().min(5)],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(id: &str) -> Effect {
        Effect { id: id.to_owned(), handler: "h".to_owned(), note: String::new() }
    }

    #[test]
    fn the_checker_sees_what_is_lost_doubled_and_unexpected() {
        let effects = [effect("a"), effect("b"), effect("b"), effect("ghost")];
        let verdict = Verdict::of(&effects, ["a", "b", "c"], &["h"]);
        let pair = |id: &str| vec![(id.to_owned(), "h".to_owned())];
        assert_eq!(verdict.lost, pair("c"));
        assert_eq!(verdict.doubled, pair("b"));
        assert_eq!(verdict.unexpected, pair("ghost"));
        assert!(!verdict.is_clean());
        Verdict::of(&effects[..1], ["a"], &["h"]).assert_clean();
    }
}
