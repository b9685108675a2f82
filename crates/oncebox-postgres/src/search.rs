//! Finding messages in the log.

use std::time::{Duration, Instant};

use oncebox_core::admin::{LogReader, MessageHit, MessagePage, MessageSearch, Window};
use oncebox_core::{Error, LANES, identity};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::error::Problem;
use crate::rows::{self, limit, timestamp};
use crate::store::Inner;
use crate::tx::transaction;

impl Inner {
    pub(crate) async fn messages(&self, search: &MessageSearch) -> Result<MessagePage, Error> {
        let texts = [&search.scope, &search.id, &search.kind, &search.key];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            // Postgres keeps no NUL in text, and takes none.
            return Ok(MessagePage { messages: Vec::new(), next: None });
        }
        // Young tables have no statistics; the planner's guess would start a compiler for a few rows.
        transaction!(self, |connection| {
            self.sql.no_jit.query().execute(&mut *connection).await?;
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
    connection: &'a mut PgConnection,
    began_at: Instant,
}

impl Reader<'_> {
    async fn by_id(&mut self, search: &MessageSearch, scope: &str, id: &str) -> Result<MessagePage, Problem> {
        let identity = Uuid::from_bytes(identity(scope, id));
        let seen = self.inner.sql.search_seen.query().bind(identity);
        let row = seen.fetch_optional(&mut *self.connection).await?;
        let place = row.map(|row| Ok::<_, Problem>((row.try_get(1)?, row.try_get(0)?))).transpose()?;
        let mut messages = match place {
            Some((Some(lane), Some(seq))) => self.read(&[(lane, seq)], usize::MAX).await?,
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
        let last = self.inner.sql.search_last.query().bind(i32::from(LANES)).bind(upto);
        let row = last.fetch_optional(&mut *self.connection).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    async fn places(
        &mut self,
        window: Window,
        search: &MessageSearch,
        most: usize,
    ) -> Result<Vec<(i64, (i16, i64))>, Problem> {
        let places = self
            .inner
            .sql
            .search_places
            .query()
            .bind(i32::from(LANES))
            .bind(window.low)
            .bind(window.high)
            .bind(search.scope.as_deref())
            .bind(search.id.as_deref())
            .bind(search.exact_kind())
            .bind(search.kind_prefix())
            .bind(search.key.as_deref())
            .bind(search.since.map(|since| since.as_microsecond()))
            .bind(search.until.map(|until| until.as_microsecond()))
            .bind(limit(most));
        let rows = places.fetch_all(&mut *self.connection).await?;
        rows.iter()
            .map(|row| {
                let (lane, seq) = (row.try_get(0)?, row.try_get(1)?);
                Ok((seq, (lane, seq)))
            })
            .collect()
    }

    async fn read(&mut self, places: &[(i16, i64)], bytes: usize) -> Result<Vec<MessageHit>, Problem> {
        let (lanes, seqs): (Vec<i16>, Vec<i64>) = places.iter().copied().unzip();
        let read = self.inner.sql.search_read.query().bind(lanes).bind(seqs).bind(limit(bytes));
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
