//! What a record of Kafka is as a message, and back.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use oncebox_core::mapping::{Delivered, ID_HEADER, KIND_HEADER, Mapped, Mapping};
use oncebox_core::{Headers, Message};
use rdkafka::message::{Header, Headers as _, Message as Record, OwnedHeaders};

/// The header of a message that came without a payload (a tombstone), or is to be sent without one.
///
/// Its payload is empty. Kafka tells an absent payload from an empty one: the first removes a key from a compacted
/// topic.
pub const TOMBSTONE_HEADER: &str = "kafka-tombstone";

/// Where a record lay; only for records whose headers cannot be read, so that each is kept apart.
const POSITION_HEADER: &str = "kafka-position";

/// What comes before the base64 text of a key that is not text.
const BASE64: &str = "base64:";

/// Makes a message of a record.
pub(crate) fn read(mapping: &Mapping, record: &impl Record) -> Mapped {
    let position = format!("{}-{}-{}", record.topic(), record.partition(), record.offset());
    let Some(mut headers) = read_headers(record) else {
        return unreadable_headers(record, position);
    };
    if record.payload().is_none() {
        headers.push(TOMBSTONE_HEADER, "true");
    }
    let key = record.key().map(|key| ("key", Bytes::from(key_text(key).into_owned())));
    let mut mapped = mapping.read(Delivered {
        properties: key.into_iter().collect(),
        headers,
        payload: Bytes::copy_from_slice(record.payload().unwrap_or_default()),
        route: record.topic().to_owned(),
        position: Some(position),
    });
    let Message { id, kind, headers, .. } = &mut mapped.message;
    // The sink wrote them; in the message they have places of their own.
    take_first(headers, ID_HEADER, id);
    take_first(headers, KIND_HEADER, kind);
    mapped
}

/// The headers, unless a name is not UTF-8: the client library panics over such a name.
fn read_headers(record: &impl Record) -> Option<Headers> {
    let Some(theirs) = record.headers() else { return Some(Headers::new()) };
    let read = || {
        let mut headers = Headers::new();
        for Header { key, value } in theirs.iter() {
            headers.push(key, Bytes::copy_from_slice(value.unwrap_or_default()));
        }
        headers
    };
    catch_unwind(AssertUnwindSafe(read)).ok()
}

fn unreadable_headers(record: &impl Record, position: String) -> Mapped {
    let payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    let message = Message::with_id("", "", payload).header(POSITION_HEADER, position);
    let fault = "its headers cannot be read: a header's name is not UTF-8 text".to_owned();
    Mapped { message, fault: Some(fault) }
}

/// Removes the first header under this name when it says no more than the message itself.
fn take_first(headers: &mut Headers, name: &str, value: &str) {
    let mut is_first = true;
    headers.retain(|own, bytes| {
        if own != name {
            return true;
        }
        let keep = !is_first || bytes != value.as_bytes() || value.is_empty();
        is_first = false;
        keep
    });
}

/// A record's key as the key of a message: its text, or `base64:` and its bytes when it is no text.
pub(crate) fn key_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Cow::Borrowed(text),
        _ => Cow::Owned(format!("{BASE64}{}", STANDARD.encode(bytes))),
    }
}

/// The key of a message as a record's key; the opposite of [`key_text`].
pub(crate) fn key_bytes(text: &str) -> Cow<'_, [u8]> {
    let binary = text.strip_prefix(BASE64).and_then(|encoded| STANDARD.decode(encoded).ok());
    match binary {
        // Only what `key_text` would write is taken as bytes, so a text that looks like it stays that text.
        Some(bytes) if key_text(&bytes) == text => Cow::Owned(bytes),
        _ => Cow::Borrowed(text.as_bytes()),
    }
}

/// The payload of the record for a message: none for a tombstone.
pub(crate) fn payload(message: &Message) -> Option<&[u8]> {
    (!is_tombstone(message)).then_some(&message.payload)
}

/// The headers of the record for a message: id and kind first, then its own.
///
/// Fails when a name cannot be one in Kafka.
pub(crate) fn write_headers(message: &Message) -> Result<OwnedHeaders, String> {
    let mut headers = OwnedHeaders::new_with_capacity(message.headers.len() + 2)
        .insert(Header { key: ID_HEADER, value: Some(message.id.as_bytes()) })
        .insert(Header { key: KIND_HEADER, value: Some(message.kind.as_bytes()) });
    let tombstone = is_tombstone(message);
    for (name, value) in message.headers.iter() {
        if name.contains('\0') {
            return Err(format!("the name of header `{}` contains a NUL byte", name.escape_debug()));
        }
        if !(tombstone && name == TOMBSTONE_HEADER) {
            headers = headers.insert(Header { key: name, value: Some(&value[..]) });
        }
    }
    Ok(headers)
}

