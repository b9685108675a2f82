//! Messages that this process has just received, so that its handlers need not read them back from the store.
//!
//! For stores whose receivers take their seqs under the lock of the head row: what one statement (or one transaction)
//! appended is a stretch of the log with nothing of anybody else in it, and stretches that follow each other make a longer
//! one: the run. Every lane that stands within the run has exactly the messages that are remembered. A stretch follows
//! another when whoever appended it also found the other's last message in the log: the seqs alone would be the same after
//! others have filled the place of what was lost. Two things are asked of the database each time, with the lock on the
//! cursors. First, whether the run's last message is still what the log has at its place: a database that was restored, or
//! that lost its last commits in a failover, gives the same seqs to other messages; and where a commit is still there, so
//! is every one before it. Second, the seq of the head: past the run there may be messages of others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::gathering::Gathering;
use crate::message::LANES;
use crate::store::{Arrival, LaneMessage, LaneRow, Packed, ReadLanes};

/// The run of this process, no larger than `most` bytes.
#[derive(Debug)]
pub struct Recent {
    most: usize,
    run: Mutex<Option<Run>>,
    /// How many runs there have been.
    runs: AtomicU64,
}

/// What one statement, or one transaction, has appended to the log.
#[derive(Debug)]
pub struct Appended {
    /// The last seq before it.
    pub after: i64,
    /// The last seq it took; not each one between them has a message.
    pub upto: i64,
    /// When, by the database's clock.
    pub received_at: i64,
    /// Places in the list that was received, and their seqs, ascending.
    pub new: Vec<(usize, i64)>,
    /// The tail of the run as it was asked for, when it was found in the log meanwhile.
    pub follows: Option<Tail>,
    /// The new messages, when they are to be remembered.
    pub messages: Option<Arc<Packed>>,
}

/// The last message of the run: what the database is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Its lane.
    pub lane: u16,
    /// Its place in the lane.
    pub seq: i64,
    /// Its identity.
    pub identity: [u8; 16],
    /// When it was received, by the database's clock.
    pub received_at: i64,
    /// The last seq of the run; there may be no message at it.
    upto: i64,
    /// Which run.
    run: u64,
}

#[derive(Debug)]
struct Run {
    after: i64,
    tail: Tail,
    lanes: Vec<VecDeque<Slot>>,
    /// Oldest first.
    stretches: VecDeque<Stretch>,
    bytes: usize,
}

/// What one statement appended.
#[derive(Debug)]
struct Stretch {
    /// The lane of each message.
    lanes: Vec<u16>,
    upto: i64,
    bytes: usize,
}

/// A message of a lane.
#[derive(Debug)]
struct Slot {
    seq: i64,
    index: usize,
    messages: Arc<Packed>,
}

impl Recent {
    /// Remembers messages of at most so many bytes; those of the last stretch always, and none larger than that.
    pub fn new(most: usize) -> Self {
        Self { most, run: Mutex::default(), runs: AtomicU64::new(0) }
    }

