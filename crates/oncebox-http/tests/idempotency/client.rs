//! A client that says exactly what it is told to, over a socket of its own.

use std::net::SocketAddr;
use std::sync::Mutex;

use oncebox_testkit::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request being put together.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    address: SocketAddr,
    start: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// A POST to `/orders` with this key (quoted) and this body.
pub(crate) fn order(address: SocketAddr, key: &str, body: &str) -> Ask {
    post(address, "/orders", body).header("idempotency-key", format!("\"{key}\""))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Ask {
    request(address, "POST", path, body)
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Ask {
    let start = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    Ask { address, start, headers: Vec::new(), body: body.as_bytes().to_vec() }
}

impl Ask {
    pub(crate) fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// What the handler is to do; no part of the content.
    pub(crate) fn told(self, what: &str) -> Self {
        self.header("x-do", what)
    }

    /// Sends it and reads the reply; `None` when the server closed the connection without one.
    pub(crate) async fn try_send(&self) -> Option<Reply> {
        let mut stream = self.start().await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        Reply::parse(&bytes)
    }

    pub(crate) async fn send(&self) -> Reply {
        self.try_send().await.expect("there is a reply")
    }

    /// Sends it and does not read the reply; dropping the stream is a client that goes away.
    pub(crate) async fn start(&self) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await.ok()?;
        let mut bytes = self.start.clone().into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        stream.write_all(&bytes).await.ok()?;
        Some(stream)
    }

    /// Sends it again and again, as a good client does, until it is neither refused for the moment nor lost.
    pub(crate) async fn insist(&self) -> Reply {
        let last = Mutex::new(None);
        until("the request is answered for good", || async {
            let reply = self.try_send().await;
            let is_final = reply.as_ref().is_some_and(|reply| !matches!(reply.status, 409 | 503));
            *last.lock().unwrap() = reply;
            is_final
        })
        .await;
        last.into_inner().unwrap().expect("there is a reply")
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { status, headers, body: String::from_utf8_lossy(&bytes[end + 4..]).into_owned() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(named, _)| named == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Checks that it is a problem of this status and name, which says what to do.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, name: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert!(self.body.contains(&format!("\"urn:oncebox:idempotency:{name}\"")), "{self:?}");
        assert!(self.body.contains(&format!("\"status\":{status}")), "{self:?}");
    }
}
