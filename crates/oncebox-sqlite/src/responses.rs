//! Responses to requests with an idempotency key.

use std::time::Duration;

use bytes::Bytes;
use oncebox_core::clock::micros;
use oncebox_core::responses::{
    AskResponse, ClaimedResponse, Respond, ResponseClaim, ResponseStore, StoredResponse,
};
use oncebox_core::store::{Connection, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::classify;
use crate::rows::{get, limit};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::SqliteTransaction;
use crate::tx::writer::{SqliteQuery, Sync};

/// How often a claim is tried again because its rival was removed or came in between.
const MOST_TRIES: usize = 20;

impl ResponseStore for SqliteStore {
    async fn claim_response(&self, ask: &AskResponse) -> Result<ClaimedResponse, Error> {
        for _ in 0..MOST_TRIES {
            // Looked at first: a claim waits for whoever is writing, also for the request that has this key.
            let read = query(&self.sql.read_response)
                .bind(self.shift())
                .bind(&ask.claim.identity[..])
                .bind(&ask.fingerprint[..])
                .fetch_optional(&self.pool)
                .await
                .map_err(classify)?;
            if let Some(row) = &read
                && !get::<bool>(row, 4)?
            {
                return claimed(row);
            }
            // It need not outlive power loss: the response could not either, without being synced with it.
            let ours = self.writer.run(Sync::Soft, || self.claim_query(ask)).await?;
            if !ours.is_empty() {
                return Ok(ClaimedResponse::Ours);
            }
        }
        Err(Error::new(
            ErrorKind::Contention,
            "an idempotency key is claimed and given up all the time; try again",
        ))
    }

    async fn renew_response(&self, claim: ResponseClaim, lease_for: Duration) -> Result<bool, Error> {
        let renew = || {
            query(&self.sql.renew_response)
                .bind(self.shift())
                .bind(claim.identity.to_vec())
                .bind(claim.token.0)
                .bind(micros(lease_for))
        };
        Ok(!self.writer.run(Sync::Soft, renew).await?.is_empty())
    }

    async fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> Result<Option<SqliteTransaction>, Error> {
        let mut transaction = self.begin(limits).await?;
        let query = query(&self.sql.begin_response).bind(&claim.identity[..]).bind(claim.token.0);
        let found = query.fetch_optional(&mut *transaction).await.map_err(classify);
        if let Ok(Some(_)) = found {
            return Ok(Some(transaction));
        }
        transaction.rollback().await;
        found.map(|_| None)
    }

    async fn settle_response(&self, respond: &Respond) -> Result<bool, Error> {
        Ok(!self.writer.run(Sync::Durable, || self.settle_query(respond)).await?.is_empty())
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        let release = || query(&self.sql.release_response).bind(claim.identity.to_vec()).bind(claim.token.0);
        Ok(!self.writer.run(Sync::Soft, release).await?.is_empty())
    }

    async fn purge_responses(&self, step: usize) -> Result<u64, Error> {
        let purge = || query(&self.sql.purge_responses).bind(self.shift()).bind(limit(step));
        Ok(self.writer.run(Sync::Soft, purge).await?.len() as u64)
    }
}

impl SqliteStore {
    /// Writes a response where the claim is ours, in the transaction of its request.
    pub(crate) async fn write_response(
        &self,
        connection: &mut SqliteConnection,
        respond: &Respond,
    ) -> Result<bool, Error> {
        let written = self.settle_query(respond).fetch_optional(connection).await.map_err(classify)?;
        Ok(written.is_some())
    }

    fn claim_query<'a>(&self, ask: &AskResponse) -> SqliteQuery<'a> {
        query(&self.sql.claim_response)
            .bind(self.shift())
            .bind(ask.claim.identity.to_vec())
            .bind(ask.fingerprint.to_vec())
            .bind(ask.claim.token.0)
            .bind(micros(ask.lease_for))
            .bind(micros(ask.keep))
    }

    fn settle_query<'a>(&self, respond: &Respond) -> SqliteQuery<'a> {
        let Respond { claim, response } = respond;
        query(&self.sql.settle_response)
            .bind(claim.identity.to_vec())
            .bind(claim.token.0)
            .bind(i64::from(response.status))
            .bind(response.stored_headers())
            .bind(response.body.to_vec())
    }
}

fn claimed(row: &SqliteRow) -> Result<ClaimedResponse, Error> {
    let fingerprint: &[u8] = get(row, 0)?;
    let fingerprint = fingerprint
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Store, "a stored fingerprint does not have 16 bytes"))?;
    let Some(status) = get::<Option<i32>>(row, 1)? else {
        return Ok(ClaimedResponse::InFlight { fingerprint });
    };
    let headers: Option<&[u8]> = get(row, 2)?;
    let body: Option<&[u8]> = get(row, 3)?;
    let body = Bytes::copy_from_slice(body.unwrap_or_default());
    let response = StoredResponse::from_stored(status, headers.unwrap_or_default(), body)?;
    Ok(ClaimedResponse::Answered { fingerprint, response })
}
