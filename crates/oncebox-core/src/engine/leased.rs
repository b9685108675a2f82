//! Runs deliveries that have a row of their own, for handlers with a transaction.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Counter;
use crate::engine::call::Open;
use crate::engine::transaction::{self, Begun, Item, Work};
use crate::engine::{LEASE, new_token, outcome_of};
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::store::{
    AskLease, Commit, DeliveryId, DoneLeases, Lease, LeasedDelivery, Outcome, Settlement, Store, TxLimits,
};
use crate::tx::TxState;

/// How many deliveries to lease at once when each may need a transaction of its own.
const FEW: usize = 32;

/// What a step found.
pub(crate) struct Found {
    /// Something was leased.
    pub(crate) any: bool,
    /// When something will be due.
    pub(crate) next_due: Option<Duration>,
}

/// Leases due deliveries and runs them: first attempts together, later ones each alone.
pub(crate) async fn step<St, S>(
    inbox: &Inbox<St, S>,
    handler: &Arc<Registered<St, S>>,
) -> Result<Found, Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    // Leasing counts the attempt. With only one, a neighbour's crash must not use it up.
    let limit = if handler.settings.max_attempts == 1 { 1 } else { FEW.min(handler.settings.batch) };
    let limit = match handler.settings.room(limit) {
        Ok(room) => room,
        Err(wait) => return Ok(Found { any: false, next_due: Some(wait) }),
    };
    let ask = AskLease {
        handler: handler.name(),
        token: new_token(&inbox.shared.seed),
        limit,
        lease_for: LEASE,
        ordered: handler.settings.ordered,
    };
    let leased = inbox.store.lease(&ask).await?;
    let next_due = leased.next_due;
    if leased.deliveries.is_empty() {
        return Ok(Found { any: false, next_due });
    }
    let deliveries = bury_hopeless(inbox, handler, leased.deliveries).await?;
    let (deliveries, later) = set_apart(deliveries);
    give_back(inbox, handler, &later).await?;
    // A delivery that has not failed yet is as good as one from the log. One that has may kill the process.
    let (first, again): (Vec<_>, Vec<_>) =
        deliveries.into_iter().partition(|delivery| delivery.lease.attempt == 1);
    let mut rest: Vec<Vec<LeasedDelivery>> = Vec::new();
    if !first.is_empty() {
        rest.push(first);
    }
    rest.extend(again.into_iter().map(|delivery| vec![delivery]));
    run_groups(inbox, handler, rest).await?;
    Ok(Found { any: true, next_due })
}

/// What to run now and what later: a suspect that has waited longest runs alone, else all but the suspects run.
fn set_apart(mut deliveries: Vec<LeasedDelivery>) -> (Vec<LeasedDelivery>, Vec<LeasedDelivery>) {
    if deliveries.first().is_some_and(|oldest| oldest.suspect) {
        let later = deliveries.split_off(1);
        return (deliveries, later);
    }
    deliveries.into_iter().partition(|delivery| !delivery.suspect)
}

/// Ends leases uncounted. Done before anything else runs, so that nobody pays for another's crash.
pub(crate) async fn give_back<St: Store, S>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    deliveries: &[LeasedDelivery],
) -> Result<(), Error> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let returned: Vec<Settlement> = deliveries
        .iter()
        .map(|delivery| Settlement { lease: delivery.lease, outcome: Outcome::Returned })
        .collect();
    settle(inbox, handler, &returned).await
}

async fn run_groups<St, S>(
    inbox: &Inbox<St, S>,
    handler: &Arc<Registered<St, S>>,
    groups: Vec<Vec<LeasedDelivery>>,
) -> Result<(), Error>
where
    St: Store,
    S: Clone + Send + Sync + 'static,
{
    let mut waiting = std::collections::VecDeque::from(groups);
    while let Some(group) = waiting.pop_front() {
        let count = group.len();
        let behind: Vec<Lease> = waiting.iter().flatten().map(|delivery| delivery.lease).collect();
        let mut work = LeasedWork { inbox, handler, deliveries: group, blamed: HashMap::new() };
        tokio::select! {
            run = transaction::run(inbox, &mut work, count) => { run?; }
            () = keep_leases(inbox, handler, &behind) => unreachable!("leases are kept until this is dropped"),
        }
    }
    Ok(())
}

/// Prolongs the leases of what waits behind the group that is running, whose own rows are locked.
async fn keep_leases<St: Store, S>(inbox: &Inbox<St, S>, handler: &Registered<St, S>, behind: &[Lease]) {
    if behind.is_empty() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LEASE / 3).await;
        if let Err(error) = inbox.store.renew(handler.name(), behind, LEASE).await {
            tracing::warn!(handler = handler.name(), %error, "leases could not be prolonged; others may take them over");
        }
    }
}

