//! A member of the consumer group: a thread that polls, whatever the rest of the program does, and one that commits.
//!
//! Kafka throws a member out that has not polled for `max.poll.interval.ms`. So the thread goes on polling while the
//! store is away: when there is no more room for messages it pauses the partitions and polls all the same.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oncebox_core::mapping::{Mapped, Mapping};
use oncebox_core::{Error, ErrorKind, Settle};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::Notify;

use crate::config::{KafkaSourceConfig, Start, refused};
use crate::partitions::{Partitions, Receipt};
use crate::record;
use crate::trouble::Trouble;

/// How long one poll waits for something to happen.
const POLL: Duration = Duration::from_millis(100);
/// The most records taken in before the thread looks after the rest of its work.
const AT_ONCE: usize = 1000;
/// How long to wait for room before the partitions are paused, which throws away what was fetched in advance.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a returned message stays away, so that one that is returned every time does not come in a hot loop.
const RETURN_AFTER: Duration = Duration::from_secs(1);
/// How long to wait after a commit that failed. Not shorter: while a group rebalances, a commit with the number of its
/// last generation makes librdkafka give up all partitions and join anew.
const COMMIT_AGAIN: Duration = Duration::from_secs(1);
/// How long a member that leaves waits until its last offsets are confirmed.
const FINISH: Duration = Duration::from_secs(10);
/// How long a call to the brokers may take that the thread waits for.
const ANSWER: Duration = Duration::from_secs(3);

/// The handle of the threads.
pub(crate) struct Member {
    shared: Arc<Shared>,
    /// Only the threads own it, because closing it blocks.
    consumer: Weak<BaseConsumer<Group>>,
    start: Start,
}

/// What has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) mapped: Mapped,
    pub(crate) receipt: Receipt,
    bytes: usize,
}

