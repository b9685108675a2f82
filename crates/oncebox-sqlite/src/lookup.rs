//! One message and what became of it.

use oncebox_core::admin::{AttemptInfo, Conflict, Found, MessageInfo, Standing};
use oncebox_core::{Error, identity};

use crate::admin::{delivery_info, json};
use crate::error::classify;
use crate::rows::{get, message, timestamp};
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
            let kinds = json(get(&row, 1)?)?;
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
}
