//! One request on its way: claimed, handled, committed with its response.

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::request;
use http::response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use oncebox_core::responses::{
    AskResponse, ClaimedResponse, RequestTransaction, Respond, ResponseClaim, ResponseStore,
};
use oncebox_core::store::Token;
use oncebox_core::{Error, Headers, TraceContext};
use tokio::time::Instant;
use tower_service::Service;

use crate::key;
use crate::layer::Settings;
use crate::problem::Problem;
use crate::request::{fingerprint, identity};
use crate::response::{Fate, replay, stored};

/// How long a request that waits for another one with its key waits between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How many expired responses are removed at a time, and how many times in a row.
const PURGE_STEP: usize = 1000;
/// How often a response is written again when the store was away.
const MOST_TRIES: u32 = 5;

/// What [`Idempotency`](crate::Idempotency) makes of a service.
pub struct IdempotencyService<St, S> {
    settings: Arc<Settings<St>>,
    inner: S,
}

impl<St, S> IdempotencyService<St, S> {
    pub(crate) fn new(settings: Arc<Settings<St>>, inner: S) -> Self {
        Self { settings, inner }
    }
}

impl<St, S: Clone> Clone for IdempotencyService<St, S> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), inner: self.inner.clone() }
    }
}

impl<St, S> fmt::Debug for IdempotencyService<St, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("IdempotencyService").finish_non_exhaustive()
    }
}

impl<St, S> Service<Request> for IdempotencyService<St, S>
where
    St: ResponseStore,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The one that was asked whether it is ready must be the one that is called.
        let other = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, other);
        let settings = self.settings.clone();
        Box::pin(
            async move { Ok(answer(&settings, inner, request).await.unwrap_or_else(Problem::into_response)) },
        )
    }
}

async fn answer<St, S>(settings: &Settings<St>, inner: S, request: Request) -> Result<Response, Problem>
where
    St: ResponseStore,
    S: Service<Request, Response = Response, Error = Infallible> + Send,
    S::Future: Send,
{
    if !settings.methods.contains(request.method()) {
        return plain(settings, inner, request).await;
    }
    let (parts, body) = request.into_parts();
    let key = key::read(&parts.headers, settings.spelling).map_err(Problem::key_invalid)?;
    if key.is_none() && settings.required {
        return Err(Problem::key_missing());
    }
    let caller = key.as_ref().map(|_| (settings.caller)(&parts)).transpose()?;
    // Before the transaction begins, which must not wait for a slow client.
    let body = read_body(&parts, body, settings.request_limit).await?;
    let (Some(key), Some(caller)) = (key, caller) else {
        return plain(settings, inner, Request::from_parts(parts, Body::from(body))).await;
    };
    let token = Token(i64::try_from(settings.seed.next() >> 1).unwrap_or(i64::MAX));
    let claim = ResponseClaim { identity: identity(&settings.scope, &caller, &parts, &key), token };
    let keyed = Keyed {
        store: settings.store.clone(),
        ask: AskResponse {
            claim,
            fingerprint: fingerprint(&parts, &body),
            lease_for: settings.lease,
            keep: settings.keep,
        },
        lender: lender(settings, Some(claim), &parts),
        response_limit: settings.response_limit,
    };
    // From here on whoever drops this future gives the key up.
    let mut guard = Guard { keyed: Some(keyed.clone()) };
    let answered = keyed.claim(settings.wait).await;
    if let Some(answered) = answered.transpose() {
        // When the store fell silent, the key may be ours without our knowing.
        if !matches!(&answered, Err(problem) if problem.is_ours()) {
            guard.disarm();
        }
        return answered;
    }
    purge_now_and_then(settings);
    let response = keyed.handle(inner, parts, body).await;
    guard.disarm();
    response.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A request without a key: its transaction is committed, and nothing is stored.
async fn plain<St, S>(settings: &Settings<St>, mut inner: S, request: Request) -> Result<Response, Problem>
where
    St: ResponseStore,
    S: Service<Request, Response = Response, Error = Infallible> + Send,
    S::Future: Send,
{
    let (mut parts, body) = request.into_parts();
    let lender = lender(settings, None, &parts);
    parts.extensions.insert(lender.clone());
    let Ok(response) = inner.call(Request::from_parts(parts, body)).await;
    let worked = lender.take_back().await.map_err(|error| Problem::of_store(&error))?;
    let Some(worked) = worked else { return Ok(response) };
    if Fate::of(response.status()) == Fate::Done {
        lender.commit(worked, None).await.map_err(|error| Problem::of_store(&error))?;
    } else {
        worked.rollback().await;
    }
    Ok(response)
}

fn lender<St: ResponseStore>(
    settings: &Settings<St>,
    claim: Option<ResponseClaim>,
    parts: &request::Parts,
) -> RequestTransaction<St> {
    let mut headers = Headers::new();
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = parts.headers.get(name) {
            headers.push(name, value.as_bytes().to_vec());
        }
    }
    let trace = TraceContext::extract(&headers).map(|trace| trace.child(settings.seed.next()));
    RequestTransaction::new(settings.store.clone(), claim, settings.limits, trace)
}

