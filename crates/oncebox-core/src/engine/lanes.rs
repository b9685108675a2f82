//! Runs the next messages of a handler's lanes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::counters::Counter;
use crate::engine::call::Open;
use crate::engine::transaction::{self, Begun, Item, Work};
use crate::engine::{LEASE, new_token, outcome_of};
use crate::error::{Error, ErrorKind};
use crate::failure::Failure;
use crate::handler::Registered;
use crate::inbox::Inbox;
use crate::message::LANES;
use crate::store::{
    Ahead, Claim, ClaimedLane, Commit, Connection, LaneBound, LaneMessage, LaneRow, Lease, LeasedDelivery,
    MoveLanes, Outcome, Park, ParkState, ReadLanes, SUSPECTED, Store, Token, TxLimits,
};
use crate::tx::TxState;

/// How long lanes are kept while they are full, before they are claimed anew.
const CLAIM_FOR: Duration = Duration::from_secs(1);

/// How many lanes are kept while they are full: enough for several batches before others have to be claimed.
const FULL_LANES: usize = 8;

/// The most payload bytes of a batch after which the next one is read ahead: memory for both must be there.
const MOST_AHEAD: usize = 8 * 1024 * 1024;

/// How long to wait for what is being read ahead, before it is read in the old way.
const AHEAD_PATIENCE: Duration = Duration::from_millis(100);

/// Walks through the lanes of a handler.
pub(crate) struct LaneWalker<St: Store, S> {
    inbox: Inbox<St, S>,
    handler: Arc<Registered<St, S>>,
    token: Token,
    /// How many lanes to ask for: few while they are full, many while they are nearly empty.
    lanes_wanted: usize,
    most_lanes: usize,
}

