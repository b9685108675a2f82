//! Receiving: the primary key of `seen` decides what is new, and only that is appended to the log.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use oncebox_core::store::{Arrival, InlineBatch, MessageView, ReadInline};
use oncebox_core::{Error, ErrorKind, Received};
use sqlx::{MySqlConnection, Row};

use crate::error::{Problem, classify};
use crate::rows::{exact_size, hex, list, not_before, sixteen, size, stored_lane, text};
use crate::sql::{next_numbers, query};
use crate::store::Inner;
use crate::tx::{Answer, MariaTransaction, reading, transaction};

/// Every server takes a packet of this size, so only larger messages make us ask.
const SMALL: usize = 512 * 1024;
/// What is stored beside a message when it gets a row of its own, in the same packet: the handler's name, the error.
const BESIDE: usize = 16 * 1024;
/// Larger statements are no faster.
const LARGE: usize = 4 * 1024 * 1024;

impl Inner {
    pub(crate) async fn receive(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        self.check_packet(arrivals.iter().map(Arrival::message)).await?;
        let mut verdicts = vec![None; arrivals.len()];
        // In a storm of redeliveries one look is cheaper than a write of the head row and a commit. It also takes no
        // locks, for which others would have to wait.
        if self.saw_duplicates.load(Ordering::Relaxed) && !arrivals.is_empty() {
            verdicts = reading!(self, |connection| self.judge_known(connection, arrivals).await)?;
        }
        let open: Vec<usize> = (0..arrivals.len()).filter(|&index| verdicts[index].is_none()).collect();
        let conflicts: Vec<&Arrival> = arrivals
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| **verdict == Some(Received::Conflict))
            .map(|(arrival, _)| arrival)
            .collect();
        if !open.is_empty() {
            let arrivals: Vec<&Arrival> = open.iter().map(|&index| &arrivals[index]).collect();
            let first = next_numbers(&self.options.schema, open.len(), self.shift());
            let found = transaction!(self, &first, |connection, answers| {
                let numbers = Numbers::read(&answers, open.len())?;
                self.keep_conflicts(connection, &conflicts).await?;
                self.append(connection, &arrivals, numbers).await
            })?;
            for (index, verdict) in open.into_iter().zip(found) {
                verdicts[index] = Some(verdict);
            }
        } else if !conflicts.is_empty() {
            transaction!(self, |connection| self.keep_conflicts(connection, &conflicts).await)?;
        }
        let verdicts: Vec<Received> = verdicts.into_iter().flatten().collect();
        self.saw_duplicates
            .store(verdicts.iter().any(|verdict| *verdict != Received::New), Ordering::Relaxed);
        Ok(verdicts)
    }

    /// Inserts what is new into `seen`, by identity, and into the log, by lane.
    async fn append(
        &self,
        connection: &mut MySqlConnection,
        arrivals: &[&Arrival],
        numbers: Numbers,
    ) -> Result<Vec<Received>, Problem> {
        let mut entries: Vec<Entry<'_>> = (numbers.first..)
            .zip(arrivals)
            .map(|(seq, arrival)| Entry { seq, arrival, verdict: Received::New })
            .collect();
        // All writers insert in the same order, so that none waits for another in a circle.
        entries.sort_unstable_by_key(|entry| entry.arrival.identity);
        let mut met = HashMap::new();
        for (text, piece) in self.sql.insert_seen.pieces(&entries, self.shift(), self.most_bytes(), |_| 100) {
            let mut insert = query(text);
            for Entry { seq, arrival, .. } in piece {
                insert = insert
                    .bind(&arrival.identity[..])
                    .bind(&arrival.fingerprint[..])
                    .bind(numbers.now)
                    .bind(*seq)
                    .bind(stored_lane(arrival.lane));
            }
            for row in insert.fetch_all(&mut *connection).await? {
                met.insert(sixteen(&row, 0)?, (sixteen(&row, 1)?, row.try_get::<i64, _>(2)?));
            }
        }
        for entry in &mut entries {
            entry.verdict = verdict(entry.arrival, met.get(&entry.arrival.identity), entry.seq)?;
        }
        let conflicts: Vec<&Arrival> = entries
            .iter()
            .filter(|entry| entry.verdict == Received::Conflict)
            .map(|entry| entry.arrival)
            .collect();
        self.keep_conflicts(connection, &conflicts).await?;

        let mut new: Vec<&Entry<'_>> =
            entries.iter().filter(|entry| entry.verdict == Received::New).collect();
        // By lane, because the log is kept lane by lane.
        new.sort_unstable_by_key(|entry| (entry.arrival.lane, entry.seq));
        let bytes = |entry: &&Entry<'_>| size(entry.arrival.message());
        for (text, piece) in self.sql.insert_log.pieces(&new, self.shift(), self.most_bytes(), bytes) {
            let mut insert = query(text);
            for Entry { seq, arrival, .. } in piece {
                let message = arrival.message();
                insert = insert
                    .bind(stored_lane(arrival.lane))
                    .bind(*seq)
                    .bind(numbers.now)
                    .bind(not_before(message))
                    .bind(&arrival.identity[..])
                    .bind(message.scope.as_bytes())
                    .bind(message.id.as_bytes())
                    .bind(message.kind.as_bytes())
                    .bind(message.key.map(str::as_bytes))
                    .bind(message.stored_headers().into_bytes())
                    .bind(message.payload);
            }
            insert.execute(&mut *connection).await?;
        }
        entries.sort_unstable_by_key(|entry| entry.seq);
        Ok(entries.into_iter().map(|entry| entry.verdict).collect())
    }

    /// Decides what is known to the store: duplicate or conflict. Locks nothing.
    async fn judge_known(
        &self,
        connection: &mut MySqlConnection,
        arrivals: &[Arrival],
    ) -> Result<Vec<Option<Received>>, Problem> {
        let identities = list(arrivals.iter().map(|arrival| hex(&arrival.identity)));
        let rows = self.sql.known.query(self.shift()).bind(identities).fetch_all(&mut *connection).await?;
        let mut known = HashMap::with_capacity(rows.len());
        for row in rows {
            known.insert(sixteen(&row, 0)?, sixteen(&row, 1)?);
        }
        let judge = |arrival: &Arrival| {
            let same = *known.get(&arrival.identity)? == arrival.fingerprint;
            Some(if same { Received::Duplicate } else { Received::Conflict })
        };
        Ok(arrivals.iter().map(judge).collect())
    }

    async fn keep_conflicts(
        &self,
        connection: &mut MySqlConnection,
        conflicts: &[&Arrival],
    ) -> Result<(), Problem> {
        let mut conflicts = conflicts.to_vec();
        conflicts.sort_unstable_by_key(|arrival| (arrival.identity, arrival.fingerprint));
        let bytes = |arrival: &&Arrival| size(arrival.message());
        for (text, piece) in
            self.sql.insert_conflict.pieces(&conflicts, self.shift(), self.most_bytes(), bytes)
        {
            let mut insert = query(text);
            for arrival in piece {
                let message = arrival.message();
                insert = insert
                    .bind(&arrival.identity[..])
                    .bind(&arrival.fingerprint[..])
                    .bind(message.scope.as_bytes())
                    .bind(message.id.as_bytes())
                    .bind(message.kind.as_bytes())
                    .bind(message.key.map(str::as_bytes))
                    .bind(message.stored_headers().into_bytes())
                    .bind(message.payload)
                    .bind(not_before(message));
            }
            insert.execute(&mut *connection).await?;
        }
        Ok(())
    }

    pub(crate) async fn begin_inline(
        &self,
        inline: &ReadInline<'_>,
    ) -> Result<InlineBatch<MariaTransaction>, Error> {
        self.check_packet(inline.arrivals.iter().map(Arrival::message)).await?;
        let mut retry = crate::error::Retry::default();
        loop {
            let tx = self.begin(inline.limits).await?;
            match self.settled(tx, async |tx| self.read_inline(tx, inline).await).await {
                Ok((connection, (received, scheduled, held))) => {
                    self.saw_duplicates
                        .store(received.iter().any(|verdict| *verdict != Received::New), Ordering::Relaxed);
                    return Ok(InlineBatch { connection, received, scheduled, held });
                }
                // Nothing has run in it yet.
                Err(problem) => retry.after(problem, &self.seed).await?,
            }
        }
    }

    #[allow(clippy::type_complexity)]
    async fn read_inline(
        &self,
        tx: &mut MariaTransaction,
        inline: &ReadInline<'_>,
    ) -> Result<(Vec<Received>, Vec<bool>, Vec<(String, String)>), Problem> {
        let arrivals = inline.arrivals;
        let mut verdicts = vec![None; arrivals.len()];
        if self.saw_duplicates.load(Ordering::Relaxed) && !arrivals.is_empty() {
            verdicts = self.judge_known(tx, arrivals).await?;
        }
        let mut open: Vec<usize> = (0..arrivals.len()).filter(|&index| verdicts[index].is_none()).collect();
        open.sort_unstable_by_key(|&index| arrivals[index].identity);
        // Below zero, so that it is no number in the log.
        let mark = -i64::try_from(self.seed.next() >> 1).unwrap_or(i64::MAX).max(1);
        let mut met = HashMap::new();
        let mut now = None;
        for (text, piece) in self.sql.insert_inline.pieces(&open, self.shift(), self.most_bytes(), |_| 100) {
            let mut insert = query(text);
            for &index in piece {
                let Arrival { identity, fingerprint, .. } = &arrivals[index];
                insert = insert.bind(&identity[..]).bind(&fingerprint[..]).bind(mark);
            }
            for row in insert.fetch_all(&mut **tx).await? {
                met.insert(sixteen(&row, 0)?, (sixteen(&row, 1)?, row.try_get::<i64, _>(2)?));
                now = Some(row.try_get(3)?);
                tx.note_session(row.try_get(4)?);
            }
        }
        let now = match now {
            Some(now) => now,
            None => self.now(tx).await?,
        };
        for index in open {
            let arrival = &arrivals[index];
            verdicts[index] = Some(verdict(arrival, met.get(&arrival.identity), mark)?);
        }
        let verdicts: Vec<Received> = verdicts.into_iter().flatten().collect();
        let conflicts: Vec<&Arrival> = arrivals
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| **verdict == Received::Conflict)
            .map(|(arrival, _)| arrival)
            .collect();
        self.keep_conflicts(tx, &conflicts).await?;

        let scheduled =
            arrivals.iter().map(|arrival| not_before(arrival.message()).is_some_and(|at| at > now)).collect();
        let keys: Vec<String> = arrivals
            .iter()
            .filter_map(|arrival| arrival.message().key)
            .map(|key| hex(key.as_bytes()))
            .collect();
        let mut held = Vec::new();
        if !inline.ordered.is_empty() && !keys.is_empty() {
            let handlers = list(inline.ordered.iter().map(|handler| hex(handler.as_bytes())));
            let rows = self
                .sql
                .held_keys
                .query(self.shift())
                .bind(handlers)
                .bind(list(keys))
                .fetch_all(&mut **tx)
                .await?;
            for row in rows {
                held.push((text(&row, 0)?, text(&row, 1)?));
            }
        }
        Ok((verdicts, scheduled, held))
    }

    /// The database's clock, shifted; also tells the transaction which session it is.
    pub(crate) async fn now(&self, tx: &mut MariaTransaction) -> Result<i64, Problem> {
        let row = self.sql.clock.query(self.shift()).fetch_one(&mut **tx).await?;
        tx.note_session(row.try_get(1)?);
        Ok(row.try_get(0)?)
    }

    /// Refuses a message that the server would not take, now or as a dead letter with its error, before the server ends the
    /// connection because of it.
    ///
    /// Asks the server once, and only when there is much to send.
    pub(crate) async fn check_packet<'a, M: Into<MessageView<'a>>>(
        &self,
        messages: impl Iterator<Item = M> + Clone,
    ) -> Result<(), Error> {
        let views = || messages.clone().map(Into::into);
        if views().map(size).sum::<usize>() <= SMALL {
            return Ok(());
        }
        let most = *self.packet.get_or_try_init(|| self.ask_packet()).await?;
        // To write the headers as they are stored takes time, so only where they might not fit.
        let may_fit = |message: &MessageView<'_>| size(*message) + BESIDE <= most;
        for message in views().filter(|message| !may_fit(message)) {
            let bytes = exact_size(message) + BESIDE;
            if bytes > most {
                return Err(Error::invalid(format!(
                    "message `{}` needs {bytes} bytes with what is stored beside it, and the server takes {most} in one \
                     packet; raise `max_allowed_packet` there, or store the body elsewhere and send its address",
                    message.id.escape_debug()
                )));
            }
        }
        Ok(())
    }

    /// How many bytes of rows go into one statement.
    pub(crate) fn most_bytes(&self) -> usize {
        self.packet.get().map_or(SMALL, |packet| (packet / 4 * 3).min(LARGE))
    }

    async fn ask_packet(&self) -> Result<usize, Error> {
        let row = reading!(self, |connection| {
            Ok(self.sql.settings.query(0).fetch_one(&mut *connection).await?)
        })?;
        let bytes: u64 = row.try_get("packet").map_err(classify)?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// The numbers of a receive, and the time at which its row of `head` was locked.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    first: i64,
    now: i64,
}

impl Numbers {
    fn read(answers: &[Answer], count: usize) -> Result<Self, Problem> {
        let missing =
            || Error::new(ErrorKind::Store, "the row of `head` is missing; restore it from a backup");
        let [taken, clock] = answers else { return Err(missing().into()) };
        let last = i64::try_from(taken.last_insert_id).unwrap_or(0);
        let first = last - i64::try_from(count).unwrap_or(i64::MAX) + 1;
        if first < 1 {
            return Err(missing().into());
        }
        let row = clock.rows.first().ok_or_else(missing)?;
        Ok(Self { first, now: row.try_get(0)? })
    }
}

struct Entry<'a> {
    seq: i64,
    arrival: &'a Arrival,
    verdict: Received,
}

/// Who finds his own number in the row has written it.
fn verdict(arrival: &Arrival, met: Option<&([u8; 16], i64)>, ours: i64) -> Result<Received, Problem> {
    match met {
        Some((_, seq)) if *seq == ours => Ok(Received::New),
        Some((fingerprint, _)) if *fingerprint == arrival.fingerprint => Ok(Received::Duplicate),
        Some(_) => Ok(Received::Conflict),
        None => Err(Error::new(ErrorKind::Store, "mariadb did not say what became of an id").into()),
    }
}
