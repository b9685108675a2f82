//! Responses to requests with an idempotency key.

use std::time::Duration;

use bytes::Bytes;
use oncebox_core::clock::micros;
use oncebox_core::responses::{
    AskResponse, ClaimedResponse, Respond, ResponseClaim, ResponseStore, StoredResponse,
};
use oncebox_core::store::{Connection, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::error::Problem;
use crate::rows::{amount, limit};
use crate::store::{Inner, PgStore};
use crate::tx::{PgTransaction, autocommit};

/// How often a claim is tried again because its rival was removed or came in between.
const MOST_TRIES: usize = 20;

impl ResponseStore for PgStore {
    async fn claim_response(&self, ask: &AskResponse) -> Result<ClaimedResponse, Error> {
        Box::pin(self.inner().claim_response(ask)).await
    }

    async fn renew_response(&self, claim: ResponseClaim, lease_for: Duration) -> Result<bool, Error> {
        Box::pin(self.inner().renew_response(claim, lease_for)).await
    }

    async fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> Result<Option<PgTransaction>, Error> {
        Box::pin(self.inner().begin_response(claim, limits)).await
    }

    async fn settle_response(&self, respond: &Respond) -> Result<bool, Error> {
        let inner = self.inner();
        Box::pin(async {
            autocommit!(inner, |connection| inner.write_response(connection, respond, None).await)
        })
        .await
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        Box::pin(self.inner().release_response(claim)).await
    }

    async fn purge_responses(&self, step: usize) -> Result<u64, Error> {
        Box::pin(self.inner().purge_responses(limit(step))).await
    }
}

impl Inner {
    async fn claim_response(&self, ask: &AskResponse) -> Result<ClaimedResponse, Error> {
        for _ in 0..MOST_TRIES {
            let claimed = autocommit!(self, |connection| {
                let query = self
                    .sql
                    .claim_response
                    .query()
                    .bind(self.shift())
                    .bind(Uuid::from_bytes(ask.claim.identity))
                    .bind(Uuid::from_bytes(ask.fingerprint))
                    .bind(ask.claim.token.0)
                    .bind(micros(ask.lease_for))
                    .bind(micros(ask.keep));
                claimed(&query.fetch_one(&mut *connection).await?)
            })?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Err(Error::new(
            ErrorKind::Contention,
            "an idempotency key is claimed and given up all the time; try again",
        ))
    }

    async fn renew_response(&self, claim: ResponseClaim, lease_for: Duration) -> Result<bool, Error> {
        autocommit!(self, |connection| {
            let query = self
                .sql
                .renew_response
                .query()
                .bind(self.shift())
                .bind(Uuid::from_bytes(claim.identity))
                .bind(claim.token.0)
                .bind(micros(lease_for));
            Ok(query.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    async fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> Result<Option<PgTransaction>, Error> {
        let tx = self.begin(limits).await?;
        let (tx, locked) = self
            .settled(tx, async |tx| {
                let query = self.sql.begin_response.query();
                let query = query.bind(Uuid::from_bytes(claim.identity)).bind(claim.token.0);
                let row = query.fetch_one(&mut **tx).await?;
                tx.note_session(&row)?;
                amount(&row, 0)
            })
            .await?;
        if locked == 1 {
            return Ok(Some(tx));
        }
        tx.rollback().await;
        Ok(None)
    }

    /// Writes a response where the claim is ours; with a marker, only in the transaction that carries it.
    pub(crate) async fn write_response(
        &self,
        connection: &mut PgConnection,
        respond: &Respond,
        marker: Option<&str>,
    ) -> Result<bool, Problem> {
        let Respond { claim, response } = respond;
        let done = self
            .sql
            .settle_response
            .query()
            .bind(Uuid::from_bytes(claim.identity))
            .bind(claim.token.0)
            .bind(i32::from(response.status))
            .bind(response.stored_headers())
            .bind(&response.body[..])
            .bind(marker.map(str::to_owned))
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        autocommit!(self, |connection| {
            let query = self.sql.release_response.query();
            let query = query.bind(Uuid::from_bytes(claim.identity)).bind(claim.token.0);
            Ok(query.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    pub(crate) async fn purge_responses(&self, step: i64) -> Result<u64, Error> {
        autocommit!(self, |connection| {
            let query = self.sql.purge_responses.query().bind(self.shift()).bind(step);
            Ok(query.execute(&mut *connection).await?.rows_affected())
        })
    }
}

/// `None` when a rival's row was not there yet for this statement: the next one sees it.
fn claimed(row: &PgRow) -> Result<Option<ClaimedResponse>, Problem> {
    if row.try_get(0)? {
        return Ok(Some(ClaimedResponse::Ours));
    }
    let Some(fingerprint) = row.try_get::<Option<Uuid>, _>(1)? else { return Ok(None) };
    let fingerprint = fingerprint.into_bytes();
    let Some(status) = row.try_get::<Option<i32>, _>(2)? else {
        return Ok(Some(ClaimedResponse::InFlight { fingerprint }));
    };
    let headers: Option<&[u8]> = row.try_get(3)?;
    let body: Option<&[u8]> = row.try_get(4)?;
    let body = Bytes::copy_from_slice(body.unwrap_or_default());
    let response = StoredResponse::from_stored(status, headers.unwrap_or_default(), body)?;
    Ok(Some(ClaimedResponse::Answered { fingerprint, response }))
}
