//! What is wrong with the database, or soon will be.

use std::time::Duration;

use jiff::Timestamp;
use oncebox_core::Error;
use oncebox_core::admin::{Finding, Health, OVERDUE_AFTER, Overdue, Severity, rough};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use crate::error::Problem;
use crate::rows::{amount, duration, text, timestamp};
use crate::store::Inner;
use crate::tx::reading;

/// A transaction older than this keeps rows from being cleaned up.
const OLD_TRANSACTION: Duration = Duration::from_secs(5 * 60);
/// A pool whose connections are idle this long must not lose them.
const SHORT_WAIT: i64 = 60;
const MOST_CONFLICTS: usize = 1000;

impl Inner {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>, Error> {
        let mut all = self.setting_findings().await?;
        all.extend(self.old_transactions().await?);
        if let Err(error) = self.check_version().await {
            all.push(Finding::new("schema", Severity::Fault, error.to_string(), "run `oncebox migrate up`"));
            return Ok(all);
        }
        all.extend(self.engine_findings().await?);
        // A user who may not create a schema cannot compare; then nobody has asked him to.
        for difference in self.drift().await.unwrap_or_default() {
            let remedy = "undo the change, or restore the schema from its own release";
            all.push(Finding::new("schema-drift", Severity::Warning, difference, remedy));
        }
        all.extend(self.health().await?.findings());
        Ok(all)
    }

    /// Nothing from a user who may not see others' transactions (it takes the right `process`).
    async fn old_transactions(&self) -> Result<Vec<Finding>, Error> {
        let age = i64::try_from(OLD_TRANSACTION.as_micros()).unwrap_or(i64::MAX);
        reading!(self, |connection| {
            let old = self.sql.old_transactions.query(0).bind(self.shift()).bind(self.shift()).bind(age);
            match old.fetch_all(&mut *connection).await.map_err(Problem::from) {
                Ok(rows) => rows.iter().map(old_transaction).collect(),
                Err(problem) if problem.number() == Some(crate::error::NEEDS_RIGHT) => Ok(Vec::new()),
                Err(problem) => Err(problem),
            }
        })
    }

    async fn engine_findings(&self) -> Result<Vec<Finding>, Error> {
        reading!(self, |connection| {
            let mut all = Vec::new();
            let schema = self.options.schema.name();
            let tables = self.sql.foreign_engines.query(0).bind(schema);
            for row in tables.fetch_all(&mut *connection).await? {
                let (name, engine) = (text(&row, 0)?, text(&row, 1)?);
                all.push(Finding::new(
                    "engine",
                    Severity::Fault,
                    format!("table `{name}` is stored by {engine}, which knows no transactions"),
                    format!("run: alter table {schema}.{name} engine = innodb"),
                ));
            }
            let timeouts = self.sql.timeouts.query(0).fetch_one(&mut *connection).await?;
            let wait: i64 = timeouts.try_get(0)?;
            if wait < SHORT_WAIT {
                let what = format!(
                    "wait_timeout is {wait} s: the server closes connections that the pool still holds"
                );
                all.push(Finding::new(
                    "wait-timeout",
                    Severity::Warning,
                    what,
                    "set wait_timeout to some minutes or more",
                ));
            }
            Ok(all)
        })
    }

    async fn health(&self) -> Result<Health, Error> {
        let handlers = self.handlers().await?;
        let (database_clock, own_clock) = reading!(self, |connection| {
            let now = self.sql.clock.query(self.shift()).fetch_one(&mut *connection).await?;
            Ok((timestamp(now.try_get(0)?)?, Timestamp::now()))
        })?;
        let overdue = reading!(self, |connection| {
            let mut all = Vec::new();
            for handler in &handlers {
                all.extend(self.overdue(connection, &handler.name).await?);
            }
            Ok(all)
        })?;
        let (outbox, conflicts) = (self.outbox().await?, self.count_conflicts(MOST_CONFLICTS).await?);
        Ok(Health { database_clock, own_clock, handlers, overdue, outbox, conflicts })
    }

    async fn overdue(
        &self,
        connection: &mut MySqlConnection,
        handler: &str,
    ) -> Result<Option<Overdue>, Problem> {
        let due = self.sql.overdue.query(self.shift()).bind(handler.as_bytes()).bind(OVERDUE_AFTER);
        let row = due.fetch_one(connection).await?;
        let count = amount(&row, 0)?;
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(Overdue { handler: handler.to_owned(), count, longest: duration(row.try_get(1)?) }))
    }
}

fn old_transaction(row: &MySqlRow) -> Result<Finding, Problem> {
    let session: i64 = row.try_get(0)?;
    let what = format!(
        "a transaction of user `{}` from {} (session {session}, {}) has been open for {} and keeps old rows from being \
         cleaned up",
        text(row, 1)?,
        text(row, 2)?,
        text(row, 3)?,
        rough(duration(row.try_get(4)?)),
    );
    let remedy = format!("end it where it was begun, or with: kill connection {session}");
    Ok(Finding::new("old-transaction", Severity::Warning, what, remedy))
}
