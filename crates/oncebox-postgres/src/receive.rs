//! Receiving: what is new goes into `seen` and the log in one statement.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use futures_util::future::join;
use jiff::Timestamp;
use oncebox_core::recent::{Appended, Tail};
use oncebox_core::store::{Arrival, InlineBatch, ReadInline};
use oncebox_core::{Error, Received};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
use sqlx_core::transaction::TransactionManager;
use uuid::Uuid;

use crate::error::Problem;
use crate::rows::{Columns, stored_lane, uuids};
use crate::sql::Statement;
use crate::store::Inner;
use crate::tx::{Manager, PgTransaction, autocommit};

/// How often an id may vanish (purged) between the insert that met it and the look at its fingerprint.
const MOST_ROUNDS: usize = 5;

/// For how many groups after a duplicate the statement is used that expects some.
///
/// The other one costs half, but fails when it meets a known id: an error in the server's log and a wasted write.
const CAREFUL_FOR: u32 = 64;

impl Inner {
    pub(crate) async fn receive(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        if arrivals.is_empty() {
            return Ok(Vec::new());
        }
        let (verdicts, appended) = autocommit!(self, |connection| {
            self.receive_on(connection, arrivals).await.map_err(Problem::blame_messages)
        })?;
        for appended in appended {
            self.recent.remember(arrivals, appended);
        }
        let all_new = verdicts.iter().all(|verdict| *verdict == Received::New);
        if !all_new {
            self.careful.store(CAREFUL_FOR, Ordering::Relaxed);
        }
        self.only_duplicates.store(!verdicts.contains(&Received::New), Ordering::Relaxed);
        Ok(verdicts)
    }

    async fn receive_on(
        &self,
        connection: &mut PgConnection,
        arrivals: &[Arrival],
    ) -> Result<(Vec<Received>, Vec<Appended>), Problem> {
        let mut verdicts = vec![None; arrivals.len()];
        let mut appended = Vec::new();
        // In a storm of redeliveries one look is cheaper than a write of the head row and a commit.
        if self.only_duplicates.load(Ordering::Relaxed) {
            self.judge_known(connection, arrivals, &mut verdicts).await?;
        } else if let Some(appended) = self.append_new(connection, arrivals).await? {
            return Ok((vec![Received::New; arrivals.len()], vec![appended]));
        }
        for _ in 0..MOST_ROUNDS {
            let open = undecided(&verdicts);
            if open.is_empty() {
                break;
            }
            appended.extend(self.append(connection, arrivals, &open, &mut verdicts).await?);
            // A statement of its own, so that it sees what rivals have committed since.
            if verdicts.contains(&None) {
                self.judge_known(connection, arrivals, &mut verdicts).await?;
            }
        }
        let verdicts: Option<Vec<Received>> = verdicts.into_iter().collect();
        let verdicts = verdicts.ok_or_else(|| {
            Error::new(oncebox_core::ErrorKind::Contention, "ids vanish while they are received")
        })?;
        self.keep_conflicts(connection, arrivals, &verdicts).await?;
        Ok((verdicts, appended))
    }

