//! The caller's own transaction (`once`, `publish`) and what relays do with the outbox.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::clock::micros;
use oncebox_core::store::{AskOutgoing, Outgoing, SendOutcome, Sent, Token};
use oncebox_core::{Error, ErrorKind, LANES, LONGEST_ID, Message, Once, once_identity};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use crate::deliveries::storable;
use crate::error::{Problem, classify};
use crate::rows::{self, Columns, limit, stored_lane};
use crate::sql::Statement;
use crate::store::Inner;
use crate::tx::autocommit;

/// `publish` gives at most one hint in this time.
const HINT_PAUSE: Duration = Duration::from_millis(50);

/// The most messages that are looked for at the beginning of the outbox. Less than what the statement looks at, as not
/// each row there is due, or ours.
const MOST_AT_START: usize = 12_000;

/// For how many leases nothing is looked for there, once it was full of rows that are not due, or not ours.
const BY_LANE_FOR: u32 = 32;

/// How the messages of a sink are read.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Reading {
    /// The last lease had as many as were asked for, so more may wait.
    backlog: bool,
    /// For how many more leases not to look at the beginning of the outbox.
    by_lane: u32,
}

/// The most bytes of a handler's name.
const LONGEST_HANDLER: usize = 100;

impl Inner {
    pub(crate) async fn once(&self, tx: &mut PgConnection, handler: &str, id: &str) -> Result<Once, Error> {
        check_text("handler name", handler, LONGEST_HANDLER)?;
        check_text("id", id, LONGEST_ID)?;
        check_transaction(tx, "once")?;
        let identity = Uuid::from_bytes(once_identity(handler, id));
        let done =
            self.sql.once.query().bind(self.shift()).bind(identity).execute(tx).await.map_err(classify)?;
        Ok(if done.rows_affected() == 1 { Once::First } else { Once::Again })
    }

    pub(crate) async fn publish(&self, tx: &mut PgConnection, messages: &[Message]) -> Result<(), Error> {
        for message in messages {
            self.options.limits.check(message)?;
        }
        check_transaction(tx, "publish")?;
        if !messages.is_empty() {
            self.write_outgoing(tx, messages, None).await.map_err(Problem::into_error)?;
        }
        Ok(())
    }

    /// Writes to the outbox; with a marker only in the transaction that has it. Answers how many were written.
    ///
    /// Without a marker it is the caller's own transaction, of which the engine knows nothing, so other processes
    /// get their hint from here.
    pub(crate) async fn write_outgoing(
        &self,
        tx: &mut PgConnection,
        messages: &[Message],
        marker: Option<&str>,
    ) -> Result<u64, Problem> {
        let columns: Columns<'_> = messages.iter().collect();
        let row = self
            .sql
            .publish
            .query()
            .bind(self.shift())
            .bind(messages.iter().map(|message| message.sink.as_str()).collect::<Vec<&str>>())
            .bind(messages.iter().map(|message| stored_lane(message.lane())).collect::<Vec<i16>>())
            .bind(columns.scopes)
            .bind(columns.ids)
            .bind(columns.kinds)
            .bind(columns.keys)
            .bind(columns.headers)
            .bind(columns.payloads)
            .bind(columns.not_before)
            .bind(marker.is_none() && self.hint_is_due())
            .bind(&self.channel)
            .bind(marker)
            .fetch_one(tx)
            .await?;
        rows::amount(&row, 0)
    }

    fn hint_is_due(&self) -> bool {
        let mut hinted_at = self.hinted_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = self.options.notify && hinted_at.is_none_or(|at| at.elapsed() >= HINT_PAUSE);
        if due {
            *hinted_at = Some(Instant::now());
        }
        due
    }

    pub(crate) async fn lease_outgoing(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        self.make_relay_rows(ask.sink).await?;
        autocommit!(self, |connection| {
            let lanes = self
                .sql
                .lease_outgoing
                .query()
                .bind(self.shift())
                .bind(ask.sink)
                .bind(ask.token.0)
                .bind(micros(ask.lease_for))
                .fetch_all(&mut *connection)
                .await?;
            if lanes.is_empty() {
                return Ok(Vec::new());
            }
            let lanes: Vec<i16> = lanes.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            let rows = self.read_outgoing(connection, ask, &lanes).await?;
            rows.iter()
                .map(|row| {
                    let (mut message, unreadable) = rows::message(row, 3)?;
                    message.sink = row.try_get(2)?;
                    let (seq, attempts) = (row.try_get(0)?, rows::attempts(row, 1)?);
                    Ok(Outgoing { seq, attempts, message, unreadable })
                })
                .collect()
        })
    }

