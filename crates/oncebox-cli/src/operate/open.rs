//! Opens the store that a command works on.

use oncebox::admin::AdminStore;
use oncebox::{MariaStore, PgStore, SqliteStore};

use crate::target::{Place, reach};

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
        let store = PgStore::new(reach::postgres(url, 2).await?);
        let store = match schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return work.run(store).await;
    }
    if place.is_mariadb() {
        let store = MariaStore::new(reach::mariadb(url, 2).await?);
        let store = match schema {
            Some(schema) => store.schema(schema).map_err(told)?,
            None => store,
        };
        return work.run(store).await;
    }
    let file = reach::sqlite_file(url);
    reach::existing(file, "name the store with `--store sqlite:FILE`")?;
    let store = SqliteStore::open(file).await.map_err(|error| reach::not_opened(file, &error))?;
    let store = match schema {
        Some(prefix) => store.prefix(prefix).map_err(told)?,
        None => store,
    };
    work.run(store).await
}