    /// Messages to be remembered; none when they cannot be.
    pub fn packed<'a>(
        &self,
        arrivals: impl ExactSizeIterator<Item = &'a Arrival> + Clone,
    ) -> Option<Arc<Packed>> {
        // Whether such a message is due, the database decides.
        if arrivals.clone().any(|arrival| arrival.message().not_before.is_some()) {
            return None;
        }
        Arrival::packed(arrivals, self.most)
    }

    /// Adds what a statement has appended, after its commit.
    pub fn remember(&self, arrivals: &[Arrival], appended: Appended) {
        // Where only copies came, the log has nothing by which to find out later whether their commit was lost, and the
        // seqs they took went to others. So the run ends before them.
        let of = |&(place, seq): &(usize, i64)| arrivals.get(place).map(|arrival| (arrival, seq));
        let Some((last, seq)) = appended.new.last().and_then(of) else { return };
        let places: Vec<(u16, i64)> =
            appended.new.iter().filter_map(of).map(|(arrival, seq)| (arrival.lane, seq)).collect();
        let Some(messages) = appended.messages.filter(|messages| messages.len() == places.len()) else {
            return;
        };
        let mut run = self.lock();
        if run.as_ref().is_some_and(|run| appended.upto <= run.after) {
            // Two statements at once, and the later one was faster to come here.
            return;
        }
        let followed = appended
            .follows
            .filter(|tail| tail.upto == appended.after && run.as_ref().is_some_and(|run| run.tail == *tail));
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
        run.push(&places, messages);
        while run.bytes > self.most && run.pop() {}
    }

    /// The last message of the run.
    pub fn tail(&self) -> Option<Tail> {
        self.lock().as_ref().map(|run| run.tail)
    }

    /// Forgets the run.
    pub fn clear(&self) {
        self.lock().take();
    }

    /// Forgets the run of this tail: it is not what the log has.
    pub fn forget(&self, tail: &Tail) {
        self.lock().take_if(|run| run.tail.run == tail.run);
    }

    /// The next messages of lanes at these positions, as far as the run has them; none when it has to be looked for more.
    ///
    /// The database has confirmed `tail`, and `head` as the last seq of the log, if it knows one.
    pub fn read(
        &self,
        tail: &Tail,
        head: Option<i64>,
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
                let confirmed = next.take_while(|slot| slot.seq <= tail.seq);
                gathering.found.extend(confirmed.map(|Slot { seq, index, messages }| {
                    LaneRow {
                        lane: bound.lane,
                        seq: *seq,
                        message: read
                            .kinds
                            .wants(messages.kind(*index))
                            .then(|| LaneMessage::Packed(messages.clone(), *index)),
                        scheduled: false,
                        held: false,
                        unreadable: None,
                    }
                }));
            }
            gathering.added(from, quota);
        }
        let found = gathering.finish();
        let known = !found.is_empty() || head == Some(tail.upto);
        known.then_some(found)
    }

    /// Whether lanes at these positions may be read from here, so that nobody need read ahead.
    pub fn covers(&self, read: &ReadLanes<'_>, positions: &HashMap<u16, i64>) -> bool {
        self.lock().as_ref().is_some_and(|run| run.covers(read, positions))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn new(after: i64, tail: Tail) -> Self {
        let lanes = (0..LANES).map(|_| VecDeque::new()).collect();
        Self { after, tail, lanes, stretches: VecDeque::new(), bytes: 0 }
    }

    /// Adds a stretch: the lane and the seq of each message.
    fn push(&mut self, places: &[(u16, i64)], messages: Arc<Packed>) {
        let bytes = messages.size() + places.len() * (size_of::<Slot>() + size_of::<u16>());
        let lanes = places.iter().map(|(lane, _)| *lane).collect();
        let upto = places.last().map_or(self.after, |(_, seq)| *seq);
        for (index, &(lane, seq)) in places.iter().enumerate() {
            if let Some(slots) = self.lanes.get_mut(usize::from(lane)) {
                slots.push_back(Slot { seq, index, messages: messages.clone() });
            }
        }
        self.stretches.push_back(Stretch { lanes, upto, bytes });
        self.bytes += bytes;
    }

    /// Forgets the oldest stretch, but never the last: its last message is what the database is asked for.
    fn pop(&mut self) -> bool {
        if self.stretches.len() < 2 {
            return false;
        }
        let Some(stretch) = self.stretches.pop_front() else { return false };
        self.bytes -= stretch.bytes;
        self.after = stretch.upto;
        for lane in stretch.lanes {
            let Some(slots) = self.lanes.get_mut(usize::from(lane)) else { continue };
            slots.pop_front();
            // A lane that was busy once must not keep the room it had then.
            if slots.capacity() > 64 && slots.len() < slots.capacity() / 4 {
                slots.shrink_to(slots.len() * 2);
            }
        }
        true
    }

    fn covers(&self, read: &ReadLanes<'_>, positions: &HashMap<u16, i64>) -> bool {
        // Whether a key is held, and what a stretch that is run again consists of, the database decides.
        !read.ordered
            && read.lanes.iter().all(|bound| bound.upto.is_none())
            && positions.values().all(|position| *position >= self.after)
    }

    fn after(&self, lane: u16, position: i64) -> impl Iterator<Item = &Slot> {
        let lane = self.lanes.get(usize::from(lane));
        let from = lane.map_or(0, |lane| lane.partition_point(|slot| slot.seq <= position));
        lane.into_iter().flat_map(move |lane| lane.range(from..))
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{LaneBound, Token, TxLimits};
    use crate::{Kinds, Message};

    use super::*;

    fn arrivals(ids: impl IntoIterator<Item = u32>, key: &str) -> Vec<Arrival> {
        let message = |id: u32| Message::new("k", "body").id(id.to_string()).key(key);
        let messages: Vec<Message> = ids.into_iter().map(message).collect();
        Arrival::all(&messages).collect()
    }

    /// What a statement that appended these says.
    fn appended(after: i64, arrivals: &[Arrival], follows: Option<Tail>) -> Appended {
        let new: Vec<(usize, i64)> = (0..arrivals.len()).zip(after + 1..).collect();
        let messages = Arrival::packed(arrivals.iter(), usize::MAX);
        Appended { after, upto: after + new.len() as i64, received_at: 7, new, follows, messages }
    }

    fn append(recent: &Recent, after: i64, arrivals: &[Arrival]) {
        recent.remember(arrivals, appended(after, arrivals, recent.tail()));
    }

    /// The seqs of what is read of the lane of the key `k` at this position.
    fn seqs(recent: &Recent, tail: &Tail, head: i64, position: i64) -> Option<Vec<i64>> {
        let (lane, mut kinds) = (arrivals([0], "k")[0].lane, Kinds::default());
        kinds.add("*").unwrap();
        let read = ReadLanes {
            handler: "h",
            token: Token(1),
            lanes: &[LaneBound { lane, upto: None }],
            limit: 100,
            kinds: &kinds,
            ordered: false,
            limits: TxLimits { statement: std::time::Duration::from_secs(1) },
        };
        let rows = recent.read(tail, Some(head), &read, &HashMap::from([(lane, position)]))?;
        Some(rows.iter().map(|row| row.seq).collect())
    }

    #[test]
    fn only_what_was_confirmed_is_given_out() {
        let recent = Recent::new(1_000_000);
        append(&recent, 0, &arrivals(0..2, "k"));
        let confirmed = recent.tail().unwrap();
        append(&recent, 2, &arrivals(2..4, "k"));
        assert_eq!(seqs(&recent, &confirmed, 2, 0), Some(vec![1, 2]));
        // More may have come since the database looked, but then it was not there yet.
        assert_eq!(seqs(&recent, &confirmed, 2, 2), Some(vec![]));
        let tail = recent.tail().unwrap();
        assert_eq!(seqs(&recent, &tail, 4, 1), Some(vec![2, 3, 4]));
        assert_eq!(seqs(&recent, &tail, 5, 4), None, "somebody else has appended");
    }

    #[test]
    fn nothing_but_copies_ends_a_run() {
        let recent = Recent::new(1_000_000);
        append(&recent, 0, &arrivals(0..2, "k"));
        recent.remember(&[], Appended { upto: 5, ..appended(2, &[], recent.tail()) });
        let tail = recent.tail().unwrap();
        assert_eq!(seqs(&recent, &tail, 2, 0), Some(vec![1, 2]));
        assert_eq!(seqs(&recent, &tail, 5, 2), None, "others may have taken the seqs of the copies");
        append(&recent, 5, &arrivals(2..3, "k"));
        let tail = recent.tail().unwrap();
        assert_eq!(seqs(&recent, &tail, 6, 2), None, "what is before the copies is another run");
        assert_eq!(seqs(&recent, &tail, 6, 5), Some(vec![6]));
    }

    #[test]
    fn another_run_is_not_the_one_that_was_confirmed() {
        let recent = Recent::new(1_000_000);
        append(&recent, 0, &arrivals(0..2, "k"));
        let old = recent.tail().unwrap();
        append(&recent, 3, &arrivals(2..4, "k"));
        assert_eq!(seqs(&recent, &old, 5, 3), None);
        recent.forget(&old);
        let tail = recent.tail().expect("only the run of that tail is forgotten");
        assert_eq!(seqs(&recent, &tail, 5, 3), Some(vec![4, 5]));
        assert_eq!(seqs(&recent, &tail, 5, 2), None, "what came before is not known");
        recent.forget(&tail);
        assert_eq!(recent.tail(), None);
    }

    #[test]
    fn a_stretch_follows_only_the_one_that_its_statement_found() {
        for (after, follows) in [(2, false), (3, true)] {
            let recent = Recent::new(1_000_000);
            append(&recent, 0, &arrivals(0..2, "k"));
            let more = arrivals(2..3, "k");
            recent.remember(&more, appended(after, &more, recent.tail().filter(|_| follows)));
            let tail = recent.tail().unwrap();
            assert_eq!(seqs(&recent, &tail, after + 1, 0), None);
            assert_eq!(seqs(&recent, &tail, after + 1, after), Some(vec![after + 1]));
        }
        // Two statements at once: the later one did not know of the earlier one, in whatever order they come here.
        let (one, two) = (arrivals(2..3, "k"), arrivals(3..4, "k"));
        for earlier_first in [true, false] {
            let recent = Recent::new(1_000_000);
            append(&recent, 0, &arrivals(0..2, "k"));
            let tail = recent.tail();
            let mut both = [(&one, appended(2, &one, tail)), (&two, appended(3, &two, tail))];
            if !earlier_first {
                both.reverse();
            }
            for (arrivals, appended) in both {
                recent.remember(arrivals, appended);
            }
            let tail = recent.tail().unwrap();
            assert_eq!(tail.seq, 4);
            assert_eq!(seqs(&recent, &tail, 4, 2), None);
            assert_eq!(seqs(&recent, &tail, 4, 3), Some(vec![4]));
        }
    }

    #[test]
    fn memory_is_bounded_whichever_lanes_are_busy() {
        let recent = Recent::new(1_000_000);
        let mut after = 0;
        for key in 0..12 {
            for round in 0..5 {
                let some = arrivals((0..1000).map(|n| round * 1000 + n), &key.to_string());
                append(&recent, after, &some);
                after += 1000;
            }
        }
        let run = recent.lock();
        let run = run.as_ref().unwrap();
        assert!(run.bytes <= 1_000_000);
        let count: usize = run.lanes.iter().map(VecDeque::len).sum();
        let in_stretches: usize = run.stretches.iter().map(|stretch| stretch.lanes.len()).sum();
        assert!(count > 1000 && count == in_stretches);
        let room: usize = run.lanes.iter().map(VecDeque::capacity).sum();
        assert!(room < 4 * count + 64 * run.lanes.len(), "{room} for {count}");
    }
}
