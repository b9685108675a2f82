//! Frames that the client cannot read, made readable on their way to it.
//!
//! The client ends the connection over a property, a routing key or the name of a header that is not UTF-8, and the
//! server delivers the message again on the next one, for ever. So the bytes of such a message are put into headers that
//! it can read ([`PROPERTIES`], [`ROUTE`]); `envelope.rs` makes an unreadable message of it. Everything else passes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use futures_util::io::{AsyncRead, AsyncWrite};
use futures_util::stream::Stream;
use lapin::AsyncTcpStream;

/// The header with the bytes of all properties, as they were in the frame.
pub(crate) const PROPERTIES: &str = "unreadable-properties";
/// The header with the bytes of the routing key.
pub(crate) const ROUTE: &str = "unreadable-routing-key";

const METHOD: u8 = 1;
const CONTENT: u8 = 2;
const END: u8 = 0xce;
/// Kind, channel and length.
const HEAD: usize = 7;
/// Class, weight, and length of the payload: what a content frame has before the properties.
const BEFORE_PROPERTIES: usize = 12;
/// The class and the method of a delivery.
const DELIVER: &[u8] = &[0, 60, 0, 60];
/// Longer frames pass as they are; RabbitMQ's own limit is 128 KiB.
const LONGEST: usize = 1 << 20;
/// The client takes no frame that is longer than was agreed, which is this at least.
const SHORTEST_LIMIT: usize = 4096;

/// A stream whose frames the client can read.
pub(crate) struct Mended<S> {
    stream: S,
    frames: Frames,
    read: Vec<u8>,
    ready: Vec<u8>,
    /// How much of `ready` was taken.
    taken: usize,
}

impl<S> Mended<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), read: vec![0; 64 * 1024], ready: Vec::new(), taken: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        while own.taken == own.ready.len() {
            own.ready.clear();
            own.taken = 0;
            let read = ready!(Pin::new(&mut own.stream).poll_read(context, &mut own.read))?;
            if read == 0 {
                return Poll::Ready(Ok(0));
            }
            own.frames.pass(&own.read[..read], &mut own.ready);
        }
        let some = into.len().min(own.ready.len() - own.taken);
        into[..some].copy_from_slice(&own.ready[own.taken..own.taken + some]);
        own.taken += some;
        Poll::Ready(Ok(some))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

/// What comes from the server, frame by frame.
#[derive(Debug, Default)]
struct Frames {
    /// The beginning of a frame.
    held: Vec<u8>,
    /// How much of a frame is still to come that nobody looks at.
    rest: usize,
    /// Routing keys of deliveries whose properties are still to come, by channel.
    routes: HashMap<[u8; 2], Vec<u8>>,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let some = split(&mut bytes, self.rest);
                self.rest -= some.len();
                out.extend(some);
                continue;
            }
            let wanted = length(&self.held).unwrap_or(HEAD) - self.held.len();
            self.held.extend(split(&mut bytes, wanted));
            let Some(length) = length(&self.held) else { continue };
            if !matches!(self.held[0], METHOD | CONTENT) || length > LONGEST {
                self.rest = length - self.held.len();
                out.append(&mut self.held);
            } else if self.held.len() == length {
                self.mend();
                out.append(&mut self.held);
            }
        }
    }

    /// Changes the frame that is held, if the client could not read it.
    fn mend(&mut self) {
        let channel = [self.held[1], self.held[2]];
        let body = HEAD..self.held.len() - 1;
        if self.held[0] == METHOD {
            if let Some(route) = mend_delivery(&mut self.held[body]) {
                self.routes.insert(channel, route);
            }
            return;
        }
        let body = &self.held[body];
        let Some((before, properties)) = body.split_at_checked(BEFORE_PROPERTIES) else { return };
        let route = if self.routes.is_empty() { None } else { self.routes.remove(&channel) };
        if route.is_some() || !is_readable(properties) {
            self.held = readable(channel, before, properties, route.as_deref());
        }
    }
}

