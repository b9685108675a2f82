//! Wake-ups from other processes: MariaDB has no notifications, but two numbers tell whether anything has come.

use std::time::Duration;

use oncebox_core::{Error, Wake};
use sqlx::{Connection, MySqlConnection, Row};
use tokio::time::MissedTickBehavior;

use crate::error::classify;
use crate::store::Inner;

/// How often the database is asked; a message of another process waits at most this long.
const EVERY: Duration = Duration::from_millis(10);

impl Inner {
    /// Asks on a connection outside the store's pool, so that it takes none from the handlers.
    pub(crate) async fn listen(&self, wake: Wake) -> Result<(), Error> {
        let options = self.pool.connect_options();
        let mut connection = MySqlConnection::connect_with(&options).await.map_err(classify)?;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            if self.pool.is_closed() {
                return Err(classify(sqlx::Error::PoolClosed));
            }
            let row =
                self.sql.listen.query(self.shift()).fetch_one(&mut connection).await.map_err(classify)?;
            // The last numbers given to a received and to an outgoing message.
            let numbers: (Option<i64>, Option<i64>) =
                (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
            if last.replace(numbers) != Some(numbers) {
                wake.ring();
            }
        }
    }
}
