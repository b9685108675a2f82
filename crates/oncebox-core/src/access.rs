//! What the settings of brokers share: files for TLS, and addresses as they may be shown.

use std::path::PathBuf;

use serde::Deserialize;

/// Files, in PEM, for connections with TLS. They are read again for each connection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// The authorities to trust, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// Our own certificate, with `key`, where the server asks for one.
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate.
    pub key: Option<PathBuf>,
}

/// An address, or several with commas between them, with `***` for what lets one in, however broken it is.
///
/// ```
/// use oncebox_core::access::without_login;
///
/// assert_eq!(without_login("amqp://me:secret@localhost:5672/shop"), "amqp://***@localhost:5672/shop");
/// assert_eq!(without_login("nats://me:secret@a,nats://token@b"), "nats://***@a,nats://***@b");
/// ```
pub fn without_login(addresses: &str) -> String {
    let start = addresses.find("://").map_or(0, |place| place + 3);
    let rest = &addresses[start..];
    // Another address begins with a comma and its scheme. A comma alone may be part of a password.
    let next = rest.match_indices(',').find(|(place, _)| {
        let after = rest[place + 1..].trim_start();
        let scheme = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '+').unwrap_or(after.len());
        after[scheme..].starts_with("://")
    });
    let (first, others) = match next {
        Some((place, _)) => (&rest[..place], Some(&rest[place + 1..])),
        None => (rest, None),
    };
    // A password may contain anything that was not escaped, so everything up to the last `@` is taken for it.
    let shown = match first.rsplit_once('@') {
        Some((_, server)) => format!("{}***@{server}", &addresses[..start]),
        None => format!("{}{first}", &addresses[..start]),
    };
    match others {
        Some(others) => format!("{shown},{}", without_login(others)),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_one_in_is_never_shown() {
        for (address, shown) in [
            ("amqp://h:1/v", "amqp://h:1/v"),
            ("amqp://me:canary@h/v", "amqp://***@h/v"),
            ("amqp://me:can@ary@h", "amqp://***@h"),
            ("amqp://me:canary://x@h", "amqp://***@h"),
            ("amqp://me:can,ary@h", "amqp://***@h"),
            ("me:canary@h", "***@h"),
            ("mqtt://me:canary@h:port", "mqtt://***@h:port"),
            ("nats://canary@a, tls://me:canary@b", "nats://***@a, tls://***@b"),
            ("nats://a,b:4222", "nats://a,b:4222"),
            ("nats://me:canary@a,b", "nats://***@a,b"),
            ("redis+unix://:canary@/run/redis", "redis+unix://***@/run/redis"),
            ("", ""),
        ] {
            assert_eq!(without_login(address), shown);
        }
    }
}
