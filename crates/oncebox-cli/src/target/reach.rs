//! From the URL of a store to its database. What cannot be reached is named without its password, with the remedy.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, MySqlConnection, MySqlPool, PgConnection, PgPool};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn postgres(url: &str, connections: u32) -> Result<PgPool, String> {
    let options: PgConnectOptions =
        url.parse().map_err(|error| unreadable("Postgres", "postgres", &error))?;
    let address = address(options.get_host(), options.get_port());
    try_once::<PgConnection>(&format!("Postgres at {address}"), &options).await?;
    let port = options.get_port();
    let pool = PgPoolOptions::new().max_connections(connections).after_connect(move |_, _| {
        oncebox::no_delay(port);
        Box::pin(async { Ok(()) })
    });
    Ok(pool.connect_lazy_with(options))
}

pub(crate) async fn mariadb(url: &str, connections: u32) -> Result<MySqlPool, String> {
    let options: MySqlConnectOptions = url.parse().map_err(|error| unreadable("MariaDB", "mysql", &error))?;
    let address = address(options.get_host(), options.get_port());
    try_once::<MySqlConnection>(&format!("MariaDB at {address}"), &options).await?;
    let port = options.get_port();
    let pool = MySqlPoolOptions::new().max_connections(connections).after_connect(move |_, _| {
        oncebox::no_delay(port);
        Box::pin(async { Ok(()) })
    });
    Ok(pool.connect_lazy_with(options))
}

/// The file that a `sqlite:` URL names.
pub(crate) fn sqlite_file(url: &str) -> &str {
    url.trim_start_matches("sqlite:").trim_start_matches("//")
}

/// Fails when there is no such file to read; `remedy` is for one that is not there.
pub(crate) fn existing(file: &str, remedy: &str) -> Result<(), String> {
    let path = file.split('?').next().unwrap_or_default();
    match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(found) if found.is_dir() => {
            Err(format!("`{path}` is a folder; name the file in it: `--store sqlite:FILE`"))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("there is no file `{path}`; {remedy}"))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(format!("`{path}` cannot be opened: {error}; run this as the user whose store it is"))
        }
        Err(error) => {
            Err(format!("`{path}` cannot be opened: {error}; name the store with `--store sqlite:FILE`"))
        }
    }
}

/// Why SQLite could not open the file. What says its name already says it once.
pub(crate) fn not_opened(file: &str, error: &oncebox::Error) -> String {
    let text = error.to_string();
    let text = if text.contains(file) { text } else { format!("`{file}` cannot be opened: {text}") };
    format!("{text}; name the store with `--store sqlite:FILE`, in a folder that you may write to")
}

/// One connection first: a pool would try again until its time is over, and then not say why.
async fn try_once<C: Connection>(server: &str, options: &C::Options) -> Result<(), String> {
    let reason = match tokio::time::timeout(PATIENCE, C::connect_with(options)).await {
        Ok(Ok(connection)) => {
            // It has answered, which is all that was asked.
            let _ = connection.close().await;
            return Ok(());
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} seconds", PATIENCE.as_secs()),
    };
    Err(format!("{server} cannot be reached: {reason}; is it running, and is `--store` right?"))
}

fn unreadable(store: &str, scheme: &str, error: &sqlx::Error) -> String {
    format!("the URL of {store} cannot be read: {error}; write it as in {scheme}://user@host/database")
}

/// A host with colons in it is an address of IPv6.
fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
