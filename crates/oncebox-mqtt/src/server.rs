//! How the MQTT server is reached.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncebox_core::access::without_login;
use oncebox_core::{Error, ErrorKind};
use percent_encoding::percent_decode_str;
use rumqttc::mqttbytes::v5::{ConnAck, ConnectReturnCode, DisconnectReasonCode};
use rumqttc::{AsyncClient, ConnectionError, Event, MqttOptions, Packet, StateError, Transport, mqttbytes};
use url::Url;

use crate::config::TlsConfig;

/// How long saying goodbye may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// What the settings of a source or a sink say about the server.
pub(crate) struct Access<'a> {
    pub(crate) url: &'a str,
    pub(crate) username: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) tls: &'a TlsConfig,
    pub(crate) keep_alive: Duration,
    pub(crate) connect_timeout: Duration,
}

/// An address that was read and makes sense.
#[derive(Clone)]
pub(crate) struct Server {
    host: String,
    port: u16,
    tls: Option<Tls>,
    credentials: Option<(String, String)>,
    keep_alive: u16,
    connect_timeout: Duration,
}

#[derive(Clone)]
struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

// By hand, because nothing secret may be printed.
impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Server({}:{})", self.host, self.port)
    }
}

impl Access<'_> {
    pub(crate) fn read(&self) -> Result<Server, Error> {
        let shown = without_login(self.url);
        let url = Url::parse(self.url).map_err(|error| {
            Error::invalid(format!(
                "`url`: `{shown}` cannot be read ({error}); write mqtt://HOST:PORT or mqtts://HOST:PORT"
            ))
        })?;
        let (encrypted, port) = match url.scheme() {
            "mqtt" | "tcp" => (false, 1883),
            "mqtts" | "ssl" | "tls" => (true, 8883),
            other => {
                return Err(Error::invalid(format!(
                    "`url`: scheme `{other}` is not known; write mqtt:// or mqtts://"
                )));
            }
        };
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() || !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err(Error::invalid(format!(
                "`url`: `{shown}` must be a host and a port and nothing more; topics have a setting of their own"
            )));
        }
        let keep_alive = u16::try_from(self.keep_alive.as_secs()).ok().filter(|seconds| *seconds > 0);
        let keep_alive =
            keep_alive.ok_or_else(|| Error::invalid("`keep_alive` must be between 1s and 65535s"))?;
        if self.connect_timeout.is_zero() {
            return Err(Error::invalid("`connect_timeout` is zero; nothing connects that fast"));
        }
        Ok(Server {
            // The brackets of an IPv6 address belong to the url.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port().unwrap_or(port),
            tls: self.tls(encrypted)?,
            credentials: self.credentials(&url)?,
            keep_alive,
            connect_timeout: self.connect_timeout,
        })
    }

    fn tls(&self, encrypted: bool) -> Result<Option<Tls>, Error> {
        let TlsConfig { ca, certificate, key } = self.tls;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "`tls.certificate` and `tls.key` belong together; set both or none",
                ));
            }
        };
        if !encrypted {
            if ca.is_some() || identity.is_some() {
                return Err(Error::invalid(
                    "there are files for TLS, but the `url` says mqtt://; write mqtts://",
                ));
            }
            return Ok(None);
        }
        if identity.is_some() && ca.is_none() {
            return Err(Error::invalid(
                "with `tls.certificate`, also set `tls.ca`: the authority of the server",
            ));
        }
        Ok(Some(Tls { ca: ca.clone(), identity }))
    }

    fn credentials(&self, url: &Url) -> Result<Option<(String, String)>, Error> {
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
        if username.is_empty() && !password.is_empty() {
            return Err(Error::invalid("there is a `password` but no `username`; set both"));
        }
        Ok((!username.is_empty()).then_some((username, password)))
    }
}

impl Server {
    /// Options for one connection; reads the files anew, so that certificates can be replaced.
    pub(crate) fn options(&self, client_id: &str) -> Result<MqttOptions, Error> {
        let mut options = MqttOptions::new(client_id, (self.host.as_str(), self.port));
        options.set_keep_alive(self.keep_alive).set_connect_timeout(self.connect_timeout);
        // One write for what is ready instead of one per packet.
        options.set_max_request_batch(256);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        if let Some((username, password)) = &self.credentials {
            options.set_credentials(username, password.clone().into_bytes());
        }
        if let Some(tls) = &self.tls {
            options.set_transport(tls.transport()?);
        }
        Ok(options)
    }

