//! Finding messages in the log.

use std::time::{Duration, Instant};

use oncebox_core::admin::{LogReader, MessageHit, MessagePage, MessageSearch, Window};
use oncebox_core::{Error, identity};
use serde_json::json;
use sqlx::{MySqlConnection, Row};

use crate::error::Problem;
use crate::rows::{self, limit, list, timestamp};
use crate::sql;
use crate::store::Inner;
use crate::tx::{reading, run_text};

impl Inner {
    pub(crate) async fn messages(&self, search: &MessageSearch) -> Result<MessagePage, Error> {
        reading!(self, |connection| {
            let mut reader = Reader { inner: self, connection, began_at: Instant::now() };
            match (&search.scope, &search.id) {
                (Some(scope), Some(id)) => reader.by_id(search, scope, id).await,
                _ => search.walk(&mut reader).await,
            }
        })
    }
}

struct Reader<'a> {
    inner: &'a Inner,
    connection: &'a mut MySqlConnection,
    began_at: Instant,
}

impl Reader<'_> {
    async fn by_id(&mut self, search: &MessageSearch, scope: &str, id: &str) -> Result<MessagePage, Problem> {
        let identity = identity(scope, id);
        let seen = self.inner.sql.search_seen.query(0).bind(&identity[..]);
        let row = seen.fetch_optional(&mut *self.connection).await?;
        let place = row.map(|row| Ok::<_, Problem>((row.try_get(1)?, row.try_get(0)?))).transpose()?;
        let mut messages = match place {
            Some((Some(lane), seq)) => self.read(&[(lane, seq)], usize::MAX).await?,
            _ => Vec::new(),
        };
        messages.retain(|hit| search.matches(hit));
        Ok(MessagePage { messages, next: None })
    }
}

impl LogReader for Reader<'_> {
    type Error = Problem;
    type Place = (i16, i64);

    async fn last(&mut self, upto: i64) -> Result<Option<(i64, i64)>, Problem> {
        let text = sql::search_last(&self.inner.options.schema, upto);
        let answers = run_text(self.connection, text).await?;
        let row = answers.iter().find_map(|answer| answer.rows.first());
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    async fn places(
        &mut self,
        window: Window,
        search: &MessageSearch,
        most: usize,
    ) -> Result<Vec<(i64, (i16, i64))>, Problem> {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let mut places = self.inner.sql.search_places.query(0).bind(window.low).bind(window.high);
        for text in [search.scope.as_deref(), search.id.as_deref(), search.exact_kind()] {
            places = places.bind(bytes(text)).bind(bytes(text));
        }
        let prefix = bytes(search.kind_prefix());
        places = places.bind(prefix.clone()).bind(prefix.clone()).bind(prefix);
        places = places.bind(bytes(search.key.as_deref())).bind(bytes(search.key.as_deref()));
        for time in [search.since, search.until] {
            let micros = time.map(|time| time.as_microsecond());
            places = places.bind(micros).bind(micros);
        }
        let places = places.bind(limit(most));
        let rows = places.fetch_all(&mut *self.connection).await?;
        rows.iter()
            .map(|row| {
                let (lane, seq) = (row.try_get(0)?, row.try_get(1)?);
                Ok((seq, (lane, seq)))
            })
            .collect()
    }

    async fn read(&mut self, places: &[(i16, i64)], bytes: usize) -> Result<Vec<MessageHit>, Problem> {
        let places = list(places.iter().map(|(lane, seq)| json!([lane, seq])));
        let read = self.inner.sql.search_read.query(0).bind(places).bind(limit(bytes));
        let rows = read.fetch_all(&mut *self.connection).await?;
        rows.iter()
            .map(|row| {
                let received_at = timestamp(row.try_get(1)?)?;
                Ok(MessageHit::new(row.try_get(0)?, received_at, rows::message(row, 2)?.0))
            })
            .collect()
    }

    fn elapsed(&self) -> Duration {
        self.began_at.elapsed()
    }
}
