//! One message and what became of it, conflicts, and what is in the outbox.

use jiff::Timestamp;
use oncebox_core::admin::{
    AttemptInfo, Conflict, ConflictAsk, ConflictPage, ConflictPlace, Found, MessageInfo, OutgoingFilter,
    OutgoingInfo, OutgoingState, Standing,
};
use oncebox_core::{Error, identity};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use crate::admin::delivery_info;
use crate::error::Problem;
use crate::rows::{self, amount, attempts, limit, optional_text, sixteen, text, timestamp};
use crate::store::Inner;
use crate::tx::reading;

impl Inner {
    pub(crate) async fn message(&self, scope: &str, id: &str) -> Result<Option<MessageInfo>, Error> {
        let identity = identity(scope, id);
        reading!(self, |connection| {
            let found = self.find(connection, identity).await?;
            Ok(found.map(Found::into_info))
        })
    }

    pub(crate) async fn read_clock(&self) -> Result<Timestamp, Error> {
        reading!(self, |connection| {
            let row = self.sql.clock.query(self.shift()).fetch_one(&mut *connection).await?;
            Ok(timestamp(row.try_get(0)?)?)
        })
    }

    pub(crate) async fn conflict_page(&self, ask: &ConflictAsk) -> Result<ConflictPage, Error> {
        let received_at = ask.after.map(|place| place.received_at);
        let identity = ask.after.map(|place| place.identity.to_vec());
        let fingerprint = ask.after.map(|place| place.fingerprint.to_vec());
        let bytes = ask.bytes.map(limit);
        reading!(self, |connection| {
            let page = self
                .sql
                .conflict_page
                .query(0)
                .bind(received_at)
                .bind(received_at)
                .bind(received_at)
                .bind(identity.clone())
                .bind(identity.clone())
                .bind(fingerprint.clone())
                .bind(limit(ask.most()))
                .bind(bytes)
                .bind(bytes);
            let rows = page.fetch_all(&mut *connection).await?;
            let rows: Vec<_> = rows.iter().map(placed).collect::<Result<_, Problem>>()?;
            Ok(ask.page(rows))
        })
    }

    pub(crate) async fn count_conflicts(&self, most: usize) -> Result<u64, Error> {
        reading!(self, |connection| {
            let count = self.sql.count_conflicts.query(0).bind(limit(most));
            amount(&count.fetch_one(&mut *connection).await?, 0)
        })
    }

    /// Sink by sink and state by state, because that is what the index helps with.
    pub(crate) async fn outgoing(&self, filter: &OutgoingFilter) -> Result<Vec<OutgoingInfo>, Error> {
        let most = filter.limit.unwrap_or(100);
        let states: &[i8] = match filter.state {
            None => &[0, 1, 2],
            Some(OutgoingState::Waiting) => &[0],
            Some(OutgoingState::Retrying) => &[1],
            Some(OutgoingState::Dead) => &[2],
            // A state this version does not know has no rows.
            Some(_) => &[],
        };
        reading!(self, |connection| {
            let sinks = match &filter.sink {
                Some(sink) => vec![sink.clone()],
                None => {
                    let sinks = self.sql.outbox_sinks.query(self.shift()).fetch_all(&mut *connection).await?;
                    sinks.iter().map(|row| text(row, 0)).collect::<Result<_, _>>()?
                }
            };
            let mut all = Vec::new();
            for sink in &sinks {
                for state in states {
                    let list = self.sql.outgoing.query(0).bind(sink.as_bytes()).bind(*state);
                    let list = list.bind(filter.after.unwrap_or(i64::MIN)).bind(limit(most));
                    for row in list.fetch_all(&mut *connection).await? {
                        all.push(outgoing(&row)?);
                    }
                }
            }
            all.sort_unstable_by_key(|one: &OutgoingInfo| one.seq);
            all.truncate(most);
            Ok(all)
        })
    }

    async fn find(
        &self,
        connection: &mut MySqlConnection,
        identity: [u8; 16],
    ) -> Result<Option<Found>, Problem> {
        let sql = &self.sql;
        let Some(seen) =
            sql.find_message.query(0).bind(&identity[..]).fetch_optional(&mut *connection).await?
        else {
            return Ok(None);
        };
        let lane: Option<i16> = seen.try_get(2)?;
        let mut found = Found {
            seen_at: timestamp(seen.try_get(0)?)?,
            // Negative for messages handled inline.
            seq: Some(seen.try_get(1)?).filter(|seq| *seq > 0),
            logged: None,
            standing: Vec::new(),
            deliveries: Vec::new(),
            attempts: Vec::new(),
            conflicts: Vec::new(),
        };
        if let Some(received_at) = seen.try_get(3)? {
            found.logged = Some((timestamp(received_at)?, rows::message(&seen, 4)?.0));
        }
        for row in sql.standing.query(0).bind(lane).fetch_all(&mut *connection).await? {
            let kinds = serde_json::from_str(&text(&row, 1)?).unwrap_or_default();
            found.standing.push(Standing { handler: text(&row, 0)?, kinds, position: row.try_get(2)? });
        }
        for row in sql.deliveries_of.query(0).bind(&identity[..]).fetch_all(&mut *connection).await? {
            found.deliveries.push(delivery_info(&row)?);
        }
        for row in sql.attempts_of.query(0).bind(&identity[..]).fetch_all(&mut *connection).await? {
            let attempt = AttemptInfo {
                attempt: attempts(&row, 1)?,
                at: timestamp(row.try_get(2)?)?,
                error: text(&row, 3)?,
            };
            found.attempts.push((text(&row, 0)?, attempt));
        }
        for row in sql.conflicts_of.query(0).bind(&identity[..]).fetch_all(&mut *connection).await? {
            let received_at = timestamp(row.try_get(0)?)?;
            found.conflicts.push(Conflict { message: rows::message(&row, 1)?.0, received_at });
        }
        Ok(Some(found))
    }
}

fn placed(row: &MySqlRow) -> Result<(ConflictPlace, Conflict), Problem> {
    let received_at = row.try_get(0)?;
    let place = ConflictPlace { received_at, identity: sixteen(row, 8)?, fingerprint: sixteen(row, 9)? };
    Ok((place, Conflict { message: rows::message(row, 1)?.0, received_at: timestamp(received_at)? }))
}

fn outgoing(row: &MySqlRow) -> Result<OutgoingInfo, Problem> {
    let attempts = attempts(row, 2)?;
    Ok(OutgoingInfo {
        seq: row.try_get(0)?,
        sink: text(row, 1)?,
        state: OutgoingState::of(row.try_get::<i8, _>(3)? == 2, attempts),
        attempts,
        due_at: timestamp(row.try_get(4)?)?,
        created_at: timestamp(row.try_get(5)?)?,
        error: optional_text(row, 6)?,
        scope: text(row, 7)?,
        id: text(row, 8)?,
        kind: text(row, 9)?,
        key: optional_text(row, 10)?,
    })
}
