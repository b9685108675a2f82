//! Responses to requests with an idempotency key: one owner at a time, and an answer that commits with the work.

use std::time::Duration;

use futures_util::future::join_all;
use oncebox_core::responses::{
    AskResponse, ClaimedResponse, RequestTransaction, Respond, ResponseClaim, ResponseStore, StoredResponse,
};
use oncebox_core::store::{Commit, Connection, Retention, Token, TxLimits};
use oncebox_core::{ErrorKind, Inbox, Message, Store, run};

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::HOUR;
use crate::ledger::Effect;
use crate::subject::Subject;

const LEASE: Duration = Duration::from_secs(600);
const LIMITS: TxLimits = TxLimits { statement: Duration::from_secs(30) };
const CONTENT: [u8; 16] = [7; 16];
const OTHER_CONTENT: [u8; 16] = [8; 16];

fn ask(key: u8, token: i64) -> AskResponse {
    let claim = ResponseClaim { identity: [key; 16], token: Token(token) };
    AskResponse { claim, fingerprint: CONTENT, lease_for: LEASE, keep: HOUR }
}

fn claim(key: u8, token: i64) -> ResponseClaim {
    ask(key, token).claim
}

fn created(body: &'static str) -> StoredResponse {
    let headers = vec![("location".to_owned(), b"/orders/7".to_vec())];
    StoredResponse { status: 201, headers, body: body.into() }
}

fn respond(claim: ResponseClaim, body: &'static str) -> Respond {
    Respond { claim, response: created(body) }
}

fn in_flight() -> ClaimedResponse {
    ClaimedResponse::InFlight { fingerprint: CONTENT }
}

fn answered(body: &'static str) -> ClaimedResponse {
    ClaimedResponse::Answered { fingerprint: CONTENT, response: created(body) }
}

async fn record<T: Subject>(tx: &mut <T::Store as Store>::Connection, id: &str)
where
    T::Store: ResponseStore,
{
    let effect = Effect { id: id.to_owned(), handler: "request".to_owned(), note: String::new() };
    T::record(&mut *tx, effect).await.unwrap();
}

async fn effects<T: Subject>(subject: &T) -> Vec<String> {
    subject.effects().await.into_iter().map(|effect| effect.id).collect()
}

/// In flight for everybody else, then answered for everybody.
pub async fn a_claimed_key_is_in_flight_until_it_is_answered<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let (store, rival) = (subject.store(), subject.reopen().await);
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    assert_eq!(rival.claim_response(&ask(1, 11)).await.unwrap(), in_flight());
    assert_eq!(rival.claim_response(&ask(2, 12)).await.unwrap(), ClaimedResponse::Ours, "another key");
    assert!(store.settle_response(&respond(claim(1, 10), "made")).await.unwrap());
    for other in [&store, &rival] {
        let other_content = AskResponse { fingerprint: OTHER_CONTENT, ..ask(1, 13) };
        assert_eq!(other.claim_response(&other_content).await.unwrap(), answered("made"));
        assert_eq!(other.claim_response(&ask(1, 14)).await.unwrap(), answered("made"));
    }
    assert!(!store.settle_response(&respond(claim(1, 10), "changed")).await.unwrap(), "an answer is final");
    assert!(!store.release_response(claim(1, 10)).await.unwrap(), "an answer is not given up");
    assert_eq!(store.claim_response(&ask(1, 15)).await.unwrap(), answered("made"));
}

/// Every byte, and headers of one name in their order.
pub async fn a_response_comes_out_as_it_went_in<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 1 << 20];
    for (key, body) in [(1, Vec::new()), (2, all.clone()), (3, large)] {
        let headers = [("x", all.as_slice()), ("x", b""), ("content-type", b"text/plain")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_vec())).to_vec();
        let response = StoredResponse { status: 404, headers, body: body.into() };
        assert_eq!(store.claim_response(&ask(key, 1)).await.unwrap(), ClaimedResponse::Ours);
        let respond = Respond { claim: claim(key, 1), response: response.clone() };
        assert!(store.settle_response(&respond).await.unwrap());
        let expected = ClaimedResponse::Answered { fingerprint: CONTENT, response };
        assert_eq!(store.claim_response(&ask(key, 2)).await.unwrap(), expected);
    }
}

/// The database decides.
pub async fn claims_at_the_same_time_have_one_owner<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let stores = [subject.store(), subject.reopen().await];
    for key in 0..20 {
        let claims = (0..16).map(|number| {
            let store = stores[number % 2].clone();
            async move { store.claim_response(&ask(key, number as i64)).await.unwrap() }
        });
        let claimed = join_all(claims).await;
        let ours = claimed.iter().filter(|claimed| **claimed == ClaimedResponse::Ours).count();
        let others = claimed.iter().filter(|claimed| **claimed == in_flight()).count();
        assert_eq!((ours, others), (1, 15), "{claimed:?}");
    }
}