async fn read_body(parts: &request::Parts, body: Body, limit: usize) -> Result<Bytes, Problem> {
    let length = parts.headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(Problem::body_too_large(limit));
    }
    let read = Limited::new(body, limit).collect().await;
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => Problem::body_too_large(limit),
        None => Problem::body_unreadable(),
    })?;
    Ok(read.to_bytes())
}

/// A request with a key.
struct Keyed<St: ResponseStore> {
    store: St,
    ask: AskResponse,
    lender: RequestTransaction<St>,
    response_limit: usize,
}

impl<St: ResponseStore> Clone for Keyed<St> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), lender: self.lender.clone(), ..*self }
    }
}

impl<St: ResponseStore> Keyed<St> {
    /// `None` when the key is ours; else what to answer.
    async fn claim(&self, wait: Duration) -> Result<Option<Response>, Problem> {
        let asked = Instant::now();
        loop {
            match self.look().await? {
                Looked::Ours => return Ok(None),
                Looked::Answered(response) => return Ok(Some(response)),
                Looked::InFlight => {}
            }
            let left = wait.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Err(Problem::in_flight());
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    async fn look(&self) -> Result<Looked, Problem> {
        let claimed =
            self.store.claim_response(&self.ask).await.map_err(|error| Problem::of_store(&error))?;
        let content = self.ask.fingerprint;
        match claimed {
            ClaimedResponse::Ours => Ok(Looked::Ours),
            ClaimedResponse::InFlight { fingerprint } | ClaimedResponse::Answered { fingerprint, .. }
                if fingerprint != content =>
            {
                Err(Problem::other_content())
            }
            ClaimedResponse::InFlight { .. } => Ok(Looked::InFlight),
            ClaimedResponse::Answered { response, .. } => {
                let response = replay(response).map_err(|error| Problem::of_store(&error))?;
                Ok(Looked::Answered(response))
            }
        }
    }

    /// Runs the handler under the claim, which is settled or given up when this returns. The outer error is a panic.
    async fn handle<S>(
        &self,
        inner: S,
        mut parts: request::Parts,
        body: Bytes,
    ) -> Result<Result<Response, Problem>, Box<dyn Any + Send>>
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send,
        S::Future: Send,
    {
        parts.extensions.insert(self.lender.clone());
        let work = self.call(inner, Request::from_parts(parts, Body::from(body)));
        let worked = tokio::select! {
            biased;
            worked = AssertUnwindSafe(work).catch_unwind() => worked,
            never = self.renew() => match never {},
        };
        match worked {
            Ok(Ok((parts, body))) => Ok(self.finish(parts, body).await),
            Ok(Err(problem)) => {
                self.give_up().await;
                Ok(Err(problem))
            }
            Err(panic) => {
                self.give_up().await;
                Err(panic)
            }
        }
    }

    /// The handler and all of its response.
    async fn call<S>(&self, mut inner: S, request: Request) -> Result<(response::Parts, Bytes), Problem>
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send,
        S::Future: Send,
    {
        let Ok(response) = inner.call(request).await;
        let (parts, body) = response.into_parts();
        let read = Limited::new(body, self.response_limit).collect().await.map_err(|error| {
            tracing::error!(%error, limit = self.response_limit, "a response cannot be kept; its work is undone");
            Problem::response_too_large(self.response_limit)
        })?;
        Ok((parts, read.to_bytes()))
    }

    /// Keeps the claim while the handler runs without a transaction. An open transaction holds it by itself.
    async fn renew(&self) -> Infallible {
        let AskResponse { claim, lease_for, .. } = self.ask;
        loop {
            tokio::time::sleep(lease_for / 3).await;
            if self.lender.is_open() {
                continue;
            }
            if let Err(error) = self.store.renew_response(claim, lease_for).await {
                tracing::warn!(%error, "the claim of an idempotency key was not renewed; trying again");
            }
        }
    }

    async fn finish(&self, parts: response::Parts, body: Bytes) -> Result<Response, Problem> {
        let fate = Fate::of(parts.status);
        let response = |parts, body: Bytes| Response::from_parts(parts, Body::from(body));
        if fate == Fate::Forgotten {
            self.give_up().await;
            return Ok(response(parts, body));
        }
        let respond = Respond { claim: self.ask.claim, response: stored(&parts, &body) };
        let written = match self.lender.take_back().await {
            Ok(Some(worked)) if fate == Fate::Done => {
                self.lender.commit(worked, Some(respond)).await.map(|()| true)
            }
            Ok(Some(worked)) => {
                worked.rollback().await;
                self.settle(&respond).await
            }
            Ok(None) => self.settle(&respond).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(true) => Ok(response(parts, body)),
            Ok(false) => self.learn(None).await,
            Err(error) => self.learn(Some(error)).await,
        }
    }

    async fn settle(&self, respond: &Respond) -> Result<bool, Error> {
        let mut tries = 0;
        loop {
            match self.store.settle_response(respond).await {
                Err(error) if error.is_transient() && tries < MOST_TRIES => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(20) * tries.pow(2)).await;
                }
                other => return other,
            }
        }
    }

