//! Many messages in a few pieces of memory: made and given back in one go, and as large as they say.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;

use crate::headers::{AROUND_A_HEADER, Headers, stored_headers};
use crate::message::Message;

/// Stands for a key that is not there.
const NONE: usize = usize::MAX;
/// How many lengths a message without headers has.
const LENGTHS: usize = 6;

/// Messages as a store has them: with a scope, and without a sink.
///
/// A payload or a header may be a small part of a large buffer; its copy here is part of a buffer of these messages only.
pub struct Packed {
    texts: String,
    bytes: Bytes,
    /// Of each message in turn: kind, scope, id, key, payload, how many headers, and name and value of each.
    lengths: Vec<usize>,
    places: Vec<Place>,
}

impl fmt::Debug for Packed {
    /// How much there is, not what: it may be megabytes.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Packed").field("len", &self.len()).field("size", &self.size()).finish()
    }
}

/// Where a message begins, and what it has besides texts and bytes.
#[derive(Debug, Clone, Copy)]
struct Place {
    text: usize,
    byte: usize,
    length: usize,
    not_before: Option<Timestamp>,
}

impl Packed {
    /// Copies of these messages.
    pub fn new<'a>(messages: impl ExactSizeIterator<Item = &'a Message> + Clone) -> Self {
        let (mut texts, mut bytes, mut lengths) = (0, 0, 0);
        for message in messages.clone() {
            texts += message.kind.len() + message.stored_scope().len() + message.id.len();
            texts += message.key.as_ref().map_or(0, String::len);
            bytes += message.payload.len();
            lengths += LENGTHS + 2 * message.headers.len();
            for (name, value) in message.headers.iter() {
                texts += name.len();
                bytes += value.len();
            }
        }
        let mut packing = Packing::with_room(texts, bytes, lengths, messages.len());
        for message in messages {
            packing.push(message);
        }
        packing.finish()
    }

    /// Copies of some messages of others like this, unless they are larger than `most`.
    pub fn gathered<'a>(
        places: impl ExactSizeIterator<Item = (&'a Self, usize)> + Clone,
        most: usize,
    ) -> Option<Self> {
        let (mut texts, mut bytes, mut lengths) = (0, 0, 0);
        for (packed, index) in places.clone() {
            let (start, end) = packed.bounds(index);
            texts += end.text - start.text;
            bytes += end.byte - start.byte;
            lengths += end.length - start.length;
        }
        if size(texts, bytes, lengths, places.len()) > most {
            return None;
        }
        let mut packing = Packing::with_room(texts, bytes, lengths, places.len());
        for (packed, index) in places {
            packing.copy(packed, index);
        }
        Some(packing.finish())
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

    /// How many bytes the texts, headers and payload of one of them have.
    pub(crate) fn size_of(&self, index: usize) -> usize {
        let (start, end) = self.bounds(index);
        let headers = (end.length - start.length - LENGTHS) / 2;
        end.text - start.text + end.byte - start.byte + headers * AROUND_A_HEADER
    }

    /// The kind of one of them.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn kind(&self, index: usize) -> &str {
        self.reader(index).text()
    }

    /// One of them, as it lies here.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn view(&self, index: usize) -> MessageView<'_> {
        let mut reader = self.reader(index);
        MessageView {
            kind: reader.text(),
            scope: reader.text(),
            id: reader.text(),
            key: reader.optional_text(),
            payload: &self.bytes[reader.range()],
            not_before: self.places[index].not_before,
            headers: HeadersView::Packed(reader.length(), reader),
        }
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
        let key = reader.optional_text();
        let mut message = Message::with_id(id, kind, self.bytes.slice(reader.range()));
        message.scope = scope.to_owned();
        message.key = key.map(str::to_owned);
        message.not_before = self.places[index].not_before;
        for _ in 0..reader.length() {
            message.headers.push(reader.text(), self.bytes.slice(reader.range()));
        }
        message
    }

    /// One of them, in memory of its own.
    ///
    /// # Panics
    /// When there are not so many.
    pub(crate) fn copied(&self, index: usize) -> Message {
        let mut message = self.message(index);
        message.payload = Bytes::copy_from_slice(&message.payload);
        message.headers = message.headers.iter().fold(Headers::new(), |mut headers, (name, value)| {
            headers.push(name, Bytes::copy_from_slice(value));
            headers
        });
        message
    }

    fn reader(&self, index: usize) -> Reader<'_> {
        let Place { text, byte, length, .. } = self.places[index];
        Reader { texts: &self.texts[text..], bytes: &self.bytes, byte, lengths: &self.lengths[length..] }
    }

    /// Where a message begins and where the next one would.
    fn bounds(&self, index: usize) -> (Place, Place) {
        let end = Place {
            text: self.texts.len(),
            byte: self.bytes.len(),
            length: self.lengths.len(),
            not_before: None,
        };
        (self.places[index], self.places.get(index + 1).copied().unwrap_or(end))
    }
}