/// After a crash: by the database's clock, and by the same request only.
pub async fn a_claim_is_taken_over_when_its_lease_is_over<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    subject.clock().advance(LEASE - Duration::from_secs(300));
    assert!(store.renew_response(claim(1, 10), LEASE).await.unwrap());
    subject.clock().advance(LEASE - Duration::from_secs(300));
    assert_eq!(store.claim_response(&ask(1, 11)).await.unwrap(), in_flight(), "it was renewed");
    subject.clock().advance(LEASE);
    let other_content = AskResponse { fingerprint: OTHER_CONTENT, ..ask(1, 12) };
    assert_eq!(store.claim_response(&other_content).await.unwrap(), in_flight(), "another request");
    assert_eq!(store.claim_response(&ask(1, 13)).await.unwrap(), ClaimedResponse::Ours);
    assert_eq!(store.claim_response(&ask(1, 14)).await.unwrap(), in_flight());
}

/// A zombie's work and answer are not kept.
pub async fn who_has_lost_a_claim_answers_nothing<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    subject.clock().advance(LEASE);
    assert_eq!(store.claim_response(&ask(1, 11)).await.unwrap(), ClaimedResponse::Ours);

    assert!(!store.renew_response(claim(1, 10), LEASE).await.unwrap());
    assert!(!store.settle_response(&respond(claim(1, 10), "late")).await.unwrap());
    assert!(!store.release_response(claim(1, 10)).await.unwrap());
    assert!(store.begin_response(claim(1, 10), LIMITS).await.unwrap().is_none());
    let mut tx = store.begin_plain(LIMITS).await.unwrap();
    record::<T>(&mut tx, "late").await;
    let commit = Commit { respond: Some(respond(claim(1, 10), "late")), ..Commit::default() };
    assert_eq!(store.commit(tx, commit).await.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(store.claim_response(&ask(1, 12)).await.unwrap(), in_flight(), "the owner is unharmed");
    assert!(store.settle_response(&respond(claim(1, 11), "made")).await.unwrap());
    assert_eq!(effects(&subject).await, [] as [&str; 0]);
}

/// Both or neither; and a key that was given up can be used again.
pub async fn a_response_commits_with_the_work_of_its_request<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    let mut tx = store.begin_response(claim(1, 10), LIMITS).await.unwrap().expect("it is ours");
    record::<T>(&mut tx, "undone").await;
    tx.rollback().await;
    assert!(store.release_response(claim(1, 10)).await.unwrap());

    let other_content = AskResponse { fingerprint: OTHER_CONTENT, ..ask(1, 11) };
    assert_eq!(store.claim_response(&other_content).await.unwrap(), ClaimedResponse::Ours);
    let mut tx = store.begin_response(claim(1, 11), LIMITS).await.unwrap().expect("it is ours");
    record::<T>(&mut tx, "kept").await;
    let commit = Commit { respond: Some(respond(claim(1, 11), "made")), ..Commit::default() };
    store.commit(tx, commit).await.unwrap();
    assert_eq!(effects(&subject).await, ["kept"]);
    let expected = ClaimedResponse::Answered { fingerprint: OTHER_CONTENT, response: created("made") };
    assert_eq!(store.claim_response(&ask(1, 12)).await.unwrap(), expected);
}

/// Nobody waits for a request that is being handled.
pub async fn a_duplicate_is_told_at_once_while_the_transaction_is_open<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let (store, rival) = (subject.store(), subject.reopen().await);
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    let mut tx = store.begin_response(claim(1, 10), LIMITS).await.unwrap().expect("it is ours");
    record::<T>(&mut tx, "kept").await;
    // Without another connection's commit this would be a deadlock, which the deadline of the case would find.
    assert_eq!(rival.claim_response(&ask(1, 11)).await.unwrap(), in_flight());
    if T::FACTS.parallel_transactions {
        subject.clock().advance(2 * LEASE);
        assert_eq!(rival.claim_response(&ask(1, 12)).await.unwrap(), in_flight(), "its transaction holds it");
        assert!(!rival.renew_response(claim(1, 10), LEASE).await.unwrap(), "it needs no lease");
    }
    let commit = Commit { respond: Some(respond(claim(1, 10), "made")), ..Commit::default() };
    store.commit(tx, commit).await.unwrap();
    assert_eq!(rival.claim_response(&ask(1, 13)).await.unwrap(), answered("made"));
    assert_eq!(effects(&subject).await, ["kept"]);
}