    /// Finds out what became of a commit that failed, or of a key that somebody else has taken over.
    ///
    /// Giving the claim up waits for a commit that is still on its way, so it tells: either there was something to give up,
    /// and nothing is kept; or there was not, and the answer is in the store.
    async fn learn(&self, error: Option<Error>) -> Result<Response, Problem> {
        match (self.store.release_response(self.ask.claim).await, error) {
            (Ok(true), Some(error)) | (Err(error), _) => Err(Problem::of_store(&error)),
            (Ok(true), None) => Err(Problem::in_flight()),
            (Ok(false), _) => match self.look().await? {
                Looked::Answered(response) => Ok(response),
                Looked::InFlight => Err(Problem::in_flight()),
                Looked::Ours => {
                    self.give_up().await;
                    Err(Problem::in_flight())
                }
            },
        }
    }

    /// Undoes the work and gives the key up, so that the next request with it runs.
    async fn give_up(&self) {
        match self.lender.take_back().await {
            Ok(Some(worked)) => worked.rollback().await,
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "a request was undone"),
        }
        if let Err(error) = self.store.release_response(self.ask.claim).await {
            tracing::warn!(%error, lease = ?self.ask.lease_for, "an idempotency key was not given up; it is free after its lease");
        }
    }
}

enum Looked {
    Ours,
    InFlight,
    Answered(Response),
}

/// Gives the key up when the request's future is dropped: the client has gone, or a timeout has struck.
struct Guard<St: ResponseStore> {
    keyed: Option<Keyed<St>>,
}

impl<St: ResponseStore> Guard<St> {
    fn disarm(&mut self) {
        self.keyed = None;
    }
}

impl<St: ResponseStore> Drop for Guard<St> {
    fn drop(&mut self) {
        // Without a runtime the key is free after its lease.
        if let (Some(keyed), Ok(runtime)) = (self.keyed.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { keyed.give_up().await });
        }
    }
}

fn purge_now_and_then<St: ResponseStore>(settings: &Settings<St>) {
    {
        let mut purged_at = settings.purged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if purged_at.elapsed() < settings.purge_every {
            return;
        }
        *purged_at = Instant::now();
    }
    let store = settings.store.clone();
    tokio::spawn(async move {
        loop {
            match store.purge_responses(PURGE_STEP).await {
                Ok(removed) if removed >= PURGE_STEP as u64 => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "expired responses were not removed; trying again later");
                    return;
                }
            }
        }
    });
}
