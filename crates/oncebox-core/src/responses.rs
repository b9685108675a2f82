//! Responses to requests with an idempotency key: what a store must do so that a request counts once.
//!
//! A key is *claimed* first, in a commit of its own, with a lease. Then the handler runs. With a transaction
//! ([`ResponseStore::begin_response`]) its SQL and the response commit together, under the claim's token as the last
//! statement. Without one the response is written afterwards ([`ResponseStore::settle_response`]). Who has lost his claim
//! writes nothing.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::limits::Limits;
use crate::message::Message;
use crate::store::{Commit, Connection, Revoker, Store, Token, TxLimits};
use crate::trace::TraceContext;
use crate::tx::{Home, Tx, TxState};

/// A store that can also keep responses.
///
/// Its [`Store::commit`] writes [`Commit::respond`], and its [`Store::purge`] removes what
/// [`ResponseStore::purge_responses`] does.
pub trait ResponseStore: Store {
    /// Claims a key, in a commit of its own, or says who has it.
    ///
    /// Never waits for the transaction of a request that is being handled. A claim whose lease has run out is taken
    /// over by a request with the same content, unless a transaction still holds it; a response whose time is over
    /// counts as absent.
    fn claim_response(
        &self,
        ask: &AskResponse,
    ) -> impl Future<Output = Result<ClaimedResponse, Error>> + Send;

    /// Prolongs a claim by `lease_for` from now; false when it is no longer ours, or a transaction holds it.
    fn renew_response(
        &self,
        claim: ResponseClaim,
        lease_for: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Begins a transaction and locks the claim, so that nobody takes it over while the transaction is open; `None` when
    /// it is no longer ours.
    fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> impl Future<Output = Result<Option<Self::Connection>, Error>> + Send;

    /// Writes the response in a commit of its own; false, and nothing is written, when the claim is no longer ours.
    fn settle_response(&self, respond: &Respond) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Gives a claim up, so that the next request with this key runs; false when it was no longer ours or is answered.
    ///
    /// Waits for a commit of this claim that is on its way.
    fn release_response(&self, claim: ResponseClaim) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes at most so many responses whose time is over by the database's clock; answers how many.
    fn purge_responses(&self, step: usize) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// Proof that a key is ours: its identity and our token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseClaim {
    /// The 16 bytes that stand for caller, route and key.
    pub identity: [u8; 16],
    /// Who claimed it.
    pub token: Token,
}

/// Asks for a key.
#[derive(Debug, Clone, Copy)]
pub struct AskResponse {
    /// The key, and who asks.
    pub claim: ResponseClaim,
    /// The 16 bytes that stand for the content of the request.
    pub fingerprint: [u8; 16],
    /// How long the claim holds without [`ResponseStore::renew_response`].
    pub lease_for: Duration,
    /// How long the key is remembered, from now.
    pub keep: Duration,
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimedResponse {
    /// It is ours: handle the request.
    Ours,
    /// Somebody else is handling a request with this key.
    InFlight {
        /// The content of that request.
        fingerprint: [u8; 16],
    },
    /// There is a response.
    Answered {
        /// The content of the request it answers.
        fingerprint: [u8; 16],
        /// The response.
        response: StoredResponse,
    },
}

/// A response to be written under a claim.
#[derive(Debug, Clone)]
pub struct Respond {
    /// The claim; it is checked.
    pub claim: ResponseClaim,
    /// The response.
    pub response: StoredResponse,
}

/// A response as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredResponse {
    /// The status code.
    pub status: u16,
    /// Names and values, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Bytes,
}

impl StoredResponse {
    /// The headers as stores keep them: each name and each value after its length in four bytes.
    ///
    /// ```
    /// use oncebox_core::responses::StoredResponse;
    ///
    /// let headers = vec![("location".to_owned(), b"/orders/7".to_vec())];
    /// let stored = StoredResponse { status: 201, headers, body: "{}".into() };
    /// let bytes = stored.stored_headers();
    /// assert_eq!(StoredResponse::from_stored(201, &bytes, "{}".into())?, stored);
    /// # Ok::<(), oncebox_core::Error>(())
    /// ```
    pub fn stored_headers(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.headers {
            for part in [name.as_bytes(), value] {
                // A header is never so long; one that were would be cut and then fail to be read.
                bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
                bytes.extend_from_slice(part);
            }
        }
        bytes
    }

    /// Reads a response out of its columns.
    ///
    /// Fails with [`ErrorKind::Store`] when they are not what [`StoredResponse::stored_headers`] writes.
    pub fn from_stored(status: i32, headers: &[u8], body: Bytes) -> Result<Self, Error> {
        let spoilt = || Error::new(ErrorKind::Store, "a stored response cannot be read; remove its row");
        let mut parts = Vec::new();
        let mut rest = headers;
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(spoilt)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| spoilt())?;
            let (part, after) = after.split_at_checked(length).ok_or_else(spoilt)?;
            parts.push(part);
            rest = after;
        }
        let (pairs, []) = parts.as_chunks::<2>() else { return Err(spoilt()) };
        let headers = pairs.iter().map(|[name, value]| {
            let name = str::from_utf8(name).map_err(|_| spoilt())?;
            Ok((name.to_owned(), value.to_vec()))
        });
        let status = u16::try_from(status).map_err(|_| spoilt())?;
        Ok(Self { status, headers: headers.collect::<Result<_, Error>>()?, body })
    }
}

