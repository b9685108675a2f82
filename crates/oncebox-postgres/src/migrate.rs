//! Migrations: versioned, forward only, safe when many processes start at once.

use jiff::Timestamp;
use oncebox_core::drift::{Catalog, differences};
use oncebox_core::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use sqlx::{Executor, PgConnection, Row};

use crate::error::{Problem, classify};
use crate::rows::timestamp;
use crate::sql::{CREATE_SCHEMA, SCHEMA_EXISTS, Schema, Sql, Statement, migration_row};
use crate::store::Inner;
use crate::tx::{Lent, autocommit, transaction};

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

/// How often rivals that create the same schema may get in each other's way.
const MOST_TRIES: usize = 20;

/// The SQL of all migrations for an empty schema, for people who run their own.
///
/// It also notes the migrations as applied, so that the store finds its tables up to date. Fails when the name is
/// not an allowed schema name.
///
/// ```
/// let sql = oncebox_postgres::migration_sql("oncebox")?;
/// assert!(sql.contains("create schema if not exists \"oncebox\""));
/// # Ok::<(), oncebox_core::Error>(())
/// ```
pub fn migration_sql(schema: &str) -> Result<String, Error> {
    let schema = Schema::new(schema)?;
    let mut sql = format!(
        "begin;\ncreate schema if not exists {};\n{};\n",
        schema.quoted(),
        Statement::render(include_str!("sql/migration_table.sql"), &schema).text().0.trim_end()
    );
    for migration in MIGRATIONS {
        sql.push('\n');
        sql.push_str(&migration.text.replace("{schema}", &schema.quoted()));
        sql.push_str(&migration_row(&schema, migration.version, migration.name, &migration.checksum()));
    }
    sql.push_str("commit;\n");
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
        self.create_schema().await?;
        for migration in MIGRATIONS {
            transaction!(self, |connection| self.apply(connection, migration).await)?;
        }
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

    /// Compares the schema with one made afresh by the same migrations, in a transaction that is rolled back.
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
        let mut lent = Lent::begin(&self.pool).await.map_err(classify)?;
        let read = async {
            let found = self.read_catalog(&mut lent, &self.options.schema).await?;
            let create = Statement::render(CREATE_SCHEMA, &fresh);
            lent.execute(sqlx::raw_sql(create.text())).await.map_err(may_not_create)?;
            let table = Statement::render(include_str!("sql/migration_table.sql"), &fresh);
            lent.execute(sqlx::raw_sql(table.text())).await?;
            for migration in migrations {
                let text = Statement::render(migration.text, &fresh).text();
                lent.execute(sqlx::raw_sql(text)).await?;
            }
            Ok::<_, Problem>((self.read_catalog(&mut lent, &fresh).await?, found))
        };
        let read = read.await;
        lent.discard().await;
        let (expected, found) = read.map_err(Problem::into_error)?;
        drift.extend(differences(&expected, &found));
        Ok(drift)
    }

    async fn read_catalog(&self, connection: &mut PgConnection, schema: &Schema) -> Result<Catalog, Problem> {
        let rows = self.sql.catalog.query().bind(schema.name()).fetch_all(connection).await?;
        rows.iter()
            .map(|row| Ok((row.try_get("object")?, (row.try_get("owner")?, row.try_get("definition")?))))
            .collect()
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
        autocommit!(self, |connection| match read_applied(connection, &self.sql).await {
            Err(problem) if matches!(problem.code().as_deref(), Some("42P01" | "3F000")) => Ok(Vec::new()),
            other => other,
        })
    }

    /// `if not exists` still fails when a rival creates the same thing at the same time; then it is there.
    async fn create_schema(&self) -> Result<(), Error> {
        let schema = Statement::render(CREATE_SCHEMA, &self.options.schema);
        let exists = Statement::render(SCHEMA_EXISTS, &self.options.schema);
        let mut last = None;
        for _ in 0..MOST_TRIES {
            let result = transaction!(self, |connection| {
                // Asked first, because a role that may not create schemas may be given one.
                let row = exists.query().fetch_one(&mut *connection).await?;
                if !row.try_get::<bool, _>(0)? {
                    connection.execute(sqlx::raw_sql(schema.text())).await?;
                }
                connection.execute(sqlx::raw_sql(self.sql.migration_table.text())).await?;
                Ok(())
            });
            match result {
                Ok(()) => return Ok(()),
                Err(error) if already_there(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| schema_error("the schema cannot be created".to_owned())))
    }

    async fn apply(&self, connection: &mut PgConnection, migration: &Migration) -> Result<(), Problem> {
        connection.execute(sqlx::raw_sql(self.sql.migration_lock.text())).await?;
        let applied = read_applied(connection, &self.sql).await?;
        check(&applied)?;
        if applied.iter().any(|one| one.version == migration.version) {
            return Ok(());
        }
        let text = Statement::render(migration.text, &self.options.schema).text();
        connection.execute(sqlx::raw_sql(text)).await?;
        self.sql
            .migration_applied
            .query()
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .execute(&mut *connection)
            .await?;
        Ok(())
    }
}

fn may_not_create(error: sqlx::Error) -> Problem {
    let denied = error.as_database_error().and_then(|error| error.code()).as_deref() == Some("42501");
    if !denied {
        return error.into();
    }
    let text = "drift is found by comparing with a schema that is made and rolled back, and this role may not create \
                one; ask with the role that migrates";
    Error::caused(ErrorKind::Schema, text, error).into()
}

async fn read_applied(connection: &mut PgConnection, sql: &Sql) -> Result<Vec<Applied>, Problem> {
    let rows = sql.migrations.query().fetch_all(&mut *connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Applied {
                version: row.try_get(0)?,
                name: row.try_get(1)?,
                checksum: row.try_get(2)?,
                applied_at: row.try_get(3)?,
            })
        })
        .collect()
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

fn already_there(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(|source| source.as_database_error()?.code());
    matches!(code.as_deref(), Some("23505" | "42P06" | "42P07" | "42710"))
}
