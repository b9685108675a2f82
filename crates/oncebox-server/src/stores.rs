//! What differs between the stores: opening one, and running a statement on its driver.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncebox::admin::AdminStore;
use oncebox::{Error, ErrorKind, Failure, MariaStore, Message, PgStore, SqliteStore};
use serde_json::{Map, Value as Json};
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{
    Arguments, AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, PgConnection, Postgres,
    SqlSafeStr, Sqlite, SqliteConnection,
};

use crate::config::StoreConfig;
use crate::handlers::statement::{Parameter, Statement};

/// How long the try may take that finds out why a server did not answer.
const LAST_TRY: Duration = Duration::from_secs(2);

/// A store that a service can run on.
pub(crate) trait ServiceStore: AdminStore {
    /// Connects. Fails when the database does not answer in time.
    fn open(config: &StoreConfig) -> impl Future<Output = Result<Self, Error>> + Send;

    /// Brings the tables up to date.
    fn bring_up_to_date(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// How many migrations are not applied.
    fn pending_migrations(&self) -> impl Future<Output = Result<usize, Error>> + Send;

    /// A statement as this database wants it.
    fn sql(statement: &Statement, config: &StoreConfig) -> Sql;

    /// Runs a statement in a handler's transaction.
    fn execute(
        tx: &mut Self::Driver,
        sql: &Sql,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Lets the database look at a statement without running it.
    fn prepare(tx: &mut Self::Driver, sql: &Sql) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// Opens the store within its `connect_timeout`, and a little longer: the store itself knows why it took so long.
pub(crate) async fn open_in_time<St: ServiceStore>(config: &StoreConfig) -> Result<St, Error> {
    let limit = config.connect_timeout;
    tokio::time::timeout(limit + 2 * LAST_TRY, St::open(config)).await.map_err(|_| {
        Error::new(ErrorKind::Unavailable, format!("the store did not answer within {limit:?}"))
    })?
}

/// A statement in the words of one database.
#[derive(Debug, Clone)]
pub(crate) struct Sql {
    text: Arc<str>,
    parameters: Vec<Parameter>,
    /// A pooler gives each transaction to another session, which does not know what was prepared.
    persistent: bool,
}

/// What a parameter stands for in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Null,
    Bytes(Bytes),
    Whole(i64),
}

impl Sql {
    fn new(statement: &Statement, config: &StoreConfig, write: impl Fn(usize) -> String) -> Self {
        Self {
            text: statement.with(write).into(),
            parameters: statement.parameters().to_vec(),
            persistent: !config.behind_pooler,
        }
    }

    fn safe(&self) -> AssertSqlSafe<Arc<str>> {
        // Written by whoever wrote the configuration; what messages bring is only ever bound.
        AssertSqlSafe(self.text.clone())
    }

    /// The values of one message. A payload that is no text can never be one, so that is a dead letter at once.
    pub(crate) fn values(&self, message: &Message, attempt: u32) -> Result<Vec<Value>, Failure> {
        self.parameters.iter().map(|parameter| value(*parameter, message, attempt)).collect()
    }
}

fn value(parameter: Parameter, message: &Message, attempt: u32) -> Result<Value, Failure> {
    Ok(match parameter {
        Parameter::Id => Value::Text(message.id.clone()),
        Parameter::Kind => Value::Text(message.kind.clone()),
        Parameter::Key => message.key.clone().map_or(Value::Null, Value::Text),
        Parameter::Payload => match std::str::from_utf8(&message.payload) {
            Ok(text) if !text.contains('\0') => Value::Text(text.to_owned()),
            _ => {
                let wrong = "the payload is not text, so it cannot be `:payload`; use `:payload_bytes`";
                return Err(Failure::permanent(wrong));
            }
        },
        Parameter::PayloadBytes => Value::Bytes(message.payload.clone()),
        Parameter::Headers => Value::Text(headers(message)),
        Parameter::Attempt => Value::Whole(i64::from(attempt)),
    })
}

/// Headers as a JSON object: names in lower case, a list where one came more than once.
fn headers(message: &Message) -> String {
    let mut object: Map<String, Json> = Map::new();
    for (name, bytes) in message.headers.iter() {
        let value = match std::str::from_utf8(bytes) {
            Ok(text) => Json::from(text),
            Err(_) => {
                use base64::Engine;
                serde_json::json!({ "base64": base64::engine::general_purpose::STANDARD.encode(bytes) })
            }
        };
        match object.entry(name.to_ascii_lowercase()) {
            serde_json::map::Entry::Vacant(free) => {
                free.insert(value);
            }
            serde_json::map::Entry::Occupied(mut taken) => match taken.get_mut() {
                Json::Array(list) => list.push(value),
                first => *first = Json::from(vec![first.take(), value]),
            },
        }
    }
    Json::Object(object).to_string()
}

macro_rules! bind {
    ($arguments:ty, $database:ty, $sql:expr, $values:expr) => {{
        let mut arguments = <$arguments>::default();
        for value in $values {
            match value {
                Value::Text(text) => arguments.add(text),
                Value::Null => arguments.add(Option::<String>::None),
                Value::Bytes(bytes) => arguments.add(bytes.to_vec()),
                Value::Whole(number) => arguments.add(number),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        let query: Query<'_, $database, $arguments> = sqlx::query_with($sql.safe(), arguments);
        query.persistent($sql.persistent)
    }};
}

/// A pool tries again until its time is over and does not say why, so one more try tells.
async fn unreachable<C: Connection>(server: String, options: &C::Options, mut error: sqlx::Error) -> Error {
    if matches!(error, sqlx::Error::PoolTimedOut)
        && let Ok(Err(reason)) = tokio::time::timeout(LAST_TRY, C::connect_with(options)).await
    {
        error = reason;
    }
    let text = format!("{server} cannot be reached (is it running, and is `url` in [store] right?)");
    Error::caused(ErrorKind::Unavailable, text, error)
}

fn unreadable(error: sqlx::Error) -> Error {
    Error::caused(ErrorKind::Invalid, "`url` in [store] cannot be read", error)
}

impl ServiceStore for SqliteStore {
    async fn open(config: &StoreConfig) -> Result<Self, Error> {
        let url = config.url.expose();
        // A plain path stays as it is written; only an address with parameters is read as one.
        let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
        let mut store = SqliteStore::open(if url.contains('?') { url } else { path })
            .await?
            .payload_limit(config.max_payload);
        if !config.schema.is_empty() {
            store = store.prefix(&config.schema)?;
        }
        Ok(if config.relaxed_durability { store.allow_relaxed_durability() } else { store })
    }

    async fn bring_up_to_date(&self) -> Result<(), Error> {
        self.migrate().await
    }

    async fn pending_migrations(&self) -> Result<usize, Error> {
        Ok(self.migration_status().await?.iter().filter(|one| one.applied_at.is_none()).count())
    }

    fn sql(statement: &Statement, config: &StoreConfig) -> Sql {
        Sql::new(statement, config, |number| format!("?{number}"))
    }

    async fn execute(tx: &mut SqliteConnection, sql: &Sql, values: Vec<Value>) -> Result<(), sqlx::Error> {
        bind!(SqliteArguments, Sqlite, sql, values).execute(tx).await.map(|_| ())
    }

    async fn prepare(tx: &mut SqliteConnection, sql: &Sql) -> Result<(), sqlx::Error> {
        Executor::prepare(tx, sql.safe().into_sql_str()).await.map(|_| ())
    }
}

impl ServiceStore for PgStore {
    async fn open(config: &StoreConfig) -> Result<Self, Error> {
        let options: PgConnectOptions = config.url.expose().parse().map_err(unreadable)?;
        let port = options.get_port();
        let pool = PgPoolOptions::new()
            .max_connections(config.connections)
            .acquire_timeout(config.connect_timeout)
            .after_connect(move |_, _| {
                oncebox::no_delay(port);
                Box::pin(async { Ok(()) })
            })
            .connect_with(options.clone());
        let pool = match pool.await {
            Ok(pool) => pool,
            Err(error) => {
                let server = format!("Postgres at {}:{}", options.get_host(), options.get_port());
                return Err(unreachable::<PgConnection>(server, &options, error).await);
            }
        };
        let mut store = PgStore::new(pool).payload_limit(config.max_payload);
        if !config.schema.is_empty() {
            store = store.schema(&config.schema)?;
        }
        if config.behind_pooler {
            store = store.behind_pooler();
        }
        Ok(if config.relaxed_durability { store.allow_relaxed_durability() } else { store })
    }

    async fn bring_up_to_date(&self) -> Result<(), Error> {
        self.migrate().await
    }

    async fn pending_migrations(&self) -> Result<usize, Error> {
        Ok(self.migration_status().await?.iter().filter(|one| one.applied_at.is_none()).count())
    }

    fn sql(statement: &Statement, config: &StoreConfig) -> Sql {
        Sql::new(statement, config, |number| format!("${number}"))
    }

    async fn execute(tx: &mut PgConnection, sql: &Sql, values: Vec<Value>) -> Result<(), sqlx::Error> {
        bind!(PgArguments, Postgres, sql, values).execute(tx).await.map(|_| ())
    }

    async fn prepare(tx: &mut PgConnection, sql: &Sql) -> Result<(), sqlx::Error> {
        Executor::prepare(tx, sql.safe().into_sql_str()).await.map(|_| ())
    }
}

impl ServiceStore for MariaStore {
    async fn open(config: &StoreConfig) -> Result<Self, Error> {
        let options: MySqlConnectOptions =
            config.url.expose().replacen("mariadb:", "mysql:", 1).parse().map_err(unreadable)?;
        let port = options.get_port();
        let pool = MySqlPoolOptions::new()
            .max_connections(config.connections)
            .acquire_timeout(config.connect_timeout)
            .after_connect(move |_, _| {
                oncebox::no_delay(port);
                Box::pin(async { Ok(()) })
            })
            .connect_with(options.clone());
        let pool = match pool.await {
            Ok(pool) => pool,
            Err(error) => {
                let server = format!("MariaDB at {}:{}", options.get_host(), options.get_port());
                return Err(unreachable::<MySqlConnection>(server, &options, error).await);
            }
        };
        let mut store = MariaStore::new(pool).payload_limit(config.max_payload);
        if !config.schema.is_empty() {
            store = store.schema(&config.schema)?;
        }
        Ok(if config.relaxed_durability { store.allow_relaxed_durability() } else { store })
    }

    async fn bring_up_to_date(&self) -> Result<(), Error> {
        self.migrate().await
    }

    async fn pending_migrations(&self) -> Result<usize, Error> {
        Ok(self.migration_status().await?.iter().filter(|one| one.applied_at.is_none()).count())
    }

    fn sql(statement: &Statement, config: &StoreConfig) -> Sql {
        Sql::new(statement, config, |_| "?".to_owned())
    }

    async fn execute(tx: &mut MySqlConnection, sql: &Sql, values: Vec<Value>) -> Result<(), sqlx::Error> {
        bind!(MySqlArguments, MySql, sql, values).execute(tx).await.map(|_| ())
    }

    async fn prepare(tx: &mut MySqlConnection, sql: &Sql) -> Result<(), sqlx::Error> {
        Executor::prepare(tx, sql.safe().into_sql_str()).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a connection of the driver's own no longer delays, the driver has been mended, and `oncebox-nodelay` can go.
    #[cfg(unix)]
    async fn connections_do_not_delay<St: ServiceStore, C: Connection>(url: &str, port: u16) {
        let own = C::connect(url).await.unwrap();
        assert_eq!(oncebox_nodelay::delaying(port), 1);
        own.close().await.unwrap();
        let text = format!("[store]\nurl = \"{}\"\n", url.replacen("mysql:", "mariadb:", 1));
        let config = crate::Config::parse("test.toml", &text, &|_| None).unwrap();
        let store = St::open(&config.store).await.unwrap();
        assert_eq!(oncebox_nodelay::delaying(port), 0);
        drop(store);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn connections_to_a_server_send_at_once() {
        if let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") {
            let port = url.parse::<PgConnectOptions>().unwrap().get_port();
            connections_do_not_delay::<PgStore, PgConnection>(&url, port).await;
        }
        if let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") {
            let port = url.parse::<MySqlConnectOptions>().unwrap().get_port();
            connections_do_not_delay::<MariaStore, MySqlConnection>(&url, port).await;
        }
    }

    #[test]
    fn values_are_what_the_message_brought() {
        let statement =
            Statement::parse("select :id, :kind, :key, :payload, :payload_bytes, :headers, :attempt");
        let sql = SqliteStore::sql(&statement.unwrap(), &crate::Config::default_config().store);
        let message = Message::new("order", "{}").id("7").header("A", "1").header("b", "x").header("a", "2");
        let values = sql.values(&message, 3).unwrap();
        assert_eq!(
            values,
            [
                Value::Text("7".to_owned()),
                Value::Text("order".to_owned()),
                Value::Null,
                Value::Text("{}".to_owned()),
                Value::Bytes(Bytes::from_static(b"{}")),
                Value::Text(r#"{"a":["1","2"],"b":"x"}"#.to_owned()),
                Value::Whole(3),
            ]
        );
        for payload in [&b"\xff"[..], b"a\0b"] {
            let message = Message::new("order", payload.to_vec());
            assert!(sql.values(&message, 1).unwrap_err().is_permanent());
        }
    }
}
