//! How many messages each lane gives to a batch.

use std::collections::HashMap;

use crate::message::LANES;
use crate::store::{LaneBound, LaneRow, ReadLanes};

/// A batch in the making: asks each lane for its part, then those that have more for the rest.
#[derive(Debug)]
pub struct Gathering<'a> {
    read: &'a ReadLanes<'a>,
    /// Where to stop is open, so each lane gives its part. Else the first ones of the first lanes are asked for.
    shared: bool,
    /// The lanes that may have more.
    pub open: Vec<LaneBound>,
    /// Up to where each lane was read.
    pub positions: HashMap<u16, i64>,
    /// What was read.
    pub found: Vec<LaneRow>,
}

impl<'a> Gathering<'a> {
    /// `positions` is where the lanes stand.
    pub fn new(read: &'a ReadLanes<'a>, positions: HashMap<u16, i64>) -> Self {
        let shared = read.lanes.iter().any(|bound| bound.upto.is_none());
        Self { read, shared, open: read.lanes.to_vec(), positions, found: Vec::with_capacity(read.limit) }
    }

    /// How many to add of each open lane, after its position; `None` when there is no more to ask for.
    pub fn quota(&self) -> Option<usize> {
        let left = self.read.limit.saturating_sub(self.found.len());
        match (left, self.open.len()) {
            (0, _) | (_, 0) => None,
            (left, lanes) => Some(if self.shared { left.div_ceil(lanes) } else { left }),
        }
    }

    /// Notes that rows were added from this place on; lanes that gave less than `quota` have no more.
    pub fn added(&mut self, from: usize, quota: usize) {
        let mut counts: HashMap<u16, usize> = HashMap::new();
        // They mostly come lane by lane.
        for rows in self.found[from..].chunk_by(|one, next| one.lane == next.lane) {
            let (lane, count) = (rows[0].lane, rows.len());
            let last = rows.iter().fold(i64::MIN, |last, row| last.max(row.seq));
            let position = self.positions.entry(lane).or_insert(last);
            *position = last.max(*position);
            *counts.entry(lane).or_default() += count;
        }
        self.open.retain(|bound| counts.get(&bound.lane).is_some_and(|count| *count >= quota));
    }

    /// The batch: lanes in the order they were asked for, each by seq.
    pub fn finish(mut self) -> Vec<LaneRow> {
        let mut order = [usize::MAX; LANES as usize];
        for (number, bound) in self.read.lanes.iter().enumerate() {
            if let Some(place) = order.get_mut(usize::from(bound.lane)) {
                *place = number;
            }
        }
        self.found.sort_by_key(|row| (order.get(usize::from(row.lane)).copied(), row.seq));
        self.found.truncate(self.read.limit);
        self.found
    }
}
