//! Walks through an encoded message as it comes, and spoils what the client does not survive.
//!
//! The client reads values inside values by recursion without a limit: a message of a few hundred bytes overflows its
//! stack, which ends the process, and the server delivers it again to the next one. It also panics over lengths and counts
//! that cannot be, and asks for as much memory as a length says before it looks whether so much has come. Such a message gets bytes with which no value begins, from that place on, so the client
//! refuses it like any other that is not valid. The server still has it as it was.

/// So many values may be inside each other.
pub(crate) const DEEPEST: usize = 64;
/// The first byte of a length below 128 MiB, or of so large a count: as many bytes as RabbitMQ takes for a message.
const LARGEST: u8 = 0x07;
/// No value begins with this byte.
const SPOILT: u8 = 0xff;
/// A descriptor follows, then the value that it describes.
const DESCRIBED: u8 = 0x00;

/// How far a message was read.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The values that others are in, the innermost last.
    open: Vec<Open>,
    next: Next,
}

/// What the next byte is.
#[derive(Debug, Default, Clone, Copy)]
enum Next {
    /// The code with which a value begins.
    #[default]
    Code,
    /// Part of the length of a value, or of the count of those in it.
    Head(Head),
    /// The first of so many that nobody looks at.
    Content(u64),
    /// Part of a message that is refused: these bytes, and then none with which a value begins.
    Spoilt(&'static [u8]),
}

/// The length of a value and, where others are in it, their count; each has `width` bytes.
#[derive(Debug, Clone, Copy)]
struct Head {
    code: u8,
    width: u8,
    /// How many bytes of it have come.
    come: u8,
    length: u32,
    count: u32,
}

/// A value that others are in, and how many of them are to come.
#[derive(Debug)]
enum Open {
    /// A list, a map, or a descriptor and its value.
    List(u32),
    /// They begin with one code, which comes once, before all of them.
    Array(u32, Option<u8>),
}

impl Walk {
    /// Goes on with the next bytes of the message.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let mut read = 1;
            match self.next {
                Next::Code => self.code(byte),
                Next::Head(head) => self.head(head, byte),
                Next::Content(left) => {
                    read = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    self.content(left - read as u64);
                }
                Next::Spoilt(_) => {}
            }
            if let Next::Spoilt(first) = &mut self.next {
                for byte in &mut bytes[at..] {
                    *byte = first.split_off_first().copied().unwrap_or(SPOILT);
                }
                return;
            }
            at += read;
        }
    }

    fn code(&mut self, code: u8) {
        let Some(Open::Array(count, of @ None)) = self.open.last_mut() else { return self.begin(code) };
        *of = Some(code);
        // There may be many of them without a single byte.
        if let Some(width) = fixed_width(code) {
            let all = u64::from(*count) * width;
            self.open.pop();
            return self.content(all);
        }
        // The client loses its way among lists, maps and arrays in an array.
        match code {
            0xa0..=0xbf => self.begin(code),
            _ => self.next = Next::Spoilt(&[]),
        }
    }

    /// The code of a value has come.
    fn begin(&mut self, code: u8) {
        let head = |width| Next::Head(Head { code, width, come: 0, length: 0, count: 0 });
        if let Some(width) = fixed_width(code) {
            return self.content(width);
        }
        match code {
            DESCRIBED => self.enter(Open::List(2)),
            0xa0..=0xaf | 0xc0..=0xcf | 0xe0..=0xef => self.next = head(1),
            0xb0..=0xbf | 0xd0..=0xdf | 0xf0..=0xfe => self.next = head(4),
            _ => self.next = Next::Spoilt(&[]),
        }
    }

    fn head(&mut self, mut head: Head, byte: u8) {
        let (holds_others, is_array) = (head.code >= 0xc0, head.code >= 0xe0);
        let part = if head.come < head.width { &mut head.length } else { &mut head.count };
        *part = *part << 8 | u32::from(byte);
        head.come += 1;
        self.next = Next::Head(head);
        let is_map = matches!(head.code, 0xc1 | 0xd1);
        // The length covers the count, and the code of an array that is not empty. It gets one that could be, of a value
        // that lacks what should be in it.
        if holds_others && !is_array && head.come == head.width && head.length < u32::from(head.width) {
            let could_be: &[u8] = match (head.width, is_map) {
                (1, false) => &[2, 1],
                (1, true) => &[3, 2],
                (_, false) => &[5, 0, 0, 0, 1],
                (_, true) => &[6, 0, 0, 0, 2],
            };
            return self.next = Next::Spoilt(could_be);
        }
        // The client asks for as much memory as a length says, and adds counts up.
        if head.width == 4 && byte > LARGEST && !is_array {
            match (head.come, holds_others) {
                (1, false) => return self.next = Next::Spoilt(&[LARGEST]),
                (5, true) if is_map => return self.next = Next::Spoilt(&[0, 0, 0, 2]),
                (5, true) => return self.next = Next::Spoilt(&[0, 0, 0, 1]),
                _ => {}
            }
        }
        if head.come < if holds_others { 2 * head.width } else { head.width } {
            return;
        }
        match head.count {
            _ if !holds_others => self.content(head.length.into()),
            0 => self.ended(),
            // In a map each key has a value.
            odd if odd % 2 == 1 && is_map => self.next = Next::Spoilt(&[]),
            _ if is_array && head.length <= u32::from(head.width) => self.next = Next::Spoilt(&[]),
            count if is_array => self.enter(Open::Array(count, None)),
            count => self.enter(Open::List(count)),
        }
    }

    fn content(&mut self, length: u64) {
        match length {
            0 => self.ended(),
            _ => self.next = Next::Content(length),
        }
    }

    fn enter(&mut self, value: Open) {
        if self.open.len() == DEEPEST {
            self.next = Next::Spoilt(&[]);
        } else {
            self.open.push(value);
            self.next = Next::Code;
        }
    }

    /// A value has ended, and with it those of which it was the last.
    fn ended(&mut self) {
        self.next = Next::Code;
        while let Some(Open::List(left) | Open::Array(left, _)) = self.open.last_mut() {
            *left -= 1;
            if *left == 0 {
                self.open.pop();
                continue;
            }
            if let Some(Open::Array(_, Some(code))) = self.open.last() {
                self.begin(*code);
            }
            return;
        }
    }
}

