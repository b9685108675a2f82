//! A store that fails on purpose, at a chosen call, before or after the call has had its effect.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::admin::{Conflict, DeliveryFilter, DeliveryInfo, HandlerStatus, OutboxStatus};
use oncebox_core::responses::{AskResponse, ClaimedResponse, Respond, ResponseClaim, ResponseStore};
use oncebox_core::store::{
    Ahead, Arrival, AskLease, AskOutgoing, Claim, ClaimedLane, Commit, Count, DeliveryId, InlineBatch,
    LaneBatch, LaneRow, Lease, Leased, Once, Outgoing, Purged, ReadInline, ReadLanes, Received, Registration,
    Retention, Sent, Settlement, Store, Token, TxLimits,
};
use oncebox_core::{Error, ErrorKind, Message, Wake};
use tokio::sync::watch;

/// Wraps a store; clones share the plan.
#[derive(Debug, Clone)]
pub struct Faulty<S> {
    inner: S,
    plan: Plan,
}

impl<S: Store> Faulty<S> {
    /// Passes everything through until the plan says otherwise.
    pub fn new(inner: S, plan: Plan) -> Self {
        Self { inner, plan }
    }
}

/// When and how a store fails; clones share it.
#[derive(Debug, Clone)]
pub struct Plan {
    state: Arc<Mutex<PlanState>>,
    struck: Arc<watch::Sender<bool>>,
    healed: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Default)]
struct PlanState {
    calls: BTreeMap<&'static str, usize>,
    largest_lease: usize,
    fault: Option<Fault>,
    refused: Option<(&'static str, String)>,
    refusals: usize,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The store's method.
    pub method: &'static str,
    /// Which call of it, from 1.
    pub call: usize,
    /// Before or after the effect.
    pub side: Side,
    /// How it fails.
    pub how: How,
}

/// On which side of its effect a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The call has no effect.
    Before,
    /// The call has its effect, but the caller does not learn of it.
    After,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// This call answers with an error, later ones work.
    ErrorOnce,
    /// This call and all later ones of the method answer with an error until the plan is healed.
    ErrorForEver,
    /// The same, but the error does not say that waiting helps: tables are missing, or a statement is refused.
    Broken,
    /// The call never returns: the test drops the whole future.
    Hang,
    /// The call stands still until the plan is healed, then goes on as if nothing had happened.
    Stall,
    /// The process dies here.
    Kill,
}

impl Plan {
    /// No fault.
    pub fn none() -> Self {
        let flag = || Arc::new(watch::Sender::new(false));
        Self { state: Arc::default(), struck: flag(), healed: flag() }
    }

    /// This fault.
    pub fn with(fault: Fault) -> Self {
        let plan = Self::none();
        plan.lock().fault = Some(fault);
        plan
    }

    /// Whenever this method (`receive` or `begin_inline`) is given a message with this id or this payload, it answers that
    /// it cannot store it, as a store does with a message that is larger than a packet of its own.
    pub fn refuse(&self, method: &'static str, what: impl Into<String>) {
        self.lock().refused = Some((method, what.into()));
    }

    /// How often a call was refused because of it.
    pub fn refusals(&self) -> usize {
        self.lock().refusals
    }

    /// No fault from now on.
    pub fn heal(&self) {
        self.lock().fault = None;
        self.healed.send_replace(true);
    }

