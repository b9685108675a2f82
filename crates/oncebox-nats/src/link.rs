//! From settings to a connection.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use async_nats::rustls;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use oncebox_core::access::without_login;
use oncebox_core::{Error, ErrorKind};
use tokio::sync::watch;

use crate::config::{NatsAuth, NatsTls};

/// Two of these unanswered and the connection is given up, so one that is only half open is noticed in half a minute.
const PING_EVERY: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Where to connect and how to get in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) url: &'a str,
    pub(crate) auth: &'a NatsAuth,
    pub(crate) tls: &'a NatsTls,
}

/// What becomes of a connection that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterLoss {
    /// It ends; its owner makes a new one.
    End,
    /// The client makes a new one by itself.
    Reconnect,
}

/// A connection, and how often it was lost.
pub(crate) async fn connect(
    target: Target<'_>,
    after_loss: AfterLoss,
    room: usize,
) -> Result<(Client, watch::Receiver<u64>), Error> {
    let failed = |error: async_nats::ConnectError| {
        let remedy = match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => " (check `auth`)",
            ConnectErrorKind::Tls => " (check `tls`)",
            _ if is_about_tls(&error) => " (check `tls`)",
            _ => " (is it running? check `url`)",
        };
        let text = format!("cannot connect to NATS at {}{remedy}", without_login(target.url));
        Error::caused(ErrorKind::Unavailable, text, error)
    };
    let servers = servers(target.url)?;
    let (lost, is_lost) = watch::channel(0);
    let mut options = authenticated(&servers, target.auth)
        .await?
        .name("oncebox")
        .ping_interval(PING_EVERY)
        .connection_timeout(CONNECT_WITHIN)
        .request_timeout(Some(ANSWER_WITHIN))
        .subscription_capacity(room)
        .event_callback(move |event| {
            if matches!(event, Event::Disconnected | Event::Closed) {
                lost.send_modify(|times| *times += 1);
            }
            async {}
        });
    if after_loss == AfterLoss::End {
        options = options.max_reconnects(servers.len());
    }
    let tls = target.tls;
    if *tls != NatsTls::default() {
        options = options.require_tls(true);
        if let Some(ca) = &tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if tls.first {
            options = options.tls_first();
        }
    }
    let client = options.connect(servers).await.map_err(failed)?;
    Ok((client, is_lost))
}

/// A server that wants another certificate of ours says so after the handshake: for the client the connection broke.
fn is_about_tls(error: &async_nats::ConnectError) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let of_io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if of_io.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn servers(url: &str) -> Result<Vec<ServerAddr>, Error> {
    let parsed = url.split(',').map(|one| {
        one.trim().parse::<ServerAddr>().map_err(|_| {
            Error::invalid(format!("url: `{}` cannot be read as an address", without_login(one)))
        })
    });
    parsed.collect()
}

async fn authenticated(servers: &[ServerAddr], auth: &NatsAuth) -> Result<ConnectOptions, Error> {
    let unreadable = |what: &str, error: io::Error| {
        Error::caused(ErrorKind::Invalid, format!("auth: the {what} cannot be used"), error)
    };
    if let (Some(user), Some(password)) = (&auth.user, &auth.password) {
        return Ok(ConnectOptions::with_user_and_password(user.clone(), password.clone()));
    }
    if let Some(token) = &auth.token {
        return Ok(ConnectOptions::with_token(token.clone()));
    }
    if let Some(seed) = &auth.nkey {
        return Ok(ConnectOptions::with_nkey(seed.clone()));
    }
    if let Some(path) = &auth.credentials {
        let options = ConnectOptions::with_credentials_file(path).await;
        return options.map_err(|error| unreadable(&format!("credentials file {}", path.display()), error));
    }
    // The client looks at neither by itself.
    let named = servers.iter().find_map(|server| Some((server.username()?, server.password())));
    Ok(match named {
        Some((user, Some(password))) => {
            ConnectOptions::with_user_and_password(unescaped(user), unescaped(password))
        }
        Some((token, None)) => ConnectOptions::with_token(unescaped(token)),
        None => ConnectOptions::new(),
    })
}

/// Reads the `%40` that stands for an `@` in a url.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match escaped.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_a_url_may_hold_any_letter() {
        assert_eq!(unescaped("a%40b%2Fc%"), "a@b/c%");
        assert_eq!(unescaped("100%zz"), "100%zz");
    }
}
