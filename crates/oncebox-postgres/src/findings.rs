//! What is wrong with the database, or soon will be.

use std::time::Duration;

use jiff::Timestamp;
use oncebox_core::Error;
use oncebox_core::admin::{Finding, Health, OVERDUE_AFTER, Overdue, Severity, rough};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Problem;
use crate::rows::{amount, duration, timestamp};
use crate::store::Inner;
use crate::tx::autocommit;

/// A transaction older than this keeps rows from being cleaned up.
const OLD_TRANSACTION: Duration = Duration::from_secs(5 * 60);
/// A table is bloated when it has this many dead rows, and this many for each that lives.
const BLOAT: (u64, u64) = (10_000, 5);
const MOST_CONFLICTS: usize = 1000;

impl Inner {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>, Error> {
        let mut all = self.server_findings().await?;
        if let Err(error) = self.check_version().await {
            all.push(Finding::new("schema", Severity::Fault, error.to_string(), "run `oncebox migrate up`"));
            return Ok(all);
        }
        all.extend(self.table_findings().await?);
        // A role that may not create a schema cannot compare; then nobody has asked it to.
        for difference in self.drift().await.unwrap_or_default() {
            let remedy = "undo the change, or restore the schema from its own release";
            all.push(Finding::new("schema-drift", Severity::Warning, difference, remedy));
        }
        all.extend(self.health().await?.findings());
        Ok(all)
    }

