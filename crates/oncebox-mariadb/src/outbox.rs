//! The caller's own transaction (`once`, `publish`) and what relays do with the outbox.

use std::collections::HashMap;
use std::sync::PoisonError;

use oncebox_core::clock::micros;
use oncebox_core::store::{AskOutgoing, Outgoing, SendOutcome, Sent, Token};
use oncebox_core::{Error, ErrorKind, LANES, LONGEST_ID, Message, Once, once_identity};
use serde_json::{Value, json};
use sqlx::{Connection, MySqlConnection, Row};

use crate::error::{Problem, classify};
use crate::rows::{self, limit, list, not_before, size, stored_lane, text};
use crate::sql::query;
use crate::store::Inner;
use crate::tx::{reading, transaction};

/// The most bytes of a handler's name.
const LONGEST_HANDLER: usize = 100;

impl Inner {
    pub(crate) async fn once(
        &self,
        tx: &mut MySqlConnection,
        handler: &str,
        id: &str,
    ) -> Result<Once, Error> {
        check_text("handler name", handler, LONGEST_HANDLER)?;
        check_text("id", id, LONGEST_ID)?;
        // Below zero, so that it is no number in the log.
        let mark = -i64::try_from(self.seed.next() >> 1).unwrap_or(i64::MAX).max(1);
        let identity = once_identity(handler, id);
        let row = self
            .sql
            .once
            .query(self.shift())
            .bind(&identity[..])
            .bind(mark)
            .fetch_optional(tx)
            .await
            .map_err(classify)?;
        // The statement writes nothing outside of a transaction.
        let Some(row) = row else { return Err(not_in_transaction("once")) };
        let written: i64 = row.try_get(0).map_err(classify)?;
        Ok(if written == mark { Once::First } else { Once::Again })
    }

    pub(crate) async fn publish(&self, tx: &mut MySqlConnection, messages: &[Message]) -> Result<(), Error> {
        for message in messages {
            self.options.limits.check(message)?;
        }
        self.check_packet(messages.iter()).await?;
        // The driver counts what it was told; the server knows of transactions that ended otherwise.
        let row = self.sql.clock.query(self.shift()).fetch_one(&mut *tx).await.map_err(classify)?;
        if !tx.is_in_transaction() || !row.try_get::<bool, _>(2).map_err(classify)? {
            return Err(not_in_transaction("publish"));
        }
        self.write_outgoing(tx, messages).await.map_err(Problem::into_error)
    }

    /// Writes to the outbox.
    pub(crate) async fn write_outgoing(
        &self,
        tx: &mut MySqlConnection,
        messages: &[Message],
    ) -> Result<(), Problem> {
        let bytes = |message: &Message| size(message);
        for (text, piece) in self.sql.insert_outbox.pieces(messages, self.shift(), self.most_bytes(), bytes) {
            let mut insert = query(text);
            for message in piece {
                insert = insert
                    .bind(message.sink.as_bytes())
                    .bind(stored_lane(message.lane()))
                    .bind(message.scope.as_bytes())
                    .bind(message.id.as_bytes())
                    .bind(message.kind.as_bytes())
                    .bind(message.key.as_deref().map(str::as_bytes))
                    .bind(message.headers.to_stored().into_bytes())
                    .bind(&message.payload[..])
                    .bind(not_before(message))
                    .bind(not_before(message));
            }
            insert.execute(&mut *tx).await?;
        }
        Ok(())
    }

