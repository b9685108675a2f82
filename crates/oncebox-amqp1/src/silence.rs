//! A stream that ends when the other side has been silent for too long.
//!
//! The client notices silence while it works, but not while it closes a connection: it would wait for the other side's
//! goodbye for ever, and busily.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    silence: Duration,
    ends_at: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    /// Ends after this long with nothing to read.
    pub(crate) fn new(stream: S, silence: Duration) -> Self {
        Self { stream, silence, ends_at: Box::pin(tokio::time::sleep(silence)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let ends_at = Instant::now() + self.silence;
            self.ends_at.as_mut().reset(ends_at);
            return Poll::Ready(read);
        }
        // Nothing read is the end of the stream.
        ready!(self.ends_at.as_mut().poll(context));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn silence_ends_the_stream_and_bytes_do_not() {
        let (mut other, ours) = tokio::io::duplex(64);
        let mut watched = Watched::new(ours, Duration::from_millis(50));
        let mut buffer = [0; 2];
        other.write_all(b"hi").await.unwrap();
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 2);
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 0, "the other side is there, but silent");
        watched.write_all(b"yo").await.unwrap();
        other.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"yo");
    }
}
