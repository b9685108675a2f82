//! Accepts connections, cuts off slow clients, and finishes what has begun when it is told to stop.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::middleware::from_fn;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::HttpConfig;
use crate::framing::{Guarded, close_after_chunks};
use crate::guesses::Peer;

/// How long to wait after the system could not accept (no more file handles, say) before trying again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How much of an answer the system keeps for a client that does not read. By itself it would take megabytes for each,
/// and who reads nothing would be noticed late.
const SEND_BUFFER: u32 = 256 * 1024;
/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// What a client gets when there are too many.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A bound address and the limits of those who connect.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    builder: http1::Builder,
    most: usize,
    write_timeout: Duration,
    open: Arc<AtomicUsize>,
}

impl Listener {
    pub(crate) fn bind(http: &HttpConfig) -> io::Result<Self> {
        let socket = if http.listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(http.listen)?;
        let listener = socket.listen(BACKLOG)?;
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(http.header_timeout)
            .max_headers(http.max_headers)
            .max_buf_size(http.max_header_size);
        let (most, write_timeout) = (http.max_connections, http.write_timeout);
        Ok(Self { listener, builder, most, write_timeout, open: Arc::default() })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> Arc<AtomicUsize> {
        self.open.clone()
    }

    /// Serves until `stop`; then answers what has been asked, for at most `limit`.
    pub(crate) async fn serve(self, router: Router, mut stop: watch::Receiver<bool>, limit: Duration) {
        let router = router.layer(from_fn(close_after_chunks));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                _ = stop.wait_for(|stopping| *stopping) => break,
            };
            let (stream, peer) = match accepted {
                Ok((stream, address)) => (stream, Peer(address.ip())),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            if self.open.load(Ordering::Acquire) >= self.most {
                connections.spawn(turn_away(stream));
                continue;
            }
            // Answers are small; none should wait for another packet.
            let _ = stream.set_nodelay(true);
            let open = Open::new(&self.open);
            let (builder, router, stop) = (self.builder.clone(), router.clone(), stop.clone());
            let stream = Guarded::new(stream, self.write_timeout);
            connections.spawn(async move {
                serve_one(stream, peer, builder, router, stop).await;
                drop(open);
            });
        }
        // Nobody new from here on.
        drop(self.listener);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!("requests that were under way have been cut off");
        }
    }
}

async fn serve_one(
    stream: Guarded<TcpStream>,
    peer: Peer,
    builder: http1::Builder,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.call(request)
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let stopped = async { drop(stop.wait_for(|stopping| *stopping).await) };
    let served = tokio::select! {
        served = connection.as_mut() => Some(served),
        () = stopped => None,
    };
    let served = match served {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn turn_away(mut stream: TcpStream) {
    let told = async {
        let _ = stream.write_all(BUSY).await;
        let _ = stream.shutdown().await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
}

/// Counts a connection while it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
