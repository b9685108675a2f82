//! What operators leave behind: paused sources, the audit log, tokens.

use oncebox_core::Error;
use oncebox_core::admin::{Audit, AuditEntry, TokenInfo, check_name};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::deliveries::storable;
use crate::error::Problem;
use crate::rows::{limit, timestamp};
use crate::store::Inner;
use crate::tx::autocommit;

impl Inner {
    pub(crate) async fn set_source_paused(&self, source: &str, paused: bool) -> Result<(), Error> {
        check_name("source", source)?;
        autocommit!(self, |connection| {
            let set = self.sql.set_source_paused.query().bind(self.shift()).bind(source).bind(paused);
            set.execute(&mut *connection).await?;
            Ok(())
        })
    }

    pub(crate) async fn paused_sources(&self) -> Result<Vec<String>, Error> {
        autocommit!(self, |connection| {
            let rows = self.sql.paused_sources.query().fetch_all(&mut *connection).await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        })
    }

    pub(crate) async fn add_audit(&self, change: &Audit) -> Result<AuditEntry, Error> {
        let change = Audit {
            actor: storable(&change.actor),
            action: storable(&change.action),
            target: storable(&change.target),
            details: storable(&change.details),
        };
        autocommit!(self, |connection| {
            let row = self
                .sql
                .add_audit
                .query()
                .bind(self.shift())
                .bind(&change.actor)
                .bind(&change.action)
                .bind(&change.target)
                .bind(&change.details)
                .fetch_one(&mut *connection)
                .await?;
            Ok(AuditEntry::new(row.try_get(0)?, timestamp(row.try_get(1)?)?, change.clone()))
        })
    }

    pub(crate) async fn audit(&self, before: Option<i64>, most: usize) -> Result<Vec<AuditEntry>, Error> {
        autocommit!(self, |connection| {
            let rows =
                self.sql.audit.query().bind(before).bind(limit(most)).fetch_all(&mut *connection).await?;
            rows.iter().map(entry).collect()
        })
    }

    pub(crate) async fn add_token(&self, token: &TokenInfo) -> Result<bool, Error> {
        check_name("token", &token.name)?;
        autocommit!(self, |connection| {
            let add = self
                .sql
                .add_token
                .query()
                .bind(self.shift())
                .bind(&token.name)
                .bind(&token.hash)
                .bind(token.role.as_str())
                .bind(token.expires_at.map(|at| at.as_microsecond()));
            Ok(add.execute(&mut *connection).await?.rows_affected() == 1)
        })
    }

    pub(crate) async fn tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        autocommit!(self, |connection| {
            let rows = self.sql.tokens.query().fetch_all(&mut *connection).await?;
            rows.iter().map(token).collect()
        })
    }

    pub(crate) async fn remove_token(&self, name: &str) -> Result<bool, Error> {
        check_name("token", name)?;
        autocommit!(self, |connection| {
            let removed = self.sql.remove_token.query().bind(name).execute(&mut *connection).await?;
            Ok(removed.rows_affected() == 1)
        })
    }
}

fn entry(row: &PgRow) -> Result<AuditEntry, Problem> {
    let change = Audit {
        actor: row.try_get(2)?,
        action: row.try_get(3)?,
        target: row.try_get(4)?,
        details: row.try_get(5)?,
    };
    Ok(AuditEntry::new(row.try_get(0)?, timestamp(row.try_get(1)?)?, change))
}

fn token(row: &PgRow) -> Result<TokenInfo, Problem> {
    let expires_at = row.try_get::<Option<i64>, _>(4)?.map(timestamp).transpose()?;
    Ok(TokenInfo::stored(
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        timestamp(row.try_get(3)?)?,
        expires_at,
    ))
}
