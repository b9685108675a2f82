//! Responses to requests with an idempotency key.

use std::time::Duration;

use bytes::Bytes;
use oncebox_core::clock::micros;
use oncebox_core::responses::{
    AskResponse, ClaimedResponse, Respond, ResponseClaim, ResponseStore, StoredResponse,
};
use oncebox_core::store::{Connection, TxLimits};
use oncebox_core::{Error, ErrorKind};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use crate::error::{DUPLICATE_KEY, LOCK_WAIT, Problem};
use crate::rows::{limit, list, sixteen, text};
use crate::sql::NO_WAIT;
use crate::store::{Inner, MariaStore};
use crate::tx::{MariaTransaction, reading, transaction};

/// How often a claim is tried again because its rival was removed or came in between.
const MOST_TRIES: usize = 20;

impl ResponseStore for MariaStore {
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
    ) -> Result<Option<MariaTransaction>, Error> {
        Box::pin(self.inner().begin_response(claim, limits)).await
    }

    async fn settle_response(&self, respond: &Respond) -> Result<bool, Error> {
        let inner = self.inner();
        Box::pin(async { transaction!(inner, |connection| inner.write_response(connection, respond).await) })
            .await
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        Box::pin(self.inner().release_response(claim)).await
    }

    async fn purge_responses(&self, step: usize) -> Result<u64, Error> {
        Box::pin(self.inner().purge_responses(limit(step))).await
    }
}

/// What stands in the way of a claim.
enum Found {
    Nothing,
    /// A row that may be taken over.
    Free(ClaimedResponse),
    Taken(ClaimedResponse),
}

/// What became of an insert.
enum Inserted {
    Yes,
    /// There is a row by now.
    No,
    /// A rival is at it this moment.
    Busy,
}

impl Inner {
    async fn claim_response(&self, ask: &AskResponse) -> Result<ClaimedResponse, Error> {
        for _ in 0..MOST_TRIES {
            // Looked at first: an insert would wait for the transaction that is about to answer the row.
            match self.find_response(ask).await? {
                Found::Taken(claimed) => return Ok(claimed),
                Found::Free(claimed) => {
                    // Who has the row locked is still at work.
                    let ours = self.take_response(ask).await?;
                    return Ok(if ours { ClaimedResponse::Ours } else { claimed });
                }
                Found::Nothing => match self.insert_response(ask).await? {
                    Inserted::Yes => return Ok(ClaimedResponse::Ours),
                    Inserted::Busy => return Ok(ClaimedResponse::InFlight { fingerprint: ask.fingerprint }),
                    Inserted::No => {}
                },
            }
        }
        Err(Error::new(
            ErrorKind::Contention,
            "an idempotency key is claimed and given up all the time; try again",
        ))
    }

    async fn find_response(&self, ask: &AskResponse) -> Result<Found, Error> {
        reading!(self, |connection| {
            let query = self.sql.read_response.query(self.shift());
            let query = query.bind(&ask.fingerprint[..]).bind(&ask.claim.identity[..]);
            let Some(row) = query.fetch_optional(&mut *connection).await? else { return Ok(Found::Nothing) };
            let claimed = claimed(&row)?;
            Ok(if row.try_get::<bool, _>(4)? { Found::Free(claimed) } else { Found::Taken(claimed) })
        })
    }

    async fn insert_response(&self, ask: &AskResponse) -> Result<Inserted, Error> {
        transaction!(self, NO_WAIT, |connection, _answers| {
            let query = self
                .sql
                .insert_response
                .query(self.shift())
                .bind(&ask.claim.identity[..])
                .bind(&ask.fingerprint[..])
                .bind(ask.claim.token.0)
                .bind(micros(ask.lease_for))
                .bind(micros(ask.keep));
            let problem = match query.execute(&mut *connection).await {
                Ok(_) => return Ok(Inserted::Yes),
                Err(error) => Problem::from(error),
            };
            match problem.number() {
                Some(DUPLICATE_KEY) => Ok(Inserted::No),
                Some(LOCK_WAIT) => Ok(Inserted::Busy),
                _ => Err(problem),
            }
        })
    }