    /// How often each method was called: run a scenario once without a fault to learn where faults can be put.
    pub fn calls(&self) -> BTreeMap<&'static str, usize> {
        self.lock().calls.clone()
    }

    /// The most outgoing messages that a call of `lease_outgoing` has asked for.
    pub fn largest_lease(&self) -> usize {
        self.lock().largest_lease
    }

    /// True once the fault has happened.
    pub fn has_struck(&self) -> bool {
        *self.struck.borrow()
    }

    /// Returns once the fault has happened.
    pub async fn struck(&self) {
        // The sender is ours, so this cannot fail.
        let _ = self.struck.subscribe().wait_for(|struck| *struck).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PlanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the call and says how it fails, if it does.
    fn next(&self, method: &'static str) -> Option<(Side, How)> {
        let mut state = self.lock();
        let calls = state.calls.entry(method).or_default();
        *calls += 1;
        let calls = *calls;
        let fault = state.fault.filter(|fault| fault.method == method)?;
        let hits = match fault.how {
            How::ErrorForEver | How::Broken => calls >= fault.call,
            _ => calls == fault.call,
        };
        hits.then_some((fault.side, fault.how))
    }

    fn check(&self, method: &'static str, arrivals: &[Arrival]) -> Result<(), Error> {
        let mut state = self.lock();
        let Some((_, what)) = state.refused.clone().filter(|(refusing, _)| *refusing == method) else {
            return Ok(());
        };
        let mut messages = arrivals.iter().map(Arrival::message);
        if !messages.any(|message| message.id == what || message.payload == what.as_bytes()) {
            return Ok(());
        }
        state.refusals += 1;
        Err(Error::new(ErrorKind::Invalid, format!("message `{what}` is refused on purpose")))
    }

    async fn strike<T>(&self, how: How) -> Result<T, Error> {
        self.struck.send_replace(true);
        match how {
            How::ErrorOnce | How::ErrorForEver => {
                Err(Error::new(ErrorKind::Unavailable, "a fault made on purpose"))
            }
            How::Broken => Err(Error::new(ErrorKind::Store, "a statement is refused on purpose")),
            How::Hang | How::Stall => std::future::pending().await,
            How::Kill => std::process::abort(),
        }
    }

    async fn stall(&self) {
        self.struck.send_replace(true);
        // The sender is ours, so this cannot fail.
        let _ = self.healed.subscribe().wait_for(|healed| *healed).await;
    }

    async fn through<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.next(method) {
            None => call.await,
            Some((Side::Before, How::Stall)) => {
                self.stall().await;
                call.await
            }
            Some((Side::After, How::Stall)) => {
                let answer = call.await;
                self.stall().await;
                answer
            }
            Some((Side::Before, how)) => self.strike(how).await,
            Some((Side::After, how)) => {
                let answer = call.await?;
                let struck = self.strike(how).await;
                // A transaction begun here is dropped only now, as it would be by a caller that vanished.
                drop(answer);
                struck
            }
        }
    }
}

macro_rules! pass {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        $self.plan.through(stringify!($method), $self.inner.$method($($argument),*)).await
    };
}

impl<S: Store> Store for Faulty<S> {
    type Driver = S::Driver;
    type Connection = S::Connection;

    async fn receive(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        self.plan.check("receive", arrivals)?;
        pass!(self.receive(arrivals))
    }

    async fn register(&self, handlers: &[Registration]) -> Result<(), Error> {
        pass!(self.register(handlers))
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<ClaimedLane>, Error> {
        pass!(self.claim(claim))
    }

    async fn release(&self, handler: &str, token: Token) -> Result<(), Error> {
        pass!(self.release(handler, token))
    }

    async fn begin_lanes(&self, read: &ReadLanes<'_>) -> Result<Option<LaneBatch<S::Connection>>, Error> {
        pass!(self.begin_lanes(read))
    }

    async fn read_ahead(
        &self,
        read: &ReadLanes<'_>,
        from: &[(u16, i64)],
    ) -> Result<Option<Vec<LaneRow>>, Error> {
        pass!(self.read_ahead(read, from))
    }

    async fn begin_lanes_ahead(
        &self,
        read: &ReadLanes<'_>,
        ahead: Ahead,
    ) -> Result<Option<LaneBatch<S::Connection>>, Error> {
        // The same point as without: what fails is the beginning of a stretch.
        self.plan.through("begin_lanes", self.inner.begin_lanes_ahead(read, ahead)).await
    }

    async fn begin_leased(
        &self,
        handler: &str,
        leases: &[Lease],
        limits: TxLimits,
    ) -> Result<Option<S::Connection>, Error> {
        pass!(self.begin_leased(handler, leases, limits))
    }

    async fn begin_inline(&self, inline: &ReadInline<'_>) -> Result<InlineBatch<S::Connection>, Error> {
        self.plan.check("begin_inline", inline.arrivals)?;
        pass!(self.begin_inline(inline))
    }

    async fn begin_plain(&self, limits: TxLimits) -> Result<S::Connection, Error> {
        pass!(self.begin_plain(limits))
    }

    async fn commit(&self, connection: S::Connection, commit: Commit) -> Result<Vec<DeliveryId>, Error> {
        pass!(self.commit(connection, commit))
    }

    async fn lease(&self, ask: &AskLease<'_>) -> Result<Leased, Error> {
        pass!(self.lease(ask))
    }

    async fn renew(&self, handler: &str, leases: &[Lease], lease_for: Duration) -> Result<Vec<bool>, Error> {
        pass!(self.renew(handler, leases, lease_for))
    }

    async fn settle(&self, handler: &str, settlements: &[Settlement]) -> Result<Vec<bool>, Error> {
        pass!(self.settle(handler, settlements))
    }

    async fn once(&self, tx: &mut S::Driver, handler: &str, id: &str) -> Result<Once, Error> {
        pass!(self.once(tx, handler, id))
    }

    async fn publish(&self, tx: &mut S::Driver, messages: &[Message]) -> Result<(), Error> {
        pass!(self.publish(tx, messages))
    }

    async fn lease_outgoing(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        {
            let mut state = self.plan.lock();
            state.largest_lease = state.largest_lease.max(ask.limit);
        }
        pass!(self.lease_outgoing(ask))
    }

    async fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        pass!(self.settle_outgoing(sink, token, results, release))
    }

