//! Which offsets of each partition are done: what may be committed, and what must come again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rdkafka::{Offset, TopicPartitionList};

/// The partitions that this member of the group has at the moment.
///
/// Every record gets a ticket when it is taken in. A receipt names its offset and its ticket, so one from before a
/// rebalance or a rewind is recognised: the same offset has another ticket now, or none.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    topics: HashMap<Arc<str>, BTreeMap<i32, Partition>>,
}

/// One for all members in this process, so that no receipt of an earlier member fits.
static LAST_TICKET: AtomicU64 = AtomicU64::new(0);

/// Names a record that was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    ticket: u64,
}

/// A partition that has to go back, because a message was returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rewind {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    /// The offset to go on with.
    pub(crate) to: i64,
    /// Not before this, so that a message which is returned every time does not come in a hot loop.
    pub(crate) due_at: Instant,
    /// It is paused until then.
    pub(crate) paused: bool,
}

#[derive(Debug, Default)]
struct Partition {
    /// Taken in and not yet part of `done_below`, oldest first.
    open: VecDeque<Open>,
    /// Everything below this offset is done; unknown before the first record.
    done_below: Option<i64>,
    /// What was last sent to the broker as the group's offset, unless that failed.
    sent: Option<i64>,
    /// What the broker has confirmed as the group's offset.
    committed: Option<i64>,
    rewind: Option<Going>,
}

#[derive(Debug)]
struct Open {
    offset: i64,
    ticket: u64,
    done: bool,
}

#[derive(Debug, Clone, Copy)]
struct Going {
    to: i64,
    due_at: Instant,
    paused: bool,
}

impl Partitions {
    /// Adds partitions that were assigned, with nothing known of them.
    pub(crate) fn assign(&mut self, list: &TopicPartitionList) {
        for element in list.elements() {
            let topic = self.topics.entry(Arc::from(element.topic())).or_default();
            topic.insert(element.partition(), Partition::default());
        }
    }

    /// Forgets partitions that were revoked; their receipts count no more.
    pub(crate) fn revoke(&mut self, list: &TopicPartitionList) {
        for element in list.elements() {
            if let Some(topic) = self.topics.get_mut(element.topic()) {
                topic.remove(&element.partition());
            }
        }
    }

