//! Receiving: the unique index of `seen` decides what is new, and only that is appended to the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join;
use oncebox_core::recent::{Appended, Tail};
use oncebox_core::store::{Arrival, InlineBatch, MessageView, ReadInline, Received};
use oncebox_core::{Error, ErrorKind, Once, once_identity};
use sqlx::SqliteConnection;

use crate::error::classify;
use crate::rows::{get, hex, limit, list};
use crate::sql::{Whole, query};
use crate::store::{SqliteStore, check_text};
use crate::tx::writer::{SqliteQuery, Sync};
use crate::tx::{SqliteTransaction, require_transaction};

/// How a lane and a number within it make a place in the log.
pub(crate) const LANE_BITS: u32 = 48;

impl SqliteStore {
    pub(crate) async fn receive_arrivals(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        match self.sql.receive_few.fitting(arrivals.len()) {
            _ if arrivals.is_empty() => Ok(Vec::new()),
            Some((size, text)) => self.receive_few(arrivals, size, text).await,
            None => self.receive_many(arrivals).await,
        }
    }

    /// Everything in one trip to the thread of the connection: of a small receive the trips are the greater part.
    async fn receive_few(
        &self,
        arrivals: &[Arrival],
        size: usize,
        text: &Arc<str>,
    ) -> Result<Vec<Received>, Error> {
        let tail = self.recent.tail();
        let statements = || self.bind_few(query(text), arrivals, size, tail.as_ref());
        let (mut write, rows) = self.writer.run_whole(Sync::Durable, statements).await?;
        let [follows, seen, row] = &rows[..] else {
            let text = "messages were not stored; is the row of `head` missing? restore it from a backup";
            return Err(Error::new(ErrorKind::Store, text));
        };
        let (new, last): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        let follows = if get(follows, 0)? { tail } else { None };
        if new == limit(arrivals.len()) {
            write.finish();
            let appended = self.appended(arrivals, last, get(seen, 0)?, follows, |_| true);
            self.recent.remember(arrivals, appended);
            return Ok(vec![Received::New; arrivals.len()]);
        }
        // The new ones are stored for good; what of the others is a conflict is kept in a transaction of its own.
        let known = self.known(write.connection(), arrivals).await?;
        write.finish();
        let first = last - limit(arrivals.len()) + 1;
        let ours = |index: usize| {
            let known = known.get(&arrivals[index].identity);
            known.filter(|known| known.seq == Some(first + limit(index)))
        };
        if let Some(last_new) = (0..arrivals.len()).rev().find_map(ours) {
            let is_new = |index| ours(index).is_some();
            let appended = self.appended(arrivals, last, last_new.seen_at, follows, is_new);
            // Without those that were purged meanwhile there would be a gap.
            if limit(appended.new.len()) == new {
                self.recent.remember(arrivals, appended);
            }
        }
        let mut received = Vec::with_capacity(arrivals.len());
        for (seq, arrival) in (first..).zip(arrivals) {
            received.push(match known.get(&arrival.identity) {
                // Known a moment ago, purged meanwhile.
                None => self.receive_one(arrival).await?,
                known => match verdict(arrival, known, Some(seq)) {
                    Received::Conflict => self.receive_one(arrival).await?,
                    verdict => verdict,
                },
            });
        }
        Ok(received)
    }

    async fn receive_one(&self, arrival: &Arrival) -> Result<Received, Error> {
        let received = self.receive_many(std::slice::from_ref(arrival)).await?;
        Ok(received.first().copied().unwrap_or(Received::New))
    }

