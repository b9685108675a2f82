//! Refuses requests that say twice how long they are, or in a way that cannot be read.
//!
//! Two readers of the same bytes (a proxy in front, and this service) that believe different ones of these headers see
//! different requests: what is a body for one is a request for the other. hyper takes such a request as chunked and
//! hides the other header, so the bytes are looked at before hyper gets them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The longest name that matters is `transfer-encoding`; of its value nothing does.
const LONGEST: usize = 64;

/// A connection whose requests have one length each: any other request becomes one that hyper answers with 400. And it
/// ends when the other side takes nothing of what is written for a while, so that nobody keeps a place by not reading.
pub(crate) struct Guarded<S> {
    stream: S,
    watch: Watch,
    patience: Duration,
    /// Runs while nothing is taken.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, watch: Watch::default(), patience, stalled: None }
    }

    /// The outcome of writing, or an error when that has been waited for too long.
    fn in_time<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        let text = "the other side takes nothing of the answer";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.watch.look(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(context, written)
    }
}

/// Ends the connection after a request in chunks: [`Watch`] does not follow chunks to where the next request begins.
pub(crate) async fn close_after_chunks(request: Request, next: Next) -> Response {
    let in_chunks = request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut response = next.run(request).await;
    if in_chunks {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Where in the stream of requests we are.
#[derive(Debug)]
enum Watch {
    Head(Head),
    /// So many bytes of a body are still to come.
    Body(u64),
    /// The last request of this connection.
    Last,
}

#[derive(Debug, Default)]
struct Head {
    /// The beginning of the line so far, in lower case.
    line: Vec<u8>,
    /// Empty lines before the first line of a request do not end it.
    begun: bool,
    lengths: Vec<Length>,
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Bytes(u64),
    Chunks,
    /// Not a number, or one that comes after more spaces than we care to keep.
    Unreadable,
}

impl Default for Watch {
    fn default() -> Self {
        Self::Head(Head::default())
    }
}

impl Watch {
    /// Follows the bytes, and spoils the end of a head that gives its length more than once.
    fn look(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let used = match self {
                Self::Last => return,
                Self::Body(left) => {
                    let used = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= used as u64;
                    if *left == 0 {
                        *self = Self::default();
                    }
                    used
                }
                Self::Head(head) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let piece = &bytes[..end.unwrap_or(bytes.len())];
                    let room = LONGEST.saturating_sub(head.line.len()).min(piece.len());
                    head.line.extend(piece[..room].iter().map(u8::to_ascii_lowercase));
                    if let Some(end) = end
                        && head.end_line()
                    {
                        let next = match head.lengths.as_slice() {
                            [] => Self::default(),
                            [Length::Bytes(0)] => Self::default(),
                            [Length::Bytes(length)] => Self::Body(*length),
                            [Length::Chunks] => Self::Last,
                            _ => {
                                // No head may end so, and hyper has not seen this byte yet.
                                bytes[end] = 0;
                                Self::Last
                            }
                        };
                        *self = next;
                    }
                    end.map_or(bytes.len(), |end| end + 1)
                }
            };
            bytes = &mut bytes[used..];
        }
    }
}

impl Head {
    /// Takes in a whole line; answers whether the head ends with it.
    fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let is_whole = line.len() < LONGEST;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            return self.begun;
        }
        if !self.begun {
            self.begun = true;
        } else if let Some(value) = line.strip_prefix(b"content-length:") {
            let digits = value.trim_ascii();
            let is_number = is_whole && digits.iter().all(u8::is_ascii_digit);
            let number =
                std::str::from_utf8(digits).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
            self.lengths.push(number.map_or(Length::Unreadable, Length::Bytes));
        } else if line.starts_with(b"transfer-encoding:") {
            self.lengths.push(Length::Chunks);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hyper gets, in pieces of every size.
    fn seen(requests: &str) -> String {
        let mut all: Vec<String> = Vec::new();
        for size in 1..=requests.len() {
            let mut watch = Watch::default();
            let mut bytes = requests.as_bytes().to_vec();
            bytes.chunks_mut(size).for_each(|piece| watch.look(piece));
            all.push(String::from_utf8(bytes).unwrap());
        }
        all.dedup();
        assert_eq!(all.len(), 1, "the size of the pieces must not matter");
        all.remove(0)
    }

    #[test]
    fn two_lengths_spoil_the_head() {
        for headers in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            "transfer-encoding: chunked\r\nx: y\r\ntransfer-encoding: chunked",
            "content-length: 5\r\ncontent-length: 5",
            "content-length: 5\ntransfer-encoding: chunked",
            "content-length: five",
            &format!("content-length: {}5", " ".repeat(LONGEST)),
            // Cut off, this would be a zero.
            &format!("content-length:{}120", "0".repeat(49)),
            "content-length: +5",
        ] {
            let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n");
            assert_eq!(
                seen(&request),
                format!("POST / HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\0"),
                "{headers}"
            );
        }
    }

    #[test]
    fn a_request_after_others_on_the_same_connection_is_looked_at_too() {
        let good = "\r\nPOST / HTTP/1.1\r\ncontent-length: 12\r\n\r\na\r\n\r\nb: c\r\n\r\nGET / HTTP/1.1\r\nx: y\r\n\r\n";
        assert_eq!(seen(good), good);
        let body = "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        let hidden = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        assert_eq!(seen(&hidden), hidden, "a body is not a head");
        let bad = format!("{good}{hidden}POST / HTTP/1.1\r\n{body}");
        assert_eq!(seen(&bad), format!("{}\0", bad.strip_suffix('\n').unwrap()));
    }

    #[test]
    fn long_lines_are_not_kept() {
        let mut watch = Watch::default();
        watch.look(&mut vec![b'x'; 1_000_000]);
        assert!(matches!(&watch, Watch::Head(head) if head.line.len() == LONGEST));
    }
}
