//! Responses to requests whose handler has ended the transaction it was given.

mod common;

use std::time::Duration;

use oncebox_core::responses::{
    AskResponse, ClaimedResponse, Respond, ResponseClaim, ResponseStore, StoredResponse,
};
use oncebox_core::store::Commit;
use oncebox_core::{ErrorKind, Store};

/// After a raw `rollback` each statement commits by itself; the response must not be one of them.
#[tokio::test]
async fn a_response_is_not_written_outside_of_its_transaction() {
    common::with_store(async |scratch| {
        let ask = |token| AskResponse {
            claim: ResponseClaim { identity: [1; 16], token },
            fingerprint: [2; 16],
            lease_for: Duration::from_secs(600),
            keep: common::DAY,
        };
        let first = ask(scratch.token());
        assert_eq!(scratch.store.claim_response(&first).await.unwrap(), ClaimedResponse::Ours);
        let mut tx = scratch.store.begin_response(first.claim, common::LIMITS).await.unwrap().unwrap();
        sqlx::raw_sql("rollback").execute(&mut *tx).await.unwrap();
        let response = StoredResponse { status: 201, ..StoredResponse::default() };
        let respond = Some(Respond { claim: first.claim, response });
        let error = scratch.store.commit(tx, Commit { respond, ..Commit::default() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ended, "{error}");
        let in_flight = ClaimedResponse::InFlight { fingerprint: [2; 16] };
        assert_eq!(scratch.store.claim_response(&ask(scratch.token())).await.unwrap(), in_flight);
        scratch.until_no_transaction_is_open().await;
    })
    .await;
}
