//! What operators leave behind: paused sources, the audit log, tokens.

use oncebox_core::Error;
use oncebox_core::admin::{Audit, AuditEntry, TokenInfo, check_name};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::error::{DUPLICATE, Problem};
use crate::rows::{limit, text, timestamp};
use crate::store::Inner;
use crate::tx::{reading, transaction};

impl Inner {
    pub(crate) async fn set_source_paused(&self, source: &str, paused: bool) -> Result<(), Error> {
        check_name("source", source)?;
        transaction!(self, |connection| {
            let set = self.sql.set_source_paused.query(self.shift()).bind(source.as_bytes()).bind(paused);
            set.execute(&mut *connection).await?;
            Ok(())
        })
    }

    pub(crate) async fn paused_sources(&self) -> Result<Vec<String>, Error> {
        reading!(self, |connection| {
            let rows = self.sql.paused_sources.query(self.shift()).fetch_all(&mut *connection).await?;
            rows.iter().map(|row| text(row, 0)).collect()
        })
    }

    pub(crate) async fn add_audit(&self, change: &Audit) -> Result<AuditEntry, Error> {
        transaction!(self, |connection| {
            let row = self
                .sql
                .add_audit
                .query(self.shift())
                .bind(change.actor.as_bytes())
                .bind(change.action.as_bytes())
                .bind(change.target.as_bytes())
                .bind(change.details.as_bytes())
                .fetch_one(&mut *connection)
                .await?;
            Ok(AuditEntry::new(row.try_get(0)?, timestamp(row.try_get(1)?)?, change.clone()))
        })
    }

    pub(crate) async fn audit(&self, before: Option<i64>, most: usize) -> Result<Vec<AuditEntry>, Error> {
        reading!(self, |connection| {
            let query = self.sql.audit.query(self.shift()).bind(before).bind(before).bind(limit(most));
            query.fetch_all(&mut *connection).await?.iter().map(entry).collect()
        })
    }

    pub(crate) async fn add_token(&self, token: &TokenInfo) -> Result<bool, Error> {
        check_name("token", &token.name)?;
        transaction!(self, |connection| {
            let add = self
                .sql
                .add_token
                .query(self.shift())
                .bind(token.name.as_bytes())
                .bind(token.hash.as_bytes())
                .bind(token.role.as_str().as_bytes())
                .bind(token.expires_at.map(|at| at.as_microsecond()));
            match add.execute(&mut *connection).await.map_err(Problem::from) {
                Ok(_) => Ok(true),
                Err(problem) if problem.number() == Some(DUPLICATE) => Ok(false),
                Err(problem) => Err(problem),
            }
        })
    }

    pub(crate) async fn tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        reading!(self, |connection| {
            let rows = self.sql.tokens.query(self.shift()).fetch_all(&mut *connection).await?;
            rows.iter().map(token).collect()
        })
    }

    pub(crate) async fn remove_token(&self, name: &str) -> Result<bool, Error> {
        check_name("token", name)?;
        transaction!(self, |connection| {
            let remove = self.sql.remove_token.query(self.shift()).bind(name.as_bytes());
            Ok(remove.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }
}

fn entry(row: &MySqlRow) -> Result<AuditEntry, Problem> {
    let change =
        Audit { actor: text(row, 2)?, action: text(row, 3)?, target: text(row, 4)?, details: text(row, 5)? };
    Ok(AuditEntry::new(row.try_get(0)?, timestamp(row.try_get(1)?)?, change))
}

fn token(row: &MySqlRow) -> Result<TokenInfo, Problem> {
    let expires_at = row.try_get::<Option<i64>, _>(4)?.map(timestamp).transpose()?;
    let created_at = timestamp(row.try_get(3)?)?;
    Ok(TokenInfo::stored(text(row, 0)?, text(row, 1)?, &text(row, 2)?, created_at, expires_at))
}