/// A message where it lies, on its own or among others.
#[derive(Clone, Copy)]
pub struct MessageView<'a> {
    /// See [`Message::scope`].
    pub scope: &'a str,
    /// See [`Message::id`].
    pub id: &'a str,
    /// See [`Message::kind`].
    pub kind: &'a str,
    /// See [`Message::key`].
    pub key: Option<&'a str>,
    /// See [`Message::payload`].
    pub payload: &'a [u8],
    /// See [`Message::not_before`].
    pub not_before: Option<Timestamp>,
    headers: HeadersView<'a>,
}

#[derive(Clone, Copy)]
enum HeadersView<'a> {
    Own(&'a Headers),
    /// So many, and what reads them.
    Packed(usize, Reader<'a>),
}

impl<'a> MessageView<'a> {
    /// Names and values, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let (own, packed) = match self.headers {
            HeadersView::Own(own) => (Some(own), None),
            HeadersView::Packed(count, reader) => (None, Some((count, reader))),
        };
        let own = own.into_iter().flat_map(|own| own.iter().map(|(name, value)| (name, &value[..])));
        let packed = packed.into_iter().flat_map(|(count, mut reader)| {
            (0..count).map(move |_| (reader.text(), &reader.bytes[reader.range()]))
        });
        own.chain(packed)
    }

    /// The headers in the form in which stores keep them; see [`Headers::to_stored`].
    pub fn stored_headers(&self) -> String {
        match self.headers {
            HeadersView::Own(own) => own.to_stored(),
            HeadersView::Packed(0, _) => String::new(),
            HeadersView::Packed(..) => stored_headers(self.headers()),
        }
    }
}

impl fmt::Debug for MessageView<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MessageView")
            .field("scope", &self.scope)
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("key", &self.key)
            .field("payload", &self.payload.len())
            .field("not_before", &self.not_before)
            .finish_non_exhaustive()
    }
}

impl<'a> From<&'a Message> for MessageView<'a> {
    fn from(message: &'a Message) -> Self {
        Self {
            scope: &message.scope,
            id: &message.id,
            kind: &message.kind,
            key: message.key.as_deref(),
            payload: &message.payload,
            not_before: message.not_before,
            headers: HeadersView::Own(&message.headers),
        }
    }
}

struct Packing {
    texts: String,
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    places: Vec<Place>,
}

impl Packing {
    fn with_room(texts: usize, bytes: usize, lengths: usize, places: usize) -> Self {
        Self {
            texts: String::with_capacity(texts),
            bytes: Vec::with_capacity(bytes),
            lengths: Vec::with_capacity(lengths),
            places: Vec::with_capacity(places),
        }
    }

    fn push(&mut self, message: &Message) {
        self.begin(message.not_before);
        let Self { texts, bytes, lengths, .. } = self;
        for text in [&message.kind, message.stored_scope(), &message.id] {
            texts.push_str(text);
            lengths.push(text.len());
        }
        texts.push_str(message.key.as_deref().unwrap_or_default());
        lengths.push(message.key.as_ref().map_or(NONE, String::len));
        bytes.extend_from_slice(&message.payload);
        lengths.extend([message.payload.len(), message.headers.len()]);
        for (name, value) in message.headers.iter() {
            texts.push_str(name);
            bytes.extend_from_slice(value);
            lengths.extend([name.len(), value.len()]);
        }
    }

    fn copy(&mut self, packed: &Packed, index: usize) {
        let (start, end) = packed.bounds(index);
        self.begin(start.not_before);
        self.texts.push_str(&packed.texts[start.text..end.text]);
        self.bytes.extend_from_slice(&packed.bytes[start.byte..end.byte]);
        self.lengths.extend_from_slice(&packed.lengths[start.length..end.length]);
    }

    fn begin(&mut self, not_before: Option<Timestamp>) {
        let (text, byte, length) = (self.texts.len(), self.bytes.len(), self.lengths.len());
        self.places.push(Place { text, byte, length, not_before });
    }

    fn finish(self) -> Packed {
        let Self { texts, bytes, lengths, places } = self;
        Packed { texts, bytes: bytes.into(), lengths, places }
    }
}

/// What comes next.
#[derive(Clone, Copy)]
struct Reader<'a> {
    texts: &'a str,
    bytes: &'a [u8],
    /// Where the next bytes begin.
    byte: usize,
    lengths: &'a [usize],
}

