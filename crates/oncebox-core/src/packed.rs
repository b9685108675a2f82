//! Copies of many messages in a few pieces of memory: made and given back in one go, and as large as they say.

use bytes::Bytes;

use crate::message::Message;

/// The place of the payload among the lengths of a message.
const PAYLOAD: usize = 4;

/// Stands for a key that is not there.
const NONE: u32 = u32::MAX;

/// Messages as the log has them, which does not know of sinks.
///
/// A payload or a header may be a small part of a large buffer; its copy here is part of a buffer of these messages only.
#[derive(Debug)]
pub struct Packed {
    texts: String,
    bytes: Bytes,
    /// Of each message in turn: kind, scope, id, key, payload, how many headers, and name and value of each.
    lengths: Vec<u32>,
    places: Vec<Place>,
}

/// Where a message begins.
#[derive(Debug, Clone, Copy)]
struct Place {
    text: usize,
    byte: usize,
    length: usize,
}

impl Packed {
    /// Copies of these messages, unless they are larger than `most`.
    pub fn new<'a>(
        messages: impl ExactSizeIterator<Item = &'a Message> + Clone,
        most: usize,
    ) -> Option<Self> {
        let (mut texts, mut bytes, mut lengths) = (0, 0, 0);
        for message in messages.clone() {
            texts += message.kind.len() + message.scope.len() + message.id.len();
            texts += message.key.as_ref().map_or(0, String::len);
            bytes += message.payload.len();
            lengths += 6 + 2 * message.headers.len();
            for (name, value) in message.headers.iter() {
                texts += name.len();
                bytes += value.len();
            }
        }
        let size = size(texts, bytes, lengths, messages.len());
        // So every single length fits into its 32 bits, and is not the one that stands for no key.
        if size > most.min(NONE as usize - 1) {
            return None;
        }
        let mut packing = Packing {
            texts: String::with_capacity(texts),
            bytes: Vec::with_capacity(bytes),
            lengths: Vec::with_capacity(lengths),
            places: Vec::with_capacity(messages.len()),
        };
        for message in messages {
            packing.push(message);
        }
        let Packing { texts, bytes, lengths, places } = packing;
        Some(Self { texts, bytes: bytes.into(), lengths, places })
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many bytes of memory they take.
    pub fn size(&self) -> usize {
        size(self.texts.len(), self.bytes.len(), self.lengths.len(), self.places.len())
    }

    /// The kind of one of them.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn kind(&self, index: usize) -> &str {
        self.reader(index).text()
    }

    /// How many bytes of payload one of them has.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn payload_len(&self, index: usize) -> usize {
        self.lengths[self.places[index].length + PAYLOAD] as usize
    }

    /// One of them, with a payload that is a part of the piece of memory they share.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn message(&self, index: usize) -> Message {
        let mut reader = self.reader(index);
        let kind = reader.text();
        let scope = reader.text();
        let id = reader.text();
        let key = match reader.lengths.first() {
            Some(&NONE) => {
                reader.length();
                None
            }
            _ => Some(reader.text().to_owned()),
        };
        let mut message = Message::with_id(id, kind, reader.bytes());
        message.scope = scope.to_owned();
        message.key = key;
        for _ in 0..reader.length() {
            message.headers.push(reader.text(), reader.bytes());
        }
        message
    }

    fn reader(&self, index: usize) -> Reader<'_> {
        let Place { text, byte, length } = self.places[index];
        Reader { texts: &self.texts[text..], bytes: &self.bytes, byte, lengths: &self.lengths[length..] }
    }
}

struct Packing {
    texts: String,
    bytes: Vec<u8>,
    lengths: Vec<u32>,
    places: Vec<Place>,
}

impl Packing {
    fn push(&mut self, message: &Message) {
        let Self { texts, bytes, lengths, places } = self;
        places.push(Place { text: texts.len(), byte: bytes.len(), length: lengths.len() });
        for text in [&message.kind, &message.scope, &message.id] {
            texts.push_str(text);
            lengths.push(text.len() as u32);
        }
        texts.push_str(message.key.as_deref().unwrap_or_default());
        lengths.push(message.key.as_ref().map_or(NONE, |key| key.len() as u32));
        bytes.extend_from_slice(&message.payload);
        lengths.extend([message.payload.len() as u32, message.headers.len() as u32]);
        for (name, value) in message.headers.iter() {
            texts.push_str(name);
            bytes.extend_from_slice(value);
            lengths.extend([name.len() as u32, value.len() as u32]);
        }
    }
}

/// What comes next.
struct Reader<'a> {
    texts: &'a str,
    bytes: &'a Bytes,
    /// Where the next bytes begin.
    byte: usize,
    lengths: &'a [u32],
}

impl<'a> Reader<'a> {
    fn length(&mut self) -> usize {
        let (length, rest) = self.lengths.split_first().expect("each message has its lengths");
        self.lengths = rest;
        *length as usize
    }

    fn text(&mut self) -> &'a str {
        let (text, rest) = self.texts.split_at(self.length());
        self.texts = rest;
        text
    }

    fn bytes(&mut self) -> Bytes {
        let from = self.byte;
        self.byte += self.length();
        self.bytes.slice(from..self.byte)
    }
}

fn size(texts: usize, bytes: usize, lengths: usize, places: usize) -> usize {
    texts + bytes + lengths * size_of::<u32>() + places * size_of::<Place>() + size_of::<Packed>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut all = [
            Message::with_id("", "", ""),
            Message::with_id("1", "order.placed", "body").key("").header("a", "").header("", "b"),
            Message::with_id("ü", "k", vec![0, 255, 10]).key("ключ").header("n", vec![0xff]).header("n", "2"),
            Message::with_id("last", "k", "x".repeat(100_000)),
        ];
        for (number, message) in all.iter_mut().enumerate() {
            message.scope = "s".repeat(number);
        }
        let packed = Packed::new(all.iter(), usize::MAX).unwrap();
        assert_eq!(packed.len(), all.len());
        for (index, message) in all.iter().enumerate() {
            assert_eq!(packed.message(index), *message);
            assert_eq!(packed.kind(index), message.kind);
            assert_eq!(packed.payload_len(index), message.payload.len());
        }
        assert!(packed.size() > 100_000 && packed.size() < 101_000, "{}", packed.size());
        assert!(Packed::new(all.iter(), packed.size()).is_some());
        assert!(Packed::new(all.iter(), packed.size() - 1).is_none());
    }

    #[test]
    fn the_log_knows_of_no_sink() {
        let mut message = Message::with_id("1", "k", "body");
        message.sink = "billing".to_owned();
        let packed = Packed::new([&message].into_iter(), usize::MAX).unwrap();
        message.sink.clear();
        assert_eq!(packed.message(0), message);
    }
}
