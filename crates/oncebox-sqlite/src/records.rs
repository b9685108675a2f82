//! What operators leave behind: paused sources, the audit log, tokens.

use oncebox_core::admin::{Audit, AuditEntry, TokenInfo, check_name};
use oncebox_core::{Error, ErrorKind};
use sqlx::sqlite::SqliteRow;

use crate::error::classify;
use crate::rows::{error_text, get, limit, timestamp};
use crate::sql::query;
use crate::store::SqliteStore;
use crate::tx::writer::Sync;

impl SqliteStore {
    pub(crate) async fn pause_source(&self, source: &str, paused: bool) -> Result<(), Error> {
        check_name("source", source)?;
        let set = || query(&self.sql.set_source_paused).bind(self.shift()).bind(source).bind(paused);
        self.writer.run(Sync::Durable, set).await?;
        Ok(())
    }

    pub(crate) async fn list_paused_sources(&self) -> Result<Vec<String>, Error> {
        let rows = query(&self.sql.paused_sources).fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    pub(crate) async fn write_audit(&self, change: &Audit) -> Result<AuditEntry, Error> {
        let change = Audit {
            actor: error_text(&change.actor),
            action: error_text(&change.action),
            target: error_text(&change.target),
            details: error_text(&change.details),
        };
        let add = || {
            query(&self.sql.add_audit)
                .bind(self.shift())
                .bind(&change.actor)
                .bind(&change.action)
                .bind(&change.target)
                .bind(&change.details)
        };
        let rows = self.writer.run(Sync::Durable, add).await?;
        let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Store, "an insert gave no row"))?;
        Ok(AuditEntry::new(get(row, 0)?, timestamp(get(row, 1)?)?, change.clone()))
    }

    pub(crate) async fn list_audit(
        &self,
        before: Option<i64>,
        most: usize,
    ) -> Result<Vec<AuditEntry>, Error> {
        let list = query(&self.sql.audit).bind(before).bind(limit(most));
        list.fetch_all(&self.pool).await.map_err(classify)?.iter().map(entry).collect()
    }

    pub(crate) async fn write_token(&self, token: &TokenInfo) -> Result<bool, Error> {
        check_name("token", &token.name)?;
        let add = || {
            query(&self.sql.add_token)
                .bind(self.shift())
                .bind(&token.name)
                .bind(&token.hash)
                .bind(token.role.as_str())
                .bind(token.expires_at.map(jiff::Timestamp::as_microsecond))
        };
        Ok(!self.writer.run(Sync::Durable, add).await?.is_empty())
    }

    pub(crate) async fn list_tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        let rows = query(&self.sql.tokens).fetch_all(&self.pool).await.map_err(classify)?;
        rows.iter().map(token).collect()
    }

    pub(crate) async fn delete_token(&self, name: &str) -> Result<bool, Error> {
        check_name("token", name)?;
        let rows = self.writer.run(Sync::Durable, || query(&self.sql.remove_token).bind(name)).await?;
        Ok(!rows.is_empty())
    }
}

fn entry(row: &SqliteRow) -> Result<AuditEntry, Error> {
    let change =
        Audit { actor: get(row, 2)?, action: get(row, 3)?, target: get(row, 4)?, details: get(row, 5)? };
    Ok(AuditEntry::new(get(row, 0)?, timestamp(get(row, 1)?)?, change))
}

fn token(row: &SqliteRow) -> Result<TokenInfo, Error> {
    let expires_at = get::<Option<i64>>(row, 4)?.map(timestamp).transpose()?;
    Ok(TokenInfo::stored(get(row, 0)?, get(row, 1)?, get(row, 2)?, timestamp(get(row, 3)?)?, expires_at))
}