impl<'a> Reader<'a> {
    fn length(&mut self) -> usize {
        let (length, rest) = self.lengths.split_first().expect("each message has its lengths");
        self.lengths = rest;
        *length
    }

    fn text(&mut self) -> &'a str {
        let (text, rest) = self.texts.split_at(self.length());
        self.texts = rest;
        text
    }

    fn optional_text(&mut self) -> Option<&'a str> {
        if self.lengths.first() == Some(&NONE) {
            self.length();
            return None;
        }
        Some(self.text())
    }

    fn range(&mut self) -> std::ops::Range<usize> {
        let from = self.byte;
        self.byte += self.length();
        from..self.byte
    }
}

fn size(texts: usize, bytes: usize, lengths: usize, places: usize) -> usize {
    texts + bytes + lengths * size_of::<usize>() + places * size_of::<Place>() + size_of::<Packed>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Message; 4] {
        let mut all = [
            Message::with_id("", "", ""),
            Message::with_id("1", "order.placed", "body").key("").header("a", "").header("", "b"),
            Message::with_id("ü", "k", vec![0, 255, 10]).key("ключ").header("n", vec![0xff]).header("n", "2"),
            Message::with_id("last", "k", "x".repeat(100_000)).not_before(Timestamp::UNIX_EPOCH),
        ];
        for (number, message) in all.iter_mut().enumerate() {
            message.scope = "s".repeat(number + 1);
        }
        all
    }

    fn assert_same(packed: &Packed, index: usize, message: &Message) {
        assert_eq!(packed.message(index), *message);
        assert_eq!(packed.kind(index), message.kind);
        assert_eq!(packed.size_of(index), message.size());
        assert_eq!(packed.copied(index), *message);
        for view in [packed.view(index), message.into()] {
            assert_eq!((view.scope, view.id, view.kind), (&*message.scope, &*message.id, &*message.kind));
            assert_eq!((view.key, view.payload), (message.key.as_deref(), &*message.payload));
            assert_eq!(view.not_before, message.not_before);
            let headers = message.headers.iter().map(|(name, value)| (name, &value[..]));
            assert!(view.headers().eq(headers));
            assert_eq!(view.stored_headers(), message.headers.to_stored());
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let all = all();
        let packed = Packed::new(all.iter());
        assert_eq!(packed.len(), all.len());
        for (index, message) in all.iter().enumerate() {
            assert_same(&packed, index, message);
        }
        assert!(packed.size() > 100_000 && packed.size() < 101_000, "{}", packed.size());
    }

    #[test]
    fn some_of_several_come_out_as_they_went_in() {
        let all = all();
        let (first, second) = (Packed::new(all[..3].iter()), Packed::new(all[3..].iter()));
        let places = [(&second, 0), (&first, 2), (&first, 0)];
        let gathered = Packed::gathered(places.into_iter(), usize::MAX).unwrap();
        assert_eq!(gathered.len(), 3);
        for (index, message) in [&all[3], &all[2], &all[0]].into_iter().enumerate() {
            assert_same(&gathered, index, message);
        }
        assert!(Packed::gathered(places.into_iter(), gathered.size()).is_some());
        assert!(Packed::gathered(places.into_iter(), gathered.size() - 1).is_none());
    }

    #[test]
    fn what_is_shown_of_many_is_short_and_of_one_is_its_own() {
        let packed = Packed::new(all().iter());
        assert_eq!(format!("{packed:?}"), format!("Packed {{ len: 4, size: {} }}", packed.size()));
        let shown = format!("{:?}", packed.view(1));
        assert!(shown.contains("order.placed") && !shown.contains("last") && shown.len() < 300, "{shown}");
    }

    #[test]
    fn a_store_knows_of_no_sink_and_no_message_without_a_scope() {
        let mut message = Message::with_id("1", "k", "body");
        message.sink = "billing".to_owned();
        let packed = Packed::new([&message].into_iter());
        message.sink.clear();
        message.scope = "default".to_owned();
        assert_same(&packed, 0, &message);
    }

    #[test]
    fn a_copy_keeps_nothing_else_in_memory() {
        let packed = Packed::new([&Message::with_id("1", "k", "body").header("h", "value")].into_iter());
        let (shared, copy) = (packed.message(0), packed.copied(0));
        let within = |bytes: &Bytes| packed.bytes.as_ptr_range().contains(&bytes.as_ptr());
        assert!(within(&shared.payload) && within(shared.headers.get("h").unwrap()));
        assert!(!within(&copy.payload) && !within(copy.headers.get("h").unwrap()));
    }
}
