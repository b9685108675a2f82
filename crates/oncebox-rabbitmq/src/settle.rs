//! Which deliveries of a channel can be acknowledged with one frame.

use std::collections::BTreeSet;

/// What became of the deliveries of one channel, whose tags are 1, 2, 3 and so on.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    /// Every tag up to here is settled.
    floor: u64,
    /// Settled tags above it.
    above: BTreeSet<u64>,
}

/// What to tell the server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// Acknowledges this tag and every lower one: none of those is still open.
    pub(crate) up_to: Option<u64>,
    /// Acknowledge only themselves.
    pub(crate) single: Vec<u64>,
}

impl Tags {
    /// Notes that these tags are done and answers how to acknowledge them.
    pub(crate) fn accept(&mut self, mut accepted: Vec<u64>) -> Acks {
        accepted.sort_unstable();
        let mut acks = Acks::default();
        for tag in accepted {
            self.climb();
            if tag == self.floor + 1 {
                self.floor = tag;
                acks.up_to = Some(tag);
            } else {
                self.above.insert(tag);
                acks.single.push(tag);
            }
        }
        self.climb();
        acks
    }

    /// Notes that the server was told of this tag in another way.
    pub(crate) fn settled(&mut self, tag: u64) {
        self.above.insert(tag);
        self.climb();
    }

    fn climb(&mut self) {
        while self.above.remove(&(self.floor + 1)) {
            self.floor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(up_to: Option<u64>, single: &[u64]) -> Acks {
        Acks { up_to, single: single.to_vec() }
    }

    #[test]
    fn one_frame_covers_only_what_has_no_open_tag_below() {
        let mut tags = Tags::default();
        assert_eq!(tags.accept(vec![1, 2, 3]), acks(Some(3), &[]));
        assert_eq!(tags.accept(vec![6, 5]), acks(None, &[5, 6]), "4 is still open");
        assert_eq!(tags.accept(vec![4, 7]), acks(Some(7), &[]), "5 and 6 are known to the server");
        tags.settled(9);
        assert_eq!(tags.accept(vec![10]), acks(None, &[10]), "8 is still open");
        assert_eq!(tags.accept(vec![8]), acks(Some(8), &[]));
        assert_eq!(tags.accept(vec![11, 13]), acks(Some(11), &[13]));
        assert_eq!(tags.accept(vec![]), acks(None, &[]));
    }
}
