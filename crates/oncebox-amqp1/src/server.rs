//! How the AMQP server is reached.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::connection::{ConnectionHandle, OpenError};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Connection, Session};
use oncebox_core::access::without_login;
use oncebox_core::{Error, ErrorKind};
use percent_encoding::percent_decode_str;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::Url;
use uuid::Uuid;

use crate::config::TlsConfig;
use crate::guard::{Guarded, Raw};
use crate::silence::Watched;

/// Larger frames than most servers use by default; the server may ask for smaller ones.
const FRAME_BYTES: u32 = 128 * 1024;

/// What the settings of a source or a sink say about the server.
pub(crate) struct Access<'a> {
    pub(crate) url: &'a str,
    pub(crate) address: &'a str,
    pub(crate) username: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) container_id: Option<&'a str>,
    pub(crate) hostname: Option<&'a str>,
    pub(crate) tls: &'a TlsConfig,
    pub(crate) idle_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// An address that was read and makes sense.
#[derive(Clone)]
pub(crate) struct Server {
    host: String,
    port: u16,
    pub(crate) address: String,
    tls: Option<TlsConfig>,
    login: SaslProfile,
    container_id: Option<String>,
    hostname: String,
    idle_timeout: u32,
    connect_timeout: Duration,
}

/// A connection with one session; both end when it is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: SessionHandle<()>,
    pub(crate) connection: ConnectionHandle<()>,
    /// What the server sends, as it came.
    pub(crate) raw: Raw,
}

impl Access<'_> {
    pub(crate) fn read(&self) -> Result<Server, Error> {
        let shown = without_login(self.url);
        let url = Url::parse(self.url).map_err(|error| {
            Error::invalid(format!(
                "`url`: `{shown}` cannot be read ({error}); write amqp://HOST:PORT or amqps://HOST:PORT"
            ))
        })?;
        let (encrypted, port) = match url.scheme() {
            "amqp" => (false, 5672),
            "amqps" => (true, 5671),
            other => {
                return Err(Error::invalid(format!(
                    "`url`: scheme `{other}` is not known; write amqp:// or amqps://"
                )));
            }
        };
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err(Error::invalid(format!(
                "`url`: `{shown}` must be a host and a port and nothing more; `address` and `hostname` have settings of \
                 their own"
            )));
        }
        if self.address.is_empty() {
            return Err(Error::invalid(
                "`address` is empty: name a queue or a topic, as the server calls it",
            ));
        }
        let idle_timeout = u32::try_from(self.idle_timeout.as_millis()).ok().filter(|millis| *millis >= 1000);
        let idle_timeout =
            idle_timeout.ok_or_else(|| Error::invalid("`idle_timeout` must be between 1s and 49d"))?;
        if self.connect_timeout.is_zero() {
            return Err(Error::invalid("`connect_timeout` is zero; nothing connects that fast"));
        }
        Ok(Server {
            host: host.to_owned(),
            port: url.port().unwrap_or(port),
            address: self.address.to_owned(),
            tls: self.tls(encrypted)?,
            login: self.login(&url)?,
            container_id: self.container_id.map(str::to_owned),
            hostname: self.hostname.unwrap_or(host).to_owned(),
            idle_timeout,
            connect_timeout: self.connect_timeout,
        })
    }

    fn tls(&self, encrypted: bool) -> Result<Option<TlsConfig>, Error> {
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return Err(Error::invalid("`tls.certificate` and `tls.key` belong together; set both or none"));
        }
        if !encrypted && *self.tls != TlsConfig::default() {
            return Err(Error::invalid(
                "there are files for TLS, but the `url` says amqp://; write amqps://",
            ));
        }
        Ok(encrypted.then(|| self.tls.clone()))
    }

    fn login(&self, url: &Url) -> Result<SaslProfile, Error> {
        let decoded = |part: &str| {
            let text = percent_decode_str(part).decode_utf8().map(|text| text.into_owned());
            text.map_err(|_| Error::invalid("`url`: user and password must be UTF-8 text"))
        };
        let username = match self.username {
            Some(username) => username.to_owned(),
            None => decoded(url.username())?,
        };
        let password = match (self.password, url.password()) {
            (Some(password), _) => password.to_owned(),
            (None, Some(password)) => decoded(password)?,
            (None, None) => String::new(),
        };
        match (username.is_empty(), password.is_empty()) {
            (true, true) => Ok(SaslProfile::Anonymous),
            (true, false) => Err(Error::invalid("there is a `password` but no `username`; set both")),
            _ => Ok(SaslProfile::Plain { username, password }),
        }
    }
}

// By hand, because nothing secret may be printed.
impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Server({}:{} {})", self.host, self.port, self.address)
    }
}