    /// Looks for lanes with something to send, leases them, and reads what they have in a statement of its own, which
    /// sees what the last owner of the lanes did.
    pub(crate) async fn lease_outgoing(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        self.make_relay_rows(ask.sink).await?;
        let sink = ask.sink.as_bytes();
        let lanes: Vec<u16> = reading!(self, |connection| {
            let rows = self
                .sql
                .outbox_lanes
                .query(self.shift())
                .bind(sink)
                .bind(sink)
                .bind(ask.token.0)
                .bind(limit(ask.limit))
                .bind(sink)
                .bind(sink)
                .bind(ask.token.0)
                .bind(limit(ask.limit))
                .bind(sink)
                .bind(ask.token.0)
                .fetch_all(&mut *connection)
                .await?;
            rows.iter().map(|row| rows::lane(row, 0)).collect::<Result<_, _>>()
        })?;
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let taken: Vec<u16> = transaction!(self, |connection| {
            let rows = self
                .sql
                .lock_relay
                .query(self.shift())
                .bind(sink)
                .bind(list(lanes.clone()))
                .bind(ask.token.0)
                .fetch_all(&mut *connection)
                .await?;
            let taken: Vec<u16> = rows.iter().map(|row| rows::lane(row, 0)).collect::<Result<_, _>>()?;
            if !taken.is_empty() {
                self.sql
                    .take_relay
                    .query(self.shift())
                    .bind(ask.token.0)
                    .bind(micros(ask.lease_for))
                    .bind(sink)
                    .bind(list(taken.clone()))
                    .execute(&mut *connection)
                    .await?;
            }
            Ok(taken)
        })?;
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        reading!(self, |connection| {
            let rows = self
                .sql
                .read_outgoing
                .query(self.shift())
                .bind(sink)
                .bind(sink)
                .bind(ask.token.0)
                .bind(sink)
                .bind(limit(ask.limit))
                .fetch_all(&mut *connection)
                .await?;
            rows.iter()
                .map(|row| {
                    let (mut message, unreadable) = rows::message(row, 3)?;
                    message.sink = text(row, 2)?;
                    let (seq, attempts) = (row.try_get(0)?, rows::attempts(row, 1)?);
                    Ok(Outgoing { seq, attempts, message, unreadable })
                })
                .collect()
        })
    }

    async fn make_relay_rows(&self, sink: &str) -> Result<(), Error> {
        if self.relays.lock().unwrap_or_else(PoisonError::into_inner).contains(sink) {
            return Ok(());
        }
        transaction!(self, |connection| {
            let rows = self.sql.relay_rows.query(self.shift()).bind(sink.as_bytes()).bind(list(0..LANES));
            rows.execute(&mut *connection).await?;
            Ok(())
        })?;
        self.relays.lock().unwrap_or_else(PoisonError::into_inner).insert(sink.to_owned());
        Ok(())
    }

    pub(crate) async fn settle_outgoing(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        let mut confirmed: Vec<i64> = Vec::new();
        // Errors of the same text share a statement, because a text goes in as bytes and not in a list.
        let mut unsent: HashMap<&str, Vec<Value>> = HashMap::new();
        for Sent { seq, outcome } in results {
            // Number, state, delay.
            match outcome {
                SendOutcome::Confirmed => confirmed.push(*seq),
                SendOutcome::Retry(delay, error) => {
                    unsent.entry(error).or_default().push(json!([seq, 1, micros(*delay)]));
                }
                SendOutcome::Dead(error) => unsent.entry(error).or_default().push(json!([seq, 2, 0])),
            }
        }
        if results.is_empty() && !release {
            return Ok(());
        }
        confirmed.sort_unstable();
        transaction!(self, |connection| {
            let sink = sink.as_bytes();
            if !confirmed.is_empty() {
                let delete = self.sql.delete_outgoing.query(self.shift()).bind(list(confirmed.clone()));
                delete.bind(sink).execute(&mut *connection).await?;
            }
            for (error, values) in &unsent {
                self.sql
                    .settle_outgoing
                    .query(self.shift())
                    .bind(list(values.clone()))
                    .bind(sink)
                    .bind(token.0)
                    .bind(error.as_bytes())
                    .bind(sink)
                    .execute(&mut *connection)
                    .await?;
            }
            if release {
                let release = self.sql.release_relay.query(self.shift()).bind(sink).bind(token.0);
                release.execute(&mut *connection).await?;
            }
            Ok(())
        })
    }

    pub(crate) async fn replay_outgoing(&self, sink: &str) -> Result<u64, Error> {
        transaction!(self, |connection| {
            let replay = self.sql.replay_outgoing.query(self.shift()).bind(sink.as_bytes());
            Ok(replay.execute(&mut *connection).await?.rows_affected())
        })
    }
}

fn not_in_transaction(call: &str) -> Error {
    Error::new(
        ErrorKind::NotInTransaction,
        format!(
            "`{call}` was given a connection with no open transaction; begin one with `pool.begin()` first"
        ),
    )
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
