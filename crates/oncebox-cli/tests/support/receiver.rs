//! A server that handlers and sinks post to; what it answers is decided by the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) at: Instant,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

type Decide = dyn Fn(&Got, usize) -> String + Send + Sync;

/// Listens until it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    /// `decide` gets the request and how many came before it, and answers with everything after `HTTP/1.1 `; a text
    /// that begins with `wait` is no answer at all.
    pub(crate) async fn start(decide: impl Fn(&Got, usize) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let (kept, decide): (_, Arc<Decide>) = (got.clone(), Arc::new(decide));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, kept.clone(), decide.clone()));
            }
        });
        Self { address, got, task }
    }

    pub(crate) async fn always(answer: &'static str) -> Self {
        Self::start(move |_, _| answer.to_owned()).await
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A short answer: `status("503 Busy", "retry-after: 1", "later")`.
pub(crate) fn status(status: &str, header: &str, body: &str) -> String {
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    format!("{status}\r\n{header}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

async fn answer(mut stream: TcpStream, got: Arc<Mutex<Vec<Got>>>, decide: Arc<Decide>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    let request = loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
        if let Some(request) = read(&bytes) {
            break request;
        }
    };
    let answer = {
        let mut got = got.lock().unwrap();
        let answer = decide(&request, got.len());
        got.push(request);
        answer
    };
    if answer.starts_with("wait") {
        // Until the other side gives up.
        let _ = stream.read(&mut buffer).await;
        return;
    }
    let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn read(bytes: &[u8]) -> Option<Got> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    let body = bytes[end + 4..].to_vec();
    (body.len() >= length).then(|| Got { at: Instant::now(), path, headers, body })
}