    pub(crate) fn has(&self, topic: &str, partition: i32) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.contains_key(&partition))
    }

    /// All of them.
    pub(crate) fn list(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (topic, partition, _) in self.iter() {
            list.add_partition(topic, partition);
        }
        list
    }

    /// All of them that are not waiting to go back.
    pub(crate) fn flowing(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (topic, partition, _) in self.iter().filter(|(_, _, partition)| partition.rewind.is_none()) {
            list.add_partition(topic, partition);
        }
        list
    }

    /// Where the group is in each partition, where that is known.
    pub(crate) fn positions(&self) -> Vec<(Arc<str>, i32, Option<i64>)> {
        self.iter().map(|(topic, number, partition)| (topic.clone(), number, partition.done_below)).collect()
    }

    /// Takes a record in; `None` when it is not ours to hand over: the partition is not, or has to go back first.
    pub(crate) fn take_in(&mut self, topic: &str, partition: i32, offset: i64) -> Option<Receipt> {
        let (name, numbers) = self.topics.get_key_value(topic)?;
        let topic = name.clone();
        if numbers.get(&partition)?.rewind.is_some() {
            return None;
        }
        let ticket = LAST_TICKET.fetch_add(1, Ordering::Relaxed) + 1;
        let state = self.get_mut(&topic, partition)?;
        let expected = state.open.back().map(|last| last.offset + 1).or(state.done_below);
        if expected.is_some_and(|expected| offset < expected) {
            // The log was cut or the offset reset: what we knew of the old records says nothing of these.
            *state = Partition::default();
        }
        if state.done_below.is_none() {
            // Where a partition begins is what the group knows of it already.
            state.done_below = Some(offset);
            state.sent = Some(offset);
            state.committed = Some(offset);
        }
        state.open.push_back(Open { offset, ticket, done: false });
        Some(Receipt { topic, partition, offset, ticket })
    }

    /// Marks a record as done. False when the receipt is an old one.
    pub(crate) fn done(&mut self, receipt: &Receipt) -> bool {
        let Some((state, place)) = self.find(receipt) else { return false };
        state.open[place].done = true;
        while state.open.front().is_some_and(|first| first.done) {
            let first = state.open.pop_front();
            state.done_below = first.map(|first| first.offset + 1);
        }
        true
    }

    /// Lets a record come again, and all later ones of its partition, which are forgotten. False when the receipt is
    /// an old one.
    pub(crate) fn give_back(&mut self, receipt: &Receipt, due_at: Instant) -> bool {
        let Some((state, place)) = self.find(receipt) else { return false };
        state.open.truncate(place);
        let paused = state.rewind.is_some_and(|rewind| rewind.paused);
        state.rewind = Some(Going { to: receipt.offset, due_at, paused });
        true
    }

    /// The partitions that have to go back.
    pub(crate) fn rewinds(&self) -> Vec<Rewind> {
        let going = self.iter().filter_map(|(topic, partition, state)| {
            let Going { to, due_at, paused } = state.rewind?;
            Some(Rewind { topic: topic.clone(), partition, to, due_at, paused })
        });
        going.collect()
    }

    /// The partition is paused until it goes back.
    pub(crate) fn rewind_paused(&mut self, rewind: &Rewind) {
        self.change_rewind(rewind, |going| Some(Going { paused: true, ..going }));
    }

    /// The partition is back at that offset: what comes from it is taken in again.
    pub(crate) fn rewound(&mut self, rewind: &Rewind) {
        self.change_rewind(rewind, |_| None);
    }

    /// It could not go back yet.
    pub(crate) fn rewind_later(&mut self, rewind: &Rewind, due_at: Instant) {
        self.change_rewind(rewind, |going| Some(Going { due_at, ..going }));
    }

    /// What is done and was not sent to the broker yet; it counts as sent from now on.
    pub(crate) fn take_commit(&mut self) -> Option<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for (topic, partitions) in &mut self.topics {
            for (number, partition) in partitions {
                if partition.done_below != partition.sent {
                    add_done(&mut list, topic, *number, partition);
                }
            }
        }
        (list.count() > 0).then_some(list)
    }

    /// What is done in partitions that are about to be revoked and was not confirmed yet: what is on its way may fail.
    pub(crate) fn take_commit_of(&mut self, revoked: &TopicPartitionList) -> Option<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for element in revoked.elements() {
            let (topic, number) = (element.topic(), element.partition());
            if let Some(partition) = self.get_mut(topic, number)
                && partition.done_below != partition.committed
            {
                add_done(&mut list, topic, number, partition);
            }
        }
        (list.count() > 0).then_some(list)
    }

    /// The broker has taken these offsets, except those with an error, which are to be sent again.
    pub(crate) fn committed(&mut self, list: &TopicPartitionList) {
        for element in list.elements() {
            if let Some(partition) = self.get_mut(element.topic(), element.partition()) {
                match (element.error(), element.offset()) {
                    (Ok(()), Offset::Offset(offset)) => partition.committed = Some(offset),
                    _ => partition.sent = partition.committed,
                }
            }
        }
    }

    /// The broker did not take these offsets: they are to be sent again.
    pub(crate) fn commit_failed(&mut self, list: &TopicPartitionList) {
        for element in list.elements() {
            if let Some(partition) = self.get_mut(element.topic(), element.partition()) {
                partition.sent = partition.committed;
            }
        }
    }

    /// True while something is done that the broker has not confirmed.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.iter().any(|(_, _, partition)| partition.done_below != partition.committed)
    }

    fn get_mut(&mut self, topic: &str, partition: i32) -> Option<&mut Partition> {
        self.topics.get_mut(topic)?.get_mut(&partition)
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<str>, i32, &Partition)> {
        self.topics.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(move |(number, partition)| (topic, *number, partition))
        })
    }

    fn find(&mut self, receipt: &Receipt) -> Option<(&mut Partition, usize)> {
        let state = self.get_mut(&receipt.topic, receipt.partition)?;
        let place = state.open.binary_search_by_key(&receipt.offset, |open| open.offset).ok()?;
        (state.open[place].ticket == receipt.ticket).then_some((state, place))
    }

    /// Changes the rewind it stands for; one that was asked for meanwhile, to another offset, stays.
    fn change_rewind(&mut self, rewind: &Rewind, change: impl FnOnce(Going) -> Option<Going>) {
        let Some(state) = self.get_mut(&rewind.topic, rewind.partition) else { return };
        if let Some(going) = state.rewind.filter(|going| going.to == rewind.to) {
            state.rewind = change(going);
        }
    }
}