    fn bind_few<'a>(
        &self,
        mut statements: SqliteQuery<'a>,
        arrivals: &'a [Arrival],
        size: usize,
        tail: Option<&'a Tail>,
    ) -> SqliteQuery<'a> {
        let mut numbered: Vec<(i64, &Arrival)> = (0..limit(arrivals.len())).rev().zip(arrivals).collect();
        // Neighbours in the index are inserted one after the other.
        numbered.sort_unstable_by_key(|(_, arrival)| arrival.identity);
        let filler = size - arrivals.len();
        statements = bind_tail(statements.bind(limit(arrivals.len())), tail).bind(self.shift());
        for (back, arrival) in &numbered {
            statements = statements
                .bind(&arrival.identity[..])
                .bind(&arrival.fingerprint[..])
                .bind(*back)
                .bind(arrival.lane);
        }
        for _ in 0..filler * Whole::COLUMNS.0 {
            statements = statements.bind(None::<i64>);
        }
        statements = statements.bind(arrivals.last().map(|last| &last.identity[..]));
        // By lane, because the log is kept lane by lane.
        numbered.sort_unstable_by_key(|(back, arrival)| (arrival.lane, std::cmp::Reverse(*back)));
        for (back, arrival) in numbered {
            statements =
                statements.bind(i64::from(arrival.lane) << LANE_BITS).bind(back).bind(&arrival.identity[..]);
            statements = bind_message(statements, arrival.message());
        }
        // What is not bound is null.
        statements
    }

    async fn receive_many(&self, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        let tail = self.recent.tail();
        let numbers = query(&self.sql.next_seqs).bind(self.shift()).bind(limit(arrivals.len()));
        let row = bind_tail(numbers, tail.as_ref()).fetch_one(&mut *connection).await.map_err(classify)?;
        let (last, now): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
        let follows = if get(&row, 2)? { tail } else { None };
        let first = last - limit(arrivals.len()) + 1;
        let mut numbered: Vec<(i64, &Arrival)> = (first..).zip(arrivals).collect();

        // Neighbours in the index are inserted one after the other.
        numbered.sort_unstable_by_key(|(_, arrival)| arrival.identity);
        let seen = self.sql.seen.pieces(&numbered).map(|(text, piece)| {
            piece.iter().fold(query(text), |insert, (seq, arrival)| {
                insert
                    .bind(&arrival.identity[..])
                    .bind(&arrival.fingerprint[..])
                    .bind(*seq)
                    .bind(arrival.lane)
                    .bind(now)
            })
        });
        let inserted = execute_all(connection, seen).await?;
        numbered.sort_unstable_by_key(|(seq, _)| *seq);

        let mut received = vec![Received::New; arrivals.len()];
        if inserted < arrivals.len() as u64 {
            let known = self.known(connection, arrivals).await?;
            for ((seq, arrival), received) in numbered.iter().zip(&mut received) {
                *received = verdict(arrival, known.get(&arrival.identity), Some(*seq));
                if *received == Received::Conflict {
                    self.insert_conflict(connection, arrival, now).await?;
                }
            }
            let mut kept = received.iter();
            numbered.retain(|_| kept.next() == Some(&Received::New));
        }
        // By lane, because the log is kept lane by lane.
        numbered.sort_by_key(|(_, arrival)| arrival.lane);
        let log = self.sql.log.pieces(&numbered).map(|(text, piece)| {
            let first = piece[0].1.message();
            let headers = first.stored_headers();
            let insert = query(text).bind(first.scope).bind(first.kind).bind(headers.clone()).bind(now);
            piece.iter().fold(insert, |insert, (seq, arrival)| {
                let message = arrival.message();
                insert
                    .bind((i64::from(arrival.lane) << LANE_BITS) + seq)
                    .bind(&arrival.identity[..])
                    .bind(Some(message.scope).filter(|scope| *scope != first.scope))
                    .bind(message.id)
                    .bind(Some(message.kind).filter(|kind| *kind != first.kind))
                    .bind(message.key)
                    .bind(Some(message.stored_headers()).filter(|own| *own != headers))
                    .bind(message.payload)
                    .bind(message.not_before.map(jiff::Timestamp::as_microsecond))
            })
        });
        execute_all(connection, log).await?;
        // Should they have to be copied, then while the disk works.
        let packing =
            async { self.appended(arrivals, last, now, follows, |index| received[index] == Received::New) };
        let (committed, appended) = join(write.commit(), packing).await;
        committed?;
        self.recent.remember(arrivals, appended);
        Ok(received)
    }

    /// What one transaction has appended. The last of the arrivals, new or not, has the number `last`.
    fn appended(
        &self,
        arrivals: &[Arrival],
        last: i64,
        received_at: i64,
        follows: Option<Tail>,
        is_new: impl Fn(usize) -> bool,
    ) -> Appended {
        let after = last - limit(arrivals.len());
        let new: Vec<(usize, i64)> =
            (0..arrivals.len()).zip(after + 1..).filter(|(index, _)| is_new(*index)).collect();
        let messages = self.recent.packed(new.iter().map(|(index, _)| &arrivals[*index]));
        Appended { after, upto: last, received_at, new, follows, messages }
    }

    pub(crate) async fn receive_inline(
        &self,
        inline: &ReadInline<'_>,
    ) -> Result<InlineBatch<SqliteTransaction>, Error> {
        let mut transaction = self.begin(inline.limits).await?;
        match self.record_inline(&mut transaction, inline).await {
            Ok((received, scheduled, held)) => {
                Ok(InlineBatch { connection: transaction, received, scheduled, held })
            }
            Err(error) => {
                oncebox_core::store::Connection::rollback(transaction).await;
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity)]
    async fn record_inline(
        &self,
        connection: &mut SqliteConnection,
        inline: &ReadInline<'_>,
    ) -> Result<(Vec<Received>, Vec<bool>, Vec<(String, String)>), Error> {
        let now = self.now(connection).await?;
        let mut new = HashSet::new();
        for (text, piece) in self.sql.seen_inline.pieces(inline.arrivals) {
            let mut insert = query(text);
            for arrival in piece {
                insert = insert.bind(&arrival.identity[..]).bind(&arrival.fingerprint[..]).bind(now);
            }
            for row in insert.fetch_all(&mut *connection).await.map_err(classify)? {
                new.insert(get::<Vec<u8>>(&row, 0)?);
            }
        }
        let mut received = vec![Received::New; inline.arrivals.len()];
        if new.len() < inline.arrivals.len() {
            let known = self.known(connection, inline.arrivals).await?;
            for (arrival, received) in inline.arrivals.iter().zip(&mut received) {
                if new.contains(&arrival.identity[..]) {
                    continue;
                }
                *received = verdict(arrival, known.get(&arrival.identity), None);
                if *received == Received::Conflict {
                    self.insert_conflict(connection, arrival, now).await?;
                }
            }
        }
        let scheduled = inline
            .arrivals
            .iter()
            .map(|arrival| arrival.message().not_before.is_some_and(|at| at.as_microsecond() > now))
            .collect();
        let keys: HashSet<&str> =
            inline.arrivals.iter().filter_map(|arrival| arrival.message().key).collect();
        let mut held = Vec::new();
        if !inline.ordered.is_empty() && !keys.is_empty() {
            let rows = query(&self.sql.held_keys)
                .bind(list(inline.ordered.iter().copied()))
                .bind(list(keys))
                .fetch_all(connection)
                .await
                .map_err(classify)?;
            for row in rows {
                held.push((get(&row, 0)?, get(&row, 1)?));
            }
        }
        Ok((received, scheduled, held))
    }

    pub(crate) async fn remember_once(
        &self,
        connection: &mut SqliteConnection,
        handler: &str,
        id: &str,
    ) -> Result<Once, Error> {
        check_text("handler of `once`", handler, 100)?;
        check_text("id of `once`", id, oncebox_core::LONGEST_ID)?;
        require_transaction(connection, "once").await?;
        let done = query(&self.sql.insert_once)
            .bind(self.shift())
            .bind(&once_identity(handler, id)[..])
            .execute(connection)
            .await
            .map_err(classify)?;
        Ok(if done.rows_affected() == 1 { Once::First } else { Once::Again })
    }

    /// What is remembered of these arrivals: fingerprint and `seq` by identity.
    async fn known(
        &self,
        connection: &mut SqliteConnection,
        arrivals: &[Arrival],
    ) -> Result<HashMap<[u8; 16], Known>, Error> {
        let identities = list(arrivals.iter().map(|arrival| hex(&arrival.identity)));
        let rows = query(&self.sql.known).bind(identities).fetch_all(connection).await.map_err(classify)?;
        rows.iter()
            .map(|row| {
                let identity = sixteen(get(row, 0)?)?;
                let fingerprint = sixteen(get(row, 1)?)?;
                Ok((identity, Known { fingerprint, seq: get(row, 2)?, seen_at: get(row, 3)? }))
            })
            .collect()
    }

    async fn insert_conflict(
        &self,
        connection: &mut SqliteConnection,
        arrival: &Arrival,
        now: i64,
    ) -> Result<(), Error> {
        let insert =
            query(&self.sql.insert_conflict).bind(&arrival.identity[..]).bind(&arrival.fingerprint[..]);
        bind_message(insert, arrival.message()).bind(now).execute(connection).await.map_err(classify)?;
        Ok(())
    }
}