/// Lends the handler of one request its transaction, and takes it back to commit it.
///
/// Cheap to clone: a handle. The transaction begins when it is asked for, so that a request whose handler asks for none
/// holds no connection.
pub struct RequestTransaction<St: ResponseStore> {
    inner: Arc<Inner<St>>,
}

struct Inner<St: ResponseStore> {
    store: St,
    claim: Option<ResponseClaim>,
    limits: TxLimits,
    trace: Option<TraceContext>,
    loan: Mutex<Loan<St::Connection>>,
}

enum Loan<C> {
    /// Nobody has asked.
    Unused,
    /// Somebody has it, or has given it back.
    Lent(Arc<Home<C>>, Revoker),
    /// It was taken back.
    Over,
}

impl<St: ResponseStore> fmt::Debug for RequestTransaction<St> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RequestTransaction").field("claim", &self.inner.claim).finish_non_exhaustive()
    }
}

/// What the handler has given back.
#[derive(Debug)]
pub struct Worked<C> {
    connection: C,
    outgoing: Vec<Message>,
}

impl<C: Connection> Worked<C> {
    /// Undoes it.
    pub async fn rollback(self) {
        self.connection.rollback().await;
    }
}

impl<St: ResponseStore> Clone for RequestTransaction<St> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<St: ResponseStore> RequestTransaction<St> {
    /// For a request under this claim, or one without a key.
    pub fn new(
        store: St,
        claim: Option<ResponseClaim>,
        limits: TxLimits,
        trace: Option<TraceContext>,
    ) -> Self {
        let loan = Mutex::new(Loan::Unused);
        Self { inner: Arc::new(Inner { store, claim, limits, trace, loan }) }
    }

    /// Begins the transaction.
    ///
    /// Fails with [`ErrorKind::Invalid`] the second time, and with [`ErrorKind::Fenced`] when the claim is no longer
    /// ours.
    pub async fn begin(&self) -> Result<Tx<St::Connection>, Error> {
        if !matches!(*self.loan(), Loan::Unused) {
            return Err(Error::invalid("a handler takes its transaction once"));
        }
        let Inner { store, claim, limits, trace, .. } = &*self.inner;
        let connection = match claim {
            Some(claim) => store.begin_response(*claim, *limits).await?.ok_or_else(|| {
                Error::new(ErrorKind::Fenced, "another request has taken over this idempotency key")
            })?,
            None => store.begin_plain(*limits).await?,
        };
        let revoke = connection.revoker();
        let trace = trace.clone().map(Arc::new);
        let state = TxState { connection, outgoing: Vec::new(), limits: Limits::default(), trace };
        let home = Home::new();
        let tx = Tx::lend(Box::new(state), &home);
        *self.loan() = Loan::Lent(home, revoke);
        Ok(tx)
    }

    /// True while the transaction is open: its lock protects the claim, which need not be renewed.
    pub fn is_open(&self) -> bool {
        matches!(*self.loan(), Loan::Lent(..))
    }

    /// Takes the transaction back after the handler has returned; `None` when it never asked for it.
    ///
    /// Fails when the handler has kept it; then it is rolled back.
    pub async fn take_back(&self) -> Result<Option<Worked<St::Connection>>, Error> {
        let loan = std::mem::replace(&mut *self.loan(), Loan::Over);
        let Loan::Lent(home, revoke) = loan else { return Ok(None) };
        if let Some(state) = home.take() {
            let TxState { connection, outgoing, .. } = *state;
            return Ok(Some(Worked { connection, outgoing }));
        }
        revoke().await;
        Err(Error::invalid(
            "the handler kept its transaction after it returned; drop it (do not store or spawn it)",
        ))
    }

    /// Commits what the handler did, its outgoing messages and the response together.
    ///
    /// Fails as [`Store::commit`] does.
    pub async fn commit(
        &self,
        worked: Worked<St::Connection>,
        respond: Option<Respond>,
    ) -> Result<(), Error> {
        let Worked { connection, outgoing } = worked;
        let store = &self.inner.store;
        let has_outgoing = !outgoing.is_empty();
        store.commit(connection, Commit { outgoing, respond, ..Commit::default() }).await?;
        if has_outgoing && let Err(error) = store.announce().await {
            tracing::debug!(%error, "the hint to relays was not given; they find the messages when they look");
        }
        Ok(())
    }

    fn loan(&self) -> MutexGuard<'_, Loan<St::Connection>> {
        self.inner.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_out_as_they_went_in() {
        let headers = vec![
            ("a".to_owned(), Vec::new()),
            ("a".to_owned(), b"\xff\0,".to_vec()),
            ("location".to_owned(), b"/orders/7".to_vec()),
        ];
        let response = StoredResponse { status: 299, headers, body: Bytes::from_static(b"\0\xff") };
        let stored = response.stored_headers();
        assert_eq!(StoredResponse::from_stored(299, &stored, response.body.clone()).unwrap(), response);
    }

    #[test]
    fn spoilt_columns_are_an_error() {
        let stored = StoredResponse {
            headers: vec![("name".to_owned(), b"value".to_vec())],
            ..StoredResponse::default()
        }
        .stored_headers();
        for cut in 1..stored.len() {
            assert!(StoredResponse::from_stored(200, &stored[..cut], Bytes::new()).is_err(), "{cut}");
        }
        assert!(StoredResponse::from_stored(-1, &stored, Bytes::new()).is_err());
        let not_a_name = [0, 0, 0, 1, 0xff, 0, 0, 0, 0];
        assert!(StoredResponse::from_stored(200, &not_a_name[..9], Bytes::new()).is_err());
    }
}