fn add_done(list: &mut TopicPartitionList, topic: &str, number: i32, partition: &mut Partition) {
    let Some(offset) = partition.done_below else { return };
    if list.add_partition_offset(topic, number, Offset::Offset(offset)).is_ok() {
        partition.sent = Some(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(partitions: &[i32]) -> Partitions {
        let mut all = Partitions::default();
        all.assign(&list(partitions));
        all
    }

    fn list(partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition("orders", *partition);
        }
        list
    }

    fn take(all: &mut Partitions, offsets: &[i64]) -> Vec<Receipt> {
        offsets.iter().map(|offset| all.take_in("orders", 0, *offset).unwrap()).collect()
    }

    fn commit(all: &mut Partitions) -> Vec<(i32, i64)> {
        let list = all.take_commit();
        let elements = list.as_ref().map(TopicPartitionList::elements).unwrap_or_default();
        elements.iter().map(|one| (one.partition(), one.offset().to_raw().unwrap())).collect()
    }

    #[test]
    fn only_a_run_without_a_hole_is_committed() {
        let mut all = assigned(&[0]);
        // Offsets have gaps in compacted topics and after transactions.
        let receipts = take(&mut all, &[10, 11, 15, 16]);
        assert_eq!(commit(&mut all), []);
        assert!(all.done(&receipts[2]) && all.done(&receipts[1]));
        assert_eq!(commit(&mut all), []);
        assert!(all.done(&receipts[0]));
        assert_eq!(commit(&mut all), [(0, 16)]);
        assert_eq!(commit(&mut all), [], "once is enough");
        assert!(all.done(&receipts[3]));
        assert_eq!(commit(&mut all), [(0, 17)]);
        all.commit_failed(&list(&[0]));
        take(&mut all, &[17]);
        assert_eq!(commit(&mut all), [(0, 17)], "what failed is sent again");
    }

    #[test]
    fn what_is_returned_is_never_passed_by_a_commit() {
        let mut all = assigned(&[0]);
        let receipts = take(&mut all, &[5, 6, 7, 8]);
        assert!(all.done(&receipts[0]) && all.done(&receipts[2]));
        assert!(all.give_back(&receipts[1], Instant::now()));
        assert!(!all.done(&receipts[3]), "it comes again");
        assert_eq!(commit(&mut all), [(0, 6)]);
        assert_eq!(all.take_in("orders", 0, 9), None, "from before the rewind");
        assert_eq!(all.flowing().count(), 0);
        let rewind = all.rewinds().remove(0);
        assert_eq!((rewind.to, rewind.paused), (6, false));
        all.rewind_paused(&rewind);
        assert!(all.rewinds()[0].paused);
        all.rewound(&rewind);
        let again = take(&mut all, &[6, 7, 8]);
        assert!(!all.done(&receipts[2]), "an old receipt");
        assert!(all.done(&again[1]) && all.done(&again[2]));
        assert_eq!(commit(&mut all), []);
        assert!(all.done(&again[0]));
        assert_eq!(commit(&mut all), [(0, 9)]);
    }

    #[test]
    fn the_lowest_of_several_returned_counts() {
        let mut all = assigned(&[0]);
        let receipts = take(&mut all, &[5, 6, 7, 8]);
        assert!(all.give_back(&receipts[2], Instant::now()));
        let first = all.rewinds().remove(0);
        all.rewind_paused(&first);
        assert!(all.give_back(&receipts[1], Instant::now()));
        assert!(!all.give_back(&receipts[3], Instant::now()));
        let second = all.rewinds().remove(0);
        assert_eq!((second.to, second.paused), (6, true));
        all.rewound(&first);
        assert_eq!(all.rewinds(), std::slice::from_ref(&second), "the later wish stays");
        all.rewound(&second);
        assert!(all.rewinds().is_empty());
    }

    #[test]
    fn receipts_of_an_old_assignment_count_no_more() {
        let mut all = assigned(&[0, 1]);
        let old = take(&mut all, &[5, 6]);
        assert!(all.done(&old[0]));
        assert_eq!(commit(&mut all), [(0, 6)]);
        // It is on its way, and may fail.
        let revoked = all.take_commit_of(&list(&[0])).unwrap();
        assert_eq!(revoked.elements()[0].offset(), Offset::Offset(6));
        all.committed(&revoked);
        assert!(all.take_commit_of(&list(&[0])).is_none());
        all.revoke(&list(&[0]));
        assert!(!all.done(&old[1]) && !all.has("orders", 0) && all.has("orders", 1));
        assert_eq!(all.take_in("orders", 0, 7), None, "it is not ours");
        all.assign(&list(&[0]));
        let new = take(&mut all, &[6]);
        assert!(!all.done(&old[1]) && !all.give_back(&old[1], Instant::now()));
        assert!(all.done(&new[0]));
        assert_eq!(commit(&mut all), [(0, 7)]);
    }

    #[test]
    fn offsets_that_start_again_lower_are_followed() {
        let mut all = assigned(&[0]);
        let old = take(&mut all, &[100, 101]);
        assert!(all.done(&old[0]));
        assert_eq!(commit(&mut all), [(0, 101)]);
        let new = take(&mut all, &[3]);
        assert!(!all.done(&old[1]));
        assert!(all.done(&new[0]));
        assert_eq!(commit(&mut all), [(0, 4)]);
    }
}
