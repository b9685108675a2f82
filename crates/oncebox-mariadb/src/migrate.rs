//! Migrations: versioned, forward only, safe when many processes start at once, and the checks of the server.

use std::fmt::Write;

use jiff::Timestamp;
use oncebox_core::admin::{Finding, Severity};
use oncebox_core::drift::{Catalog, differences};
use oncebox_core::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};

use crate::error::{DENIED_DATABASE, NO_DATABASE, NO_TABLE, Problem, classify};
use crate::rows::{text, timestamp};
use crate::sql::{
    CREATE_SCHEMA, DROP_SCHEMA, MIGRATION_LOCK, MIGRATION_UNLOCK, SCHEMA_EXISTS, Schema, Sql, Statement,
    migration_row,
};
use crate::store::Inner;
use crate::tx::{Lent, reading, run_text};

/// A migration and when it was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationInfo {
    /// Its number, from 1.
    pub version: i32,
    /// What it is called.
    pub name: String,
    /// When it was applied, by the database's clock; `None` when it is still to come.
    pub applied_at: Option<Timestamp>,
}

struct Migration {
    version: i32,
    name: &'static str,
    text: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "core", text: include_str!("../migrations/0001_core.sql") },
    Migration { version: 2, name: "functions", text: include_str!("../migrations/0002_functions.sql") },
    Migration { version: 3, name: "admin", text: include_str!("../migrations/0003_admin.sql") },
    Migration { version: 4, name: "responses", text: include_str!("../migrations/0004_responses.sql") },
];

/// The SQL of all migrations for an empty schema, for people who run their own.
///
/// It also notes the migrations as applied, so that the store finds its tables up to date. It is written for the
/// client `mariadb`, which has to be told where a function ends. Fails when the name is not an allowed schema name.
///
/// ```
/// let sql = oncebox_mariadb::migration_sql("oncebox")?;
/// assert!(sql.contains("create database if not exists `oncebox`"));
/// # Ok::<(), oncebox_core::Error>(())
/// ```
pub fn migration_sql(schema: &str) -> Result<String, Error> {
    let schema = Schema::new(schema)?;
    let mut sql = format!(
        "{};\n{};\n",
        CREATE_SCHEMA.replace("{schema}", &schema.quoted()),
        Statement::render(include_str!("sql/migration_table.sql"), &schema).text(0)
    );
    for migration in MIGRATIONS {
        let text = Statement::render(migration.text, &schema).text(0);
        let _ = writeln!(
            sql,
            "\n-- {:04}_{}\ndelimiter //\n{text}\n//\ndelimiter ;",
            migration.version, migration.name
        );
        sql.push_str(&migration_row(&schema, migration.version, migration.name, &migration.checksum()));
    }
    Ok(sql)
}