impl Member {
    /// Joins the group: returns at once, connects in the background.
    ///
    /// Fails when settings do not go together.
    pub(crate) fn join(name: &str, config: &KafkaSourceConfig) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            most: config.prefetch,
            most_bytes: config.prefetch_bytes,
            state: Mutex::default(),
            trouble: Trouble::default(),
            arrived: Notify::new(),
            room: Condvar::new(),
            done: Condvar::new(),
        });
        let group = Group { shared: shared.clone() };
        let consumer = BaseConsumer::from_config_and_context(&config.client()?, group).map_err(refused)?;
        let topics: Vec<&str> = config.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| {
            let text = format!("source `{name}` cannot subscribe to {}", config.topics.join(", "));
            Error::caused(ErrorKind::Invalid, text, error)
        })?;
        let consumer = Arc::new(consumer);
        let member =
            Self { shared: shared.clone(), consumer: Arc::downgrade(&consumer), start: config.start };
        let no_thread = |error: io::Error| {
            Error::caused(ErrorKind::Unavailable, format!("source `{name}` cannot start a thread"), error)
        };
        let committing = Committing { shared: shared.clone(), consumer: consumer.clone() };
        let commits = thread::Builder::new().name(format!("kafka {name} commits"));
        let commits = commits.spawn(move || committing.run()).map_err(no_thread)?;
        let polling = Polling { shared, consumer, mapping: config.mapping.clone(), paused: None, commits };
        let polls = thread::Builder::new().name(format!("kafka {name} polls"));
        polls.spawn(move || polling.run()).map_err(no_thread)?;
        Ok(member)
    }

    /// Waits until something has arrived. Nothing is lost when it is dropped.
    pub(crate) async fn next(&self, most: usize) -> Result<Vec<Arrived>, Error> {
        loop {
            let arrived = self.shared.arrived.notified();
            {
                let mut state = self.shared.lock();
                if let Some(report) = state.report.take() {
                    return Err(report);
                }
                if !state.ready.is_empty() {
                    let take = most.min(state.ready.len());
                    let taken: Vec<Arrived> = state.ready.drain(..take).collect();
                    state.ready_bytes -= taken.iter().map(|one| one.bytes).sum::<usize>();
                    self.shared.room.notify_one();
                    return Ok(taken);
                }
                if state.ended {
                    let text = format!("source `{}` has left its group; it joins again", self.shared.name);
                    return Err(Error::new(ErrorKind::Unavailable, text));
                }
            }
            arrived.await;
        }
    }

    /// True when the thread has ended, which only a fatal error makes it do.
    pub(crate) fn has_ended(&self) -> bool {
        let state = self.shared.lock();
        state.ended && state.report.is_none()
    }

    /// Leaves the group soon, in the background.
    pub(crate) fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.room.notify_one();
    }

    /// Waits until it has left the group, with everything committed that will be.
    pub(crate) async fn left(&self) {
        loop {
            let changed = self.shared.arrived.notified();
            if self.shared.lock().ended {
                return;
            }
            changed.await;
        }
    }

    /// Notes what became of messages and commits what may be committed.
    pub(crate) fn settle(&self, settled: &[(Receipt, Settle)]) {
        let mut state = self.shared.lock();
        for (receipt, settle) in settled {
            let known = match settle {
                Settle::Accept => state.partitions.done(receipt),
                Settle::Return => state.give_back(receipt),
                Settle::Reject => {
                    let Receipt { topic, partition, offset, .. } = receipt;
                    tracing::error!(
                        source = self.shared.name,
                        %topic,
                        partition,
                        offset,
                        "a message was rejected; Kafka has no place for it but the topic itself, where it stays \
                         until its retention ends"
                    );
                    state.partitions.done(receipt)
                }
            };
            if !known {
                let Receipt { topic, partition, offset, .. } = receipt;
                tracing::debug!(
                    source = self.shared.name,
                    %topic,
                    partition,
                    offset,
                    "settled too late: the partition was revoked or went back; the message comes again"
                );
            }
        }
        self.shared.done.notify_one();
    }

    /// How many messages lie behind the group's position in the partitions of this member; asks the brokers.
    ///
    /// `None` while it has none. Blocks.
    pub(crate) fn lag(&self) -> Result<Option<u64>, Error> {
        let Some(consumer) = self.consumer.upgrade() else { return Ok(None) };
        let positions = self.shared.lock().partitions.positions();
        if positions.is_empty() {
            return Ok(None);
        }
        let failed = |error: KafkaError| {
            let text = format!("source `{}` cannot ask how much waits: {error}", self.shared.name);
            Error::new(ErrorKind::Unavailable, self.shared.trouble.explain(&text))
        };
        let ends = offsets(&consumer, &positions, Offset::End).map_err(failed)?;
        self.shared.trouble.is_over();
        let mut unknown = TopicPartitionList::new();
        for (topic, partition, position) in &positions {
            if position.is_none() {
                unknown.add_partition(topic, *partition);
            }
        }
        let mut begins = TopicPartitionList::new();
        if unknown.count() > 0 {
            begins = consumer.committed_offsets(unknown, ANSWER).map_err(failed)?;
            if self.start == Start::Earliest {
                let first = offsets(&consumer, &positions, Offset::Beginning).map_err(failed)?;
                fill(&mut begins, &first).map_err(failed)?;
            }
        }
        let lag = positions.iter().map(|(topic, partition, position)| {
            let end = offset_in(&ends, topic, *partition);
            let begin = position.or_else(|| offset_in(&begins, topic, *partition));
            end.zip(begin).map_or(0, |(end, begin)| u64::try_from(end - begin).unwrap_or(0))
        });
        Ok(Some(lag.sum()))
    }
}

/// First or last offsets, one request for each broker.
fn offsets(
    consumer: &BaseConsumer<Group>,
    positions: &[(Arc<str>, i32, Option<i64>)],
    which: Offset,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (topic, partition, _) in positions {
        list.add_partition_offset(topic, *partition, which)?;
    }
    consumer.offsets_for_times(list, ANSWER)
}

/// Takes offsets that are missing from another list.
fn fill(list: &mut TopicPartitionList, from: &TopicPartitionList) -> KafkaResult<()> {
    let missing: Vec<(String, i32)> = list
        .elements()
        .iter()
        .filter(|element| !matches!(element.offset(), Offset::Offset(_)))
        .map(|element| (element.topic().to_owned(), element.partition()))
        .collect();
    for (topic, partition) in missing {
        if let Some(offset) = offset_in(from, &topic, partition) {
            list.set_partition_offset(&topic, partition, Offset::Offset(offset))?;
        }
    }
    Ok(())
}

