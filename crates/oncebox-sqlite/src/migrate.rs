//! The schema, version by version.

use jiff::Timestamp;
use oncebox_core::drift::{Catalog, differences};
use oncebox_core::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqliteConnection};

use crate::error::classify;
use crate::rows::{get, hex, timestamp};
use crate::sql::{CATALOG, TABLE_EXISTS, applied_migrations, check_prefix, migration_script};
use crate::store::SqliteStore;
use crate::tx::writer::Sync;

struct Migration {
    version: i64,
    name: &'static str,
    text: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "core", text: include_str!("../migrations/0001_core.sql") },
    Migration { version: 2, name: "admin", text: include_str!("../migrations/0002_admin.sql") },
    Migration { version: 3, name: "responses", text: include_str!("../migrations/0003_responses.sql") },
];

/// The version of the schema that this library works with.
pub(crate) const NEWEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// A migration, and when it was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationInfo {
    /// Its number, from 1.
    pub version: i64,
    /// What it is about.
    pub name: String,
    /// `None` while it has not been applied.
    pub applied_at: Option<Timestamp>,
}

impl SqliteStore {
    /// Brings the schema to the version this library works with; does nothing when it is there already.
    ///
    /// Any number of processes may call it at once. Fails with [`ErrorKind::Schema`] when the database is newer than
    /// this library, or when the text of an applied migration has changed since.
    pub async fn migrate(&self) -> Result<(), Error> {
        for migration in MIGRATIONS {
            let mut write = self.writer.begin(Sync::Durable).await?;
            match self.migrate_one(write.connection(), migration).await {
                Ok(true) => write.commit().await?,
                Ok(false) => write.rollback().await,
                Err(error) => {
                    write.rollback().await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Every migration this library knows, and when it was applied here.
    pub async fn migration_status(&self) -> Result<Vec<MigrationInfo>, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let applied = self.applied(&mut connection).await?;
        MIGRATIONS
            .iter()
            .map(|migration| {
                let at = applied.iter().find(|applied| applied.version == migration.version);
                Ok(MigrationInfo {
                    version: migration.version,
                    name: migration.name.to_owned(),
                    applied_at: at.map(|applied| timestamp(applied.at)).transpose()?,
                })
            })
            .collect()
    }

    /// What differs between the tables and what their migrations make: a line for each thing that is missing, was
    /// changed or was added to one of the store's tables; empty when they are as migrated.
    ///
    /// Compares with a database in memory, made afresh. Tables of your own are left out.
    pub async fn drift(&self) -> Result<Vec<String>, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let applied = self.applied(&mut connection).await?;
        let mut drift = Vec::new();
        if let Err(error) = check(&applied) {
            drift.push(error.to_string());
        }
        let mut fresh = SqliteConnection::connect_with(&SqliteConnectOptions::new().in_memory(true))
            .await
            .map_err(classify)?;
        for migration in MIGRATIONS {
            if applied.iter().any(|applied| applied.version == migration.version) {
                let script = AssertSqlSafe(script(migration, &self.sql.prefix, 0));
                fresh.execute(script).await.map_err(classify)?;
            }
        }
        let (expected, found) = (read_catalog(&mut fresh).await?, read_catalog(&mut connection).await?);
        drift.extend(differences(&expected, &found));
        Ok(drift)
    }

    /// Applies one migration unless it has been; true when it was applied now.
    async fn migrate_one(
        &self,
        connection: &mut SqliteConnection,
        migration: &Migration,
    ) -> Result<bool, Error> {
        let applied = self.applied(connection).await?;
        check(&applied)?;
        if applied.iter().any(|applied| applied.version == migration.version) {
            return Ok(false);
        }
        connection
            .execute(AssertSqlSafe(script(migration, &self.sql.prefix, self.shift())))
            .await
            .map_err(classify)?;
        tracing::info!(version = migration.version, name = migration.name, "schema migrated");
        Ok(true)
    }

    async fn applied(&self, connection: &mut SqliteConnection) -> Result<Vec<Applied>, Error> {
        let table = format!("{}migration", self.sql.prefix);
        let exists = sqlx::query(TABLE_EXISTS)
            .bind(&table)
            .fetch_optional(&mut *connection)
            .await
            .map_err(classify)?;
        if exists.is_none() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(AssertSqlSafe(applied_migrations(&self.sql.prefix)))
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        rows.iter()
            .map(|row| Ok(Applied { version: get(row, 0)?, checksum: get(row, 1)?, at: get(row, 2)? }))
            .collect()
    }
}

async fn read_catalog(connection: &mut SqliteConnection) -> Result<Catalog, Error> {
    let rows = sqlx::query(CATALOG).fetch_all(connection).await.map_err(classify)?;
    rows.iter().map(|row| Ok((get(row, 1)?, (get(row, 0)?, get(row, 2)?)))).collect()
}

/// The SQL that `migrate` would run on an empty database, for people who apply migrations their own way.
///
/// Run it in one transaction. Fails with [`ErrorKind::Invalid`] when the prefix is not allowed.
///
/// ```
/// let sql = oncebox_sqlite::migration_sql("oncebox_")?;
/// assert!(sql.contains("create table oncebox_log"));
/// # Ok::<(), oncebox_core::Error>(())
/// ```
pub fn migration_sql(prefix: &str) -> Result<String, Error> {
    check_prefix(prefix)?;
    Ok(MIGRATIONS.iter().map(|migration| script(migration, prefix, 0)).collect::<Vec<_>>().join("\n"))
}

/// Refuses a database whose schema is missing, older or newer.
pub(crate) async fn check_version(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
) -> Result<(), Error> {
    let applied = store.applied(connection).await?;
    check(&applied)?;
    let version = applied.last().map_or(0, |last| last.version);
    // Not by the last one: an older migration may have come to the library later.
    if applied.len() < MIGRATIONS.len() {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the schema `{}` has version {version} and this library needs {NEWEST}; run `migrate` first",
                store.sql.prefix
            ),
        ));
    }
    Ok(())
}

