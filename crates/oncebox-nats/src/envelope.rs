//! What a message looks like at the server: its subject and headers.
//!
//! NATS headers are UTF-8 lines without an order, and clients trim their values. A message that fits is sent as
//! anyone would send it. One that does not (a binary header, an id with a line break, headers in an order of their own)
//! carries an exact copy of these parts in one more header, and our source reads that.

use std::borrow::Cow;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use bytes::Bytes;
use oncebox_core::mapping::{Delivered, KEY_HEADER, KIND_HEADER, Mapped, Mapping};
use oncebox_core::{Headers, Message};
use serde::{Deserialize, Serialize};

/// Where NATS itself looks for the id of a message.
pub(crate) const ID_HEADER: &str = "Nats-Msg-Id";
/// The copy of what plain headers cannot carry.
const EXACT_HEADER: &str = "Oncebox-Exact";
/// What our sink asks of the server; no part of the message.
const EXPECTED_STREAM_HEADER: &str = "Nats-Expected-Stream";

/// Headers that begin so are orders to the server: one of them empties the stream.
const ORDERS: &str = "nats-";

#[derive(Serialize, Deserialize)]
struct Exact {
    id: String,
    kind: String,
    key: Option<String>,
    /// As stores keep them.
    headers: String,
}

/// The headers of an outgoing message that goes to this subject.
pub(crate) fn write(message: &Message, subject: &str, expected_stream: Option<&str>) -> HeaderMap {
    let mut map = HeaderMap::new();
    let mut exact = false;
    let mut last = "";
    for (name, value) in message.headers.iter() {
        exact |= name < last;
        last = name;
        match plain_header(name, value) {
            Some((name, value)) => map.append(name, value),
            None => exact = true,
        }
    }
    let mut carry = |header: &'static str, text: &str| {
        let carried = carried(text);
        exact |= matches!(carried, Cow::Owned(_));
        if let Ok(value) = carried.parse::<HeaderValue>() {
            map.insert(header, value);
        }
    };
    carry(ID_HEADER, &message.id);
    if message.kind != subject {
        carry(KIND_HEADER, &message.kind);
    }
    if let Some(key) = &message.key {
        carry(KEY_HEADER, key);
    }
    if let Some(value) = expected_stream.and_then(|stream| stream.parse::<HeaderValue>().ok()) {
        map.insert(EXPECTED_STREAM_HEADER, value);
    }
    if exact {
        let copy = Exact {
            id: message.id.clone(),
            kind: message.kind.clone(),
            key: message.key.clone(),
            headers: message.headers.to_stored(),
        };
        // JSON escapes line breaks and begins and ends with a brace, so it is always a header value.
        let copy = serde_json::to_string(&copy).unwrap_or_default();
        if let Ok(value) = copy.parse::<HeaderValue>() {
            map.insert(EXACT_HEADER, value);
        }
    }
    map
}

/// Makes a message of a delivery; headers are in the order of their names.
pub(crate) fn read(
    mapping: &Mapping,
    subject: &str,
    headers: Vec<(String, Bytes)>,
    payload: Bytes,
    position: String,
) -> Mapped {
    let own = |name: &str| name.eq_ignore_ascii_case(EXACT_HEADER);
    let copy = headers.iter().find(|(name, _)| own(name));
    let copy = copy.and_then(|(_, value)| serde_json::from_slice::<Exact>(value).ok());
    let copy = copy.and_then(|copy| Some((Headers::from_stored(&copy.headers).ok()?, copy)));
    let delivered = |headers| Delivered {
        headers,
        payload,
        route: subject.to_owned(),
        position: Some(position),
        ..Delivered::default()
    };
    match copy {
        Some((exact, copy)) => {
            // Ours come first, so that the mapping finds them before headers of the message with the same names.
            let mut all = Headers::new();
            all.push(ID_HEADER, copy.id);
            all.push(KIND_HEADER, copy.kind);
            if let Some(key) = copy.key {
                all.push(KEY_HEADER, key);
            }
            for (name, value) in exact.iter() {
                all.push(name, value.clone());
            }
            let mut mapped = mapping.read(delivered(all));
            mapped.message.headers = exact;
            mapped
        }
        None => {
            let mut all = Headers::new();
            for (name, value) in headers {
                all.push(name, value);
            }
            let mut mapped = mapping.read(delivered(all));
            drop_carriers(&mut mapped.message);
            mapped
        }
    }
}