/// Binds the place, identity and time of the message that this process appended last.
pub(crate) fn bind_tail<'a>(statement: SqliteQuery<'a>, tail: Option<&'a Tail>) -> SqliteQuery<'a> {
    statement
        .bind(tail.map(|tail| (i64::from(tail.lane) << LANE_BITS) + tail.seq))
        .bind(tail.map(|tail| &tail.identity[..]))
        .bind(tail.map(|tail| tail.received_at))
}

/// Binds scope, id, kind, key, headers, payload and not_before.
fn bind_message<'a>(statement: SqliteQuery<'a>, message: MessageView<'a>) -> SqliteQuery<'a> {
    statement
        .bind(message.scope)
        .bind(message.id)
        .bind(message.kind)
        .bind(message.key)
        .bind(message.stored_headers())
        .bind(message.payload)
        .bind(message.not_before.map(jiff::Timestamp::as_microsecond))
}

/// Runs one statement after the other, and makes each while the one before it runs. Answers how many rows they changed.
async fn execute_all<'a>(
    connection: &mut SqliteConnection,
    mut statements: impl Iterator<Item = SqliteQuery<'a>>,
) -> Result<u64, Error> {
    let mut changed = 0;
    let mut next = statements.next();
    while let Some(statement) = next {
        let (done, made) = join(statement.execute(&mut *connection), async { statements.next() }).await;
        changed += done.map_err(classify)?.rows_affected();
        next = made;
    }
    Ok(changed)
}

struct Known {
    fingerprint: [u8; 16],
    seq: Option<i64>,
    seen_at: i64,
}

/// An identity that carries the number we just gave out was inserted by us.
fn verdict(arrival: &Arrival, known: Option<&Known>, seq: Option<i64>) -> Received {
    match known {
        None => Received::New,
        Some(known) if seq.is_some() && known.seq == seq => Received::New,
        Some(known) if known.fingerprint == arrival.fingerprint => Received::Duplicate,
        Some(_) => Received::Conflict,
    }
}

fn sixteen(bytes: &[u8]) -> Result<[u8; 16], Error> {
    bytes
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Store, "a stored identity or fingerprint does not have 16 bytes"))
}
