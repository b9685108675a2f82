//! `oncebox migrate`: brings a store's tables up to date, says how they are, or prints the SQL.

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use oncebox::{Error, MariaStore, PgStore, SqliteStore, mariadb, postgres, sqlite};
use serde::Serialize;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

use crate::target::Place;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to do.
    #[arg(value_enum, default_value_t = Action::Up)]
    action: Action,
    /// The store: `sqlite:FILE`, `postgres://…` or `mysql://…`.
    #[arg(long, default_value = "sqlite:oncebox.db")]
    store: String,
    /// The schema on Postgres and MariaDB (`oncebox` unless set); the beginning of the tables' names on SQLite
    /// (`oncebox_`).
    #[arg(long)]
    schema: Option<String>,
    /// Print the result of `status` as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Apply what is missing.
    Up,
    /// List every migration and whatever is not as they made it; exit code 1 when something is pending or different.
    Status,
    /// Write the SQL that makes everything in an empty database, for psql, mariadb or sqlite3.
    Print,
}

pub(crate) async fn migrate(options: Options) -> Result<bool, String> {
    if options.json && options.action != Action::Status {
        return Err("--json is for `migrate status`; leave it out".to_owned());
    }
    let database = Database::of(&options)?;
    match options.action {
        Action::Print => {
            print!("{}", database.script()?);
            Ok(true)
        }
        Action::Up => {
            let tables = database.open().await?;
            let before = tables.status().await?;
            tables.migrate().await?;
            for migration in tables.status().await?.iter().filter(|one| before.iter().all(|old| old != *one))
            {
                println!("applied {} {}", migration.version, migration.name);
            }
            Ok(true)
        }
        Action::Status => {
            let tables = database.open_existing().await?;
            let report = Report { migrations: tables.status().await?, drift: tables.drift().await? };
            report.print(options.json)?;
            Ok(report.is_good())
        }
    }
}

/// Which database the URL names; the one place that knows them all.
enum Database {
    Sqlite { file: String, prefix: String },
    Postgres { url: String, schema: String },
    Mariadb { url: String, schema: String },
}

impl Database {
    fn of(options: &Options) -> Result<Self, String> {
        let place = Place { url: options.store.clone(), schema: String::new() };
        place.check()?;
        let name = |default: &str| options.schema.clone().unwrap_or_else(|| default.to_owned());
        Ok(if place.is_postgres() {
            Self::Postgres { url: place.url, schema: name("oncebox") }
        } else if place.is_mariadb() {
            Self::Mariadb { url: place.url, schema: name("oncebox") }
        } else {
            let file = place.url.trim_start_matches("sqlite:").trim_start_matches("//").to_owned();
            Self::Sqlite { file, prefix: name("oncebox_") }
        })
    }

    fn script(&self) -> Result<String, String> {
        match self {
            // The script of Postgres brings its own transaction; this one is only a list of statements.
            Self::Sqlite { prefix, .. } => {
                sqlite::migration_sql(prefix).map(|sql| format!("begin immediate;\n{sql}commit;\n"))
            }
            Self::Postgres { schema, .. } => postgres::migration_sql(schema),
            // MariaDB commits after each table, so there is no transaction to put around it.
            Self::Mariadb { schema, .. } => mariadb::migration_sql(schema),
        }
        .map_err(told)
    }

    async fn open(&self) -> Result<Tables, String> {
        match self {
            Self::Sqlite { file, prefix } => {
                let store = SqliteStore::open(file).await.map_err(told)?;
                Ok(Tables::Sqlite(store.prefix(prefix).map_err(told)?))
            }
            Self::Postgres { url, schema } => {
                // The pool tries again for as long as it may; a person at a terminal wants to hear of it.
                let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(url);
                let pool = pool.await.map_err(|error| format!("Postgres cannot be reached: {error}"))?;
                Ok(Tables::Postgres(PgStore::new(pool).schema(schema).map_err(told)?))
            }
            Self::Mariadb { url, schema } => {
                let pool = MySqlPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(url);
                let pool = pool.await.map_err(|error| format!("MariaDB cannot be reached: {error}"))?;
                Ok(Tables::Mariadb(MariaStore::new(pool).schema(schema).map_err(told)?))
            }
        }
    }

    /// Opens it without making a file that is not there.
    async fn open_existing(&self) -> Result<Tables, String> {
        match self {
            Self::Sqlite { file, .. } if !Path::new(file.split('?').next().unwrap_or_default()).exists() => {
                Err(format!("there is no file `{file}`; `oncebox migrate up` makes it"))
            }
            _ => self.open().await,
        }
    }
}

/// The tables of a store.
enum Tables {
    Sqlite(SqliteStore),
    Postgres(PgStore),
    Mariadb(MariaStore),
}

impl Tables {
    async fn migrate(&self) -> Result<(), String> {
        match self {
            Self::Sqlite(store) => store.migrate().await,
            Self::Postgres(store) => store.migrate().await,
            Self::Mariadb(store) => store.migrate().await,
        }
        .map_err(told)
    }

    async fn status(&self) -> Result<Vec<Migration>, String> {
        Ok(match self {
            Self::Sqlite(store) => {
                let all = store.migration_status().await.map_err(told)?;
                all.into_iter().map(|one| Migration::new(one.version, one.name, one.applied_at)).collect()
            }
            Self::Postgres(store) => {
                let all = store.migration_status().await.map_err(told)?;
                all.into_iter()
                    .map(|one| Migration::new(i64::from(one.version), one.name, one.applied_at))
                    .collect()
            }
            Self::Mariadb(store) => {
                let all = store.migration_status().await.map_err(told)?;
                all.into_iter()
                    .map(|one| Migration::new(i64::from(one.version), one.name, one.applied_at))
                    .collect()
            }
        })
    }

    async fn drift(&self) -> Result<Vec<String>, String> {
        match self {
            Self::Sqlite(store) => store.drift().await,
            Self::Postgres(store) => store.drift().await,
            Self::Mariadb(store) => store.drift().await,
        }
        .map_err(told)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Migration {
    version: i64,
    name: String,
    applied_at: Option<String>,
}

impl Migration {
    fn new(version: i64, name: String, applied_at: Option<Timestamp>) -> Self {
        Self { version, name, applied_at: applied_at.map(|at| at.to_string()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    migrations: Vec<Migration>,
    drift: Vec<String>,
}

impl Report {
    fn is_good(&self) -> bool {
        self.drift.is_empty() && self.migrations.iter().all(|migration| migration.applied_at.is_some())
    }

    fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        for Migration { version, name, applied_at } in &self.migrations {
            match applied_at {
                Some(at) => println!("{version:>4}  {name:<16}  applied {at}"),
                None => println!("{version:>4}  {name:<16}  pending"),
            }
        }
        for line in &self.drift {
            println!("drift: {line}");
        }
        Ok(())
    }
}

/// The error with what caused it, which is where the database says what it did not like.
fn told(error: Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
