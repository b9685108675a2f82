//! Wake-ups from other processes: SQLite has no notifications, but one can ask cheaply whether the file has changed.

use std::time::Duration;

use oncebox_core::{Error, Wake};
use sqlx::{ConnectOptions, Row};
use tokio::time::MissedTickBehavior;

use crate::error::classify;
use crate::store::SqliteStore;

/// How often the database is asked; a message of another process waits at most this long.
const EVERY: Duration = Duration::from_millis(20);

impl SqliteStore {
    pub(crate) async fn listen_for_changes(&self, wake: Wake) -> Result<(), Error> {
        // A connection of its own: the version counts the commits of all others.
        let options = self.pool.connect_options();
        let mut connection = options.connect().await.map_err(classify)?;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            if self.pool.is_closed() {
                return Err(classify(sqlx::Error::PoolClosed));
            }
            let row =
                sqlx::query("pragma data_version").fetch_one(&mut connection).await.map_err(classify)?;
            let version: i64 = row.try_get(0).map_err(classify)?;
            if last.replace(version) != Some(version) {
                wake.ring();
            }
        }
    }
}
