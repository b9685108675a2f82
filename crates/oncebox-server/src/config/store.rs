//! `[store]`

use std::time::Duration;

use super::secret::Secret;
use super::section::Section;

/// Where messages are stored, and for how long.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Which database.
    pub database: StoreType,
    /// Its address, which may hold a password.
    pub url: Secret,
    /// The schema or prefix; empty for the store's own default.
    pub schema: String,
    /// The most connections.
    pub connections: u32,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long ids are kept.
    pub keep: Duration,
    /// How long payloads are kept.
    pub keep_payload: Duration,
    /// The largest payload.
    pub max_payload: usize,
    /// Whether to bring the tables up to date at start.
    pub migrate: bool,
    /// Whether a pooler in transaction mode is in between.
    pub behind_pooler: bool,
    /// Whether settings that can lose messages are accepted.
    pub relaxed_durability: bool,
}

/// The databases there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreType {
    /// `sqlite:`
    Sqlite,
    /// `postgres:`
    Postgres,
    /// `mysql:` or `mariadb:`
    Mariadb,
}

impl StoreType {
    /// By how a store's URL begins.
    pub fn of(url: &str) -> Option<Self> {
        match url.split(':').next()? {
            "sqlite" => Some(Self::Sqlite),
            "postgres" | "postgresql" => Some(Self::Postgres),
            "mysql" | "mariadb" => Some(Self::Mariadb),
            _ => None,
        }
    }

    /// As people write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "Postgres",
            Self::Mariadb => "MariaDB",
        }
    }
}

pub(super) fn read(section: Section<'_>) -> StoreConfig {
    let url = section.text("url");
    let database = StoreType::of(&url).unwrap_or_else(|| {
        // The address may hold a password, so only its beginning is shown.
        let scheme = url.split(':').next().unwrap_or_default();
        let text = format!(
            "the store's address begins with `{scheme}:`; use sqlite:FILE, postgres://… or mysql://…"
        );
        section.wrong("url", text);
        StoreType::Sqlite
    });
    if url.contains("password=")
        || url.split_once('@').is_some_and(|(before, _)| before.matches(':').count() > 1)
    {
        // Only notes where the password stands; the value is the same.
        let _ = section.secret("url");
    }
    let store = StoreConfig {
        database,
        url: Secret::new(url),
        schema: section.text("schema"),
        connections: section.whole("connections", 2, 10_000),
        connect_timeout: section.positive_duration("connect_timeout"),
        keep: section.duration("keep"),
        keep_payload: section.duration("keep_payload"),
        max_payload: section.size("max_payload"),
        migrate: section.flag("migrate"),
        behind_pooler: section.flag("behind_pooler"),
        relaxed_durability: section.flag("relaxed_durability"),
    };
    if store.behind_pooler && database != StoreType::Postgres {
        section.wrong(
            "behind_pooler",
            format!("`behind_pooler` is for Postgres; this store is {}", database.as_str()),
        );
    }
    section.finish();
    store
}