/// The headers of a delivery as the client gives them, by name.
pub(crate) fn listed(map: Option<HeaderMap>) -> Vec<(String, Bytes)> {
    let Some(map) = map else { return Vec::new() };
    let mut listed: Vec<(String, Bytes)> = Vec::with_capacity(map.len());
    for (name, values) in map.iter() {
        let name = name.to_string();
        listed.extend(values.iter().map(|value| (name.clone(), Bytes::copy_from_slice(value.as_ref()))));
    }
    listed.sort_by(|(one, _), (other, _)| one.cmp(other));
    listed
}

/// The subject for a kind: the kind itself where it can be one, else with what cannot stand there escaped.
///
/// A kind may come from outside, so it must not reach the server's own subjects (`$JS.API…`) or somebody's inbox.
pub(crate) fn subject_of(prefix: Option<&str>, kind: &str) -> String {
    let mut subject = prefix.map_or(String::new(), |prefix| format!("{prefix}."));
    let mut before = None;
    let mut letters = kind.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_empty_word = letter == '.' && (matches!(before, None | Some('.')) || letters.peek().is_none());
        let is_servers_own = prefix.is_none() && before.is_none() && matches!(letter, '$' | '_');
        let breaks = matches!(letter, '*' | '>' | '%') || letter.is_whitespace() || letter.is_control();
        if is_empty_word || is_servers_own || breaks {
            escape(&mut subject, letter);
            before = Some('%');
        } else {
            subject.push(letter);
            before = Some(letter);
        }
    }
    subject
}

/// Drops what says again what the message itself says by now.
fn drop_carriers(message: &mut Message) {
    let Message { id, kind, key, headers, .. } = message;
    headers.retain(|name, value| {
        let carries = |header: &str, part: Option<&str>| {
            name.eq_ignore_ascii_case(header) && part.is_some_and(|part| part.as_bytes() == value.as_ref())
        };
        !carries(ID_HEADER, Some(id))
            && !carries(KIND_HEADER, Some(kind))
            && !carries(KEY_HEADER, key.as_deref())
            && !name.eq_ignore_ascii_case(EXPECTED_STREAM_HEADER)
    });
}

fn plain_header(name: &str, value: &Bytes) -> Option<(HeaderName, HeaderValue)> {
    let begins_as_order = name.get(..ORDERS.len()).is_some_and(|start| start.eq_ignore_ascii_case(ORDERS));
    let own = [KIND_HEADER, KEY_HEADER, EXACT_HEADER].iter().any(|own| name.eq_ignore_ascii_case(own));
    if name.is_empty() || begins_as_order || own {
        return None;
    }
    let value = std::str::from_utf8(value).ok().filter(|value| is_plain(value))?;
    Some((name.parse().ok()?, value.parse().ok()?))
}

/// Comes out of every client as it went in.
fn is_plain(text: &str) -> bool {
    text.trim() == text && !text.contains(|c: char| c.is_control())
}

/// The text as a header value. The server drops messages with an id it knows, so no two texts may become one: what is
/// escaped begins with `%`, and so what begins with `%` is escaped.
fn carried(text: &str) -> Cow<'_, str> {
    if is_plain(text) && !text.starts_with('%') {
        return Cow::Borrowed(text);
    }
    let mut carried = "%".to_owned();
    for letter in text.chars() {
        match letter {
            '%' => escape(&mut carried, letter),
            _ if letter.is_control() || letter.is_whitespace() => escape(&mut carried, letter),
            _ => carried.push(letter),
        }
    }
    Cow::Owned(carried)
}