    /// Stores messages that are all new; `None`, and nothing stored, when one of them may be known.
    async fn append_new(
        &self,
        connection: &mut PgConnection,
        arrivals: &[Arrival],
    ) -> Result<Option<Appended>, Problem> {
        let careful = self.careful.load(Ordering::Relaxed);
        if careful > 0 {
            self.careful.store(careful - 1, Ordering::Relaxed);
            return Ok(None);
        }
        // The error of a known id would end a transaction.
        if Manager::get_transaction_depth(connection) > 0 {
            return Ok(None);
        }
        let tail = self.recent.tail();
        let query = bind_arrivals(&self.sql.receive_new, self.shift(), arrivals.iter());
        // Should they have to be copied, then while the server works.
        let packing = async { self.recent.packed(arrivals.iter()) };
        let (answer, messages) =
            join(bind_tail(query, tail.as_ref()).fetch_optional(&mut *connection), packing).await;
        match answer.map_err(Problem::from) {
            Ok(Some(row)) => {
                let after: i64 = row.try_get(0)?;
                let new: Vec<(usize, i64)> = (0..arrivals.len()).zip(after + 1..).collect();
                let upto = new.last().map_or(after, |(_, seq)| *seq);
                let follows = follows(tail, &row)?;
                Ok(Some(Appended { after, upto, received_at: row.try_get(1)?, new, follows, messages }))
            }
            Ok(None) => {
                let text = "messages were not stored; is the row of `head` missing? restore it from a backup";
                Err(Error::new(oncebox_core::ErrorKind::Store, text).into())
            }
            Err(problem) if problem.code().as_deref() == Some("23505") => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    async fn append(
        &self,
        connection: &mut PgConnection,
        arrivals: &[Arrival],
        open: &[usize],
        verdicts: &mut [Option<Received>],
    ) -> Result<Option<Appended>, Problem> {
        let asked = open.iter().map(|&index| &arrivals[index]);
        let tail = self.recent.tail();
        let query = bind_arrivals(&self.sql.receive, self.shift(), asked);
        let rows = bind_tail(query, tail.as_ref()).fetch_all(&mut *connection).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let (after, received_at): (i64, i64) = (first.try_get(1)?, first.try_get(2)?);
        let mut new = Vec::with_capacity(rows.len());
        for row in &rows {
            let place: i64 = row.try_get(0)?;
            let index = usize::try_from(place - 1).ok().and_then(|place| open.get(place));
            if let Some(&index) = index {
                verdicts[index] = Some(Received::New);
                new.push((index, after + place));
            }
        }
        new.sort_unstable_by_key(|(_, seq)| *seq);
        let asked = i64::try_from(open.len()).unwrap_or(i64::MAX);
        let follows = follows(tail, first)?;
        let messages = self.recent.packed(new.iter().map(|(index, _)| &arrivals[*index]));
        Ok(Some(Appended { after, upto: after + asked, received_at, new, follows, messages }))
    }

    /// Decides what is still open and known to the store: duplicate or conflict.
    async fn judge_known(
        &self,
        connection: &mut PgConnection,
        arrivals: &[Arrival],
        verdicts: &mut [Option<Received>],
    ) -> Result<(), Problem> {
        let open = undecided(verdicts);
        let identities = uuids(open.iter().map(|&index| &arrivals[index].identity));
        let rows = self.sql.known.query().bind(identities).fetch_all(&mut *connection).await?;
        let mut known = HashMap::with_capacity(rows.len());
        for row in rows {
            known.insert(row.try_get::<Uuid, _>(0)?.into_bytes(), row.try_get::<Uuid, _>(1)?.into_bytes());
        }
        for index in open {
            let arrival = &arrivals[index];
            if let Some(fingerprint) = known.get(&arrival.identity) {
                let same = *fingerprint == arrival.fingerprint;
                verdicts[index] = Some(if same { Received::Duplicate } else { Received::Conflict });
            }
        }
        Ok(())
    }

    async fn keep_conflicts(
        &self,
        connection: &mut PgConnection,
        arrivals: &[Arrival],
        verdicts: &[Received],
    ) -> Result<(), Problem> {
        let conflicts: Vec<&Arrival> = arrivals
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| **verdict == Received::Conflict)
            .map(|(arrival, _)| arrival)
            .collect();
        if conflicts.is_empty() {
            return Ok(());
        }
        let columns: Columns<'_> = conflicts.iter().map(|arrival| arrival.message()).collect();
        self.sql
            .conflict
            .query()
            .bind(self.shift())
            .bind(uuids(conflicts.iter().map(|arrival| &arrival.identity)))
            .bind(uuids(conflicts.iter().map(|arrival| &arrival.fingerprint)))
            .bind(columns.not_before)
            .bind(columns.scopes)
            .bind(columns.ids)
            .bind(columns.kinds)
            .bind(columns.keys)
            .bind(columns.headers)
            .bind(columns.payloads)
            .execute(&mut *connection)
            .await?;
        Ok(())
    }

    pub(crate) async fn begin_inline(
        &self,
        inline: &ReadInline<'_>,
    ) -> Result<InlineBatch<PgTransaction>, Error> {
        let tx = self.begin(inline.limits).await?;
        self.settled(tx, async |tx| self.read_inline(tx, inline).await).await.map(
            |(connection, (received, scheduled, held))| InlineBatch { connection, received, scheduled, held },
        )
    }

    #[allow(clippy::type_complexity)]
    async fn read_inline(
        &self,
        tx: &mut PgTransaction,
        inline: &ReadInline<'_>,
    ) -> Result<(Vec<Received>, Vec<bool>, Vec<(String, String)>), Problem> {
        let arrivals = inline.arrivals;
        let keys: Vec<&str> = match inline.ordered {
            [] => Vec::new(),
            _ => arrivals.iter().filter_map(|arrival| arrival.message().key).collect(),
        };
        let not_before: Vec<Option<i64>> = arrivals
            .iter()
            .map(|arrival| arrival.message().not_before.map(Timestamp::as_microsecond))
            .collect();
        let rows = self
            .sql
            .begin_inline
            .query()
            .bind(self.shift())
            .bind(uuids(arrivals.iter().map(|arrival| &arrival.identity)))
            .bind(uuids(arrivals.iter().map(|arrival| &arrival.fingerprint)))
            .bind(not_before)
            .bind(inline.ordered)
            .bind(keys)
            .fetch_all(&mut **tx)
            .await?;
        let mut verdicts = Vec::with_capacity(arrivals.len());
        let mut scheduled = Vec::with_capacity(arrivals.len());
        for row in &rows {
            verdicts.push(row.try_get::<bool, _>(0)?.then_some(Received::New));
            scheduled.push(row.try_get(1)?);
        }
        let mut held = Vec::new();
        if let Some(row) = rows.first() {
            tx.note_session(row)?;
            let handlers: Vec<String> = row.try_get(4)?;
            let keys: Vec<String> = row.try_get(5)?;
            held = handlers.into_iter().zip(keys).collect();
        }
        if verdicts.contains(&None) {
            self.judge_known(tx, arrivals, &mut verdicts).await?;
        }
        let verdicts: Option<Vec<Received>> = verdicts.into_iter().collect();
        let verdicts = verdicts.ok_or_else(|| {
            Error::new(oncebox_core::ErrorKind::Contention, "an id was purged while it was received")
        })?;
        self.keep_conflicts(tx, arrivals, &verdicts).await?;
        Ok((verdicts, scheduled, held))
    }
}

fn undecided(verdicts: &[Option<Received>]) -> Vec<usize> {
    (0..verdicts.len()).filter(|&index| verdicts[index].is_none()).collect()
}

/// How many bytes identity, fingerprint and lane of an arrival take, each with its length before it.
const FIXED: usize = 20 + 20 + 6;

/// Binds the shift of the clock, identities, fingerprints, lanes and the messages' columns, in the order they came.
fn bind_arrivals<'q>(
    statement: &Statement,
    shift: i64,
    arrivals: impl Iterator<Item = &'q Arrival> + Clone,
) -> Query<'q, Postgres, PgArguments> {
    let columns: Columns<'q> = arrivals.clone().map(Arrival::message).collect();
    let columns = columns.collapsed();
    statement
        .query_with_room(columns.size() + arrivals.clone().count() * FIXED)
        .bind(shift)
        .bind(uuids(arrivals.clone().map(|arrival| &arrival.identity)))
        .bind(uuids(arrivals.clone().map(|arrival| &arrival.fingerprint)))
        .bind(arrivals.map(|arrival| stored_lane(arrival.lane)).collect::<Vec<i16>>())
        .bind(columns.not_before)
        .bind(columns.scopes)
        .bind(columns.ids)
        .bind(columns.kinds)
        .bind(columns.keys)
        .bind(columns.headers)
        .bind(columns.payloads)
}

/// Binds the message that this process appended last.
fn bind_tail<'q>(
    query: Query<'q, Postgres, PgArguments>,
    tail: Option<&Tail>,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(tail.map(|tail| stored_lane(tail.lane)))
        .bind(tail.map(|tail| tail.seq))
        .bind(tail.map(|tail| Uuid::from_bytes(tail.identity)))
        .bind(tail.map(|tail| tail.received_at))
}

/// The tail that was bound, if the log still has it.
fn follows(tail: Option<Tail>, row: &PgRow) -> Result<Option<Tail>, sqlx::Error> {
    let there: bool = row.try_get("follows")?;
    Ok(tail.filter(|_| there))
}