    async fn read_outgoing(
        &self,
        connection: &mut PgConnection,
        ask: &AskOutgoing<'_>,
        lanes: &[i16],
    ) -> Result<Vec<PgRow>, Problem> {
        let reading = self.relays().get(ask.sink).copied().unwrap_or_default();
        let tries_start = reading.backlog && reading.by_lane == 0 && ask.limit <= MOST_AT_START;
        if tries_start {
            let rows = self.read_with(&self.sql.read_outgoing_start, connection, ask, lanes).await?;
            if rows.len() >= ask.limit {
                return Ok(rows);
            }
        }
        let rows = self.read_with(&self.sql.read_outgoing, connection, ask, lanes).await?;
        let backlog = rows.len() >= ask.limit;
        let by_lane = if tries_start && backlog { BY_LANE_FOR } else { reading.by_lane.saturating_sub(1) };
        self.relays().insert(ask.sink.to_owned(), Reading { backlog, by_lane });
        Ok(rows)
    }

    async fn read_with(
        &self,
        statement: &Statement,
        connection: &mut PgConnection,
        ask: &AskOutgoing<'_>,
        lanes: &[i16],
    ) -> Result<Vec<PgRow>, Problem> {
        let reading = statement.query().bind(self.shift()).bind(ask.sink).bind(ask.token.0);
        Ok(reading.bind(lanes).bind(limit(ask.limit)).fetch_all(connection).await?)
    }

    fn relays(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make_relay_rows(&self, sink: &str) -> Result<(), Error> {
        if self.relays().contains_key(sink) {
            return Ok(());
        }
        autocommit!(self, |connection| {
            self.sql.relay_rows.query().bind(sink).bind(i32::from(LANES)).execute(&mut *connection).await?;
            Ok(())
        })?;
        self.relays().entry(sink.to_owned()).or_default();
        Ok(())
    }

    pub(crate) async fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        // The common case. Locking the rows first, as the rest needs it, would write each of them twice.
        if !release && results.iter().all(|sent| matches!(sent.outcome, SendOutcome::Confirmed)) {
            return autocommit!(self, |connection| {
                let seqs: Vec<i64> = results.iter().map(|sent| sent.seq).collect();
                self.sql.remove_outgoing.query().bind(sink).bind(seqs).execute(&mut *connection).await?;
                Ok(())
            });
        }
        autocommit!(self, |connection| {
            let (mut outcomes, mut delays, mut errors) = (Vec::new(), Vec::new(), Vec::new());
            for sent in results {
                let (outcome, delay, error) = match &sent.outcome {
                    SendOutcome::Confirmed => (0_i16, 0, None),
                    SendOutcome::Retry(delay, error) => (1, micros(*delay), Some(storable(error))),
                    SendOutcome::Dead(error) => (2, 0, Some(storable(error))),
                };
                outcomes.push(outcome);
                delays.push(delay);
                errors.push(error);
            }
            self.sql
                .settle_outgoing
                .query()
                .bind(self.shift())
                .bind(sink)
                .bind(token.0)
                .bind(results.iter().map(|sent| sent.seq).collect::<Vec<i64>>())
                .bind(outcomes)
                .bind(delays)
                .bind(errors)
                .bind(release)
                .execute(&mut *connection)
                .await?;
            Ok(())
        })
    }

    pub(crate) async fn replay_outgoing(&self, sink: &str) -> Result<u64, Error> {
        autocommit!(self, |connection| {
            let done = self
                .sql
                .replay_outgoing
                .query()
                .bind(self.shift())
                .bind(sink)
                .execute(&mut *connection)
                .await?;
            Ok(done.rows_affected())
        })
    }
}

fn check_transaction(connection: &PgConnection, call: &str) -> Result<(), Error> {
    if connection.is_in_transaction() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotInTransaction,
        format!(
            "`{call}` was given a connection with no open transaction; begin one with `pool.begin()` first"
        ),
    ))
}

fn check_text(field: &str, value: &str, most: usize) -> Result<(), Error> {
    if value.is_empty() || value.len() > most || value.contains('\0') {
        return Err(Error::invalid(format!(
            "the {field} has {} bytes; give it 1 to {most} bytes and no NUL",
            value.len()
        )));
    }
    Ok(())
}
