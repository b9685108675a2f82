//! Messages as a store finds them in its tables.

use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::headers::Headers;
use crate::limits::{LONGEST_KEY, LONGEST_KIND, LONGEST_SCOPE};
use crate::message::Message;

/// The beginning of the names of headers that keep what could not be read.
pub const UNREADABLE_HEADER: &str = "oncebox-unreadable-";

/// The columns of a stored message, before anybody has looked at them.
///
/// What the library stores it can read. A row that somebody's own SQL wrote may be another matter, and must stop nobody
/// but itself, so [`StoredMessage::read`] never fails.
///
/// ```
/// use oncebox_core::store::StoredMessage;
///
/// let stored = StoredMessage { id: b"o-1", kind: b"order.placed", headers: b"{oops", ..StoredMessage::default() };
/// let (message, unreadable) = stored.read();
/// assert_eq!(message.id, "o-1");
/// assert_eq!(message.headers.text("oncebox-unreadable-headers"), Some("{oops"));
/// assert!(unreadable.unwrap().starts_with("the row cannot be read"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct StoredMessage<'a> {
    /// UTF-8, as the other texts.
    pub scope: &'a [u8],
    /// The message id.
    pub id: &'a [u8],
    /// The kind.
    pub kind: &'a [u8],
    /// The key, if it has one.
    pub key: Option<&'a [u8]>,
    /// As [`Headers::to_stored`] writes them.
    pub headers: &'a [u8],
    /// Any bytes.
    pub payload: Bytes,
    /// Microseconds since 1970.
    pub not_before: Option<i64>,
}

impl StoredMessage<'_> {
    /// The message, and what is wrong with it when a part could not be read.
    ///
    /// Such a part is replaced by something of its sort, and its bytes are kept as they were in a header whose name
    /// begins with [`UNREADABLE_HEADER`]. The payload is always whole.
    pub fn read(self) -> (Message, Option<String>) {
        let mut lost = Lost::default();
        let id = lost.id(self.id);
        let kind = lost.text("kind", self.kind, LONGEST_KIND);
        let mut message = Message::with_id(id, kind, self.payload);
        message.scope = lost.text("scope", self.scope, LONGEST_SCOPE);
        message.key = self.key.map(|key| lost.text("key", key, LONGEST_KEY));
        message.headers = lost.headers(self.headers);
        message.not_before = self.not_before.and_then(|micros| lost.time(micros));
        for (name, bytes) in lost.parts {
            message.headers.push(format!("{UNREADABLE_HEADER}{name}"), bytes);
        }
        (message, lost.reason)
    }
}

/// What could not be read so far.
#[derive(Default)]
struct Lost {
    parts: Vec<(&'static str, Bytes)>,
    reason: Option<String>,
}

impl Lost {
    /// Two ids that cannot be read must stay two ids.
    fn id(&mut self, bytes: &[u8]) -> String {
        if let Ok(id) = std::str::from_utf8(bytes) {
            return id.to_owned();
        }
        self.add("id", bytes, "it is not UTF-8");
        format!("unreadable-{}", hex(&Sha256::digest(bytes)[..16]))
    }

    /// The text; with replacement characters, and at most this long, when it is none.
    fn text(&mut self, field: &'static str, bytes: &[u8], most: usize) -> String {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return text.to_owned();
        }
        self.add(field, bytes, "it is not UTF-8");
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        while text.len() > most {
            text.pop();
        }
        text
    }

    fn headers(&mut self, bytes: &[u8]) -> Headers {
        let read = std::str::from_utf8(bytes).ok().and_then(|text| Headers::from_stored(text).ok());
        read.unwrap_or_else(|| {
            self.add("headers", bytes, "it is not a JSON list of [name, value]");
            Headers::new()
        })
    }

    fn time(&mut self, micros: i64) -> Option<Timestamp> {
        let read = Timestamp::from_microsecond(micros).ok();
        if read.is_none() {
            let number = micros.to_string();
            self.add("not_before", number.as_bytes(), "it is no time of this calendar in microseconds");
        }
        read
    }

    fn add(&mut self, field: &'static str, bytes: &[u8], why: &str) {
        self.parts.push((field, Bytes::copy_from_slice(bytes)));
        let start = bytes[..bytes.len().min(40)].escape_ascii();
        let part = format!("{field} `{start}`: {why}");
        self.reason = Some(match self.reason.take() {
            None => format!("the row cannot be read, somebody else wrote it: {part}"),
            Some(reason) => format!("{reason}; {part}"),
        });
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_can_be_read_is_read_as_it_is() {
        let mut headers = Headers::new();
        headers.push("tenant", "acme");
        let stored = headers.to_stored();
        let stored = StoredMessage {
            scope: b"shop",
            id: "ä".as_bytes(),
            kind: b"order.placed",
            key: Some(b"k"),
            headers: stored.as_bytes(),
            payload: Bytes::from_static(b"\xff\0"),
            not_before: Some(-1),
        };
        let (message, unreadable) = stored.read();
        assert_eq!(unreadable, None);
        assert_eq!((message.scope.as_str(), message.id.as_str()), ("shop", "ä"));
        assert_eq!((message.kind.as_str(), message.key.as_deref()), ("order.placed", Some("k")));
        assert_eq!((message.headers, message.payload), (headers, Bytes::from_static(b"\xff\0")));
        assert_eq!(message.not_before.unwrap().as_microsecond(), -1);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_message_that_keeps_them(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..255), 5),
            not_before in any::<Option<i64>>(),
        ) {
            let stored = StoredMessage {
                scope: &texts[0],
                id: &texts[1],
                kind: &texts[2],
                key: Some(&texts[3]),
                headers: &texts[4],
                payload: Bytes::new(),
                not_before,
            };
            let (message, unreadable) = stored.read();
            prop_assert!(message.scope.len() <= LONGEST_SCOPE && message.kind.len() <= LONGEST_KIND);
            prop_assert_eq!(unreadable.is_some(), message.headers.iter().any(|(name, _)| name.starts_with(UNREADABLE_HEADER)));
            for (name, bytes) in
                [("scope", &texts[0]), ("id", &texts[1]), ("kind", &texts[2]), ("key", &texts[3])]
            {
                let kept = message.headers.get(&format!("{UNREADABLE_HEADER}{name}"));
                prop_assert_eq!(kept.is_some(), std::str::from_utf8(bytes).is_err());
                prop_assert!(kept.is_none_or(|kept| kept == bytes));
            }
        }
    }

    #[test]
    fn two_ids_that_cannot_be_read_stay_apart() {
        let id = |id| StoredMessage { id, ..StoredMessage::default() }.read().0.id;
        assert_ne!(id(b"\xff"), id(b"\xfe"));
        assert_eq!(id(b"\xff"), id(b"\xff"));
    }
}