fn offset_in(list: &TopicPartitionList, topic: &str, partition: i32) -> Option<i64> {
    match list.find_partition(topic, partition)?.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

/// What the thread, the source and the callbacks share.
struct Shared {
    name: String,
    most: usize,
    most_bytes: usize,
    state: Mutex<State>,
    trouble: Trouble,
    /// Something has arrived, or went wrong.
    arrived: Notify,
    /// There is room again, or it is time to stop.
    room: Condvar,
    /// Something is done and may be committed, or it is time to stop.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    partitions: Partitions,
    ready: VecDeque<Arrived>,
    ready_bytes: usize,
    /// What the next call of `next` is to say.
    report: Option<Error>,
    /// How often partitions were assigned.
    assignments: u64,
    stopping: bool,
    /// Everything is committed that will be.
    finished: bool,
    ended: bool,
}

impl State {
    fn give_back(&mut self, receipt: &Receipt) -> bool {
        let known = self.partitions.give_back(receipt, Instant::now() + RETURN_AFTER);
        if known {
            self.forget_ready(|own| {
                own.topic == receipt.topic
                    && own.partition == receipt.partition
                    && own.offset >= receipt.offset
            });
        }
        known
    }

    /// Throws away what was not handed over yet and comes again.
    fn forget_ready(&mut self, comes_again: impl Fn(&Receipt) -> bool) {
        self.ready.retain(|one| !comes_again(&one.receipt));
        self.ready_bytes = self.ready.iter().map(|one| one.bytes).sum();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, state: &State) -> bool {
        state.ready.len() < self.most && state.ready_bytes < self.most_bytes
    }

    fn report(&self, error: Error) {
        self.lock().report = Some(error);
        self.arrived.notify_one();
    }

    /// The broker's answer to a commit.
    fn committed(&self, result: KafkaResult<()>, list: &TopicPartitionList) -> KafkaResult<()> {
        let mut state = self.lock();
        match &result {
            Ok(()) => state.partitions.committed(list),
            Err(_) => state.partitions.commit_failed(list),
        }
        let refused = list.elements().iter().find_map(|element| element.error().err());
        result.and(refused.map_or(Ok(()), Err))
    }
}

/// What librdkafka calls, on the thread that polls.
///
/// Not the answers to commits: it has them only for those who wait.
struct Group {
    shared: Arc<Shared>,
}

impl ClientContext for Group {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let source = self.shared.name.as_str();
        if matches!(level, RDKafkaLogLevel::Warning) && facility == "OFFSET" && text.contains("offset reset")
        {
            tracing::error!(
                source,
                text,
                "offsets of the group were out of range: messages may be lost to retention"
            );
            self.shared.report(Error::new(
                ErrorKind::Store,
                format!(
                    "the group's offset was out of range, so messages that it had not read are gone from the topic \
                     (its retention is shorter than the source was away, or the topic was made anew): {text}"
                ),
            ));
            return;
        }
        crate::log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let source = self.shared.name.as_str();
        self.shared.trouble.note(&error, reason);
        match error.rdkafka_error_code() {
            // One of several brokers, and the client connects again by itself.
            Some(RDKafkaErrorCode::BrokerTransportFailure) => {
                tracing::debug!(source, reason, "a connection to a broker broke");
            }
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            _ => {
                let text = self.shared.trouble.explain(&format!("Kafka: {reason}"));
                self.shared.report(Error::new(ErrorKind::Unavailable, text));
            }
        }
    }
}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let source = self.shared.name.as_str();
        let Rebalance::Revoke(revoked) = rebalance else { return };
        // Who has lost partitions must not commit: somebody else may have them already.
        let is_lost = consumer.assignment_lost();
        let done = self.shared.lock().partitions.take_commit_of(revoked).filter(|_| !is_lost);
        tracing::info!(source, partitions = revoked.count(), is_lost, "partitions are taken away");
        if let Some(done) = done
            && let Err(error) = consumer.commit(&done, CommitMode::Sync)
        {
            tracing::warn!(source, %error, "the last offsets were not committed; those messages come again");
        }
        let mut state = self.shared.lock();
        state.partitions.revoke(revoked);
        let State { partitions, ready, ready_bytes, .. } = &mut *state;
        ready.retain(|one| partitions.has(&one.receipt.topic, one.receipt.partition));
        *ready_bytes = ready.iter().map(|one| one.bytes).sum();
        self.shared.room.notify_one();
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(assigned) => {
                let mut state = self.shared.lock();
                state.partitions.assign(assigned);
                state.assignments += 1;
                let source = self.shared.name.as_str();
                tracing::info!(source, partitions = assigned.count(), "partitions are assigned");
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => {
                self.shared.report(Error::new(ErrorKind::Unavailable, format!("Kafka: {error}")));
            }
        }
    }
}

