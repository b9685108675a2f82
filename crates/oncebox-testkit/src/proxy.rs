//! A TCP proxy that misbehaves like a network: it cuts connections, or lets them stand half open.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Stands between clients and a server on loopback; ends with its owner.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    withheld: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

/// What happens to connections: those made before the last cut are closed, those made before the last freeze carry
/// nothing any more, and new ones may be refused.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    born: u64,
    cut_before: u64,
    frozen_before: u64,
    refusing: bool,
}

impl Proxy {
    /// Listens on a free port and forwards to `server`.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self::accept(listener, server)
    }

    /// Like [`Proxy::start`], on a port chosen before (for servers that tell clients their own address).
    ///
    /// # Panics
    /// When the port is taken.
    pub async fn start_at(port: u16, server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        Self::accept(listener, server)
    }

    fn accept(listener: TcpListener, server: SocketAddr) -> Self {
        let address = listener.local_addr().unwrap();
        let weather = watch::Sender::new(Weather::default());
        let sky = weather.clone();
        let withheld = Arc::new(AtomicU64::new(0));
        let counted = withheld.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut number, mut refused) = (0, false);
                sky.send_modify(|weather| {
                    weather.born += 1;
                    (number, refused) = (weather.born, weather.refusing);
                });
                if refused {
                    continue;
                }
                tokio::spawn(carry(client, server, number, sky.subscribe(), counted.clone()));
            }
        });
        Self { address, weather, withheld, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were made so far, with those that were refused.
    pub fn connections(&self) -> u64 {
        self.weather.borrow().born
    }

    /// Closes every connection there is; new ones work.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cut_before = weather.born);
    }

    /// Leaves every connection there is open but carries nothing any more, in neither direction; new ones work.
    pub fn freeze(&self) {
        self.weather.send_modify(|weather| weather.frozen_before = weather.born);
    }

    /// Closes every connection there is, and each new one at once, as if the server were away.
    pub fn refuse(&self) {
        self.weather.send_modify(|weather| {
            weather.refusing = true;
            weather.cut_before = weather.born;
        });
    }

    /// Ends [`Proxy::refuse`]: new connections work again.
    pub fn admit(&self) {
        self.weather.send_modify(|weather| weather.refusing = false);
    }

    /// How many bytes clients have sent over frozen connections so far, none of which were carried on.
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.weather.send_modify(|weather| weather.cut_before = u64::MAX);
    }
}

async fn carry(
    client: TcpStream,
    server: SocketAddr,
    number: u64,
    mut sky: watch::Receiver<Weather>,
    withheld: Arc<AtomicU64>,
) {
    // A server that is down closes the client's connection.
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = tokio::spawn(pump(from_client, to_server, number, sky.clone(), withheld));
    let back = tokio::spawn(pump(from_server, to_client, number, sky.clone(), Arc::default()));
    let (stop_there, stop_back) = (there.abort_handle(), back.abort_handle());
    tokio::select! {
        _ = there => {}
        _ = back => {}
        _ = sky.wait_for(|weather| number <= weather.cut_before) => {}
    }
    stop_there.abort();
    stop_back.abort();
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut sky: watch::Receiver<Weather>,
    withheld: Arc<AtomicU64>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            // In this order, so that nothing is carried once it is frozen.
            biased;
            () = frozen(&mut sky, number) => break,
            read = from.read(&mut buffer) => read?,
        };
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
    loop {
        match from.read(&mut buffer).await {
            // The other end is not told.
            Ok(0) | Err(_) => std::future::pending().await,
            Ok(read) => withheld.fetch_add(read as u64, Ordering::Relaxed),
        };
    }
}

async fn frozen(sky: &mut watch::Receiver<Weather>, number: u64) {
    let _ = sky.wait_for(|weather| number <= weather.frozen_before).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn connections_work_until_they_are_cut_or_frozen() {
        let proxy = Proxy::start(echo().await).await;
        let mut buffer = [0; 2];
        let mut cut = TcpStream::connect(proxy.address()).await.unwrap();
        cut.write_all(b"hi").await.unwrap();
        cut.read_exact(&mut buffer).await.unwrap();
        proxy.cut();
        assert_eq!(cut.read(&mut buffer).await.unwrap_or(0), 0, "it is closed");

        let mut frozen = TcpStream::connect(proxy.address()).await.unwrap();
        frozen.write_all(b"hi").await.unwrap();
        frozen.read_exact(&mut buffer).await.unwrap();
        proxy.freeze();
        frozen.write_all(b"hi").await.unwrap();
        let silence = tokio::time::timeout(Duration::from_millis(200), frozen.read(&mut buffer)).await;
        assert!(silence.is_err(), "nothing comes back, and it is not closed");
        assert_eq!(proxy.withheld(), 2);

        let mut fresh = TcpStream::connect(proxy.address()).await.unwrap();
        fresh.write_all(b"yo").await.unwrap();
        fresh.read_exact(&mut buffer).await.unwrap();
        assert_eq!((&buffer, proxy.connections()), (b"yo", 3));

        proxy.refuse();
        assert_eq!(fresh.read(&mut buffer).await.unwrap_or(0), 0, "it is closed");
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(refused.read(&mut buffer).await.unwrap_or(0), 0, "it is closed at once");
        proxy.admit();
        let mut admitted = TcpStream::connect(proxy.address()).await.unwrap();
        admitted.write_all(b"ok").await.unwrap();
        admitted.read_exact(&mut buffer).await.unwrap();
        assert_eq!((&buffer, proxy.connections()), (b"ok", 5));
    }
}
