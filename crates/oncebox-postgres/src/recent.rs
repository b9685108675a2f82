//! Messages that this process has just received, so that its handlers need not read them back from the server.
//!
//! Receivers take their seqs under the lock of the head row, so what one statement appended is a stretch of the log with
//! nothing of anybody else in it, and stretches that follow each other make a longer one: the run. Every lane that stands
//! within the run has exactly the messages that are remembered. Two things are asked of the server each time, with the
//! lock on the cursors. First, whether the run's last message is still what the log has at its place: a server that was
//! restored, or that lost its last commits in a failover, gives the same seqs to other messages; and where a commit is
//! still there, so is every one before it. Second, the seq of the head: past the run there may be messages of others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oncebox_core::store::{Arrival, LaneRow, ReadLanes};
use oncebox_core::{LANES, Message};

use crate::gathering::Gathering;

/// What a message takes besides its texts and its payload, roughly.
const OVERHEAD: usize = 256;

/// The run of this process, no larger than `most` bytes.
#[derive(Debug)]
pub(crate) struct Recent {
    most: usize,
    run: Mutex<Option<Run>>,
    /// How many runs there have been.
    runs: AtomicU64,
}

/// One statement that appended to the log.
#[derive(Debug)]
pub(crate) struct Appended {
    /// The last seq before it.
    pub(crate) after: i64,
    /// The last seq it took; not each one between them has a message.
    pub(crate) upto: i64,
    /// When, by the server.
    pub(crate) received_at: i64,
    /// Places in the list that was received, and their seqs, ascending.
    pub(crate) new: Vec<(usize, i64)>,
}

/// The last message of the run: what the server is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) lane: u16,
    pub(crate) seq: i64,
    pub(crate) identity: [u8; 16],
    pub(crate) received_at: i64,
    /// The last seq of the run; there may be no message at it.
    upto: i64,
    /// Which run.
    run: u64,
}

#[derive(Debug)]
struct Run {
    after: i64,
    tail: Tail,
    lanes: Vec<VecDeque<(i64, Message)>>,
    /// Every message in the order of seqs: lane and bytes.
    order: VecDeque<(u16, usize)>,
    bytes: usize,
}