impl Server {
    /// Connects and begins a session.
    pub(crate) async fn open(&self) -> Result<Opened, Error> {
        let opening = tokio::time::timeout(self.connect_timeout, self.open_slowly()).await;
        opening.map_err(|_| self.error("it did not answer within `connect_timeout`; check `url`"))?
    }

    async fn open_slowly(&self) -> Result<Opened, Error> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let away = "cannot connect (is it running? check `url`)";
        let stream = stream.map_err(|error| self.caused(away, error))?;
        stream.set_nodelay(true).map_err(|error| self.caused("cannot connect", error))?;
        // A little later than the client itself would notice, whose error says more.
        let silence = Duration::from_millis(u64::from(self.idle_timeout) + 200);
        let stream = Watched::new(stream, silence);
        let fresh = || format!("oncebox-{}", Uuid::now_v7());
        let builder = Connection::builder()
            .container_id(self.container_id.clone().unwrap_or_else(fresh))
            .hostname(self.hostname.as_str())
            .sasl_hostname(self.hostname.as_str())
            .scheme("amqp")
            .sasl_profile(self.login.clone())
            .max_frame_size(FRAME_BYTES)
            .idle_time_out(self.idle_timeout);
        let raw = Raw::default();
        let opened = match &self.tls {
            None => builder.open_with_stream(Guarded::new(stream, raw.clone())).await,
            Some(tls) => {
                let connector = TlsConnector::from(Arc::new(client_config(tls)?));
                let name = ServerName::try_from(self.host.clone())
                    .map_err(|error| self.caused("its name cannot be in a certificate", error))?;
                let stream = connector.connect(name, stream).await;
                let stream = stream.map_err(|error| self.caused("TLS failed", error))?;
                builder.open_with_stream(Guarded::new(stream, raw.clone())).await
            }
        };
        let mut connection = opened.map_err(|error| match error {
            OpenError::SaslError { .. } => {
                self.error("it does not let us in: check `username` and `password`")
            }
            // The client says this when the server does not offer our login; it names neither.
            OpenError::NotImplemented(_) => self.error(match self.login {
                SaslProfile::Anonymous => "it lets nobody in without a user: set `username` and `password`",
                _ => "it takes no user and password (SASL plain is not offered): allow that at the server",
            }),
            // With TLS 1.3 the server looks for our certificate when we talk already, and its word may get lost.
            OpenError::Io(error) if self.tls.is_some() => {
                let what = "TLS ended (if it asks for a certificate, check `tls.certificate` and `tls.key`)";
                self.caused(what, error)
            }
            error => self.caused("cannot open a connection", error),
        })?;
        let session = Session::begin(&mut connection).await;
        let session = session.map_err(|error| self.caused("cannot begin a session", error))?;
        Ok(Opened { session, connection, raw })
    }

    /// An error that names the server and the address.
    pub(crate) fn error(&self, what: &str) -> Error {
        let Self { host, port, address, .. } = self;
        Error::new(ErrorKind::Unavailable, format!("AMQP server {host}:{port}, address `{address}`: {what}"))
    }

    /// The same with what caused it.
    pub(crate) fn caused(&self, what: &str, error: impl fmt::Display) -> Error {
        self.error(&format!("{what}: {error}"))
    }
}

impl Opened {
    /// Waits for something of this session; `None` when the session ends before. The client alone would wait for the
    /// outcome of a message for ever.
    pub(crate) async fn unless_ended<T>(&mut self, waiting: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            // What has come before the end counts.
            biased;
            come = waiting => Some(come),
            _ = self.session.on_end() => None,
        }
    }

    /// Says goodbye. That the other side answers strangely (RabbitMQ 3 does) is nobody's business any more.
    pub(crate) async fn close(mut self) {
        let _ = self.session.end().await;
        let _ = self.connection.close().await;
    }
}

fn client_config(files: &TlsConfig) -> Result<ClientConfig, Error> {
    let wrong = |what: String, error: &dyn fmt::Display| {
        Error::new(ErrorKind::Unavailable, format!("{what}: {error}"))
    };
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(file) => {
            let read = read_certificates(file);
            roots.add_parsable_certificates(read.map_err(|error| wrong(unreadable("tls.ca", file), &error))?);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Error::new(ErrorKind::Unavailable, "there is no authority to trust; set `tls.ca`"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("TLS cannot be set up".to_owned(), &error))?
        .with_root_certificates(roots);
    let (Some(certificate), Some(key)) = (&files.certificate, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = read_certificates(certificate)
        .map_err(|error| wrong(unreadable("tls.certificate", certificate), &error))?;
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(unreadable("tls.key", key), &error))?;
    let identity = builder.with_client_auth_cert(chain, secret);
    identity.map_err(|error| wrong("`tls.certificate` and `tls.key` do not fit".to_owned(), &error))
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())?;
    certificates.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn unreadable(setting: &str, file: &Path) -> String {
    format!("`{setting}`: cannot read {}", file.display())
}
