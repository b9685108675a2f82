//! From settings to a connection, and the words of the server's answers.

use std::path::PathBuf;
use std::time::Duration;

use oncebox_core::access::without_login;
use oncebox_core::{Error, ErrorKind};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, RedisError, TlsCertificates, Value};

use crate::config::RedisTls;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A connection on which a command may take this long; then it is taken as dead.
pub(crate) async fn connect(
    url: &str,
    tls: &RedisTls,
    answer_within: Duration,
) -> Result<MultiplexedConnection, Error> {
    let failed = |error: RedisError| {
        // With a code it is the server that refuses, the password above all.
        let remedy = if error.code().is_some() || error.kind() == redis::ErrorKind::AuthenticationFailed {
            "check user and password"
        } else if url.starts_with("rediss://") {
            "is it running? check `url` and `tls.ca`, and `tls.certificate` if it wants one from us"
        } else {
            "is it running? check `url`"
        };
        let text = format!("cannot connect to Redis at {} ({remedy})", without_login(url));
        // Only its own words: the whole of an error about an address may contain the address.
        Error::caused(ErrorKind::Unavailable, text, words(&error))
    };
    let client = if url.starts_with("rediss://") {
        let certificates = certificates(tls).await?;
        Client::build_with_tls(url, certificates).map_err(failed)?
    } else {
        Client::open(url).map_err(failed)?
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(answer_within));
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
    // Who has no password is let in and refused with the first command. The client does not bear that when the command
    // begins a transaction. Other refusals are told by the command that is refused.
    match ask(&mut connection, &redis::cmd("PING")).await {
        Err(error) if error.code().is_none_or(|code| code == "NOAUTH") => Err(failed(error)),
        _ => Ok(connection),
    }
}

/// Asks, and fails on an answer that is an error.
pub(crate) async fn ask(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    match connection.req_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

/// What went wrong, as our error.
pub(crate) fn failed(what: &str, error: &RedisError) -> Error {
    Error::caused(ErrorKind::Unavailable, what, words(error))
}

fn words(error: &RedisError) -> String {
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    match (code, detail) {
        ("", "") => error.to_string(),
        ("", detail) => format!("{}: {detail}", error.category()),
        (code, detail) => format!("{code} {detail}"),
    }
}

async fn certificates(tls: &RedisTls) -> Result<TlsCertificates, Error> {
    let read = |path: PathBuf| async move {
        tokio::task::spawn_blocking(move || {
            std::fs::read(&path).map_err(|error| {
                Error::caused(ErrorKind::Invalid, format!("tls: {} cannot be read", path.display()), error)
            })
        })
        .await
        .map_err(|error| Error::caused(ErrorKind::Invalid, "tls: files cannot be read", error))?
    };
    let root_cert = match &tls.ca {
        Some(path) => Some(read(path.clone()).await?),
        None => None,
    };
    let client_tls = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(certificate.clone()).await?,
            client_key: read(key.clone()).await?,
        }),
        _ => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

/// The parts of an array; none of anything else.
pub(crate) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        // As the newer protocol writes what is pairs.
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => Vec::new(),
    }
}

/// The bytes of a text.
pub(crate) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// A text; empty for anything else.
pub(crate) fn text(value: Value) -> String {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A number where there is one.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