fn escape(text: &mut String, letter: char) {
    let mut bytes = [0; 4];
    for byte in letter.encode_utf8(&mut bytes).bytes() {
        *text += &format!("%{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::default_mapping;

    fn there_and_back(message: &Message, subject: &str) -> Mapped {
        let headers = listed(Some(write(message, subject, Some("S"))));
        read(&default_mapping(), subject, headers, message.payload.clone(), "S-1".to_owned())
    }

    #[test]
    fn a_message_comes_back_as_it_went() {
        let plain = || Message::new("order.placed", "body").id("o-1").key("k");
        for message in [
            plain(),
            plain().header("a", "1").header("a", "2").header("b", "ü"),
            plain().header("b", "1").header("a", "2"),
            plain().header("A", " padded ").header("a", vec![0xff, 0, b'\n']).header("Ü name:", ""),
            plain().header("message-kind", "other").header("Nats-Msg-Id", "other").header("message-key", "k"),
            plain().header("Nats-Rollup", "all").header("Oncebox-Exact", "x"),
            plain().id(" \n%\u{a0}").key("\tk\r"),
            plain()
                .id("%0A")
                .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            Message::new("a b*..", "body").id("x"),
        ] {
            for subject in ["order.placed", "fixed"] {
                let mapped = there_and_back(&message, subject);
                assert_eq!(mapped.fault, None);
                assert_eq!(mapped.message, message);
            }
        }
    }

    #[test]
    fn what_fits_is_sent_as_anyone_would_send_it() {
        let message =
            Message::new("order.placed", "body").id("o-1").header("a", "1").header("tenant", "acme");
        let names: Vec<_> = listed(Some(write(&message, "order.placed", None))).into_iter().collect();
        let expected = [("Nats-Msg-Id", "o-1"), ("a", "1"), ("tenant", "acme")];
        assert_eq!(names, expected.map(|(name, value)| (name.to_owned(), Bytes::from(value))));
    }

    #[test]
    fn headers_of_a_message_are_never_orders_to_the_server() {
        let message =
            Message::new("k", "body").header("NATS-Rollup", "all").header("nats-expected-last-sequence", "9");
        let names: Vec<String> =
            listed(Some(write(&message, "k", None))).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["Nats-Msg-Id", "Oncebox-Exact"]);
    }

    #[test]
    fn different_ids_stay_different_for_the_server() {
        let ids = ["a\nb", "%a%0Ab", "a%0Ab", "%a\nb", "%", "%%", " a", "a", "a "];
        let carried: std::collections::HashSet<_> = ids.iter().map(|id| carried(id)).collect();
        assert_eq!(carried.len(), ids.len());
    }

    #[test]
    fn a_kind_is_a_subject_that_is_safe() {
        for (kind, subject) in [
            ("order.placed", "order.placed"),
            ("order placed", "order%20placed"),
            ("a.*.>", "a.%2A.%3E"),
            ("100%", "100%25"),
            (".a..b.", "%2Ea.%2Eb%2E"),
            ("$JS.API.STREAM.DELETE.ORDERS", "%24JS.API.STREAM.DELETE.ORDERS"),
            ("_INBOX.x", "%5FINBOX.x"),
            ("a\r\nPUB x", "a%0D%0APUB%20x"),
        ] {
            assert_eq!(subject_of(None, kind), subject);
            assert_eq!(subject_of(Some("p"), kind).split('.').next(), Some("p"));
        }
        assert_eq!(subject_of(Some("events"), "$x"), "events.$x");
    }

    #[test]
    fn a_foreign_message_keeps_its_headers_and_takes_its_kind_from_the_subject() {
        let headers =
            vec![(ID_HEADER.to_owned(), Bytes::from("1")), ("tenant".to_owned(), Bytes::from("acme"))];
        let mapped = read(&default_mapping(), "orders.eu", headers, Bytes::new(), "S-1".to_owned());
        assert_eq!(mapped.fault, None);
        assert_eq!((mapped.message.id.as_str(), mapped.message.kind.as_str()), ("1", "orders.eu"));
        assert_eq!(mapped.message.headers.len(), 1);
        let mapped = read(&default_mapping(), "orders.eu", Vec::new(), Bytes::new(), "S-1".to_owned());
        assert!(mapped.fault.unwrap().contains("header:Nats-Msg-Id"));
    }
}
