//! What a sink answers: confirmed means that the broker has it, and nothing else does.

use std::collections::BTreeSet;

use oncebox_core::{Message, Sink};

use super::subject::BrokerSubject;
use crate::fixtures::{KIND, numbered};
use crate::subject::Subject;
use crate::sweep::poll_a_moment_then_drop;

/// The destination has exactly what was confirmed, in order.
pub async fn what_is_confirmed_is_there<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    let sink = broker.sink(broker.address());
    let messages = numbered(200);
    for lot in messages.chunks(67) {
        let answers = sink.send(lot).await.unwrap();
        assert_eq!(answers, vec![Ok(()); lot.len()]);
    }
    assert!(sink.send(&[]).await.unwrap().is_empty());
    let taken = broker.taken().await;
    let ids: Vec<&str> = taken.iter().map(|taken| taken.id.as_str()).collect();
    assert_eq!(ids, crate::fixtures::ids_of(&messages));
}

/// A place that does not exist takes nothing.
pub async fn what_goes_nowhere_is_not_confirmed<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    let Some(sink) = broker.sink_to_nowhere(broker.address()) else { return };
    for _ in 0..2 {
        if let Ok(answers) = sink.send(&numbered(5)).await {
            assert_eq!(answers.len(), 5);
            assert!(answers.iter().all(Result::is_err), "{answers:?}");
        }
    }
    assert!(broker.taken().await.is_empty());
}

/// The relay gives a call up at its time limit; a later confirmation of it must not count for others.
pub async fn a_dropped_send_spoils_no_later_one<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    let sink = broker.sink(broker.address());
    let mut confirmed = BTreeSet::new();
    for round in 0..20_usize {
        let lot = |name: &str| -> Vec<Message> {
            (0..5).map(|number| Message::new(KIND, "x").id(format!("{name}-{round}-{number}"))).collect()
        };
        let dropped = lot("dropped");
        let _ = poll_a_moment_then_drop(sink.send(&dropped), round % 5).await;
        let kept = lot("kept");
        let answers = sink.send(&kept).await;
        for (message, answer) in kept.iter().zip(answers.unwrap_or_default()) {
            if answer.is_ok() {
                confirmed.insert(message.id.clone());
            }
        }
    }
    assert!(confirmed.len() >= 50, "only {} of 100 were confirmed", confirmed.len());
    let taken: BTreeSet<String> = broker.taken().await.into_iter().map(|taken| taken.id).collect();
    assert!(taken.is_superset(&confirmed), "confirmed, but not there: {:?}", confirmed.difference(&taken));
}