impl<St: Store, S: Clone + Send + Sync + 'static> LaneWalker<St, S> {
    /// `walkers` is how many of these share the handler in this process.
    pub(crate) fn new(inbox: Inbox<St, S>, handler: Arc<Registered<St, S>>, walkers: usize) -> Self {
        // No more lanes than a batch has messages: the others would only wait, and nobody else could run them.
        let most_lanes = usize::from(LANES).div_ceil(walkers.max(1)).min(handler.settings.batch);
        let token = new_token(&inbox.shared.seed);
        Self { inbox, handler, token, lanes_wanted: most_lanes, most_lanes }
    }

    /// Claims lanes and runs what is in them until they are empty or `stop` says so. False when there was nothing.
    ///
    /// The first batch has at most `limit` messages; with a gate it is the only one.
    pub(crate) async fn step(
        &mut self,
        limit: usize,
        stop: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<bool, Error> {
        let lanes = self.claim(limit).await?;
        if lanes.is_empty() {
            return Ok(false);
        }
        let result = self.run_claimed(lanes, limit, stop).await;
        if !matches!(result, Ok(false)) {
            self.end_claim(&result).await;
        }
        result.map(|_| true)
    }

    /// Moves up to `limit` messages of a handler that works outside the database to leased rows.
    ///
    /// `None` when there was nothing to claim; an empty list when nothing of it is to be run now.
    pub(crate) async fn lease_next(&mut self, limit: usize) -> Result<Option<Vec<LeasedDelivery>>, Error> {
        let lanes = self.claim(limit).await?;
        if lanes.is_empty() {
            return Ok(None);
        }
        let result = self.lease_claimed(lanes, limit).await;
        self.end_claim(&result).await;
        result.map(Some)
    }

    async fn claim(&mut self, limit: usize) -> Result<Vec<ClaimedLane>, Error> {
        let claim = Claim {
            handler: self.handler.name(),
            token: self.token,
            lanes: self.lanes_wanted.min(limit),
            limit,
        };
        let lanes = self.inbox.store.claim(&claim).await?;
        if lanes.is_empty() {
            self.lanes_wanted = self.most_lanes;
        }
        Ok(lanes)
    }

    /// Answers whether marks of ours may be left.
    async fn run_claimed(
        &mut self,
        claimed: Vec<ClaimedLane>,
        limit: usize,
        stop: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<bool, Error> {
        let all = claimed.len();
        let lanes = self.isolate_suspects(claimed).await?;
        if lanes.is_empty() {
            return Ok(true);
        }
        let gated = self.handler.settings.gate.is_some();
        let began = Instant::now();
        let mut ahead = None;
        loop {
            // Claiming again is what notices a pause, and lets other processes have a turn.
            let stopping = gated || stop() || began.elapsed() >= CLAIM_FOR;
            let mut work = LaneWork {
                inbox: &self.inbox,
                handler: &self.handler,
                token: self.token,
                bounds: lanes.iter().map(|lane| LaneBound { lane: *lane, upto: None }).collect(),
                limit,
                keep: !stopping,
                ahead: ahead.take(),
                reading: JoinSet::new(),
                first: 0,
                rows: Vec::new(),
                bounded: false,
                unmarked: 0,
                blamed: HashMap::new(),
                written: 0,
            };
            transaction::run(&self.inbox, &mut work, limit).await?;
            let read = work.first + work.rows.len();
            self.lanes_wanted = lanes_for_next(&work.rows, limit, lanes.len(), self.most_lanes);
            if stopping || read < limit || self.lanes_wanted != lanes.len() {
                return Ok(work.unmarked < all);
            }
            ahead = work.read_ahead().await;
        }
    }

    /// Gives every message that may have killed a process a row of its own, to be run alone from now on.
    async fn isolate_suspects(&mut self, lanes: Vec<ClaimedLane>) -> Result<Vec<u16>, Error> {
        let mut clean = Vec::new();
        for ClaimedLane { lane, suspects } in lanes {
            let Some(suspects) = suspects else {
                clean.push(lane);
                continue;
            };
            // With an end, because then the store gives all of them, and not only those it has at hand.
            let bounds = [LaneBound { lane, upto: Some(i64::MAX) }];
            let Some(batch) = self.inbox.store.begin_lanes(&self.read(&bounds, suspects)).await? else {
                continue;
            };
            let wanted = batch.rows.iter().filter(|row| row.message.is_some() && !row.scheduled).count();
            // With one suspect the attempt is certainly its own; among several, nobody dies for another's crash.
            let attempts = if wanted == 1 { 1 } else { 1.min(self.handler.settings.max_attempts - 1) };
            tracing::warn!(
                handler = self.handler.name(),
                lane,
                suspects = wanted,
                "a process died while it ran these messages; each is run alone from now on"
            );
            let mut keys = HashSet::new();
            let park: Vec<Park> = batch
                .rows
                .iter()
                .filter_map(|row| {
                    let (message, state) = self.parked(row, &mut keys, ParkState::Ready(Duration::ZERO))?;
                    let ran = matches!(state, ParkState::Ready(_) | ParkState::Held) && !row.held;
                    let error = row.unreadable.clone().or_else(|| ran.then(|| SUSPECTED.to_owned()));
                    let attempts = if ran { attempts } else { 0 };
                    Some(Park { handler: self.handler.name().to_owned(), message, state, attempts, error })
                })
                .collect();
            let positions = batch.rows.last().map(|row| (row.lane, row.seq)).into_iter().collect();
            let commit = Commit { lanes: Some(self.moved(positions, false)), park, ..Commit::default() };
            self.inbox.store.commit(batch.connection, commit).await?;
            self.inbox.shared.wake.ring();
        }
        Ok(clean)
    }

    async fn lease_claimed(
        &mut self,
        lanes: Vec<ClaimedLane>,
        limit: usize,
    ) -> Result<Vec<LeasedDelivery>, Error> {
        // Leased rows count their attempt themselves, so a mark left by a dead process means nothing here.
        let bounds: Vec<LaneBound> =
            lanes.iter().map(|lane| LaneBound { lane: lane.lane, upto: None }).collect();
        let Some(batch) = self.inbox.store.begin_lanes(&self.read(&bounds, limit)).await? else {
            return Ok(Vec::new());
        };
        let mut keys = HashSet::new();
        let park: Vec<Park> = batch
            .rows
            .iter()
            .filter_map(|row| {
                let (message, state) = self.parked(row, &mut keys, ParkState::Leased(self.token, LEASE))?;
                let attempts = u32::from(matches!(state, ParkState::Leased(..)));
                let (handler, error) = (self.handler.name().to_owned(), row.unreadable.clone());
                Some(Park { handler, message, state, attempts, error })
            })
            .collect();
        self.lanes_wanted = lanes_for_next(&batch.rows, limit, lanes.len(), self.most_lanes);
        let commit = Commit {
            lanes: Some(self.moved(last_positions(&batch.rows), false)),
            park: park.clone(),
            ..Commit::default()
        };
        let ids = self.inbox.store.commit(batch.connection, commit).await?;
        self.count(&park);
        Ok(park
            .into_iter()
            .zip(ids)
            .filter(|(park, _)| matches!(park.state, ParkState::Leased(..)))
            .map(|(park, delivery)| LeasedDelivery {
                lease: Lease { delivery, token: self.token, attempt: 1 },
                message: park.message,
                suspect: false,
                unreadable: None,
            })
            .collect())
    }

    /// What a row is parked as: `running` unless it cannot be read, is not due or has to wait behind its key.
    fn parked(
        &self,
        row: &LaneRow,
        keys: &mut HashSet<String>,
        running: ParkState,
    ) -> Option<(crate::Message, ParkState)> {
        let message = row.to_message()?;
        let state = match &message.key {
            _ if row.unreadable.is_some() => ParkState::Dead,
            _ if row.scheduled => ParkState::Scheduled,
            Some(key) if self.handler.settings.ordered => {
                let behind = row.held || !keys.insert(key.clone());
                if behind { ParkState::Held } else { running }
            }
            _ => running,
        };
        Some((message, state))
    }

    fn count(&self, park: &[Park]) {
        let mut tally = Tally::default();
        for park in park {
            tally.add(park.state, park.attempts);
        }
        tally.count(&self.inbox, self.handler.name());
    }

    fn read<'a>(&'a self, lanes: &'a [LaneBound], limit: usize) -> ReadLanes<'a> {
        read_lanes(&self.handler, self.token, lanes, limit)
    }

    fn moved(&self, positions: Vec<(u16, i64)>, keep: bool) -> MoveLanes {
        MoveLanes { handler: self.handler.name().to_owned(), token: self.token, positions, keep }
    }

    /// Takes our marks off, so that nobody mistakes them for those of a dead process.
    async fn end_claim<T>(&mut self, result: &Result<T, Error>) {
        let token = std::mem::replace(&mut self.token, new_token(&self.inbox.shared.seed));
        let released = self.inbox.store.release(self.handler.name(), token).await;
        if let (Ok(_), Err(error)) = (result, released) {
            // The successor runs these messages one by one; nothing is lost.
            tracing::warn!(handler = self.handler.name(), %error, "the marks of finished lanes could not be taken off");
        }
    }
}

fn read_lanes<'a, St: Store, S>(
    handler: &'a Registered<St, S>,
    token: Token,
    lanes: &'a [LaneBound],
    limit: usize,
) -> ReadLanes<'a> {
    ReadLanes {
        handler: handler.name(),
        token,
        lanes,
        limit,
        kinds: &handler.registration.kinds,
        ordered: handler.settings.ordered,
        limits: TxLimits { statement: handler.settings.timeout },
    }
}