/// Takes as much as there is, and no more than this, from the beginning.
fn split<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (some, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    some
}

/// The length of a whole frame, when so much of it is there that it can be told.
fn length(held: &[u8]) -> Option<usize> {
    let length: [u8; 4] = held.get(3..HEAD)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()?.checked_add(HEAD + 1)
}

/// Puts question marks where the names in a delivery are not text, and answers the routing key it had; `None` when there
/// was nothing to do.
fn mend_delivery(body: &mut [u8]) -> Option<Vec<u8>> {
    body.strip_prefix(DELIVER)?;
    // The name of who takes it; its tag, and whether it comes again; exchange; routing key.
    let taker = text(body, DELIVER.len())?;
    let exchange = text(body, taker.end + 9)?;
    let route = text(body, exchange.end)?;
    let route_was = body[route.clone()].to_vec();
    let mut was_text = true;
    for place in [exchange, route] {
        let name = &mut body[place];
        if std::str::from_utf8(name).is_err() {
            was_text = false;
            name.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
    }
    (!was_text).then_some(route_was)
}

/// Where the bytes of a text are whose length is at this place.
fn text(body: &[u8], place: usize) -> Option<Range<usize>> {
    let start = place + 1;
    let text = start..start + usize::from(*body.get(place)?);
    (text.end <= body.len()).then_some(text)
}

fn is_readable(properties: &[u8]) -> bool {
    // Nearly always, and cheap to tell: then every text in it is one.
    properties.is_ascii()
        || matches!(lapin::protocol::basic::parse_properties(properties), Ok((rest, _)) if rest.is_empty())
}

/// A content frame with nothing but the headers that keep what could not be read.
fn readable(channel: [u8; 2], before: &[u8], properties: &[u8], route: Option<&[u8]>) -> Vec<u8> {
    let long = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let mut table = Vec::new();
    let mut add = |name: &str, value: &[u8]| {
        table.extend(u8::try_from(name.len()));
        table.extend(name.as_bytes());
        table.push(b'S');
        table.extend(long(value.len()));
        table.extend(value);
    };
    // Not longer than what came, or than any limit: very long properties lose their end.
    let most = properties.len().saturating_sub(400).max(SHORTEST_LIMIT - 500);
    add(PROPERTIES, &properties[..properties.len().min(most)]);
    if let Some(route) = route {
        add(ROUTE, route);
    }
    // The flags say that there are headers and nothing else.
    let body = [before, &[0x20, 0], &long(table.len()), &table].concat();
    [&[CONTENT, channel[0], channel[1]], &long(body.len())[..], &body, &[END]].concat()
}

/// Tokio for the client, with streams that are [`Mended`].
#[derive(Debug, Clone)]
pub(crate) struct MendingTokio(pub(crate) Tokio);

impl Reactor for MendingTokio {
    type TcpStream = Mended<AsyncTcpStream<<Tokio as Reactor>::TcpStream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        let error = io::Error::new(io::ErrorKind::Unsupported, "the client makes no sockets of its own");
        Err::<Self::TcpStream, _>(error)
    }

    fn sleep(&self, length: Duration) -> Self::Sleep {
        self.0.sleep(length)
    }

    fn interval(&self, length: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(length)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Mended::new(AsyncTcpStream::Plain(connecting.await?))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::AMQPValue;

    fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind, 0, 1], &length[..], body, &[END]].concat()
    }

    fn content(properties: &[u8]) -> Vec<u8> {
        frame(CONTENT, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], properties].concat())
    }

    fn delivery(route: &[u8]) -> Vec<u8> {
        let length = u8::try_from(route.len()).unwrap();
        frame(METHOD, &[DELIVER, b"\x02me\0\0\0\0\0\0\0\x80\0\x02ex", &[length], route].concat())
    }

    /// What comes out, when it comes in pieces of this size.
    fn passed(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        bytes.chunks(size).for_each(|piece| frames.pass(piece, &mut out));
        assert!(frames.held.is_empty() && frames.routes.is_empty() && frames.rest == 0);
        out
    }

    /// The headers of a content frame.
    fn headers(frame: &[u8]) -> Vec<(String, Vec<u8>)> {
        assert_eq!((length(frame), frame.last()), (Some(frame.len()), Some(&END)));
        let properties = &frame[HEAD + BEFORE_PROPERTIES..frame.len() - 1];
        let (rest, properties) = lapin::protocol::basic::parse_properties(properties).unwrap();
        assert!(rest.is_empty());
        let headers = properties.headers().clone().unwrap();
        let bytes = |value: &AMQPValue| match value {
            AMQPValue::LongString(bytes) => bytes.as_bytes().to_vec(),
            other => panic!("{other:?}"),
        };
        headers.inner().iter().map(|(name, value)| (name.to_string(), bytes(value))).collect()
    }

    #[test]
    fn what_can_be_read_passes_as_it_is_in_whatever_pieces_it_comes() {
        let binary = content(&[&b"\x20\0\0\0\0\x09\x01bS\0\0\0\x02"[..], &[0xff, 0xfe]].concat());
        let good = content(b"\0\x80\x04f\xc3\xbcr");
        let stream =
            [delivery("grün".as_bytes()), good, binary, frame(3, &[0xff; 300]), frame(8, b"")].concat();
        for size in [1, 2, 7, 8, 64, 10_000] {
            assert_eq!(passed(&stream, size), stream, "{size}");
        }
    }

    #[test]
    fn what_is_no_text_is_kept_as_bytes() {
        let id = [&b"\0\x80\x02"[..], &[0xff, 0xfe]].concat();
        let name = [&b"\x20\0\0\0\0\x08\x01"[..], &[0xff], b"S\0\0\0\x01x"].concat();
        for properties in [id, name] {
            for size in [1, 5, 10_000] {
                let out = passed(&content(&properties), size);
                assert_eq!(headers(&out), [(PROPERTIES.to_owned(), properties.clone())]);
            }
        }
        let long = [&b"\x80\x80\x01x\x02\xff\xfe"[..], &[0; 20_000]].concat();
        let out = passed(&content(&long), 999);
        assert!(out.len() < long.len() && headers(&out)[0].1.starts_with(&long[..19_000]));
    }

    #[test]
    fn a_routing_key_that_is_no_text_is_kept_with_its_message_only() {
        let (good, bad) = (content(b"\0\x80\x01a"), [0xff, b'x']);
        let stream = [delivery(&bad), good.clone(), delivery(b"ok"), good.clone()].concat();
        let out = passed(&stream, 11);
        let rest = out.strip_prefix(&delivery(b"?x")[..]).unwrap();
        let (first, rest) = rest.split_at(length(rest).unwrap());
        let expected = [(PROPERTIES.to_owned(), b"\0\x80\x01a".to_vec()), (ROUTE.to_owned(), bad.to_vec())];
        assert_eq!(headers(first), expected);
        assert_eq!(rest, [delivery(b"ok"), good].concat());
    }

    #[test]
    fn frames_that_end_too_early_are_left_to_the_client() {
        let bodies: [&[u8]; 4] =
            [DELIVER, b"\0\x3c\0\x3c\x09me", b"\0\x3c\0\x3c\x02me\0\0\0\0\0\0\0\x80\0\x7fex", b"\0"];
        for body in bodies {
            assert_eq!(passed(&frame(METHOD, body), 3), frame(METHOD, body));
        }
        for body in [&b""[..], b"\0\x3c\0\0\0\0\0\0\0\0\x01"] {
            assert_eq!(passed(&frame(CONTENT, body), 3), frame(CONTENT, body));
        }
    }
}