struct Applied {
    version: i64,
    checksum: String,
    at: i64,
}

/// Refuses what a newer library wrote, and migrations that are not the ones that were applied.
fn check(applied: &[Applied]) -> Result<(), Error> {
    for applied in applied {
        let Some(known) = MIGRATIONS.iter().find(|migration| migration.version == applied.version) else {
            return Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "the database has schema version {} and this library knows {NEWEST} at most; use a newer \
                     version of it",
                    applied.version
                ),
            ));
        };
        if checksum(known) != applied.checksum {
            return Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "migration {} `{}` was applied with another text than this library has; restore the schema \
                     from its own release",
                    known.version, known.name
                ),
            ));
        }
    }
    Ok(())
}

/// Of the text before the prefix is filled in, so that it is the same for every prefix.
fn checksum(migration: &Migration) -> String {
    hex(&Sha256::digest(migration.text.as_bytes()))
}

/// One migration with the row that says it was applied.
fn script(migration: &Migration, prefix: &str, shift: i64) -> String {
    let row = (migration.version, migration.name, &*checksum(migration));
    migration_script(prefix, migration.text, row, shift)
}

impl SqliteStore {
    /// Refuses settings under which an acknowledged message could be lost.
    pub(crate) async fn check_durability(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        if self.relaxed {
            return Ok(());
        }
        let row = sqlx::query("pragma journal_mode").fetch_one(&mut *connection).await.map_err(classify)?;
        let journal: String = row.try_get(0).map_err(classify)?;
        if !journal.eq_ignore_ascii_case("wal") {
            return Err(Error::invalid(format!(
                "pragma journal_mode is `{journal}`; set it to `wal` on the pool, or call `allow_relaxed_durability`"
            )));
        }
        let row = sqlx::query("pragma synchronous").fetch_one(connection).await.map_err(classify)?;
        let level: i64 = row.try_get(0).map_err(classify)?;
        if level < 2 {
            return Err(Error::invalid(format!(
                "pragma synchronous is {level}, which can lose acknowledged messages at power loss; set it to `full` \
                 on the pool, or call `allow_relaxed_durability`"
            )));
        }
        Ok(())
    }
}