/// The last position per lane, in the order of the rows.
fn last_positions(rows: &[LaneRow]) -> Vec<(u16, i64)> {
    let mut positions: Vec<(u16, i64)> = Vec::new();
    for row in rows {
        match positions.last_mut() {
            Some((lane, seq)) if *lane == row.lane => *seq = row.seq,
            _ => positions.push((row.lane, row.seq)),
        }
    }
    positions
}

/// Few lanes while they fill a batch, because each one costs a row update per batch; more while they do not.
fn lanes_for_next(rows: &[LaneRow], limit: usize, claimed: usize, most: usize) -> usize {
    let used = last_positions(rows).len();
    if rows.len() * 2 < limit || used == 0 {
        // Far from full: more lanes might fill it.
        return (claimed * 2).clamp(1, most);
    }
    used.clamp(1, most.min(FULL_LANES))
}

/// A stretch of lanes, read again from the store at every begin.
struct LaneWork<'a, St: Store, S> {
    inbox: &'a Inbox<St, S>,
    handler: &'a Arc<Registered<St, S>>,
    token: Token,
    bounds: Vec<LaneBound>,
    limit: usize,
    keep: bool,
    /// What was read for this stretch while the one before it ran.
    ahead: Option<Ahead>,
    /// Reads for the next stretch while this one runs; gone with it.
    reading: JoinSet<Option<Ahead>>,
    /// The number of the item that `rows` starts with; earlier ones are committed.
    first: usize,
    rows: Vec<LaneRow>,
    /// Whether `bounds` has been narrowed to what the first begin read.
    bounded: bool,
    /// How many lanes had their mark taken off by a commit.
    unmarked: usize,
    blamed: HashMap<(u16, i64), Outcome>,
    /// How many of the blamed are in the store.
    written: usize,
}