    async fn set_paused(&self, handler: &str, paused: bool) -> Result<bool, Error> {
        pass!(self.set_paused(handler, paused))
    }

    async fn forget(&self, handler: &str) -> Result<bool, Error> {
        pass!(self.forget(handler))
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryInfo>, Error> {
        pass!(self.deliveries(filter))
    }

    async fn replay(&self, filter: &DeliveryFilter) -> Result<u64, Error> {
        pass!(self.replay(filter))
    }

    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Result<u64, Error> {
        pass!(self.discard(filter, reason))
    }

    async fn replay_outgoing(&self, sink: &str) -> Result<u64, Error> {
        pass!(self.replay_outgoing(sink))
    }

    async fn conflicts(&self, limit: usize) -> Result<Vec<Conflict>, Error> {
        pass!(self.conflicts(limit))
    }

    async fn handlers(&self) -> Result<Vec<HandlerStatus>, Error> {
        pass!(self.handlers())
    }

    async fn wanted_kinds(&self) -> Result<Vec<Vec<String>>, Error> {
        pass!(self.wanted_kinds())
    }

    async fn outbox(&self) -> Result<Vec<OutboxStatus>, Error> {
        pass!(self.outbox())
    }

    async fn add_counts(&self, counts: &[Count]) -> Result<(), Error> {
        pass!(self.add_counts(counts))
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        pass!(self.counts())
    }

    async fn purge(&self, retention: &Retention) -> Result<Purged, Error> {
        pass!(self.purge(retention))
    }

    async fn announce(&self) -> Result<(), Error> {
        pass!(self.announce())
    }

    async fn listen(&self, wake: Wake) -> Result<(), Error> {
        self.inner.listen(wake).await
    }

    fn is_transient(&self, error: &(dyn StdError + 'static)) -> bool {
        self.inner.is_transient(error)
    }

    fn max_transactions(&self) -> usize {
        self.inner.max_transactions()
    }
}

impl<S: ResponseStore> ResponseStore for Faulty<S> {
    async fn claim_response(&self, ask: &AskResponse) -> Result<ClaimedResponse, Error> {
        pass!(self.claim_response(ask))
    }

    async fn renew_response(&self, claim: ResponseClaim, lease_for: Duration) -> Result<bool, Error> {
        pass!(self.renew_response(claim, lease_for))
    }

    async fn begin_response(
        &self,
        claim: ResponseClaim,
        limits: TxLimits,
    ) -> Result<Option<S::Connection>, Error> {
        pass!(self.begin_response(claim, limits))
    }

    async fn settle_response(&self, respond: &Respond) -> Result<bool, Error> {
        pass!(self.settle_response(respond))
    }

    async fn release_response(&self, claim: ResponseClaim) -> Result<bool, Error> {
        pass!(self.release_response(claim))
    }

    async fn purge_responses(&self, step: usize) -> Result<u64, Error> {
        pass!(self.purge_responses(step))
    }
}
