//! The outbox: what handlers and callers publish, and the lanes that relays lease to send it.

use std::collections::BTreeSet;

use oncebox_core::clock::micros;
use oncebox_core::store::{AskOutgoing, Outgoing, SendOutcome, Sent, Token};
use oncebox_core::{Error, Limits, Message};
use serde_json::Value;
use sqlx::SqliteConnection;

use crate::error::classify;
use crate::rows::{error_text, get, limit, list, message};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::require_transaction;
use crate::tx::writer::Sync;

impl SqliteStore {
    pub(crate) async fn publish_in(
        &self,
        connection: &mut SqliteConnection,
        messages: &[Message],
    ) -> Result<(), Error> {
        let limits = Limits { payload_bytes: self.payload_limit };
        for message in messages {
            limits.check(message)?;
        }
        require_transaction(connection, "publish").await?;
        self.insert_outgoing(connection, messages).await
    }

    pub(crate) async fn insert_outgoing(
        &self,
        connection: &mut SqliteConnection,
        messages: &[Message],
    ) -> Result<(), Error> {
        if messages.is_empty() {
            return Ok(());
        }
        let now = self.now(connection).await?;
        for (text, piece) in self.sql.outbox.pieces(messages) {
            let mut insert = query(text);
            for message in piece {
                let not_before = message.not_before.map(jiff::Timestamp::as_microsecond);
                insert = insert
                    .bind(message.sink.as_str())
                    .bind(message.lane())
                    .bind(message.scope.as_str())
                    .bind(message.id.as_str())
                    .bind(message.kind.as_str())
                    .bind(message.key.as_deref())
                    .bind(message.headers.to_stored())
                    .bind(&message.payload[..])
                    .bind(not_before)
                    .bind(not_before.unwrap_or(now))
                    .bind(now);
            }
            insert.execute(&mut *connection).await.map_err(classify)?;
        }
        Ok(())
    }

    pub(crate) async fn lease_relay(&self, ask: &AskOutgoing<'_>) -> Result<Vec<Outgoing>, Error> {
        // An idle outbox takes no write lock.
        let row = query(&self.sql.peek_outgoing)
            .bind(self.shift())
            .bind(ask.sink)
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
        if !get::<bool>(&row, 0)? {
            return Ok(Vec::new());
        }
        let mut write = self.writer.begin(Sync::Soft).await?;
        let connection = write.connection();
        let rows = query(&self.sql.due_outgoing)
            .bind(self.shift())
            .bind(ask.sink)
            .bind(ask.token.0)
            .bind(limit(ask.limit))
            .fetch_all(&mut *connection)
            .await
            .map_err(classify)?;
        let mut lanes: BTreeSet<u16> = BTreeSet::new();
        let mut outgoing = Vec::with_capacity(rows.len());
        for row in &rows {
            lanes.insert(get(row, 2)?);
            let (message, unreadable) = message(row, 4)?;
            let message = message.to(get::<String>(row, 3)?);
            outgoing.push(Outgoing { seq: get(row, 0)?, attempts: get(row, 1)?, message, unreadable });
        }
        query(&self.sql.lease_relay)
            .bind(self.shift())
            .bind(ask.sink)
            .bind(ask.token.0)
            .bind(list(lanes))
            .bind(micros(ask.lease_for))
            .execute(connection)
            .await
            .map_err(classify)?;
        write.commit().await?;
        Ok(outgoing)
    }

    pub(crate) async fn settle_relay(
        &self,
        sink: &str,
        token: Token,
        results: &[Sent],
        release: bool,
    ) -> Result<(), Error> {
        let mut confirmed = Vec::new();
        let mut unsent = Vec::new();
        for Sent { seq, outcome } in results {
            match outcome {
                SendOutcome::Confirmed => confirmed.push(*seq),
                SendOutcome::Retry(delay, error) => unsent.push((*seq, micros(*delay), error, false)),
                SendOutcome::Dead(error) => unsent.push((*seq, 0, error, true)),
            }
        }
        if results.is_empty() && !release {
            return Ok(());
        }
        let mut write = self.writer.begin(Sync::Durable).await?;
        let connection = write.connection();
        if !confirmed.is_empty() {
            let delete = query(&self.sql.delete_outgoing).bind(sink).bind(list(confirmed));
            delete.execute(&mut *connection).await.map_err(classify)?;
        }
        if !unsent.is_empty() {
            let unsent = unsent.iter().map(|(seq, delay, error, dead)| -> Value {
                serde_json::json!([seq, delay, error_text(error), i64::from(*dead)])
            });
            query(&self.sql.settle_outgoing)
                .bind(self.shift())
                .bind(sink)
                .bind(token.0)
                .bind(list(unsent))
                .execute(&mut *connection)
                .await
                .map_err(classify)?;
        }
        if release {
            let release = query(&self.sql.release_relay).bind(sink).bind(token.0);
            release.execute(connection).await.map_err(classify)?;
        }
        write.commit().await
    }

    pub(crate) async fn replay_dead_outgoing(&self, sink: &str) -> Result<u64, Error> {
        let rows = self
            .writer
            .run(Sync::Durable, || query(&self.sql.replay_outgoing).bind(self.shift()).bind(sink))
            .await?;
        Ok(rows.len() as u64)
    }
}
