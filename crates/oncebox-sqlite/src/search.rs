//! Finding messages in the log.

use std::time::{Duration, Instant};

use oncebox_core::admin::{LogReader, MessageHit, MessagePage, MessageSearch, Window};
use oncebox_core::{Error, LANES, identity};
use sqlx::SqliteConnection;

use crate::error::classify;
use crate::receive::LANE_BITS;
use crate::rows::{get, limit, list, message, timestamp};
use crate::sql::query;
use crate::store::SqliteStore;

/// The highest place within a lane.
const HIGHEST: i64 = (1 << LANE_BITS) - 1;

impl SqliteStore {
    pub(crate) async fn search_log(&self, search: &MessageSearch) -> Result<MessagePage, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let mut reader = Reader { store: self, connection: &mut connection, began_at: Instant::now() };
        match (&search.scope, &search.id) {
            (Some(scope), Some(id)) => reader.by_id(search, scope, id).await,
            _ => search.walk(&mut reader).await,
        }
    }
}

struct Reader<'a> {
    store: &'a SqliteStore,
    connection: &'a mut SqliteConnection,
    began_at: Instant,
}

impl Reader<'_> {
    async fn by_id(&mut self, search: &MessageSearch, scope: &str, id: &str) -> Result<MessagePage, Error> {
        let identity = identity(scope, id);
        let seen = query(&self.store.sql.search_seen).bind(&identity[..]);
        let row = seen.fetch_optional(&mut *self.connection).await.map_err(classify)?;
        let mut messages = match row {
            Some(row) => self.read(&[get(&row, 0)?], usize::MAX).await?,
            None => Vec::new(),
        };
        messages.retain(|hit| search.matches(hit));
        Ok(MessagePage { messages, next: None })
    }
}

impl LogReader for Reader<'_> {
    type Error = Error;
    type Place = i64;

    async fn last(&mut self, upto: i64) -> Result<Option<(i64, i64)>, Error> {
        let last = query(&self.store.sql.search_last).bind(list(0..LANES)).bind(upto.min(HIGHEST));
        let row = last.fetch_optional(&mut *self.connection).await.map_err(classify)?;
        row.map(|row| Ok((get(&row, 0)?, get(&row, 1)?))).transpose()
    }

    async fn places(
        &mut self,
        window: Window,
        search: &MessageSearch,
        most: usize,
    ) -> Result<Vec<(i64, i64)>, Error> {
        let places = query(&self.store.sql.search_places)
            .bind(list(0..LANES))
            .bind(window.low)
            .bind(window.high.min(HIGHEST))
            .bind(search.scope.clone())
            .bind(search.id.clone())
            .bind(search.exact_kind().map(str::to_owned))
            .bind(search.kind_prefix().map(str::to_owned))
            .bind(search.key.clone())
            .bind(search.since.map(jiff::Timestamp::as_microsecond))
            .bind(search.until.map(jiff::Timestamp::as_microsecond))
            .bind(limit(most));
        let rows = places.fetch_all(&mut *self.connection).await.map_err(classify)?;
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }

    async fn read(&mut self, places: &[i64], bytes: usize) -> Result<Vec<MessageHit>, Error> {
        let read = query(&self.store.sql.search_read).bind(list(places.iter().copied())).bind(limit(bytes));
        let rows = read.fetch_all(&mut *self.connection).await.map_err(classify)?;
        rows.iter()
            .map(|row| Ok(MessageHit::new(get(row, 0)?, timestamp(get(row, 1)?)?, message(row, 2)?.0)))
            .collect()
    }

    fn elapsed(&self) -> Duration {
        self.began_at.elapsed()
    }
}
