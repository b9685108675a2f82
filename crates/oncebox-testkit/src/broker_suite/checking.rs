//! A check looks and touches nothing.

use std::net::SocketAddr;

use oncebox_core::{Sink, Source};

use super::fixtures::{in_turn, put};
use super::subject::BrokerSubject;
use crate::subject::Subject;
use crate::wait::until;

/// What is there is found, and neither taken nor added to; what is not there is told.
pub async fn a_check_finds_what_is_there_and_takes_nothing<B: BrokerSubject, T: Subject>(
    broker: B,
    _store: T,
) {
    let at = broker.address();
    put(&broker, &in_turn(5, &["a"])).await;
    for _ in 0..2 {
        let found = broker.source(at, None).check().await.expect("the source would work");
        assert!(found.is_some(), "the source was not looked for");
        let found = broker.sink(at).check().await.expect("the sink would work");
        assert!(found.is_some(), "the sink was not looked for");
    }
    assert!(broker.taken().await.is_empty(), "something was sent");
    if let Some(sink) = broker.sink_to_nowhere(at).filter(|_| B::FACTS.finds_places) {
        let error = sink.check().await.expect_err("there is no such place").to_string();
        assert!(error.contains("create"), "it names no remedy: {error}");
    }
    until("nothing was taken", || async { broker.unacknowledged().await.is_none_or(|count| count == 0) })
        .await;
    assert!(broker.pending().await.is_none_or(|count| count == 5), "something was acknowledged");
}

/// The error says where nobody answers, and what to look at.
pub async fn a_check_names_the_server_that_is_away<B: BrokerSubject, T: Subject>(broker: B, _store: T) {
    if !B::FACTS.proxied {
        return;
    }
    let at = nobody();
    let errors = [broker.source(at, None).check().await.map(drop), broker.sink(at).check().await.map(drop)];
    for error in errors {
        let error = error.expect_err("nobody is there").to_string();
        assert!(error.contains(&format!("{at}")), "it does not name {at}: {error}");
        assert!(error.contains("check `url`"), "it names no remedy: {error}");
    }
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has an address")
}