    async fn take_response(&self, ask: &AskResponse) -> Result<bool, Error> {
        transaction!(self, |connection| {
            let lock = self.sql.lock_response.query(self.shift());
            let lock = lock.bind(&ask.claim.identity[..]).bind(&ask.fingerprint[..]);
            if lock.fetch_optional(&mut *connection).await?.is_none() {
                return Ok(false);
            }
            let query = self
                .sql
                .claim_response
                .query(self.shift())
                .bind(&ask.fingerprint[..])
                .bind(ask.claim.token.0)
                .bind(micros(ask.lease_for))
                .bind(micros(ask.keep))
                .bind(&ask.claim.identity[..]);
            query.execute(&mut *connection).await?;
            Ok(true)
        })
    }

    async fn renew_response(&self, claim: ResponseClaim, lease_for: Duration) -> Result<bool, Error> {
        transaction!(self, |connection| {
            let lock = self.sql.lock_claim.query(self.shift());
            let lock = lock.bind(&claim.identity[..]).bind(claim.token.0);
            if lock.fetch_optional(&mut *connection).await?.is_none() {
                return Ok(false);
            }
            let renew = self.sql.renew_response.query(self.shift());
            renew.bind(micros(lease_for)).bind(&claim.identity[..]).execute(&mut *connection).await?;
            Ok(true)
        })
    }

    async fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> Result<Option<MariaTransaction>, Error> {
        let tx = self.begin(limits).await?;
        let (tx, locked) = self
            .settled(tx, async |tx| {
                let query = self.sql.begin_response.query(self.shift());
                let query = query.bind(&claim.identity[..]).bind(claim.token.0);
                let Some(row) = query.fetch_optional(&mut **tx).await? else { return Ok(false) };
                tx.note_session(row.try_get(0)?);
                Ok(true)
            })
            .await
            .map_err(Problem::into_error)?;
        if locked {
            return Ok(Some(tx));
        }
        tx.rollback().await;
        Ok(None)
    }

    /// Writes a response where the claim is ours.
    pub(crate) async fn write_response(
        &self,
        connection: &mut MySqlConnection,
        respond: &Respond,
    ) -> Result<bool, Problem> {
        let Respond { claim, response } = respond;
        let done = self
            .sql
            .settle_response
            .query(self.shift())
            .bind(i32::from(response.status))
            .bind(response.stored_headers())
            .bind(&response.body[..])
            .bind(&claim.identity[..])
            .bind(claim.token.0)
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        transaction!(self, |connection| {
            let query = self.sql.release_response.query(self.shift());
            let query = query.bind(&claim.identity[..]).bind(claim.token.0);
            Ok(query.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    pub(crate) async fn purge_responses(&self, step: i64) -> Result<u64, Error> {
        transaction!(self, |connection| {
            let query = self.sql.expired_responses.query(self.shift()).bind(step);
            let rows = query.fetch_all(&mut *connection).await?;
            if rows.is_empty() {
                return Ok(0);
            }
            let old: Vec<String> = rows.iter().map(|row| text(row, 0)).collect::<Result<_, _>>()?;
            let delete = self.sql.purge_responses.query(self.shift()).bind(list(old));
            Ok(delete.execute(&mut *connection).await?.rows_affected())
        })
    }
}

fn claimed(row: &MySqlRow) -> Result<ClaimedResponse, Problem> {
    let fingerprint = sixteen(row, 0)?;
    let Some(status) = row.try_get::<Option<i32>, _>(1)? else {
        return Ok(ClaimedResponse::InFlight { fingerprint });
    };
    let headers: Option<&[u8]> = row.try_get(2)?;
    let body: Option<&[u8]> = row.try_get(3)?;
    let body = Bytes::copy_from_slice(body.unwrap_or_default());
    let response = StoredResponse::from_stored(status, headers.unwrap_or_default(), body)?;
    Ok(ClaimedResponse::Answered { fingerprint, response })
}