/// How many bytes a value has after a code that says it.
fn fixed_width(code: u8) -> Option<u64> {
    match code {
        0x40..=0x4f => Some(0),
        0x50..=0x9f => Some(1 << ((code >> 4) - 5)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::messaging::message::DecodeIntoMessage;
    use fe2o3_amqp_types::messaging::{Body, Message as AmqpMessage};
    use fe2o3_amqp_types::primitives::Value;

    /// The beginning of a section with a value.
    const VALUE: [u8; 3] = [DESCRIBED, 0x53, 0x77];

    /// A value inside so many others.
    fn nested(mut wrap: impl FnMut(Vec<u8>) -> Vec<u8>, deep: usize) -> Vec<u8> {
        let inner = (0..deep).fold(vec![0x41], |inner, _| wrap(inner));
        [VALUE.to_vec(), inner].concat()
    }

    fn wrapped(code: u8, before: &[u8], count: u32, inner: &[u8]) -> Vec<u8> {
        let inner = [before, inner].concat();
        let length = u32::try_from(inner.len() + 4).unwrap();
        [&[code][..], &length.to_be_bytes(), &count.to_be_bytes(), &inner].concat()
    }

    fn described(inner: Vec<u8>) -> Vec<u8> {
        [&[DESCRIBED, 0x44][..], &inner].concat()
    }

    fn list(inner: Vec<u8>) -> Vec<u8> {
        wrapped(0xd0, &[], 1, &inner)
    }

    fn map(inner: Vec<u8>) -> Vec<u8> {
        wrapped(0xd1, &[0x41], 2, &inner)
    }

    fn array(inner: Vec<u8>) -> Vec<u8> {
        wrapped(0xf0, &[], 1, &inner)
    }

    /// What becomes of a message that comes in parts of this length.
    fn walked(bytes: &[u8], part: usize) -> Vec<u8> {
        let (mut walk, mut bytes) = (Walk::default(), bytes.to_vec());
        bytes.chunks_mut(part).for_each(|part| walk.pass(part));
        bytes
    }

    fn decoded(bytes: &[u8]) -> Result<AmqpMessage<Body<Value>>, serde_amqp::Error> {
        Body::decode_message_from_reader(serde_amqp::read::SliceReader::new(bytes))
    }

    #[test]
    fn values_too_deep_inside_each_other_are_spoilt_and_all_others_pass() {
        for wrap in [described, list, map] {
            for part in [1, 7, usize::MAX] {
                let deepest = nested(wrap, DEEPEST - 1);
                assert_eq!(walked(&deepest, part), deepest, "the section itself is the first");
                assert!(decoded(&deepest).is_ok());
                for deep in [DEEPEST, 20_000] {
                    let spoilt = walked(&nested(wrap, deep), part);
                    assert_eq!(spoilt.last(), Some(&SPOILT));
                    assert!(decoded(&spoilt).is_err());
                }
            }
        }
    }

    #[test]
    fn values_beside_each_other_are_not_deep() {
        let many =
            [list(vec![0x41]), map(vec![0x54, 7]), array(vec![0x71, 0, 0, 0, 1])].concat().repeat(1000);
        let message = [VALUE.to_vec(), wrapped(0xd0, &[], 3000, &many)].concat();
        assert_eq!(walked(&message, 5), message);
        assert!(decoded(&message).is_ok());
    }

    #[test]
    fn lengths_and_counts_that_cannot_be_are_refused() {
        for wrong in [
            &[0xc0, 0, 0][..],
            &[0xc1, 0, 0],
            &[0xd0, 0, 0, 0, 3, 0, 0, 0, 0],
            &[0xd1, 0, 0, 0, 3, 0, 0, 0, 0],
            &[0xe0, 1, 1, 0x41],
            &[0xf0, 0, 0, 0, 4, 0, 0, 0, 1, 0x41],
            &[0xc1, 2, 1, 0x41],
            &[0xd1, 0, 0, 0, 5, 0, 0, 0, 1, 0x41],
            // More than any message has, and more than the client can count or should ask memory for.
            &[0xd0, 0, 0, 0, 8, 0xff, 0xff, 0xff, 0xf0, 0x41],
            &[0xb0, 0xff, 0xff, 0xff, 0xf0, 0x41],
            &[0xb3, 0x08, 0, 0, 1, 0x41],
            &[0xd1, 0, 0, 0, 8, 0x08, 0, 0, 1, 0x41],
        ] {
            let spoilt = walked(&[&VALUE, wrong].concat(), 1);
            assert!(decoded(&spoilt).is_err(), "{wrong:x?}");
        }
        // What it asks for is bounded, and the rest of a long one may come.
        let long = |first: u8| [&VALUE[..], &[0xb0, first, 0, 0, 1, 1, 2]].concat();
        assert_eq!(walked(&long(LARGEST), 2), long(LARGEST));
        for part in [1, 2, usize::MAX] {
            let bounded = [&VALUE[..], &[0xb0, LARGEST], &[SPOILT; 5]].concat();
            assert_eq!(walked(&long(0xff), part), bounded);
        }
    }

    #[test]
    fn an_array_has_values_without_others_in_them() {
        let texts = wrapped(0xf0, &[0xa1], 2, &[1, b'a', 1, b'b']);
        let message = [VALUE.to_vec(), texts].concat();
        assert_eq!(walked(&message, 1), message);
        assert!(decoded(&message).is_ok());
        for wrap in [described, list, map, array] {
            for deep in [1, 20_000] {
                assert!(decoded(&walked(&nested(|inner| array(wrap(inner)), deep), 1)).is_err());
            }
        }
    }

    /// Whatever the bytes are, the client lives: a message of every kind of value, with bytes changed at random.
    #[test]
    fn no_bytes_are_too_strange() {
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let parts = [
            vec![DESCRIBED, 0x53, 0x70, 0xc0, 4, 2, 0x41, 0x50, 4],
            vec![DESCRIBED, 0x53, 0x72, 0xc1, 8, 2, 0xa3, 1, b'x', 0xc0, 3, 2, 0x41, 0x40],
            vec![DESCRIBED, 0x53, 0x73, 0xc0, 9, 2, 0xa1, 1, b'i', 0xa0, 3, 1, 2, 3],
            vec![DESCRIBED, 0x53, 0x74, 0xc1, 7, 2, 0xa1, 1, b'k', 0x54, 7],
            nested(list, 2),
            nested(map, 2),
            nested(array, 1),
            nested(array, 2),
            nested(described, 2),
            vec![DESCRIBED, 0x53, 0x77, 0xe0, 6, 2, 0xa1, 1, b'a', 1, b'b'],
            vec![DESCRIBED, 0x53, 0x75, 0xa0, 3, 1, 2, 3],
            vec![DESCRIBED, 0x53, 0x75, 0xb0, 0, 0, 0, 3, 1, 2, 3],
            vec![DESCRIBED, 0x53, 0x73, 0xd0, 0, 0, 0, 9, 0, 0, 0, 2, 0xb1, 0, 0, 0, 1, b'i', 0x40],
            vec![DESCRIBED, 0xb3, 0, 0, 0, 1, b'x', 0x41],
        ];
        for _ in 0..50_000 {
            let mut bytes: Vec<u8> =
                (0..1 + random(4)).flat_map(|_| parts[random(parts.len())].clone()).collect();
            for _ in 0..random(4) {
                let at = random(bytes.len());
                bytes[at] = [random(256) as u8, 0, 0x45, 0xc0, 0xd0, 0xe0, 0xf0, 1][random(8)];
            }
            let spoilt = walked(&bytes, 1 + random(9));
            let lives = std::panic::catch_unwind(|| drop(decoded(&spoilt))).is_ok();
            assert!(lives, "{bytes:x?} as {spoilt:x?}");
        }
    }
}
