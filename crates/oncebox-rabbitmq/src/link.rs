//! A connection to the server: how it is made, and that it ends.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Shutdown, TcpStream as StdStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_compat::CompatExt;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};
use oncebox_core::access::without_login;
use oncebox_core::{Error, ErrorKind};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::config::{Auth, TlsConfig};
use crate::mend::{Mended, MendingTokio};
use crate::source::reply_code;

const ACCESS_REFUSED: u16 = 403;
const NOT_ALLOWED: u16 = 530;
/// How long a connection may take to say goodbye.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Where to connect, and how.
#[derive(Clone)]
pub(crate) struct Settings {
    uri: AMQPUri,
    tls: TlsConfig,
    connect_timeout: Duration,
}

// By hand, because the address has the password.
impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Settings").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl Settings {
    pub(crate) fn new(
        url: &str,
        [username, password, vhost]: [&Option<String>; 3],
        auth: Auth,
        tls: &TlsConfig,
        heartbeat: Duration,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        let mut uri = parse(url)?;
        let user = &mut uri.authority.userinfo;
        user.username = username.as_ref().unwrap_or(&user.username).clone();
        user.password = password.as_ref().unwrap_or(&user.password).clone();
        uri.vhost = vhost.as_ref().unwrap_or(&uri.vhost).clone();
        if uri.vhost.len() > 255 {
            return Err(Error::invalid("`vhost` has more than the 255 bytes that RabbitMQ allows"));
        }
        let seconds = u16::try_from(heartbeat.as_secs()).ok().filter(|seconds| *seconds > 0);
        let seconds = seconds.ok_or_else(|| Error::invalid("`heartbeat` must be 1 s to 65535 s"))?;
        uri.query.heartbeat = uri.query.heartbeat.or(Some(seconds));
        if connect_timeout.is_zero() {
            return Err(Error::invalid("`connect_timeout` is zero; give it some seconds"));
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(Error::invalid("`tls.certificate` and `tls.key` belong together; set both or none"));
        }
        if uri.scheme == AMQPScheme::AMQP && *tls != TlsConfig::default() {
            return Err(Error::invalid("`tls` is set, but `url` begins with amqp://; write amqps://"));
        }
        if auth == Auth::External {
            if tls.certificate.is_none() {
                return Err(Error::invalid(
                    "`auth` is external, so the server wants a certificate; set `tls.certificate` and `tls.key`",
                ));
            }
            uri.query.auth_mechanism = Some(SASLMechanism::External);
        }
        Ok(Self { uri, tls: tls.clone(), connect_timeout })
    }

    fn place(&self) -> String {
        format!("RabbitMQ at {}:{}", self.uri.authority.host, self.uri.authority.port)
    }

    /// Connects and logs in, within the time for it.
    pub(crate) async fn connect(&self) -> Result<Link, Error> {
        let tokio = Tokio::current();
        let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), MendingTokio(tokio)));
        let socket = Arc::new(Mutex::new(None));
        let (settings, keep) = (self.clone(), socket.clone());
        let stream = async move |_, _| Ok(AsyncTcpStream::Plain(Mended::new(settings.stream(&keep).await?)));
        let properties = ConnectionProperties::default().with_connection_name("oncebox".into());
        let connecting = Connection::connector(self.uri.clone(), runtime, stream, properties);
        // Whatever happens, also when this future is dropped: without its socket the client's thread ends.
        let guard = Hangup(socket);
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(Link { connection: Arc::new(connection), hangup: Some(guard) }),
            Ok(Err(error)) => Err(self.cannot(error)),
            Err(_) => {
                let text =
                    format!("{} did not answer within {:?}; check `url`", self.place(), self.connect_timeout);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    fn cannot(&self, error: lapin::Error) -> Error {
        let remedy = match reply_code(&error) {
            Some(ACCESS_REFUSED) => "check `username` and `password`",
            Some(NOT_ALLOWED) => "check `vhost`, and who may use it",
            // With TLS 1.3 the server looks for our certificate when we talk already, and its word may get lost.
            None if self.uri.scheme == AMQPScheme::AMQPS => {
                "is it running? check `url` and `tls.ca`, and `tls.certificate` if it wants one from us"
            }
            _ => "is it running? check `url`",
        };
        let text = format!("cannot connect to {} ({remedy})", self.place());
        Error::caused(ErrorKind::Unavailable, text, error)
    }

    async fn stream(&self, keep: &Mutex<Option<StdStream>>) -> io::Result<AsyncTcpStream<Compat>> {
        let connecting = async {
            let authority = &self.uri.authority;
            let stream = TcpStream::connect((authority.host.as_str(), authority.port)).await?;
            stream.set_nodelay(true)?;
            let stream = stream.into_std()?;
            let clone = stream.try_clone()?;
            *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(clone);
            let stream = AsyncTcpStream::Plain(TcpStream::from_std(stream)?.compat());
            match self.uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => stream.into_rustls(&connector(&self.tls)?, &authority.host).await,
            }
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the server did not answer");
        tokio::time::timeout(self.connect_timeout, connecting).await.map_err(late)?
    }
}

