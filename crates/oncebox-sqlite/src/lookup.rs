//! One message and what became of it, conflicts, and what is in the outbox.

use oncebox_core::admin::{
    AttemptInfo, Conflict, ConflictAsk, ConflictPage, ConflictPlace, Found, MessageInfo, OutgoingFilter,
    OutgoingInfo, OutgoingState, Standing,
};
use oncebox_core::{Error, identity};

use crate::admin::{delivery_info, json};
use crate::error::classify;
use crate::rows::{get, limit, message, sixteen, timestamp};
use crate::sql::query;
use crate::store::SqliteStore;

impl SqliteStore {
    pub(crate) async fn find_message(&self, scope: &str, id: &str) -> Result<Option<MessageInfo>, Error> {
        let identity = identity(scope, id);
        let identity = &identity[..];
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let find = query(&self.sql.find_message).bind(identity);
        let Some(seen) = find.fetch_optional(&mut *connection).await.map_err(classify)? else {
            return Ok(None);
        };
        let lane: Option<i64> = get(&seen, 2)?;
        let mut found = Found {
            seen_at: timestamp(get(&seen, 0)?)?,
            seq: get(&seen, 1)?,
            logged: None,
            standing: Vec::new(),
            deliveries: Vec::new(),
            attempts: Vec::new(),
            conflicts: Vec::new(),
        };
        if let Some(received_at) = get(&seen, 3)? {
            found.logged = Some((timestamp(received_at)?, message(&seen, 4)?.0));
        }
        let standing = query(&self.sql.standing).bind(lane);
        for row in standing.fetch_all(&mut *connection).await.map_err(classify)? {
            let kinds = json(get(&row, 1)?).unwrap_or_default();
            found.standing.push(Standing { handler: get(&row, 0)?, kinds, position: get(&row, 2)? });
        }
        let deliveries = query(&self.sql.deliveries_of).bind(identity);
        for row in deliveries.fetch_all(&mut *connection).await.map_err(classify)? {
            found.deliveries.push(delivery_info(&row)?);
        }
        let attempts = query(&self.sql.attempts_of).bind(identity);
        for row in attempts.fetch_all(&mut *connection).await.map_err(classify)? {
            let attempt =
                AttemptInfo { attempt: get(&row, 1)?, at: timestamp(get(&row, 2)?)?, error: get(&row, 3)? };
            found.attempts.push((get(&row, 0)?, attempt));
        }
        let conflicts = query(&self.sql.conflicts_of).bind(identity);
        for row in conflicts.fetch_all(&mut *connection).await.map_err(classify)? {
            let received_at = timestamp(get(&row, 0)?)?;
            found.conflicts.push(Conflict { message: message(&row, 1)?.0, received_at });
        }
        Ok(Some(found.into_info()))
    }

    pub(crate) async fn page_of_conflicts(&self, ask: &ConflictAsk) -> Result<ConflictPage, Error> {
        let after = ask.after.as_ref();
        let page = query(&self.sql.conflict_page)
            .bind(after.map(|place| place.received_at))
            .bind(after.map(|place| place.identity.to_vec()))
            .bind(after.map(|place| place.fingerprint.to_vec()))
            .bind(limit(ask.most()))
            .bind(ask.bytes.map(limit));
        let mut rows = Vec::new();
        for row in page.fetch_all(&self.pool).await.map_err(classify)? {
            let received_at = get(&row, 0)?;
            let place =
                ConflictPlace { received_at, identity: sixteen(&row, 8)?, fingerprint: sixteen(&row, 9)? };
            let received_at = timestamp(received_at)?;
            rows.push((place, Conflict { message: message(&row, 1)?.0, received_at }));
        }
        Ok(ask.page(rows))
    }

    pub(crate) async fn count_conflicts(&self, most: usize) -> Result<u64, Error> {
        let count = query(&self.sql.count_conflicts).bind(limit(most));
        let row = count.fetch_one(&self.pool).await.map_err(classify)?;
        Ok(crate::rows::count(get(&row, 0)?))
    }

    pub(crate) async fn list_outgoing(&self, filter: &OutgoingFilter) -> Result<Vec<OutgoingInfo>, Error> {
        let dead = filter.state.map(|state| state == OutgoingState::Dead);
        let tried =
            filter.state.filter(|_| dead == Some(false)).map(|state| state == OutgoingState::Retrying);
        let list = query(&self.sql.outgoing)
            .bind(filter.sink.clone())
            .bind(dead)
            .bind(tried)
            .bind(filter.after)
            .bind(limit(filter.limit.unwrap_or(100)));
        let rows = list.fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter()
            .map(|row| {
                let attempts = get(row, 2)?;
                Ok(OutgoingInfo {
                    seq: get(row, 0)?,
                    sink: get(row, 1)?,
                    state: OutgoingState::of(get(row, 3)?, attempts),
                    attempts,
                    due_at: timestamp(get(row, 4)?)?,
                    created_at: timestamp(get(row, 5)?)?,
                    error: get(row, 6)?,
                    scope: get(row, 7)?,
                    id: get(row, 8)?,
                    kind: get(row, 9)?,
                    key: get(row, 10)?,
                })
            })
            .collect()
    }
}
