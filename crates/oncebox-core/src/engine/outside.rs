//! Runs handlers that work outside the database: no connection is held while they run, and a fencing token
//! decides whether their outcome still counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine::call::call_outside;
use crate::engine::lanes::LaneWalker;
use crate::engine::leased::{bury_hopeless, give_back, settle};
use crate::engine::{LEASE, new_token, outcome_of};
use crate::error::Error;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::store::{AskLease, DeliveryId, Lease, LeasedDelivery, Outcome, Settlement, Store};

/// The deliveries of one handler that are running in this process.
pub(crate) struct OutsideCaller<St: Store, S> {
    inbox: Inbox<St, S>,
    handler: Arc<Registered<St, S>>,
    lanes: LaneWalker<St, S>,
    concurrency: usize,
    /// Tasks of their own: a call goes on while this one waits for the store, which may be waiting for something
    /// that the call holds (the pool's last connection, SQLite's write lock).
    running: JoinSet<Option<Settlement>>,
    leases: HashMap<DeliveryId, Held>,
    /// Outcomes that are known but not yet in the store.
    finished: Vec<Settlement>,
    renewed: Instant,
    /// A delivery that may have killed a process is running, or waits until nothing else is: start nothing beside it.
    alone: bool,
}

struct Held {
    lease: Lease,
    /// Dropped to stop the handler when the lease is lost.
    _stop: watch::Sender<()>,
}

/// What a step found.
pub(crate) struct Found {
    /// Something was started or finished.
    pub(crate) any: bool,
    /// When something will be due.
    pub(crate) next_due: Option<Duration>,
}

impl<St: Store, S: Clone + Send + Sync + 'static> OutsideCaller<St, S> {
    pub(crate) fn new(inbox: Inbox<St, S>, handler: Arc<Registered<St, S>>, concurrency: usize) -> Self {
        Self {
            lanes: LaneWalker::new(inbox.clone(), handler.clone(), 1),
            inbox,
            handler,
            concurrency,
            running: JoinSet::new(),
            leases: HashMap::new(),
            finished: Vec::new(),
            renewed: Instant::now(),
            alone: false,
        }
    }

    /// Starts as many due and waiting deliveries as there is room for.
    pub(crate) async fn fill(&mut self) -> Result<Found, Error> {
        let mut any = false;
        let mut next_due = None;
        self.alone &= self.is_busy();
        let mut room = self.room();
        if room > 0 {
            room = match self.handler.settings.room(room) {
                Ok(room) => room,
                Err(wait) => return Ok(Found { any: false, next_due: Some(wait) }),
            };
        }
        if room > 0 {
            let ask = AskLease {
                handler: self.handler.name(),
                token: new_token(&self.inbox.shared.seed),
                limit: room,
                lease_for: LEASE,
                ordered: self.handler.settings.ordered,
            };
            let leased = self.inbox.store.lease(&ask).await?;
            next_due = leased.next_due;
            any |= !leased.deliveries.is_empty();
            let alive = bury_hopeless(&self.inbox, &self.handler, leased.deliveries).await?;
            let (now, later) = self.set_apart(alive);
            give_back(&self.inbox, &self.handler, &later).await?;
            room = room.saturating_sub(now.len());
            self.start(now);
        }
        room = room.min(self.room());
        if room > 0
            && let Some(fresh) = self.lanes.lease_next(room).await?
        {
            any = true;
            self.start(fresh);
        }
        Ok(Found { any, next_due })
    }

    /// Waits until at least one running delivery has finished. May be dropped at any time: nothing is lost.
    pub(crate) async fn one_finished(&mut self) {
        if self.finished.is_empty()
            && let Some(ended) = self.running.join_next().await
        {
            // A call whose task ended by itself is left to its lease.
            self.finished.extend(ended.ok().flatten());
        }
    }

    /// Writes every outcome that is known by now.
    pub(crate) async fn write_finished(&mut self) -> Result<(), Error> {
        while let Some(ended) = self.running.try_join_next() {
            self.finished.extend(ended.ok().flatten());
        }
        self.settle_finished().await
    }

    /// Prolongs the leases of what is running, and stops what is no longer ours.
    pub(crate) async fn renew(&mut self) -> Result<(), Error> {
        if self.leases.is_empty() || self.renewed.elapsed() < LEASE / 3 {
            return Ok(());
        }
        let leases: Vec<Lease> = self.leases.values().map(|held| held.lease).collect();
        let still_ours = self.inbox.store.renew(self.handler.name(), &leases, LEASE).await?;
        self.renewed = Instant::now();
        for (lease, ours) in leases.iter().zip(still_ours) {
            if !ours && self.leases.remove(&lease.delivery).is_some() {
                tracing::warn!(
                    handler = self.handler.name(),
                    delivery = lease.delivery.0,
                    attempt = lease.attempt,
                    "the lease was lost while the handler was running; it is stopped"
                );
            }
        }
        Ok(())
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.finished.is_empty()
    }

    fn room(&self) -> usize {
        if self.alone {
            return 0;
        }
        self.concurrency.saturating_sub(self.running.len() + self.finished.len())
    }

    /// What to start now and what later: with suspects among them, one of those alone once nothing else runs.
    fn set_apart(&mut self, deliveries: Vec<LeasedDelivery>) -> (Vec<LeasedDelivery>, Vec<LeasedDelivery>) {
        let (mut suspects, mut harmless): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|delivery| delivery.suspect);
        self.alone = !suspects.is_empty();
        if self.alone && !self.is_busy() {
            harmless.extend(suspects.split_off(1));
            return (suspects, harmless);
        }
        (harmless, suspects)
    }

    fn start(&mut self, deliveries: Vec<LeasedDelivery>) {
        if self.leases.is_empty() {
            self.renewed = Instant::now();
        }
        for LeasedDelivery { lease, message, .. } in deliveries {
            let (stop, mut stopped) = watch::channel(());
            self.leases.insert(lease.delivery, Held { lease, _stop: stop });
            let (inbox, handler) = (self.inbox.clone(), self.handler.clone());
            self.running.spawn(async move {
                let call = async {
                    match call_outside(&inbox, &handler, &mut vec![message], lease.attempt).await {
                        Ok(()) => Outcome::Done,
                        Err(failure) => {
                            tracing::debug!(
                                handler = handler.name(),
                                delivery = lease.delivery.0,
                                attempt = lease.attempt,
                                %failure,
                                "the attempt failed"
                            );
                            outcome_of(&handler, lease.attempt, &failure, &inbox.shared.seed)
                        }
                    }
                };
                tokio::select! {
                    outcome = call => Some(Settlement { lease, outcome }),
                    _ = stopped.changed() => None,
                }
            });
        }
    }

    async fn settle_finished(&mut self) -> Result<(), Error> {
        if self.finished.is_empty() {
            return Ok(());
        }
        // Kept until the store has them: after an outage they are written then, if the leases still hold.
        settle(&self.inbox, &self.handler, &self.finished).await?;
        for settlement in self.finished.drain(..) {
            self.leases.remove(&settlement.lease.delivery);
        }
        // An ordered handler's next held message may be ready.
        self.inbox.shared.wake.ring();
        Ok(())
    }
}