/// The thread that commits, one commit after the other: each waits for the broker's answer, and what is done meanwhile
/// goes with the next.
struct Committing {
    shared: Arc<Shared>,
    consumer: Arc<BaseConsumer<Group>>,
}

impl Committing {
    fn run(self) {
        while let Some(list) = self.wait() {
            let result = self.consumer.commit(&list, CommitMode::Sync);
            if let Err(error) = self.shared.committed(result, &list) {
                let source = self.shared.name.as_str();
                // A rebalance that is under way does this; what stays ours is committed later.
                tracing::debug!(source, %error, "offsets could not be committed; they are sent again");
                let state = self.shared.lock();
                let _ = self.shared.done.wait_timeout_while(state, COMMIT_AGAIN, |state| !state.finished);
            }
        }
    }

    /// Waits until there is something to commit; `None` when it is time to stop.
    fn wait(&self) -> Option<TopicPartitionList> {
        let mut state = self.shared.lock();
        loop {
            if state.finished {
                return None;
            }
            if let Some(list) = state.partitions.take_commit() {
                return Some(list);
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread that polls.
struct Polling {
    shared: Arc<Shared>,
    consumer: Arc<BaseConsumer<Group>>,
    mapping: Mapping,
    /// While partitions are paused for want of room: how many assignments there were when that was done.
    paused: Option<u64>,
    commits: JoinHandle<()>,
}

impl Polling {
    fn run(mut self) {
        // A panic must not leave a member behind that polls no more and hands over nothing.
        if catch_unwind(AssertUnwindSafe(|| self.poll_until_stopped())).is_err() {
            let text = format!("source `{}` has panicked while it polled; it joins again", self.shared.name);
            self.shared.report(Error::new(ErrorKind::Unavailable, text));
        }
        self.leave();
    }

    fn poll_until_stopped(&mut self) {
        while !self.shared.lock().stopping {
            let next_rewind = self.rewind();
            self.keep_room();
            let wait = next_rewind.map_or(POLL, |at| POLL.min(at.saturating_duration_since(Instant::now())));
            if self.poll(wait).is_break() {
                break;
            }
        }
        self.finish();
    }

    /// Stays in the group until the broker has confirmed what is done, but not for long: while others join or leave it
    /// may refuse offsets, and who has left cannot send them again.
    fn finish(&mut self) {
        let deadline = Instant::now() + FINISH;
        let all = self.shared.lock().partitions.list();
        self.note(self.consumer.pause(&all));
        while Instant::now() < deadline && self.shared.lock().partitions.has_unconfirmed() {
            if self.poll(POLL).is_break() {
                break;
            }
        }
    }

    /// Takes in what has been fetched, without waiting for more than the first record.
    fn poll(&self, wait: Duration) -> ControlFlow<()> {
        let mut wait = wait;
        let mut any = false;
        for _ in 0..AT_ONCE {
            match self.consumer.poll(wait) {
                None => break,
                Some(Ok(record)) => {
                    any = true;
                    if !self.take_in(&record) {
                        break;
                    }
                }
                // The text was reported by the callback.
                Some(Err(KafkaError::MessageConsumptionFatal(_))) => return ControlFlow::Break(()),
                Some(Err(error)) => {
                    tracing::debug!(source = self.shared.name, %error, "polling failed");
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        if any {
            self.shared.arrived.notify_one();
        }
        ControlFlow::Continue(())
    }

    /// Makes a record ready to be handed over; answers whether there is room for more.
    fn take_in(&self, record: &BorrowedMessage<'_>) -> bool {
        let receipt = {
            let mut state = self.shared.lock();
            state.partitions.take_in(record.topic(), record.partition(), record.offset())
        };
        // Not ours any more, or it comes again after the partition went back.
        let Some(receipt) = receipt else { return true };
        let mapped = record::read(&self.mapping, record);
        let message = &mapped.message;
        // An empty one takes room, too.
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let bytes = message.payload.len() + headers + message.id.len() + 100;
        let mut state = self.shared.lock();
        state.ready_bytes += bytes;
        state.ready.push_back(Arrived { mapped, receipt, bytes });
        self.shared.has_room(&state)
    }

    /// Waits for room a moment; then pauses the partitions, and lets them go on when half of it is free.
    fn keep_room(&mut self) {
        let state = self.shared.lock();
        if let Some(assignments) = self.paused {
            let is_half_empty =
                state.ready.len() <= self.shared.most / 2 && state.ready_bytes <= self.shared.most_bytes / 2;
            let (flowing, now) = (state.partitions.flowing(), state.assignments);
            drop(state);
            if is_half_empty {
                self.paused = None;
                self.note(self.consumer.resume(&flowing));
            } else if now != assignments {
                // Partitions that were assigned meanwhile flow.
                self.paused = Some(now);
                self.note(self.consumer.pause(&flowing));
            }
            return;
        }
        let is_full = |state: &mut State| !self.shared.has_room(state) && !state.stopping;
        let waited = self.shared.room.wait_timeout_while(state, PATIENCE, is_full);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && !self.shared.has_room(&state) {
            let (all, now) = (state.partitions.list(), state.assignments);
            drop(state);
            self.paused = Some(now);
            self.note(self.consumer.pause(&all));
        }
    }

    /// Sends partitions back whose messages were returned; answers when the next one is due.
    fn rewind(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let rewinds = self.shared.lock().partitions.rewinds();
        for rewind in rewinds {
            let mut list = TopicPartitionList::new();
            if list.add_partition_offset(&rewind.topic, rewind.partition, Offset::Offset(rewind.to)).is_err()
            {
                continue;
            }
            if rewind.due_at > Instant::now() {
                if !rewind.paused {
                    self.note(self.consumer.pause(&list));
                    self.shared.lock().partitions.rewind_paused(&rewind);
                }
                next = Some(next.map_or(rewind.due_at, |at| at.min(rewind.due_at)));
                continue;
            }
            match self.consumer.seek_partitions(list, ANSWER).and_then(|list| list.elements()[0].error()) {
                Ok(()) => {
                    self.shared.lock().partitions.rewound(&rewind);
                    if self.paused.is_none() {
                        let mut list = TopicPartitionList::new();
                        list.add_partition(&rewind.topic, rewind.partition);
                        self.note(self.consumer.resume(&list));
                    }
                }
                Err(error) => {
                    let (source, topic, partition) = (&self.shared.name, &rewind.topic, rewind.partition);
                    tracing::warn!(source, %topic, partition, %error, "cannot go back to a returned message yet");
                    let later = Instant::now() + RETURN_AFTER;
                    self.shared.lock().partitions.rewind_later(&rewind, later);
                    next = Some(next.map_or(later, |at| at.min(later)));
                }
            }
        }
        next
    }

    /// Leaves the group. What is done is committed when the partitions are taken away.
    fn leave(self) {
        let Self { shared, consumer, commits, .. } = self;
        shared.lock().finished = true;
        shared.done.notify_one();
        if commits.join().is_err() {
            tracing::error!(source = shared.name, "the thread that commits offsets has panicked");
        }
        // A call of `settle` or `lag` may hold it for a moment; closing it blocks, and must happen here.
        while Arc::strong_count(&consumer) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(consumer);
        shared.lock().ended = true;
        shared.arrived.notify_one();
    }

    fn note(&self, result: KafkaResult<()>) {
        if let Err(error) = result {
            tracing::warn!(source = self.shared.name, %error, "partitions could not be paused or resumed");
        }
    }
}
