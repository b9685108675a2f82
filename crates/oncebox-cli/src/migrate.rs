//! `oncebox migrate`: brings a store's tables up to date, says how they are, or prints the SQL.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use oncebox::{Error, MariaStore, PgStore, SqliteStore, mariadb, postgres, sqlite};
use serde::Serialize;

use crate::target::{Place, reach};

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
            Self::Sqlite { file: reach::sqlite_file(&place.url).to_owned(), prefix: name("oncebox_") }
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
                let store = SqliteStore::open(file).await.map_err(|error| reach::not_opened(file, &error))?;
                Ok(Tables::Sqlite(store.prefix(prefix).map_err(told)?))
            }
            Self::Postgres { url, schema } => {
                let store = PgStore::new(reach::postgres(url, 2).await?);
                Ok(Tables::Postgres(store.schema(schema).map_err(told)?))
            }
            Self::Mariadb { url, schema } => {
                let store = MariaStore::new(reach::mariadb(url, 2).await?);
                Ok(Tables::Mariadb(store.schema(schema).map_err(told)?))
            }
        }
    }

    /// Opens it without making a file that is not there.
    async fn open_existing(&self) -> Result<Tables, String> {
        if let Self::Sqlite { file, .. } = self {
            reach::existing(file, "`oncebox migrate up` makes it")?;
        }
        self.open().await
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

fn told(error: Error) -> String {
    error.to_string()
}