impl<St: Store, S: Clone + Send + Sync + 'static> LaneWork<'_, St, S> {
    /// Starts to read what comes after these rows, if the lanes will be read on.
    fn start_reading_ahead(&mut self, rows: &[LaneRow]) {
        let from = last_positions(rows);
        let size = |row: &LaneRow| row.message.as_ref().map_or(0, LaneMessage::size);
        // More lanes than that are not kept.
        let all = from.len() == self.bounds.len() && from.len() <= FULL_LANES;
        let goes_on = self.keep && rows.len() == self.limit && all;
        if !goes_on || self.handler.settings.ordered || rows.iter().map(size).sum::<usize>() > MOST_AHEAD {
            return;
        }
        let (store, handler) = (self.inbox.store.clone(), self.handler.clone());
        let (token, bounds, limit) = (self.token, self.bounds.clone(), self.limit);
        self.reading.spawn(async move {
            let read = read_lanes(&handler, token, &bounds, limit);
            match store.read_ahead(&read, &from).await {
                Ok(rows) => rows.filter(|rows| !rows.is_empty()).map(|rows| Ahead { from, rows }),
                // Whoever begins the next stretch meets the same trouble, and knows what to do.
                Err(error) => {
                    tracing::debug!(handler = handler.name(), %error, "reading ahead failed");
                    None
                }
            }
        });
    }

    /// What was read ahead, if it is there or about to be: meanwhile the lanes are marked, but nobody holds them.
    async fn read_ahead(mut self) -> Option<Ahead> {
        let read = tokio::time::timeout(AHEAD_PATIENCE, self.reading.join_next()).await;
        read.ok()??.ok().flatten()
    }
}

impl<St: Store, S: Clone + Send + Sync + 'static> Work<St, S> for LaneWork<'_, St, S> {
    async fn begin(&mut self, span: Range<usize>) -> Result<Option<Begun<St, S>>, Error> {
        let read = read_lanes(self.handler, self.token, &self.bounds, span.len());
        let begun = match self.ahead.take() {
            Some(ahead) => self.inbox.store.begin_lanes_ahead(&read, ahead).await?,
            None => self.inbox.store.begin_lanes(&read).await?,
        };
        let Some(batch) = begun else {
            tracing::debug!(handler = self.handler.name(), "lanes were taken over by another runner");
            return Ok(None);
        };
        if !self.bounded {
            self.start_reading_ahead(&batch.rows);
            // What arrives later must not shift the pieces that this stretch may be split into.
            self.bounds = last_positions(&batch.rows)
                .into_iter()
                .map(|(lane, seq)| LaneBound { lane, upto: Some(seq) })
                .collect();
            self.bounded = true;
        }
        self.first = span.start;
        self.rows = batch.rows;
        if self.rows.is_empty() {
            batch.connection.rollback().await;
            return Ok(None);
        }
        let (called, nobody): (Arc<[_]>, Arc<[_]>) = (Arc::new([self.handler.clone()]), Arc::new([]));
        let blamed = &self.blamed;
        let items = self
            .rows
            .iter_mut()
            .map(|row| {
                let runs = row.message.is_some()
                    && row.unreadable.is_none()
                    && !row.scheduled
                    && !row.held
                    && !blamed.contains_key(&(row.lane, row.seq));
                Item {
                    message: row.message.take(),
                    attempt: 1,
                    handlers: if runs { called.clone() } else { nobody.clone() },
                }
            })
            .collect();
        Ok(Some(Begun { connection: batch.connection, items }))
    }

