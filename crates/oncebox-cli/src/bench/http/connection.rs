//! A plain client that costs next to nothing: client and service share the machine.

use std::net::SocketAddr;
use std::time::Duration;

use oncebox::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A service that does not answer in this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection that stays open.
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        Ok(Self { stream, buffer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a request and reads its whole answer, whose status must be the expected one.
    pub(super) async fn post(&mut self, request: &[u8], expected: u16) -> Result<(), String> {
        let status = self.ask(request).await?;
        if status == expected {
            return Ok(());
        }
        Err(format!("the service answered {status}: {}", String::from_utf8_lossy(&self.buffer)))
    }

    /// Sends a request, reads its whole answer, and tells its status.
    pub(super) async fn ask(&mut self, request: &[u8]) -> Result<u16, String> {
        let asked = async {
            self.stream.write_all(request).await.map_err(lost)?;
            self.buffer.clear();
            loop {
                if self.stream.read_buf(&mut self.buffer).await.map_err(lost)? == 0 {
                    return Err("the service closed the connection".to_owned());
                }
                if let Some(status) = complete(&self.buffer) {
                    return Ok(status);
                }
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "the service does not answer".to_owned())?
    }
}

fn lost(error: std::io::Error) -> String {
    format!("the connection to the service is lost: {error}")
}

/// The status of an answer that is there to its last byte.
fn complete(bytes: &[u8]) -> Option<u16> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Some(0), |(_, value)| value.trim().parse().ok())?;
    (bytes.len() >= end + 4 + length).then_some(status)
}

/// A request with one message.
pub(super) fn single(message: &Message) -> Vec<u8> {
    let head = format!(
        "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: {}\r\nx-kind: {}\r\ncontent-length: {}\r\n\r\n",
        message.id,
        message.kind,
        message.payload.len()
    );
    [head.as_bytes(), &message.payload].concat()
}

/// A request with many messages, whose payloads are JSON texts of the same size.
pub(super) fn batch(messages: &[Message]) -> Vec<u8> {
    let mut body = Vec::new();
    for message in messages {
        let inner = &message.payload[..message.payload.len() - 2];
        body.extend_from_slice(
            format!("{{\"id\":\"{}\",\"kind\":\"{}\",\"payload\":\"", message.id, message.kind).as_bytes(),
        );
        body.extend_from_slice(inner);
        body.extend_from_slice(b"\"}\n");
    }
    let head = format!(
        "POST /in/default HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_last_byte() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(complete(answer), Some(202));
        for cut in 0..answer.len() {
            assert_eq!(complete(&answer[..cut]), None, "{cut}");
        }
    }
}