fn is_tombstone(message: &Message) -> bool {
    message.payload.is_empty() && message.headers.iter().any(|(name, _)| name == TOMBSTONE_HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    fn mapping() -> Mapping {
        crate::config::default_mapping()
    }

    fn record(key: Option<&[u8]>, payload: Option<&[u8]>, headers: OwnedHeaders) -> OwnedMessage {
        OwnedMessage::new(
            payload.map(<[u8]>::to_vec),
            key.map(<[u8]>::to_vec),
            "orders".to_owned(),
            Timestamp::NotAvailable,
            3,
            42,
            Some(headers),
        )
    }

    #[test]
    fn keys_come_back_as_the_same_bytes_and_the_same_text() {
        for bytes in
            [&b"order-7"[..], b"\xff\xfe", b"a\0b", b"\0\0\0\0\0\0\0\x2a", "ключ".as_bytes(), b"base64:!"]
        {
            assert_eq!(key_bytes(&key_text(bytes)), bytes);
        }
        for text in ["order-7", "base64:/w==", "base64:aGVsbG8=", "base64:", "base64:/w=", "base64:no"] {
            assert_eq!(key_text(&key_bytes(text)), text);
        }
        assert_eq!(key_bytes("base64:aGVsbG8="), &b"base64:aGVsbG8="[..], "a text that looks like it");
        assert_eq!(key_text(b"\xff"), "base64:/w==");
    }

    #[test]
    fn a_message_comes_back_as_it_was_written() {
        let plain =
            Message::new("order.placed", "body").id("m-1").key("k").header("same", "1").header("same", "2");
        let own_id_header = plain.clone().header(ID_HEADER, "another").header(KIND_HEADER, "order.placed");
        let tombstone = Message::new("order.gone", "").id("m-2").key("k").header(TOMBSTONE_HEADER, "true");
        for message in [plain, own_id_header, tombstone, Message::new("k", "").id("empty").header("e", "")] {
            let headers = write_headers(&message).unwrap();
            let key = message.key.as_deref().map(key_bytes);
            let mapped = read(&mapping(), &record(key.as_deref(), payload(&message), headers));
            assert_eq!(mapped.fault, None);
            assert_eq!(mapped.message, message);
        }
    }

    #[test]
    fn a_tombstone_has_no_payload_and_an_empty_payload_is_one() {
        let gone = Message::new("k", "").header(TOMBSTONE_HEADER, "true");
        assert_eq!(payload(&gone), None);
        assert_eq!(write_headers(&gone).unwrap().count(), 2, "the mark itself does not travel");
        assert_eq!(payload(&Message::new("k", "")), Some(&b""[..]));
        let full = Message::new("k", "x").header(TOMBSTONE_HEADER, "true");
        assert_eq!(payload(&full), Some(&b"x"[..]), "a payload is never thrown away");
    }

    #[test]
    fn records_of_others_are_read_as_far_as_they_go() {
        let headers = OwnedHeaders::new()
            .insert(Header { key: "bytes", value: Some(&[0_u8, 255][..]) })
            .insert(Header { key: "null", value: None::<&[u8]> });
        let mapped = read(&mapping(), &record(None, Some(b"x"), headers));
        assert!(mapped.fault.unwrap().contains("it has no id"));
        assert_eq!((mapped.message.kind.as_str(), mapped.message.key), ("orders", None));
        let names: Vec<_> = mapped.message.headers.iter().map(|(name, value)| (name, &value[..])).collect();
        assert_eq!(names, [("bytes", &[0_u8, 255][..]), ("null", b"")]);

        let by_position = mapping().id(&["header:message-id", "position"]).unwrap();
        let mapped = read(&by_position, &record(Some(b"\xff"), None, OwnedHeaders::new()));
        assert_eq!(mapped.fault, None);
        assert_eq!(
            (mapped.message.id.as_str(), mapped.message.key.as_deref()),
            ("orders-3-42", Some("base64:/w=="))
        );
        assert_eq!(mapped.message.headers.text(TOMBSTONE_HEADER), Some("true"));
    }

    #[test]
    fn a_header_name_that_kafka_cannot_hold_is_refused() {
        assert!(write_headers(&Message::new("k", "x").header("a\0b", "")).unwrap_err().contains("NUL"));
    }
}