type Compat = async_compat::Compat<TcpStream>;

/// An open connection. It says goodbye when dropped, and hangs up if that is not answered.
pub(crate) struct Link {
    connection: Arc<Connection>,
    hangup: Option<Hangup>,
}

impl Link {
    pub(crate) async fn channel(&self) -> Result<Channel, lapin::Error> {
        self.connection.create_channel().await
    }

    /// The most bytes of one frame, among them the headers of a message.
    pub(crate) fn frame_max(&self) -> usize {
        self.connection.configuration().frame_max() as usize
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let (connection, hangup) = (self.connection.clone(), self.hangup.take());
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            // Nothing depends on it: what is not acknowledged goes back to its queue either way.
            let _ = tokio::time::timeout(CLOSE_WITHIN, connection.close(200, "OK".into())).await;
            drop(hangup);
        });
    }
}

/// Shuts the socket down when dropped. A client thread that waits for a silent server would stay for ever.
struct Hangup(Arc<Mutex<Option<StdStream>>>);

impl Drop for Hangup {
    fn drop(&mut self) {
        if let Some(socket) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// What [`AMQPUri`] makes of an address, with what it gets wrong put right.
fn parse(url: &str) -> Result<AMQPUri, Error> {
    // Its own errors would repeat the address with the password.
    let wrong = || {
        Error::invalid(format!(
            "`url` {} is not the address of a server; write amqp://HOST or amqps://HOST, as in \
             amqp://user:password@localhost:5672/vhost",
            without_login(url)
        ))
    };
    let mut uri: AMQPUri = url.parse().map_err(|_| wrong())?;
    if let Some(host) = ipv6_host(url) {
        uri.authority.host = host.to_owned();
    }
    if uri.vhost.is_empty() {
        uri.vhost = "/".to_owned();
    }
    Ok(uri)
}

/// The host in `amqp://user@[::1]:5672/`, which [`AMQPUri`] takes for `localhost`.
fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?.strip_prefix('[')?;
    host.split(']').next()
}

fn connector(tls: &TlsConfig) -> io::Result<RustlsConnector> {
    let config = match &tls.ca {
        Some(ca) => RustlsConnectorConfig::default().with_parsable_certificates(certificates(ca)?),
        None => RustlsConnectorConfig::new_with_native_certs()?,
    };
    match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unreadable(key, error))?;
            config.connector_with_single_cert(certificates(certificate)?, key)
        }
        _ => config.connector_with_no_client_auth(),
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let certificates = certificates.map_err(|error| unreadable(path, error))?;
    if certificates.is_empty() {
        return Err(unreadable(path, "it contains no certificate in PEM"));
    }
    Ok(certificates)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, why: impl fmt::Display) -> io::Error {
    io::Error::other(format!("cannot read `{}`: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_mean_what_people_expect() {
        for (url, host, port, vhost, user) in [
            ("amqp://localhost", "localhost", 5672, "/", "guest"),
            ("amqp://localhost/", "localhost", 5672, "/", "guest"),
            ("amqp://h:1/shop", "h", 1, "shop", "guest"),
            ("amqps://me:pass@h/%2f", "h", 5671, "/", "me"),
            ("amqp://127.0.0.1:7", "127.0.0.1", 7, "/", "guest"),
            ("amqp://me:a%5bb@[::1]:7/v", "::1", 7, "v", "me"),
            ("amqps://[2001:db8::1]", "2001:db8::1", 5671, "/", "guest"),
        ] {
            let uri = parse(url).unwrap();
            let authority = &uri.authority;
            assert_eq!((authority.host.as_str(), authority.port), (host, port), "{url}");
            assert_eq!((uri.vhost.as_str(), authority.userinfo.username.as_str()), (vhost, user), "{url}");
        }
    }
}
