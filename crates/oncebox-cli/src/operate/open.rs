//! Opens the store that a command works on.

use std::time::Duration;

use oncebox::admin::AdminStore;
use oncebox::{MariaStore, PgStore, SqliteStore};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

use crate::target::Place;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is done with a store, whichever it is.
pub(crate) trait OnStore {
    /// Does it; false when a check failed or nothing matched.
    async fn run<St: AdminStore>(self, store: St) -> Result<bool, String>;
}

/// Opens the store of this address and does the work. Makes no file that is not there.
pub(crate) async fn open(url: &str, schema: Option<&str>, work: impl OnStore) -> Result<bool, String> {
    let place = Place { url: url.to_owned(), schema: String::new() };
    place.check()?;
    let told = |error: oncebox::Error| error.to_string();
    if place.is_postgres() {
        let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(url);
        let pool = pool.await.map_err(|error| format!("Postgres cannot be reached: {error}"))?;
        let store = PgStore::new(pool);
        let store = match schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return work.run(store).await;
    }
    if place.is_mariadb() {
        let pool = MySqlPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE).connect(url);
        let pool = pool.await.map_err(|error| format!("MariaDB cannot be reached: {error}"))?;
        let store = MariaStore::new(pool);
        let store = match schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return work.run(store).await;
    }
    let file = url.trim_start_matches("sqlite:").trim_start_matches("//");
    if !std::path::Path::new(file.split('?').next().unwrap_or_default()).exists() {
        return Err(format!("there is no file `{file}`; name the store with `--store sqlite:FILE`"));
    }
    let store = SqliteStore::open(file).await.map_err(told)?;
    let store = match schema {
        Some(prefix) => store.prefix(prefix).map_err(told)?,
        None => store,
    };
    work.run(store).await
}
