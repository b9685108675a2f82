//! A stream on which no message comes that the client does not survive; see [`Walk`].

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::walk::Walk;

/// With these a side says which protocol it speaks; everything else is a frame.
const PROTOCOL: &[u8] = b"AMQP";
/// How long that is, and the least that a frame has: its length, where its body begins, its kind and its channel.
const HEAD: usize = 8;
const AMQP_FRAME: u8 = 0;
/// The client refuses frames that are a good deal shorter.
const LONGEST: usize = 1 << 20;
/// What a transfer begins with: its descriptor, as a number of one byte or of eight, or as a name.
const TRANSFERS: [&[u8]; 3] = [b"\0\x53\x14", b"\0\x80\0\0\0\0\0\0\0\x14", b"\0\xa3\x12amqp:transfer:list"];
/// The places among the fields of a transfer.
const ID: usize = 1;
const MORE: usize = 5;
const ABORTED: usize = 9;

/// Messages on their way to the client, by their delivery ids and as they came: the client gives no bytes of those that it
/// cannot read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raw(Arc<Mutex<VecDeque<Numbered>>>);

type Numbered = (u32, Vec<u8>);

impl Raw {
    /// The message that the client has received now; those before it are forgotten.
    pub(crate) fn take(&self, id: u32) -> Option<Vec<u8>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| all.pop_front()).find(|(other, _)| *other == id).map(|(_, bytes)| bytes)
    }

    /// Adds part of a message; only the first one says which.
    fn add(&self, transfer: &Transfer, part: &[u8]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (all.back_mut(), transfer.id) {
            (Some((last, bytes)), id) if id.is_none_or(|id| id == *last) => bytes.extend(part),
            (_, Some(id)) => all.push_back((id, part.to_vec())),
            (_, None) => {}
        }
        if transfer.is_aborted {
            all.pop_back();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Guarded<S> {
    stream: S,
    frames: Frames,
    read: Vec<u8>,
    ready: Vec<u8>,
    /// How much of `ready` was taken.
    taken: usize,
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, raw: Raw) -> Self {
        Self {
            stream,
            frames: Frames { raw, ..Frames::default() },
            read: vec![0; 64 * 1024],
            ready: Vec::new(),
            taken: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        while own.taken == own.ready.len() {
            own.ready.clear();
            own.taken = 0;
            let mut read = ReadBuf::new(&mut own.read);
            ready!(Pin::new(&mut own.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            own.frames.pass(read.filled(), &mut own.ready);
        }
        let some = into.remaining().min(own.ready.len() - own.taken);
        into.put_slice(&own.ready[own.taken..own.taken + some]);
        own.taken += some;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
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

/// What comes from the server, frame by frame.
#[derive(Debug, Default)]
struct Frames {
    /// The beginning of a frame.
    held: Vec<u8>,
    /// Something came that is no frame; the client ends the connection over it.
    is_lost: bool,
    /// The message that is on its way. A connection has one link, so there is one at a time.
    walk: Walk,
    raw: Raw,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.is_lost {
                return out.extend(bytes);
            }
            let wanted = self.length().unwrap_or(HEAD) - self.held.len();
            let (some, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.held.extend(some);
            bytes = rest;
            let Some(length) = self.length() else { continue };
            self.is_lost = !(HEAD..=LONGEST).contains(&length);
            if self.held.len() == length && self.held[5] == AMQP_FRAME {
                self.look();
            }
            if self.held.len() == length || self.is_lost {
                out.append(&mut self.held);
            }
        }
    }

    /// How long the frame is that is held, once that is known.
    fn length(&self) -> Option<usize> {
        let head = self.held.get(..HEAD)?;
        if head.starts_with(PROTOCOL) {
            return Some(HEAD);
        }
        usize::try_from(u32::from_be_bytes([head[0], head[1], head[2], head[3]])).ok()
    }

    /// Looks through the frame that is held, if it has part of a message.
    fn look(&mut self) {
        let begins = usize::from(self.held[4]) * 4;
        let Some(body) = self.held.get_mut(begins..) else { return };
        let Some(transfer) = Transfer::read(body) else { return };
        let part = &mut body[transfer.length..];
        self.raw.add(&transfer, part);
        self.walk.pass(part);
        if transfer.is_last {
            self.walk = Walk::default();
        }
    }
}

/// What stands before a part of a message.
#[derive(Debug, PartialEq)]
struct Transfer {
    length: usize,
    id: Option<u32>,
    /// No other part of the message comes.
    is_last: bool,
    /// The message is taken back.
    is_aborted: bool,
}

impl Transfer {
    fn read(body: &[u8]) -> Option<Self> {
        let list = TRANSFERS.iter().find_map(|descriptor| body.strip_prefix(*descriptor))?;
        let width = match list.first()? {
            0xc0 => 1,
            0xd0 => 4,
            _ => return None,
        };
        let (length, fields) = number(&list[1..], width)?;
        let message = fields.get(length..)?;
        let (count, mut fields) = number(fields, width)?;
        let (mut id, mut more, mut is_aborted) = (None, false, false);
        for at in 0..count {
            let is_true = fields.starts_with(&[0x41]) || fields.starts_with(&[0x56, 1]);
            match at {
                ID => id = unsigned(fields),
                MORE => more = is_true,
                ABORTED => is_aborted = is_true,
                _ => {}
            }
            fields = match fields.strip_prefix(&[0]) {
                Some(described) => after_value(after_value(described)?)?,
                None => after_value(fields)?,
            };
        }
        let length = body.len() - message.len();
        Some(Self { length, id, is_last: !more || is_aborted, is_aborted })
    }
}

fn number(bytes: &[u8], width: usize) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_at_checked(width)?;
    Some((number.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest))
}

/// The number with which these bytes begin, if there is one.
fn unsigned(bytes: &[u8]) -> Option<u32> {
    match *bytes {
        [0x43, ..] => Some(0),
        [0x52, number, ..] => Some(number.into()),
        [0x70, a, b, c, d, ..] => Some(u32::from_be_bytes([a, b, c, d])),
        _ => None,
    }
}

/// What comes after the value with which these bytes begin; it has no descriptor.
fn after_value(bytes: &[u8]) -> Option<&[u8]> {
    let (code, rest) = bytes.split_first()?;
    let (length, rest) = match code >> 4 {
        0x4 => (0, rest),
        fixed @ 0x5..=0x9 => (1 << (fixed - 5), rest),
        0xa | 0xc | 0xe => number(rest, 1)?,
        0xb | 0xd | 0xf => number(rest, 4)?,
        _ => return None,
    };
    rest.get(length..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Handle, id, tag, format, and whether it is settled; then whether there is more.
    const FIELDS: [u8; 9] = [0x43, 0x52, 7, 0xa0, 1, b't', 0x43, 0x42, 0x40];

    fn transfer(descriptor: &[u8], fields: &[u8], count: u8, message: &[u8]) -> Vec<u8> {
        let length = u8::try_from(fields.len() + 1).unwrap();
        [descriptor, &[0xc0, length, count], fields, message].concat()
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + HEAD).unwrap();
        [&length.to_be_bytes()[..], &[2, AMQP_FRAME, 0, 0], body].concat()
    }

    /// A value inside so many others.
    fn deep(levels: usize) -> Vec<u8> {
        [&b"\0\x53\x77"[..], &b"\0\x44".repeat(levels), b"\x41"].concat()
    }

    /// What the client reads when the server sends this.
    async fn read(sent: Vec<u8>, raw: &Raw) -> Vec<u8> {
        let (mut server, ours) = tokio::io::duplex(5);
        tokio::spawn(async move { server.write_all(&sent).await });
        let mut got = Vec::new();
        Guarded::new(ours, raw.clone()).read_to_end(&mut got).await.unwrap();
        got
    }

    #[test]
    fn a_transfer_says_where_the_message_begins_and_whether_there_is_more() {
        let state = b"\0\x53\x24\xd0\0\0\0\x05\0\0\0\x01\x40";
        let until_aborted = [&FIELDS[..8], &[0x41, 0x40], state, &[0x40, 0x56, 1]].concat();
        for descriptor in TRANSFERS {
            for (fields, count, is_last, is_aborted) in [
                (&FIELDS[..3], 2, true, false),
                (&FIELDS[..], 6, true, false),
                (&[&FIELDS[..8], &[0x41]].concat(), 6, false, false),
                (&[&FIELDS[..8], &[0x56, 1]].concat(), 6, false, false),
                (&[&FIELDS[..8], &[0x56, 0]].concat(), 6, true, false),
                (&until_aborted, 10, true, true),
                (&until_aborted[..until_aborted.len() - 2], 9, false, false),
            ] {
                let body = transfer(descriptor, fields, count, b"message");
                let length = body.len() - b"message".len();
                let expected = Transfer { length, id: Some(7), is_last, is_aborted };
                assert_eq!(Transfer::read(&body), Some(expected), "{body:x?}");
                for cut in 0..length {
                    assert_eq!(Transfer::read(&body[..cut]), None);
                }
            }
        }
        assert_eq!(Transfer::read(b"\0\x53\x13\xc0\x02\x01\x43"), None, "flow");
    }

    #[tokio::test]
    async fn what_the_client_survives_passes_as_it_came() {
        let sent = [
            b"AMQP\x03\x01\0\0".to_vec(),
            frame(b""),
            frame(b"\0\x53\x13\xc0\x02\x01\x43"),
            frame(&transfer(TRANSFERS[0], &FIELDS, 6, &deep(50))),
            b"AMQP\0\x01\0\0".to_vec(),
            frame(&transfer(TRANSFERS[0], &FIELDS, 6, &deep(50))),
        ];
        assert_eq!(read(sent.concat(), &Raw::default()).await, sent.concat());
        let no_frame = [&[0, 0, 0, 7][..], &deep(500)].concat();
        assert_eq!(
            read(no_frame.clone(), &Raw::default()).await,
            no_frame,
            "the client ends the connection over it"
        );
    }

    #[tokio::test]
    async fn a_message_is_refused_across_frames_and_the_next_one_is_read() {
        let (message, good) = (deep(500), transfer(TRANSFERS[0], &[0x43, 0x70, 0, 0, 0, 8], 2, &deep(1)));
        let (first, last) = message.split_at(100);
        // Only the first part must say whose it is.
        let of_last = [0x43, 0x40, 0x40, 0x40, 0x40, 0x42];
        let more = [&FIELDS[..8], &[0x41]].concat();
        let sent = [transfer(TRANSFERS[0], &more, 6, first), transfer(TRANSFERS[0], &of_last, 6, last), good];
        let raw = Raw::default();
        let got = read(sent.each_ref().map(|body| frame(body)).concat(), &raw).await;
        assert_eq!(raw.take(7), Some(message), "all of it as it came");
        assert_eq!(raw.take(8), Some(deep(1)));
        let (first, rest) = got.split_at(HEAD + sent[0].len());
        assert_eq!(first, frame(&sent[0]), "it is not yet too deep");
        let (last, next) = rest.split_at(HEAD + sent[1].len());
        assert_eq!(last.last(), Some(&0xff));
        assert_eq!(next, frame(&sent[2]));
    }

    #[tokio::test]
    async fn what_was_read_or_taken_back_is_forgotten() {
        let raw = Raw::default();
        let whole = |id| frame(&transfer(TRANSFERS[0], &[0x43, 0x52, id], 2, &deep(usize::from(id))));
        let more = frame(&transfer(TRANSFERS[0], &[0x43, 0x52, 3, 0x40, 0x40, 0x40, 0x41], 6, &deep(1)));
        let aborted = [0x43, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41];
        let aborted = frame(&transfer(TRANSFERS[0], &aborted, 10, b""));
        read([whole(1), whole(2), more, aborted, whole(4)].concat(), &raw).await;
        let ids = || raw.0.lock().unwrap().iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids(), [1, 2, 4]);
        assert_eq!(raw.take(2), Some(deep(2)));
        assert_eq!(ids(), [4]);
    }
}