    /// Connects, and leaves again. A name of its own keeps it from taking over the session of somebody who is at work.
    /// Answers what the server says about itself.
    pub(crate) async fn look(&self, client_id: &str) -> Result<ConnAck, Error> {
        let name = if client_id.is_empty() { String::new() } else { format!("{client_id}-check") };
        let mut options = self.options(&name)?;
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).unbounded().build();
        let looking = async {
            loop {
                let event = events.poll().await.map_err(|error| self.broken(error))?;
                if let Event::Incoming(Packet::ConnAck(answer)) = event {
                    return Ok(answer);
                }
            }
        };
        let late = || self.error("it did not answer in time; check `url`");
        let answer =
            tokio::time::timeout(2 * self.connect_timeout, looking).await.unwrap_or_else(|_| Err(late()))?;
        if client.try_disconnect_now().is_ok() {
            let goodbye = async { while events.poll().await.is_ok() {} };
            let _ = tokio::time::timeout(LEAVE_WITHIN, goodbye).await;
        }
        Ok(answer)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// An error that names the server.
    pub(crate) fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("MQTT server {}:{}: {what}", self.host, self.port))
    }

    /// What ended a connection, with the remedy where there is one.
    pub(crate) fn broken(&self, error: ConnectionError) -> Error {
        let remedy = match &error {
            ConnectionError::ConnectionRefused(code)
            | ConnectionError::MqttState(StateError::ConnFail { reason: code }) => match code {
                ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
                    "it does not let us in: check `username` and `password`"
                }
                ConnectReturnCode::ClientIdentifierNotValid | ConnectReturnCode::BadClientId => {
                    "it does not accept the `client_id`"
                }
                ConnectReturnCode::UnsupportedProtocolVersion | ConnectReturnCode::RefusedProtocolVersion => {
                    "it does not speak MQTT 5"
                }
                _ => "it refuses the connection",
            },
            error if is_taken_over(error) => {
                "another connection uses our `client_id`; give each process a name of its own"
            }
            ConnectionError::MqttState(StateError::AwaitPingResp) => "no sign of life within `keep_alive`",
            // Mosquitto 2.0 says no more than this when somebody else comes with our name.
            ConnectionError::MqttState(StateError::ConnectionAborted) => {
                "it closed the connection; if that happens again and again, another process may use our `client_id`"
            }
            ConnectionError::Io(_) | ConnectionError::Timeout(_) => {
                "it cannot be reached; is it running? check `url`"
            }
            // A server that wants a certificate says so after the handshake, as of TLS 1.3.
            ConnectionError::Tls(_)
            | ConnectionError::MqttState(StateError::Deserialization(mqttbytes::Error::Io(_)))
                if self.tls.is_some() =>
            {
                "the connection failed; if it does each time, check `tls.ca`, and `tls.certificate` if it wants one \
                 from us"
            }
            _ => "the connection failed",
        };
        Error::caused(
            ErrorKind::Unavailable,
            format!("MQTT server {}:{}: {remedy}", self.host, self.port),
            error,
        )
    }
}

/// Whether another connection took our client id.
pub(crate) fn is_taken_over(error: &ConnectionError) -> bool {
    let ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) = error else {
        return false;
    };
    *reason_code == DisconnectReasonCode::SessionTakenOver
}

impl Tls {
    fn transport(&self) -> Result<Transport, Error> {
        let Some(ca) = &self.ca else {
            return Transport::try_tls_with_default_config().map_err(|error| {
                let text = "the authorities of this system cannot be read; set `tls.ca`";
                Error::caused(ErrorKind::Unavailable, text, error)
            });
        };
        let identity = match &self.identity {
            Some((certificate, key)) => Some((read("tls.certificate", certificate)?, read("tls.key", key)?)),
            None => None,
        };
        Ok(Transport::tls(read("tls.ca", ca)?, identity, None))
    }
}

fn read(setting: &str, file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|error| {
        Error::caused(ErrorKind::Unavailable, format!("`{setting}`: cannot read {}", file.display()), error)
    })
}
