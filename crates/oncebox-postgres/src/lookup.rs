//! One message and what became of it, conflicts, and what is in the outbox.

use jiff::Timestamp;
use oncebox_core::admin::{
    AttemptInfo, Conflict, ConflictAsk, ConflictPage, ConflictPlace, Found, MessageInfo, OutgoingFilter,
    OutgoingInfo, OutgoingState, Standing,
};
use oncebox_core::{Error, identity};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::admin::delivery_info;
use crate::error::Problem;
use crate::rows::{self, amount, attempts, limit, timestamp};
use crate::store::Inner;
use crate::tx::autocommit;

impl Inner {
    pub(crate) async fn message(&self, scope: &str, id: &str) -> Result<Option<MessageInfo>, Error> {
        let identity = Uuid::from_bytes(identity(scope, id));
        autocommit!(self, |connection| {
            let found = self.find(connection, identity).await?;
            Ok(found.map(Found::into_info))
        })
    }

    pub(crate) async fn read_clock(&self) -> Result<Timestamp, Error> {
        autocommit!(self, |connection| {
            let row = self.sql.clock.query().bind(self.shift()).fetch_one(&mut *connection).await?;
            Ok(timestamp(row.try_get(0)?)?)
        })
    }

    pub(crate) async fn conflict_page(&self, ask: &ConflictAsk) -> Result<ConflictPage, Error> {
        let after = ask.after;
        autocommit!(self, |connection| {
            let page = self
                .sql
                .conflict_page
                .query()
                .bind(after.map(|place| place.received_at))
                .bind(after.map(|place| Uuid::from_bytes(place.identity)))
                .bind(after.map(|place| Uuid::from_bytes(place.fingerprint)))
                .bind(limit(ask.most()))
                .bind(ask.bytes.map(limit));
            let rows = page.fetch_all(&mut *connection).await?;
            let rows: Vec<_> = rows.iter().map(placed).collect::<Result<_, Problem>>()?;
            Ok(ask.page(rows))
        })
    }

    pub(crate) async fn count_conflicts(&self, most: usize) -> Result<u64, Error> {
        autocommit!(self, |connection| {
            let count = self.sql.count_conflicts.query().bind(limit(most));
            amount(&count.fetch_one(&mut *connection).await?, 0)
        })
    }

    pub(crate) async fn outgoing(&self, filter: &OutgoingFilter) -> Result<Vec<OutgoingInfo>, Error> {
        let dead = filter.state.map(|state| state == OutgoingState::Dead);
        let tried =
            filter.state.filter(|_| dead == Some(false)).map(|state| state == OutgoingState::Retrying);
        autocommit!(self, |connection| {
            let list = self
                .sql
                .outgoing
                .query()
                .bind(&filter.sink)
                .bind(dead)
                .bind(tried)
                .bind(filter.after)
                .bind(limit(filter.limit.unwrap_or(100)));
            list.fetch_all(&mut *connection).await?.iter().map(outgoing).collect()
        })
    }

    async fn find(&self, connection: &mut PgConnection, identity: Uuid) -> Result<Option<Found>, Problem> {
        let sql = &self.sql;
        let Some(seen) = sql.find_message.query().bind(identity).fetch_optional(&mut *connection).await?
        else {
            return Ok(None);
        };
        let lane: Option<i16> = seen.try_get(2)?;
        let mut found = Found {
            seen_at: timestamp(seen.try_get(0)?)?,
            seq: seen.try_get(1)?,
            logged: None,
            standing: Vec::new(),
            deliveries: Vec::new(),
            attempts: Vec::new(),
            conflicts: Vec::new(),
        };
        if let Some(received_at) = seen.try_get(3)? {
            found.logged = Some((timestamp(received_at)?, rows::message(&seen, 4)?.0));
        }
        for row in sql.standing.query().bind(lane).fetch_all(&mut *connection).await? {
            let kinds = serde_json::from_str(row.try_get(1)?).unwrap_or_default();
            found.standing.push(Standing { handler: row.try_get(0)?, kinds, position: row.try_get(2)? });
        }
        for row in sql.deliveries_of.query().bind(identity).fetch_all(&mut *connection).await? {
            found.deliveries.push(delivery_info(&row)?);
        }
        for row in sql.attempts_of.query().bind(identity).fetch_all(&mut *connection).await? {
            let attempt = AttemptInfo {
                attempt: attempts(&row, 1)?,
                at: timestamp(row.try_get(2)?)?,
                error: row.try_get(3)?,
            };
            found.attempts.push((row.try_get(0)?, attempt));
        }
        for row in sql.conflicts_of.query().bind(identity).fetch_all(&mut *connection).await? {
            let received_at = timestamp(row.try_get(0)?)?;
            found.conflicts.push(Conflict { message: rows::message(&row, 1)?.0, received_at });
        }
        Ok(Some(found))
    }
}

fn placed(row: &PgRow) -> Result<(ConflictPlace, Conflict), Problem> {
    let received_at = row.try_get(0)?;
    let (identity, fingerprint): (Uuid, Uuid) = (row.try_get(8)?, row.try_get(9)?);
    let place =
        ConflictPlace { received_at, identity: identity.into_bytes(), fingerprint: fingerprint.into_bytes() };
    Ok((place, Conflict { message: rows::message(row, 1)?.0, received_at: timestamp(received_at)? }))
}

fn outgoing(row: &PgRow) -> Result<OutgoingInfo, Problem> {
    let attempts = attempts(row, 2)?;
    Ok(OutgoingInfo {
        seq: row.try_get(0)?,
        sink: row.try_get(1)?,
        state: OutgoingState::of(row.try_get(3)?, attempts),
        attempts,
        due_at: timestamp(row.try_get(4)?)?,
        created_at: timestamp(row.try_get(5)?)?,
        error: row.try_get(6)?,
        scope: row.try_get(7)?,
        id: row.try_get(8)?,
        kind: row.try_get(9)?,
        key: row.try_get(10)?,
    })
}