    async fn commit(
        &mut self,
        span: Range<usize>,
        items: &[Item<St, S>],
        open: Open<St::Connection>,
        last: bool,
    ) -> Result<(), Error> {
        let rows = &self.rows[span.start - self.first..span.end - self.first];
        let mut tally = Tally::default();
        let mut park = Vec::new();
        let blamed = rows.iter().filter(|row| self.blamed.contains_key(&(row.lane, row.seq))).count();
        for (row, item) in rows.iter().zip(items) {
            if !item.handlers.is_empty() {
                tally.done += 1;
                continue;
            }
            let Some(message) = item.message.clone() else { continue };
            let blamed = self.blamed.get(&(row.lane, row.seq));
            let (state, attempts, error) = match blamed {
                Some(Outcome::Dead(error)) => (ParkState::Dead, 1, Some(error.clone())),
                Some(Outcome::Retry(delay, error)) => (ParkState::Ready(*delay), 1, Some(error.clone())),
                _ if row.unreadable.is_some() => (ParkState::Dead, 0, row.unreadable.clone()),
                _ if row.scheduled => (ParkState::Scheduled, 0, None),
                _ => (ParkState::Held, 0, None),
            };
            tally.add(state, attempts);
            let handler = self.handler.name().to_owned();
            park.push(Park { handler, message: message.into_message(), state, attempts, error });
        }
        let keep = !last || (self.keep && span.end >= self.limit);
        let positions = last_positions(rows);
        let unmarked = if keep { 0 } else { positions.len() };
        let TxState { connection, outgoing, .. } = *open.state;
        let published = !outgoing.is_empty();
        let parked = !park.is_empty();
        let commit = Commit {
            lanes: Some(MoveLanes {
                handler: self.handler.name().to_owned(),
                token: self.token,
                positions,
                keep,
            }),
            done: None,
            park,
            outgoing,
            respond: None,
        };
        self.inbox.store.commit(connection, commit).await?;
        self.unmarked += unmarked;
        self.written += blamed;
        tally.count(self.inbox, self.handler.name());
        if published || parked {
            self.inbox.shared.ring_everywhere();
        }
        Ok(())
    }

    fn has_blame(&self, _span: &Range<usize>) -> bool {
        self.blamed.len() > self.written
    }

    fn blame(&mut self, index: usize, handler: &Arc<Registered<St, S>>, failure: Failure) {
        let row = &self.rows[index - self.first];
        let outcome = outcome_of(handler, 1, &failure, &self.inbox.shared.seed);
        tracing::debug!(handler = handler.name(), lane = row.lane, seq = row.seq, %failure, "the attempt failed");
        self.blamed.insert((row.lane, row.seq), outcome);
    }
}

/// What a commit adds to the counters.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) done: usize,
    retried: usize,
    dead: usize,
    held: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, state: ParkState, attempts: u32) {
        match state {
            ParkState::Ready(_) if attempts > 0 => self.retried += 1,
            ParkState::Dead => self.dead += 1,
            ParkState::Held => self.held += 1,
            _ => {}
        }
    }

    pub(crate) fn count<St: Store, S>(&self, inbox: &Inbox<St, S>, handler: &str) {
        let counters = &inbox.shared.counters;
        counters.add(handler, Counter::Done, self.done);
        counters.add(handler, Counter::Failed, self.retried + self.dead);
        counters.add(handler, Counter::Retried, self.retried);
        counters.add(handler, Counter::Dead, self.dead);
        counters.add(handler, Counter::Held, self.held);
        if self.dead > 0 {
            tracing::warn!(handler, dead = self.dead, "deliveries became dead letters");
        }
    }
}

/// Whether a step's error means "come back later" rather than "something is broken".
pub(crate) fn is_outage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Contention | ErrorKind::Fenced | ErrorKind::Ended
    )
}