    async fn server_findings(&self) -> Result<Vec<Finding>, Error> {
        autocommit!(self, |connection| {
            let mut all = settings(&self.sql.examine.query().fetch_one(&mut *connection).await?)?;
            let age = i64::try_from(OLD_TRANSACTION.as_micros()).unwrap_or(i64::MAX);
            let old = self.sql.old_transactions.query().bind(self.shift()).bind(age);
            for row in old.fetch_all(&mut *connection).await? {
                all.push(old_transaction(&row)?);
            }
            for row in self.sql.idle_slots.query().fetch_all(&mut *connection).await? {
                let (name, rows, bytes): (&str, Option<i64>, Option<i64>) =
                    (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                let mut held = Vec::new();
                held.extend(bytes.map(|bytes| format!("{} MiB of the write-ahead log", bytes >> 20)));
                held.extend(rows.map(|age| format!("rows of the last {age} transactions")));
                all.push(Finding::new(
                    "replication-slot",
                    Severity::Warning,
                    format!(
                        "nobody reads the replication slot `{name}`, which holds back {}",
                        held.join(" and ")
                    ),
                    format!("start its replica, or drop it: select pg_drop_replication_slot('{name}')"),
                ));
            }
            Ok(all)
        })
    }

    async fn table_findings(&self) -> Result<Vec<Finding>, Error> {
        autocommit!(self, |connection| {
            let tables = self.sql.table_health.query().bind(self.options.schema.name());
            let mut all = Vec::new();
            for row in tables.fetch_all(&mut *connection).await? {
                all.extend(table(&row, &self.options.schema.quoted())?);
            }
            Ok(all)
        })
    }

    async fn health(&self) -> Result<Health, Error> {
        let (now, overdue) = autocommit!(self, |connection| {
            let now: i64 =
                self.sql.clock.query().bind(self.shift()).fetch_one(&mut *connection).await?.try_get(0)?;
            let rows = self.sql.overdue.query().bind(self.shift()).bind(OVERDUE_AFTER);
            let overdue = rows.fetch_all(&mut *connection).await?;
            let overdue: Vec<Overdue> = overdue.iter().map(overdue_of).collect::<Result<_, _>>()?;
            Ok(((timestamp(now)?, Timestamp::now()), overdue))
        })?;
        Ok(Health {
            database_clock: now.0,
            own_clock: now.1,
            handlers: self.handlers().await?,
            overdue,
            outbox: self.outbox().await?,
            conflicts: self.count_conflicts(MOST_CONFLICTS).await?,
        })
    }
}

fn overdue_of(row: &PgRow) -> Result<Overdue, Problem> {
    Ok(Overdue { handler: row.try_get(0)?, count: amount(row, 1)?, longest: duration(row.try_get(2)?) })
}

fn settings(row: &PgRow) -> Result<Vec<Finding>, Problem> {
    let is_off = |column| Ok::<_, Problem>(row.try_get::<Option<&str>, _>(column)? == Some("off"));
    let mut all = Vec::new();
    let loses = [
        ("fsync-off", "fsync", 0),
        ("full-page-writes-off", "full_page_writes", 1),
        ("synchronous-commit-off", "synchronous_commit", 2),
    ];
    for (code, setting, column) in loses {
        if is_off(column)? {
            let what =
                format!("{setting} is off: a crash of the server can lose messages that were acknowledged");
            all.push(Finding::new(code, Severity::Fault, what, format!("set {setting} = on")));
        }
    }
    if is_off(3)? {
        let what = "autovacuum is off on the whole server: dead rows are never cleaned up";
        all.push(Finding::new("autovacuum-off", Severity::Warning, what, "set autovacuum = on"));
    }
    let (replica, read_only): (bool, bool) = (row.try_get(4)?, row.try_get(5)?);
    if replica || read_only {
        let why = if replica { "it is a replica" } else { "transactions are read-only by default" };
        let what = format!("the server accepts no writes: {why}");
        all.push(Finding::new("read-only", Severity::Fault, what, "connect to the primary"));
    }
    let (most, used) = (amount(row, 6)?, amount(row, 7)?);
    if used * 10 >= most * 9 {
        let what = format!("{used} of max_connections = {most} are used");
        let remedy = "make pools smaller, put a pooler in between, or raise max_connections";
        all.push(Finding::new("connections", Severity::Warning, what, remedy));
    }
    if let Some(encoding) = row.try_get::<Option<&str>, _>(9)? {
        let what = format!("the database has the encoding {encoding}, which cannot hold every message");
        let remedy = "move to a database with the encoding UTF8";
        all.push(Finding::new("encoding", Severity::Fault, what, remedy));
    }
    let prepared = amount(row, 8)?;
    if prepared > 0 {
        let what = format!(
            "{prepared} prepared transactions wait for their end, and hold their locks and old rows until then"
        );
        let remedy = "end them with `commit prepared` or `rollback prepared`; pg_prepared_xacts names them";
        all.push(Finding::new("prepared-transaction", Severity::Warning, what, remedy));
    }
    Ok(all)
}

fn old_transaction(row: &PgRow) -> Result<Finding, Problem> {
    let (pid, application, user, state): (i64, &str, &str, &str) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
    let rows: Option<i64> = row.try_get(5)?;
    let what = format!(
        "a transaction of `{application}` (pid {pid}, user `{user}`, {state}) has been open for {} and keeps dead rows of \
         the last {} transactions from being cleaned up",
        rough(duration(row.try_get(4)?)),
        rows.unwrap_or(0)
    );
    let remedy = format!("end it where it was begun, or with: select pg_terminate_backend({pid})");
    Ok(Finding::new("old-transaction", Severity::Warning, what, remedy))
}

fn table(row: &PgRow, schema: &str) -> Result<Vec<Finding>, Problem> {
    let name: &str = row.try_get(0)?;
    let (live, dead) = (amount(row, 1)?, amount(row, 2)?);
    let mut all = Vec::new();
    if dead >= BLOAT.0 && dead > live * BLOAT.1 {
        all.push(Finding::new(
            "bloat",
            Severity::Note,
            format!("table `{name}` has {dead} dead rows and {live} live ones"),
            format!("run: vacuum {schema}.{name}; if they stay, an old transaction or a slot holds them"),
        ));
    }
    if row.try_get(3)? {
        all.push(Finding::new(
            "autovacuum-off",
            Severity::Warning,
            format!("autovacuum is off for table `{name}`: its dead rows are never cleaned up"),
            format!("run: alter table {schema}.{name} reset (autovacuum_enabled)"),
        ));
    }
    if let Some(index) = row.try_get::<Option<&str>, _>(4)? {
        all.push(Finding::new(
            "index-invalid",
            Severity::Fault,
            format!("index `{index}` of table `{name}` is not valid, so nothing uses it"),
            format!("run: reindex index {index}"),
        ));
    }
    Ok(all)
}
