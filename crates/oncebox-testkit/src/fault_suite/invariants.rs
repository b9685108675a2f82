//! What must be true of the scenario in the end, whatever happened on the way.

use std::collections::{BTreeMap, BTreeSet};

use oncebox_core::admin::{DeliveryFilter, DeliveryState};
use oncebox_core::{Message, Store};

use crate::fault_suite::journal::Journal;
use crate::fault_suite::scenario::{DIRECT, DOOMED, IMPORT, INLINE_ORDERS, INLINE_STEPS, ORDERS, STEPS};
use crate::ledger::{Effect, Verdict};
use crate::subject::Subject;

/// Counts effects, outgoing messages and what is left over.
///
/// # Panics
/// When anything is lost, doubled, out of order, a ghost or stuck.
pub(crate) async fn check<T: Subject>(subject: &T, journal: &Journal) {
    let effects = subject.effects().await;
    exactly_one_effect(&effects);
    in_order_per_key(&effects);
    outgoing_as_committed(&effects, journal);
    let received: BTreeSet<String> = ORDERS.iter().chain(&INLINE_ORDERS).map(|id| (*id).to_owned()).collect();
    assert_eq!(journal.ids("receipt"), received, "effects outside the database, each at least once");
    only_the_doomed_is_left(&subject.store()).await;
    assert_eq!(subject.stuck_transactions().await, 0, "connections with a transaction open");
}

fn exactly_one_effect(effects: &[Effect]) {
    let charged = ORDERS.iter().chain(&INLINE_ORDERS).filter(|id| **id != DOOMED).copied();
    let walked = STEPS.iter().chain([&INLINE_STEPS]).flat_map(|(_, ids)| ids.iter()).copied();
    verdict(effects, "charge", charged);
    verdict(effects, "walk", walked);
    verdict(effects, "import", [IMPORT]);
    verdict(effects, "direct", [DIRECT]);
    let handlers: BTreeSet<&str> = effects.iter().map(|effect| effect.handler.as_str()).collect();
    assert_eq!(handlers, BTreeSet::from(["charge", "direct", "import", "walk"]));
}

fn verdict<'a>(effects: &[Effect], handler: &str, ids: impl IntoIterator<Item = &'a str>) {
    let own: Vec<Effect> = effects.iter().filter(|effect| effect.handler == handler).cloned().collect();
    Verdict::of(&own, ids, &[handler]).assert_clean();
}

fn in_order_per_key(effects: &[Effect]) {
    for (key, ids) in STEPS.iter().chain([&INLINE_STEPS]) {
        let own = effects.iter().filter(|effect| effect.handler == "walk" && effect.note == *key);
        let own: Vec<&str> = own.map(|effect| effect.id.as_str()).collect();
        assert_eq!(own, *ids, "the order of key `{key}`");
    }
}

/// The ledger holds the id of every outgoing message that was committed: those were sent, and no others.
fn outgoing_as_committed(effects: &[Effect], journal: &Journal) {
    let committed: BTreeMap<String, String> = effects
        .iter()
        .filter(|effect| matches!(effect.handler.as_str(), "charge" | "import"))
        .map(|effect| (effect.note.clone(), effect.id.clone()))
        .collect();
    assert_eq!(journal.sent(), committed, "sent (left) and committed (right) outgoing messages");
}

async fn only_the_doomed_is_left<St: Store>(store: &St) {
    let left = store.deliveries(&DeliveryFilter::all()).await.unwrap();
    let left: Vec<(&str, &str, DeliveryState, &[u8])> = left.iter().map(facts).collect();
    assert_eq!(left, [("charge", DOOMED, DeliveryState::Discarded, DOOMED.as_bytes())], "deliveries left");
    for known in store.handlers().await.unwrap() {
        assert_ne!(known.name, "retired", "a handler that was forgotten is known again");
        let left = [known.waiting, known.retrying, known.held, known.scheduled, known.dead];
        assert_eq!(left, [0; 5], "left for {}: waiting, retrying, held, scheduled, dead", known.name);
        assert!(!known.paused, "{} is still paused", known.name);
    }
    let conflicts: Vec<Message> =
        store.conflicts(10).await.unwrap().into_iter().map(|conflict| conflict.message).collect();
    assert_eq!(conflicts.len(), 1, "one conflict, kept once: {conflicts:?}");
    assert_eq!((conflicts[0].id.as_str(), &conflicts[0].payload[..]), (ORDERS[0], &b"other bytes"[..]));
}

fn facts(delivery: &oncebox_core::admin::DeliveryInfo) -> (&str, &str, DeliveryState, &[u8]) {
    (&delivery.handler, &delivery.message.id, delivery.state, &delivery.message.payload)
}