impl Recent {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, run: Mutex::default(), runs: AtomicU64::new(0) }
    }

    /// Adds what a statement has appended, after its commit.
    pub(crate) fn remember(&self, arrivals: &[Arrival], appended: &Appended) {
        let of = |&(place, seq): &(usize, i64)| arrivals.get(place).map(|arrival| (arrival, seq));
        let Some((last, seq)) = appended.new.last().and_then(of) else { return };
        // Whether such a message is due, the server decides.
        let scheduled = |arrival: &Arrival| arrival.message.not_before.is_some();
        if self.most == 0 || appended.new.iter().filter_map(of).any(|(arrival, _)| scheduled(arrival)) {
            return;
        }
        let mut run = self.lock();
        if run.as_ref().is_some_and(|run| appended.upto <= run.after) {
            // Two statements at once, and the later one was faster to come here.
            return;
        }
        let followed = run.as_ref().map(|run| run.tail).filter(|tail| tail.upto == appended.after);
        if followed.is_none() {
            *run = None;
        }
        let tail = Tail {
            lane: last.lane,
            seq,
            identity: last.identity,
            received_at: appended.received_at,
            upto: appended.upto,
            run: followed.map_or_else(|| self.runs.fetch_add(1, Ordering::Relaxed), |tail| tail.run),
        };
        let run = run.get_or_insert_with(|| Run::new(appended.after, tail));
        run.tail = tail;
        for (arrival, seq) in appended.new.iter().filter_map(of) {
            run.push(arrival, seq);
        }
        while run.bytes > self.most && run.pop() {}
    }

    /// The last message of the run.
    pub(crate) fn tail(&self) -> Option<Tail> {
        self.lock().as_ref().map(|run| run.tail)
    }

    /// Forgets the run of this tail: it is not what the log has.
    pub(crate) fn forget(&self, tail: &Tail) {
        self.lock().take_if(|run| run.tail.run == tail.run);
    }

    /// The next messages of lanes at these positions, as far as the run has them; none when it has to be looked for more.
    ///
    /// The server has confirmed `tail`, and `head` as the last seq of the log.
    pub(crate) fn read(
        &self,
        tail: &Tail,
        head: i64,
        read: &ReadLanes<'_>,
        positions: &HashMap<u16, i64>,
    ) -> Option<Vec<LaneRow>> {
        let run = self.lock();
        let run = run.as_ref().filter(|run| run.tail.run == tail.run && run.covers(read, positions))?;
        let mut gathering = Gathering::new(read, positions.clone());
        while let Some(quota) = gathering.quota() {
            let from = gathering.found.len();
            for bound in &gathering.open {
                let position = gathering.positions.get(&bound.lane).copied()?;
                let next = run.after(bound.lane, position).take(quota);
                let confirmed = next.take_while(|(seq, _)| *seq <= tail.seq);
                gathering.found.extend(confirmed.map(|(seq, message)| LaneRow {
                    lane: bound.lane,
                    seq: *seq,
                    message: read.kinds.wants(&message.kind).then(|| message.clone()),
                    scheduled: false,
                    held: false,
                    unreadable: None,
                }));
            }
            gathering.added(from, quota);
        }
        let found = gathering.finish();
        let known = !found.is_empty() || head == tail.upto;
        known.then_some(found)
    }

    /// Whether lanes at these positions may be read from here, so that nobody need read ahead.
    pub(crate) fn covers(&self, read: &ReadLanes<'_>, positions: &HashMap<u16, i64>) -> bool {
        self.lock().as_ref().is_some_and(|run| run.covers(read, positions))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn new(after: i64, tail: Tail) -> Self {
        let lanes = (0..LANES).map(|_| VecDeque::new()).collect();
        Self { after, tail, lanes, order: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, arrival: &Arrival, seq: i64) {
        let Some(lane) = self.lanes.get_mut(usize::from(arrival.lane)) else { return };
        let mut message = arrival.message.clone();
        // The log does not know of sinks.
        message.sink.clear();
        let bytes = size(&message);
        lane.push_back((seq, message));
        self.order.push_back((arrival.lane, bytes));
        self.bytes += bytes;
    }

    /// Forgets the oldest message, but never the last: it is what the server is asked for.
    fn pop(&mut self) -> bool {
        if self.order.len() < 2 {
            return false;
        }
        let Some((lane, bytes)) = self.order.pop_front() else { return false };
        self.bytes -= bytes;
        let oldest = self.lanes.get_mut(usize::from(lane)).and_then(VecDeque::pop_front);
        self.after = oldest.map_or(self.after, |(seq, _)| seq);
        true
    }

    fn covers(&self, read: &ReadLanes<'_>, positions: &HashMap<u16, i64>) -> bool {
        // Whether a key is held, and what a stretch that is run again consists of, the server decides.
        !read.ordered
            && read.lanes.iter().all(|bound| bound.upto.is_none())
            && positions.values().all(|position| *position >= self.after)
    }

    fn after(&self, lane: u16, position: i64) -> impl Iterator<Item = &(i64, Message)> {
        let lane = self.lanes.get(usize::from(lane));
        let from = lane.map_or(0, |lane| lane.partition_point(|(seq, _)| *seq <= position));
        lane.into_iter().flat_map(move |lane| lane.range(from..))
    }
}

fn size(message: &Message) -> usize {
    let headers: usize =
        message.headers.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD / 4).sum();
    let key = message.key.as_ref().map_or(0, String::len);
    OVERHEAD
        + headers
        + key
        + message.scope.len()
        + message.id.len()
        + message.kind.len()
        + message.payload.len()
}