/// A lapsed claim whose transaction still runs is not run a second time, whatever the store does with its rivals.
pub async fn a_takeover_waits_for_the_transaction_or_gives_way<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let (store, rival) = (subject.store(), subject.reopen().await);
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    let mut tx = store.begin_response(claim(1, 10), LIMITS).await.unwrap().expect("it is ours");
    record::<T>(&mut tx, "kept").await;
    subject.clock().advance(2 * LEASE);
    let rivals = tokio::spawn(async move { rival.claim_response(&ask(1, 11)).await.unwrap() });
    let commit = Commit { respond: Some(respond(claim(1, 10), "made")), ..Commit::default() };
    store.commit(tx, commit).await.unwrap();
    let claimed = rivals.await.unwrap();
    assert!(claimed == in_flight() || claimed == answered("made"), "{claimed:?}");
    assert_eq!(effects(&subject).await, ["kept"]);
}

/// Neither a swallowed error nor an end of the transaction leaves an answer without its work.
pub async fn a_spoilt_transaction_leaves_no_response<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    let mut tx = store.begin_response(claim(1, 10), LIMITS).await.unwrap().expect("it is ours");
    record::<T>(&mut tx, "spoilt").await;
    let _ = T::end_transaction(&mut tx).await;
    let commit = Commit { respond: Some(respond(claim(1, 10), "spoilt")), ..Commit::default() };
    let error = store.commit(tx, commit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Ended), "{error}");
    assert_eq!(store.claim_response(&ask(1, 11)).await.unwrap(), in_flight(), "not answered");
    assert!(store.release_response(claim(1, 10)).await.unwrap());
    assert_eq!(effects(&subject).await, [] as [&str; 0]);
}

/// What the handler publishes goes with the answer.
pub async fn a_request_publishes_with_its_response<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    assert_eq!(store.claim_response(&ask(1, 10)).await.unwrap(), ClaimedResponse::Ours);
    let request = RequestTransaction::new(store.clone(), Some(claim(1, 10)), LIMITS, None);
    let mut tx = request.begin().await.unwrap();
    assert!(request.is_open());
    let second = request.begin().await.err().map(|error| error.kind());
    assert_eq!(second, Some(ErrorKind::Invalid), "there is one transaction");
    tx.publish(Message::new("order.placed", "7").id("a")).await.unwrap();
    drop(tx);
    let worked = request.take_back().await.unwrap().expect("it was lent");
    request.commit(worked, Some(respond(claim(1, 10), "made"))).await.unwrap();
    assert!(request.take_back().await.unwrap().is_none());

    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(Inbox::new(store.clone())).relay(broker.clone()).drain().await.unwrap();
    assert_eq!(broker.sent().iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(store.claim_response(&ask(1, 11)).await.unwrap(), answered("made"));
}

/// By the database's clock, a step at a time, and never a request that is being handled.
pub async fn a_response_is_forgotten_when_its_time_is_over<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let store = subject.store();
    for key in 1..=5 {
        assert_eq!(store.claim_response(&ask(key, 10)).await.unwrap(), ClaimedResponse::Ours);
        assert!(store.settle_response(&respond(claim(key, 10), "made")).await.unwrap());
    }
    subject.clock().advance(HOUR - Duration::from_secs(30));
    assert_eq!(store.purge_responses(100).await.unwrap(), 0);
    assert_eq!(store.claim_response(&ask(1, 11)).await.unwrap(), answered("made"), "still within its time");
    let running = AskResponse { keep: Duration::ZERO, ..ask(9, 10) };
    assert_eq!(store.claim_response(&running).await.unwrap(), ClaimedResponse::Ours);

    subject.clock().advance(Duration::from_secs(31));
    assert_eq!(store.claim_response(&ask(1, 12)).await.unwrap(), ClaimedResponse::Ours, "its time is over");
    assert_eq!(store.purge_responses(3).await.unwrap(), 3);
    let retention = Retention { step: 2, ..Retention::default() };
    let purged = store.purge(&retention).await.unwrap();
    assert_eq!((purged.others, purged.more), (1, false), "the other purge removes them too");
    assert_eq!(store.claim_response(&ask(1, 13)).await.unwrap(), in_flight());
    assert!(store.settle_response(&respond(claim(9, 10), "made")).await.unwrap(), "it is being handled");
    subject.clock().advance(LEASE);
    assert_eq!(store.purge_responses(100).await.unwrap(), 1, "answered, and not to be kept");
}
