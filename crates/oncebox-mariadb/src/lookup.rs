//! One message and what became of it.

use oncebox_core::admin::{AttemptInfo, Conflict, Found, MessageInfo, Standing};
use oncebox_core::{Error, identity};
use sqlx::{MySqlConnection, Row};

use crate::admin::delivery_info;
use crate::error::Problem;
use crate::rows::{self, attempts, text, timestamp};
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