impl Migration {
    fn checksum(&self) -> String {
        Sha256::digest(self.text).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

struct Applied {
    version: i32,
    name: String,
    checksum: String,
    applied_at: i64,
}

impl Inner {
    pub(crate) async fn migrate(&self) -> Result<(), Error> {
        let applied = self.applied().await?;
        check(&applied)?;
        if applied.len() == MIGRATIONS.len() {
            return Ok(());
        }
        // A lock of the session: creating a table ends any transaction, and with it the locks of rows. It goes with
        // the connection, which is closed unless everything went well.
        let mut lent = Lent::from_pool(&self.pool).await.map_err(classify)?;
        let lock = format!("oncebox migrate {}", self.options.schema.name());
        let row = sqlx::query(MIGRATION_LOCK).bind(&lock).fetch_one(&mut *lent).await.map_err(classify)?;
        if row.try_get::<Option<i64>, _>(0).map_err(classify)? != Some(1) {
            let text = "another process has been migrating for a minute; wait for it, or end it";
            return Err(Error::new(ErrorKind::Contention, text));
        }
        self.create_schema(&mut lent).await.map_err(Problem::into_error)?;
        for migration in MIGRATIONS {
            self.apply(&mut lent, migration).await.map_err(Problem::into_error)?;
        }
        // A pool without autocommit would keep the last note to itself.
        run_text(&mut lent, crate::sql::COMMIT.to_owned()).await.map_err(classify)?;
        sqlx::query(MIGRATION_UNLOCK).bind(&lock).execute(&mut *lent).await.map_err(classify)?;
        lent.give_back();
        Ok(())
    }

    pub(crate) async fn migration_status(&self) -> Result<Vec<MigrationInfo>, Error> {
        let applied = self.applied().await?;
        let mut all: Vec<MigrationInfo> = Vec::new();
        for migration in MIGRATIONS {
            let at = applied.iter().find(|one| one.version == migration.version).map(|one| one.applied_at);
            all.push(MigrationInfo {
                version: migration.version,
                name: migration.name.to_owned(),
                applied_at: at.map(timestamp).transpose()?,
            });
        }
        // What a newer library applied is shown too.
        for one in applied.iter().filter(|one| one.version > newest()) {
            let applied_at = Some(timestamp(one.applied_at)?);
            all.push(MigrationInfo { version: one.version, name: one.name.clone(), applied_at });
        }
        Ok(all)
    }

    /// Compares the schema with one made afresh by the same migrations, which is removed again.
    pub(crate) async fn drift(&self) -> Result<Vec<String>, Error> {
        let applied = self.applied().await?;
        let mut drift = Vec::new();
        if let Err(error) = check(&applied) {
            drift.push(error.to_string());
        }
        let migrations: Vec<&Migration> = MIGRATIONS
            .iter()
            .filter(|migration| applied.iter().any(|one| one.version == migration.version))
            .collect();
        if migrations.is_empty() {
            return Ok(drift);
        }
        let fresh = Schema::new(&format!("oncebox_fresh_{:016x}", self.seed.next()))?;
        let mut lent = Lent::from_pool(&self.pool).await.map_err(classify)?;
        let compared = self.compare(&mut lent, &fresh, &migrations).await;
        // MariaDB knows no rollback of tables.
        let drop = Statement::render(DROP_SCHEMA, &fresh).text(0);
        let dropped = run_text(&mut lent, drop.to_string()).await;
        lent.give_back();
        drift.extend(compared.map_err(Problem::into_error)?);
        dropped.map_err(classify)?;
        Ok(drift)
    }

    async fn compare(
        &self,
        connection: &mut MySqlConnection,
        fresh: &Schema,
        migrations: &[&Migration],
    ) -> Result<Vec<String>, Problem> {
        let found = self.read_catalog(connection, &self.options.schema).await?;
        let create = Statement::render(CREATE_SCHEMA, fresh).text(0);
        run_text(connection, create.to_string()).await.map_err(may_not_make_schema)?;
        let table = Statement::render(include_str!("sql/migration_table.sql"), fresh).text(0);
        run_text(connection, table.to_string()).await?;
        for migration in migrations {
            let text = Statement::render(migration.text, fresh).text(0);
            run_text(connection, text.trim_end().trim_end_matches(';').to_owned()).await?;
        }
        let expected = self.read_catalog(connection, fresh).await?;
        Ok(differences(&expected, &found))
    }

    async fn read_catalog(
        &self,
        connection: &mut MySqlConnection,
        schema: &Schema,
    ) -> Result<Catalog, Problem> {
        let name = schema.name();
        let query = self.sql.catalog.query(0).bind(name).bind(name).bind(name).bind(name);
        let rows = query.fetch_all(connection).await?;
        rows.iter().map(|row| Ok((text(row, 1)?, (text(row, 0)?, text(row, 2)?)))).collect()
    }

    /// Refuses to work on tables that are missing, older or newer.
    pub(crate) async fn check_version(&self) -> Result<(), Error> {
        let applied = self.applied().await?;
        check(&applied)?;
        match applied.last().map_or(0, |last| last.version) {
            0 => Err(schema_error(format!(
                "schema `{}` has no tables of oncebox; run `migrate` first",
                self.options.schema.name()
            ))),
            // Not by the last one: an older migration may have come to the library later.
            version if applied.len() < MIGRATIONS.len() => Err(schema_error(format!(
                "schema `{}` is at version {version}, this library needs {}; run `migrate` first",
                self.options.schema.name(),
                newest()
            ))),
            _ => Ok(()),
        }
    }

    async fn applied(&self) -> Result<Vec<Applied>, Error> {
        reading!(self, |connection| match read_applied(connection, &self.sql).await {
            Err(problem) if matches!(problem.number(), Some(NO_TABLE | NO_DATABASE)) => Ok(Vec::new()),
            other => other,
        })
    }

    async fn create_schema(&self, connection: &mut MySqlConnection) -> Result<(), Problem> {
        // Asked first, because a user who may not create databases may be given one.
        let name = self.options.schema.name();
        let row = sqlx::query(SCHEMA_EXISTS).bind(name).fetch_one(&mut *connection).await?;
        if row.try_get::<i64, _>(0)? == 0 {
            let create = Statement::render(CREATE_SCHEMA, &self.options.schema);
            connection.execute(sqlx::raw_sql(AssertSqlSafe(create.text(0)))).await?;
        }
        connection.execute(sqlx::raw_sql(AssertSqlSafe(self.sql.migration_table.text(0)))).await?;
        Ok(())
    }

    async fn apply(&self, connection: &mut MySqlConnection, migration: &Migration) -> Result<(), Problem> {
        let applied = read_applied(connection, &self.sql).await?;
        check(&applied)?;
        if applied.iter().any(|one| one.version == migration.version) {
            return Ok(());
        }
        let text = Statement::render(migration.text, &self.options.schema).text(0);
        run_text(connection, text.trim_end().trim_end_matches(';').to_owned())
            .await
            .map_err(may_not_create)?;
        self.sql
            .migration_applied
            .query(self.shift())
            .bind(migration.version)
            .bind(migration.name.as_bytes())
            .bind(migration.checksum().into_bytes())
            .execute(&mut *connection)
            .await?;
        Ok(())
    }

    /// The same as findings, one for each thing that is wrong.
    pub(crate) async fn setting_findings(&self) -> Result<Vec<Finding>, Error> {
        let row = reading!(self, |connection| {
            Ok(self.sql.settings.query(0).fetch_one(&mut *connection).await?)
        })?;
        Ok(Settings::read(&row).map_err(Problem::into_error)?.findings())
    }

    /// Refuses a server on which the store would not keep its promises.
    pub(crate) async fn check_settings(&self) -> Result<(), Error> {
        let row = reading!(self, |connection| {
            Ok(self.sql.settings.query(0).fetch_one(&mut *connection).await?)
        })?;
        let settings = Settings::read(&row).map_err(Problem::into_error)?;
        settings.check()?;
        if !self.options.relaxed {
            settings.check_durability()?;
        }
        let foreign: i64 = reading!(self, |connection| {
            let query = self.sql.engines.query(0).bind(self.options.schema.name());
            Ok(query.fetch_one(&mut *connection).await?.try_get(0)?)
        })?;
        if foreign > 0 {
            return Err(Error::invalid(format!(
                "{foreign} tables in schema `{}` are not InnoDB and know no transactions; \
                 change them with `alter table … engine = innodb`",
                self.options.schema.name()
            )));
        }
        Ok(())
    }
}

/// What the server and the session are set to, as far as it matters.
#[derive(Debug, Clone)]
struct Settings {
    version: String,
    read_only: bool,
    session_read_only: bool,
    autocommit: bool,
    flush_at_commit: i64,
    binary_log: bool,
    sync_binary_log: i64,
    binary_log_format: String,
    cluster: bool,
    isolation: String,
}

impl Settings {
    fn read(row: &MySqlRow) -> Result<Self, Problem> {
        Ok(Self {
            version: text(row, 0)?,
            read_only: row.try_get(1)?,
            session_read_only: row.try_get(2)?,
            autocommit: row.try_get(3)?,
            flush_at_commit: row.try_get(4)?,
            binary_log: row.try_get(5)?,
            sync_binary_log: row.try_get(6)?,
            binary_log_format: text(row, 7)?,
            cluster: row.try_get(8)?,
            isolation: text(row, 9)?,
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        if !matches!(self.flush_at_commit, 1 | 3) {
            let what = format!(
                "innodb_flush_log_at_trx_commit is {}: power loss can lose messages that were acknowledged",
                self.flush_at_commit
            );
            let remedy = "set innodb_flush_log_at_trx_commit = 1";
            all.push(Finding::new("flush-log-at-commit", Severity::Fault, what, remedy));
        }
        if self.binary_log && self.sync_binary_log != 1 {
            let what = format!(
                "the binary log is on and sync_binlog is {}: power loss can lose messages that were acknowledged",
                self.sync_binary_log
            );
            all.push(Finding::new("sync-binlog", Severity::Fault, what, "set sync_binlog = 1"));
        }
        if self.read_only || self.session_read_only {
            let what = "the server accepts no writes (read_only, or read-only by default)";
            all.push(Finding::new("read-only", Severity::Fault, what, "connect to the primary"));
        }
        if self.isolation == "READ-UNCOMMITTED" {
            let what =
                "sessions read what others have not committed (transaction_isolation = READ-UNCOMMITTED)";
            all.push(Finding::new(
                "isolation",
                Severity::Fault,
                what,
                "set transaction_isolation = READ-COMMITTED",
            ));
        }
        if !self.autocommit {
            let what = "sessions have autocommit off, so that a look at the tables never sees anything new";
            all.push(Finding::new("autocommit-off", Severity::Fault, what, "set autocommit = 1"));
        }
        if self.binary_log && self.binary_log_format.eq_ignore_ascii_case("statement") {
            let what = "binlog_format is STATEMENT, with which writes at READ COMMITTED are refused";
            all.push(Finding::new(
                "binlog-format",
                Severity::Fault,
                what,
                "set binlog_format = MIXED or ROW",
            ));
        }
        all
    }

    fn check(&self) -> Result<(), Error> {
        if !is_new_enough(&self.version) {
            return Err(Error::invalid(format!(
                "the server is `{}`; the store needs MariaDB 10.6 or newer",
                self.version
            )));
        }
        if self.read_only || self.session_read_only {
            let text =
                "mariadb accepts no writes here (read_only, or read-only by default); connect to the primary";
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        if self.cluster {
            return Err(Error::invalid(
                "the server is a node of a Galera cluster, which has no XA transactions; use a server without wsrep_on",
            ));
        }
        if self.isolation == "READ-UNCOMMITTED" {
            return Err(Error::invalid(
                "the pool's sessions read what others have not committed (transaction_isolation = READ-UNCOMMITTED), and \
                 would take a message that is rolled back for a known one; set it to READ-COMMITTED",
            ));
        }
        if !self.autocommit {
            return Err(Error::invalid(
                "the pool's sessions have `autocommit` off, so that a look at the tables would never see anything new; \
                 turn it on",
            ));
        }
        if self.binary_log && self.binary_log_format.eq_ignore_ascii_case("statement") {
            return Err(Error::invalid(
                "binlog_format is `STATEMENT`, with which mariadb refuses writes at READ COMMITTED; set it to `MIXED` \
                 or `ROW`",
            ));
        }
        Ok(())
    }

    fn check_durability(&self) -> Result<(), Error> {
        let remedy = "or call `allow_relaxed_durability`";
        // 3 is 1 with another order of syncs.
        if !matches!(self.flush_at_commit, 1 | 3) {
            return Err(Error::invalid(format!(
                "innodb_flush_log_at_trx_commit is {}, which can lose acknowledged messages at power loss; \
                 set it to 1, {remedy}",
                self.flush_at_commit
            )));
        }
        // After a crash, what is not in the binary log is rolled back.
        if self.binary_log && self.sync_binary_log != 1 {
            return Err(Error::invalid(format!(
                "the binary log is on and sync_binlog is {}, which can lose acknowledged messages at power loss; \
                 set it to 1, {remedy}",
                self.sync_binary_log
            )));
        }
        Ok(())
    }
}

/// MariaDB from 10.6, which has `skip locked`. MySQL says nothing of MariaDB in its version.
fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version.to_ascii_lowercase().contains("mariadb") && (major, minor) >= (10, 6)
}

/// With a binary log MariaDB wants to be told that functions may be created.
fn may_not_create(error: sqlx::Error) -> Problem {
    let problem = Problem::Driver(error);
    if !matches!(problem.number(), Some(1418 | 1419)) {
        return problem;
    }
    let text = "mariadb refuses functions while it writes a binary log; let it with \
                `set global log_bin_trust_function_creators = 1` (the log has to be in row or mixed format), and \
                migrate again";
    Error::caused(ErrorKind::Schema, text, problem.into_error()).into()
}

async fn read_applied(connection: &mut MySqlConnection, sql: &Sql) -> Result<Vec<Applied>, Problem> {
    let rows = sql.migrations.query(0).fetch_all(&mut *connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Applied {
                version: row.try_get(0)?,
                name: text(row, 1)?,
                checksum: text(row, 2)?,
                applied_at: row.try_get(3)?,
            })
        })
        .collect()
}

/// A user who only runs handlers may not.
fn may_not_make_schema(error: sqlx::Error) -> Problem {
    let problem = Problem::Driver(error);
    if problem.number() != Some(DENIED_DATABASE) {
        return problem;
    }
    let text = "drift is found by comparing with a schema that is made and dropped again, and this user may not make \
                one; ask with the user that migrates";
    Error::caused(ErrorKind::Schema, text, problem.into_error()).into()
}

fn check(applied: &[Applied]) -> Result<(), Error> {
    if let Some(last) = applied.last().filter(|last| last.version > newest()) {
        return Err(schema_error(format!(
            "the schema is at version {}, newer than this library, which knows version {}; use a newer library",
            last.version,
            newest()
        )));
    }
    for migration in MIGRATIONS {
        let drifted =
            |one: &&Applied| one.version == migration.version && one.checksum != migration.checksum();
        if let Some(one) = applied.iter().find(drifted) {
            return Err(schema_error(format!(
                "migration {} `{}` was applied with other text than this library has; \
                 use the library it was applied with",
                one.version, one.name
            )));
        }
    }
    Ok(())
}

fn newest() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

fn schema_error(text: String) -> Error {
    Error::new(ErrorKind::Schema, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Settings {
        Settings {
            version: "10.11.19-MariaDB-0+deb12u1".to_owned(),
            read_only: false,
            session_read_only: false,
            autocommit: true,
            flush_at_commit: 1,
            binary_log: true,
            sync_binary_log: 1,
            binary_log_format: "MIXED".to_owned(),
            cluster: false,
            isolation: "REPEATABLE-READ".to_owned(),
        }
    }

    #[test]
    fn a_server_that_keeps_what_it_commits_is_accepted() {
        good().check().unwrap();
        good().check_durability().unwrap();
        Settings { flush_at_commit: 3, ..good() }.check_durability().unwrap();
        Settings { binary_log: false, sync_binary_log: 0, ..good() }.check_durability().unwrap();
    }

    #[test]
    fn each_setting_that_can_lose_a_commit_is_named() {
        for (settings, word) in [
            (Settings { flush_at_commit: 0, ..good() }, "innodb_flush_log_at_trx_commit"),
            (Settings { flush_at_commit: 2, ..good() }, "innodb_flush_log_at_trx_commit"),
            (Settings { sync_binary_log: 0, ..good() }, "sync_binlog"),
            (Settings { sync_binary_log: 100, ..good() }, "sync_binlog"),
        ] {
            let error = settings.check_durability().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn a_server_on_which_the_store_cannot_work_is_refused() {
        for (settings, kind) in [
            (Settings { read_only: true, ..good() }, ErrorKind::ReadOnly),
            (Settings { session_read_only: true, ..good() }, ErrorKind::ReadOnly),
            (Settings { autocommit: false, ..good() }, ErrorKind::Invalid),
            (Settings { cluster: true, ..good() }, ErrorKind::Invalid),
            (Settings { binary_log_format: "STATEMENT".to_owned(), ..good() }, ErrorKind::Invalid),
            (Settings { version: "8.0.36".to_owned(), ..good() }, ErrorKind::Invalid),
            (Settings { version: "10.5.20-MariaDB".to_owned(), ..good() }, ErrorKind::Invalid),
        ] {
            assert_eq!(settings.check().unwrap_err().kind(), kind, "{settings:?}");
        }
        Settings { version: "11.4.2-MariaDB-log".to_owned(), ..good() }.check().unwrap();
    }
}