/// Deliveries that cannot be read, or whose every attempt ended with the process: dead, without being run once more.
pub(crate) async fn bury_hopeless<St: Store, S>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    deliveries: Vec<LeasedDelivery>,
) -> Result<Vec<LeasedDelivery>, Error> {
    let most = handler.settings.max_attempts;
    let (hopeless, alive): (Vec<_>, Vec<_>) = deliveries
        .into_iter()
        .partition(|delivery| delivery.unreadable.is_some() || delivery.lease.attempt > most);
    if !hopeless.is_empty() {
        let settlements: Vec<Settlement> = hopeless
            .into_iter()
            .map(|delivery| {
                let exhausted =
                    || format!("all {most} attempts are used up, and the last one did not finish");
                let outcome = Outcome::Dead(delivery.unreadable.unwrap_or_else(exhausted));
                Settlement { lease: delivery.lease, outcome }
            })
            .collect();
        settle(inbox, handler, &settlements).await?;
    }
    Ok(alive)
}

/// Ends leases and counts what came of it.
pub(crate) async fn settle<St: Store, S>(
    inbox: &Inbox<St, S>,
    handler: &Registered<St, S>,
    settlements: &[Settlement],
) -> Result<(), Error> {
    let ours = inbox.store.settle(handler.name(), settlements).await?;
    let (mut done, mut retried, mut dead) = (0, 0, 0);
    for (settlement, ours) in settlements.iter().zip(ours) {
        match &settlement.outcome {
            _ if !ours => tracing::warn!(
                handler = handler.name(),
                delivery = settlement.lease.delivery.0,
                attempt = settlement.lease.attempt,
                "the lease was lost while the handler was running; its new owner decides"
            ),
            Outcome::Done => done += 1,
            Outcome::Retry(..) => retried += 1,
            Outcome::Dead(_) => dead += 1,
            Outcome::Returned => {}
        }
    }
    let counters = &inbox.shared.counters;
    counters.add(handler.name(), Counter::Done, done);
    counters.add(handler.name(), Counter::Failed, retried + dead);
    counters.add(handler.name(), Counter::Retried, retried);
    counters.add(handler.name(), Counter::Dead, dead);
    if dead > 0 {
        tracing::warn!(handler = handler.name(), dead, "deliveries became dead letters");
    }
    Ok(())
}

struct LeasedWork<'a, St: Store, S> {
    inbox: &'a Inbox<St, S>,
    handler: &'a Arc<Registered<St, S>>,
    deliveries: Vec<LeasedDelivery>,
    blamed: HashMap<DeliveryId, Outcome>,
}

impl<St: Store, S: Clone + Send + Sync + 'static> Work<St, S> for LeasedWork<'_, St, S> {
    async fn begin(&mut self, span: Range<usize>) -> Result<Option<Begun<St, S>>, Error> {
        let mut settlements = Vec::new();
        for delivery in &self.deliveries[span.clone()] {
            if let Some(outcome) = self.blamed.remove(&delivery.lease.delivery) {
                settlements.push(Settlement { lease: delivery.lease, outcome });
            }
        }
        if !settlements.is_empty() {
            // A blamed delivery is always alone in its span.
            settle(self.inbox, self.handler, &settlements).await?;
            return Ok(None);
        }
        let leases: Vec<Lease> =
            self.deliveries[span.clone()].iter().map(|delivery| delivery.lease).collect();
        let limits = TxLimits { statement: self.handler.settings.timeout };
        let Some(connection) = self.inbox.store.begin_leased(self.handler.name(), &leases, limits).await?
        else {
            tracing::debug!(handler = self.handler.name(), "leases were lost before their deliveries ran");
            return Ok(None);
        };
        let handlers: Arc<[_]> = Arc::new([self.handler.clone()]);
        let items = self.deliveries[span]
            .iter()
            .map(|delivery| Item {
                message: Some(delivery.message.clone().into()),
                attempt: delivery.lease.attempt,
                handlers: handlers.clone(),
            })
            .collect();
        Ok(Some(Begun { connection, items }))
    }

    async fn commit(
        &mut self,
        span: Range<usize>,
        _items: &[Item<St, S>],
        open: Open<St::Connection>,
        _last: bool,
    ) -> Result<(), Error> {
        let leases: Vec<Lease> = self.deliveries[span].iter().map(|delivery| delivery.lease).collect();
        let count = leases.len();
        let TxState { connection, outgoing, .. } = *open.state;
        let published = !outgoing.is_empty();
        let commit = Commit {
            done: Some(DoneLeases { handler: self.handler.name().to_owned(), leases }),
            outgoing,
            ..Commit::default()
        };
        self.inbox.store.commit(connection, commit).await?;
        self.inbox.shared.counters.add(self.handler.name(), Counter::Done, count);
        // The relay, or the next held message of a key, may have something to do.
        if published {
            self.inbox.shared.ring_everywhere();
        } else {
            self.inbox.shared.wake.ring();
        }
        Ok(())
    }

    fn blame(&mut self, index: usize, handler: &Arc<Registered<St, S>>, failure: Failure) {
        let lease = self.deliveries[index].lease;
        tracing::debug!(
            handler = handler.name(),
            delivery = lease.delivery.0,
            attempt = lease.attempt,
            %failure,
            "the attempt failed"
        );
        let outcome = outcome_of(handler, lease.attempt, &failure, &self.inbox.shared.seed);
        self.blamed.insert(lease.delivery, outcome);
    }
}
