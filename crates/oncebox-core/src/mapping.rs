//! Reads the id, kind and key of a message out of what a broker or a webhook delivered.
//!
//! Each source has a [`Mapping`] with a sensible default. Where a part is read from is a [`Pick`], written as people
//! write it in a configuration file: `property:message-id`, `header:x-kind`, `json:/order_id`, `cloudevents`,
//! `routing-key`, `position`, `hash`.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::headers::Headers;
use crate::json_pointer;
use crate::message::Message;

/// The header under which sinks write a message's id where the broker has no place of its own for it.
pub const ID_HEADER: &str = "message-id";
/// The same for the kind.
pub const KIND_HEADER: &str = "message-kind";
/// The same for the key.
pub const KEY_HEADER: &str = "message-key";

/// Where one part of a message is read from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pick {
    /// `property:NAME`: a property of the broker's own message format, such as AMQP's `message-id`.
    Property(String),
    /// `header:NAME`: a header, whatever its case.
    Header(String),
    /// `json:/POINTER`: a text or whole number in a JSON payload, by JSON pointer (RFC 6901).
    Json(String),
    /// `cloudevents`: the CloudEvents attribute for that part, in binary or structured mode.
    CloudEvents,
    /// `routing-key`, `subject`, `topic` or `stream`: the word the broker routes by.
    Route,
    /// `position`: where the message lies in the broker's log (topic, partition and offset, say).
    ///
    /// As an id it drops redeliveries only: a producer that sends twice makes two messages.
    Position,
    /// `hash`: SHA-256 of the payload. Two messages with the same bytes are one.
    Hash,
    /// Always this text.
    Text(String),
}

impl Pick {
    /// Reads `text` as a place to look; words that name no place are an error, unlike in [`Pick::place_or_text`].
    fn place(text: &str) -> Result<Option<Self>, Error> {
        let named = |name: &str| match name.trim() {
            "" => {
                Err(Error::invalid(format!("`{text}` names nothing to read; write `header:NAME`, for one")))
            }
            name => Ok(name.to_owned()),
        };
        Ok(Some(match text.split_once(':') {
            Some(("property", name)) => Self::Property(named(name)?.to_ascii_lowercase()),
            Some(("header", name)) => Self::Header(named(name)?),
            Some(("json", pointer)) if pointer.starts_with('/') => Self::Json(pointer.to_owned()),
            Some(("json", _)) => {
                return Err(Error::invalid(format!(
                    "`{text}`: a JSON pointer begins with `/`, as in `json:/id`"
                )));
            }
            Some(("text", text)) => Self::Text(named(text)?),
            _ => match text {
                "cloudevents" => Self::CloudEvents,
                "routing-key" | "subject" | "topic" | "stream" => Self::Route,
                "position" => Self::Position,
                "hash" => Self::Hash,
                _ => return Ok(None),
            },
        }))
    }

    /// Reads a place to look, and takes any other text as that very text: `order.placed`.
    pub fn place_or_text(text: &str) -> Result<Self, Error> {
        match Self::place(text)? {
            Some(pick) => Ok(pick),
            None if text.is_empty() => Err(Error::invalid("an empty text cannot be a kind")),
            None => Ok(Self::Text(text.to_owned())),
        }
    }
}

impl FromStr for Pick {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::place(text)?.ok_or_else(|| {
            Error::invalid(format!(
                "`{text}` is no place to read from; use property:NAME, header:NAME, json:/POINTER, cloudevents, \
                 routing-key (subject, topic, stream), position, hash, or text:TEXT"
            ))
        })
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property(name) => write!(formatter, "property:{name}"),
            Self::Header(name) => write!(formatter, "header:{name}"),
            Self::Json(pointer) => write!(formatter, "json:{pointer}"),
            Self::CloudEvents => formatter.write_str("cloudevents"),
            Self::Route => formatter.write_str("routing-key"),
            Self::Position => formatter.write_str("position"),
            Self::Hash => formatter.write_str("hash"),
            Self::Text(text) => write!(formatter, "text:{text}"),
        }
    }
}

/// What a broker delivered, before it is a message.
#[derive(Debug, Clone, Default)]
pub struct Delivered {
    /// Properties of the broker's own format, lower-case names.
    pub properties: Vec<(&'static str, Bytes)>,
    /// Headers as they came.
    pub headers: Headers,
    /// The body as it came.
    pub payload: Bytes,
    /// The word the broker routes by.
    pub route: String,
    /// Where the message lies in the broker's log, when it has one.
    pub position: Option<String>,
}

/// A message read from a delivery, and what is wrong with it, if anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// The message, as far as it could be read.
    pub message: Message,
    /// Why it cannot be taken in as it is.
    pub fault: Option<String>,
}

/// Where id, kind and key of a source's messages are read from. Each is a list: the first place that has it counts.
///
/// ```
/// use oncebox_core::mapping::{Delivered, Mapping};
///
/// let mapping = Mapping::new(&["json:/id"], &["json:/type"]).unwrap().key(&["json:/order"]).unwrap();
/// let payload = br#"{"id": 7, "type": "order.placed", "order": "A1"}"#;
/// let mapped = mapping.read(Delivered { payload: payload.to_vec().into(), ..Delivered::default() });
/// assert_eq!(mapped.fault, None);
/// assert_eq!((mapped.message.id.as_str(), mapped.message.kind.as_str()), ("7", "order.placed"));
/// assert_eq!(mapped.message.key.as_deref(), Some("A1"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    id: Vec<Pick>,
    kind: Vec<Pick>,
    key: Vec<Pick>,
}

/// The parts of a message that are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Id,
    Kind,
    Key,
}

impl Mapping {
    /// Where to read ids and kinds; a kind that names no place is that very kind.
    ///
    /// Fails on a list that is empty or a text that cannot be a place.
    pub fn new(id: &[&str], kind: &[&str]) -> Result<Self, Error> {
        let mapping = Self { id: Vec::new(), kind: Vec::new(), key: Vec::new() };
        mapping.id(id)?.kind(kind)
    }

    /// Where to read ids instead.
    pub fn id<T: AsRef<str>>(mut self, places: &[T]) -> Result<Self, Error> {
        self.id = places.iter().map(|place| place.as_ref().parse()).collect::<Result<_, _>>()?;
        if self.id.iter().any(|pick| matches!(pick, Pick::Text(_))) {
            return Err(Error::invalid(
                "one text cannot be the id of every message; name a place to read it from",
            ));
        }
        if self.id.is_empty() {
            return Err(Error::invalid("no place to read message ids from; name one, `hash` at least"));
        }
        Ok(self)
    }

    /// Where to read kinds instead.
    pub fn kind<T: AsRef<str>>(mut self, places: &[T]) -> Result<Self, Error> {
        self.kind =
            places.iter().map(|place| Pick::place_or_text(place.as_ref())).collect::<Result<_, _>>()?;
        if self.kind.is_empty() {
            return Err(Error::invalid("no place to read kinds from; name one, or the kind itself"));
        }
        Ok(self)
    }

    /// Where to read keys; without one, or where there is none, a message has no key.
    pub fn key<T: AsRef<str>>(mut self, places: &[T]) -> Result<Self, Error> {
        self.key = places.iter().map(|place| place.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Makes a message of a delivery. Never fails: what cannot be read comes with its fault.
    pub fn read(&self, delivered: Delivered) -> Mapped {
        let reading = Reading { delivered: &delivered };
        let id = reading.first(Part::Id, &self.id);
        let kind = reading.first(Part::Kind, &self.kind);
        let key = reading.first(Part::Key, &self.key);
        let mut faults = Vec::new();
        let mut found = |part: &str, places: &[Pick], read: Result<Option<String>, String>, needed: bool| {
            match read {
                Ok(Some(text)) => return Some(text),
                Ok(None) if needed => faults.push(format!("it has no {part} (looked in {})", list(places))),
                Ok(None) => {}
                Err(fault) => faults.push(fault),
            }
            None
        };
        let id = found("id", &self.id, id, true).unwrap_or_default();
        let kind = found("kind", &self.kind, kind, true).unwrap_or_default();
        let key = found("key", &self.key, key, false);
        let Delivered { headers, payload, .. } = delivered;
        let mut message = Message::with_id(id, kind, payload);
        message.key = key;
        message.headers = headers;
        Mapped { message, fault: (!faults.is_empty()).then(|| faults.join("; ")) }
    }
}

fn list(places: &[Pick]) -> String {
    places.iter().map(Pick::to_string).collect::<Vec<_>>().join(", ")
}

/// One delivery being read.
struct Reading<'a> {
    delivered: &'a Delivered,
}

impl Reading<'_> {
    /// The first place that has the part. A place that has something unusable is a fault, not an absence.
    fn first(&self, part: Part, places: &[Pick]) -> Result<Option<String>, String> {
        for pick in places {
            if let Some(text) = self.pick(part, pick)?.filter(|text| !text.is_empty()) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn pick(&self, part: Part, pick: &Pick) -> Result<Option<String>, String> {
        match pick {
            Pick::Property(name) => {
                let property = self.delivered.properties.iter().find(|(own, _)| own == name);
                text(pick, property.map(|(_, value)| value))
            }
            Pick::Header(name) => text(pick, self.delivered.headers.get(name)),
            // A payload that is no JSON has nothing under any pointer, and another place may have it.
            Pick::Json(pointer) => match self.json(pointer) {
                Ok(json) => value(pick, json),
                Err(fault) if part == Part::Key => Err(fault),
                Err(_) => Ok(None),
            },
            Pick::CloudEvents => self.cloud_event(part),
            Pick::Route => Ok(Some(self.delivered.route.clone())),
            Pick::Position => Ok(self.delivered.position.clone()),
            Pick::Hash => Ok(Some(hex(&Sha256::digest(&self.delivered.payload)))),
            Pick::Text(text) => Ok(Some(text.clone())),
        }
    }

    /// What a JSON payload has at this pointer.
    fn json(&self, pointer: &str) -> Result<Option<&RawValue>, String> {
        let text = std::str::from_utf8(&self.delivered.payload)
            .map_err(|error| format!("its payload is not JSON: {error}"))?;
        json_pointer::read(text, pointer).map_err(|error| format!("its payload is not JSON: {error}"))
    }

    /// Attributes by the names that the bindings for HTTP and NATS, Kafka, AMQP and MQTT give them.
    fn cloud_event(&self, part: Part) -> Result<Option<String>, String> {
        let headers = &self.delivered.headers;
        let prefixes = ["ce-", "ce_", "cloudEvents:", "cloudEvents_", ""];
        let binary = prefixes.iter().find(|prefix| headers.get(&format!("{prefix}specversion")).is_some());
        let attribute = |name: &str| match binary {
            Some(prefix) => {
                text(&Pick::Header(format!("{prefix}{name}")), headers.get(&format!("{prefix}{name}")))
            }
            None => match (self.json("/specversion"), self.json(&format!("/{name}"))) {
                (Ok(Some(_)), Ok(json)) => value(&Pick::Json(format!("/{name}")), json),
                _ => Ok(None),
            },
        };
        match part {
            // The pair is what is unique; a source is a URI reference, so it contains no space.
            Part::Id => Ok(match (attribute("source")?, attribute("id")?) {
                (Some(source), Some(id)) if !source.is_empty() && !id.is_empty() => {
                    Some(format!("{source} {id}"))
                }
                _ => None,
            }),
            Part::Kind => attribute("type"),
            Part::Key => attribute("partitionkey"),
        }
    }
}

fn text(pick: &Pick, bytes: Option<&Bytes>) -> Result<Option<String>, String> {
    let Some(bytes) = bytes else { return Ok(None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(format!("what is in {pick} is not UTF-8 text")),
    }
}

fn value(pick: &Pick, raw: Option<&RawValue>) -> Result<Option<String>, String> {
    let Some(raw) = raw.map(RawValue::get) else { return Ok(None) };
    // Neither an object nor a list is looked into.
    let value = if raw.starts_with(['{', '[']) { None } else { serde_json::from_str(raw).ok() };
    match value {
        Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        // A number with a fraction, or beyond 64 bits, has no one text: two ids could become the same.
        Some(Value::Number(number)) if !number.is_f64() => Ok(Some(number.to_string())),
        _ => Err(format!("what is in {pick} is neither a text nor a whole number of 64 bits")),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(payload: &str) -> Delivered {
        Delivered {
            properties: vec![("message-id", Bytes::from_static(b"p1")), ("type", Bytes::from_static(b""))],
            headers: [("X-Kind", "order.placed"), ("binary", "\u{fffd}")].iter().fold(
                Headers::new(),
                |mut headers, (name, value)| {
                    headers.push(*name, value.as_bytes().to_vec());
                    headers
                },
            ),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            route: "orders.eu".to_owned(),
            position: Some("orders-0-7".to_owned()),
        }
    }

    fn id_of(place: &str, payload: &str) -> Result<String, String> {
        let mapped = Mapping::new(&[place], &["k"]).unwrap().read(delivered(payload));
        mapped.fault.map_or(Ok(mapped.message.id), Err)
    }

    #[test]
    fn ids_are_read_from_where_the_mapping_says() {
        let payload =
            r#"{"id":"j1","n":42,"deep":{"a/b":["x"]},"f":1.5,"big":12345678901234567890123,"o":{}}"#;
        for (place, id) in [
            ("property:Message-Id", "p1"),
            ("header:x-kind", "order.placed"),
            ("json:/id", "j1"),
            ("json:/n", "42"),
            ("json:/deep/a~1b/0", "x"),
            ("routing-key", "orders.eu"),
            ("subject", "orders.eu"),
            ("position", "orders-0-7"),
        ] {
            assert_eq!(id_of(place, payload).as_deref(), Ok(id), "{place}");
        }
        assert_eq!(id_of("hash", "a").unwrap().len(), 64);
        assert_ne!(id_of("hash", "a"), id_of("hash", "b"));
        for (place, word) in [
            ("property:type", "no id"),
            ("header:none", "no id (looked in header:none)"),
            ("json:/none", "no id"),
            ("json:/f", "whole number"),
            ("json:/big", "whole number"),
            ("json:/o", "neither a text"),
            ("cloudevents", "no id"),
        ] {
            let fault = id_of(place, payload).unwrap_err();
            assert!(fault.contains(word), "{place}: {fault}");
        }
        assert!(id_of("json:/id", "no json").unwrap_err().contains("no id"));
        // Only what is asked for has to be readable.
        let strange = format!(r#"{{"n":{},"id":"j1"}}"#, "9".repeat(10_000));
        assert_eq!(id_of("json:/id", &strange).as_deref(), Ok("j1"));
        assert!(id_of("json:/n", &strange).unwrap_err().contains("whole number"));
    }

    #[test]
    fn the_first_place_that_has_it_counts() {
        let mapping = Mapping::new(&["header:none", "property:type", "json:/id", "hash"], &["k"]).unwrap();
        assert_eq!(mapping.read(delivered(r#"{"id":"j1"}"#)).message.id, "j1");
        assert_eq!(mapping.read(delivered("x")).message.id.len(), 64);
    }

    #[test]
    fn an_id_that_is_not_text_is_a_fault_and_the_rest_is_kept() {
        let mut binary = delivered("x");
        binary.properties = vec![("message-id", Bytes::from_static(b"\xff\xfe"))];
        let mapped = Mapping::new(&["property:message-id", "hash"], &["header:x-kind"]).unwrap().read(binary);
        assert!(mapped.fault.unwrap().contains("property:message-id is not UTF-8"));
        assert_eq!((mapped.message.id.as_str(), mapped.message.kind.as_str()), ("", "order.placed"));
        assert_eq!(mapped.message.payload, "x");
        assert_eq!(mapped.message.headers.len(), 2);
    }

    #[test]
    fn cloud_events_are_read_in_binary_and_structured_mode() {
        let mapping =
            Mapping::new(&["cloudevents"], &["cloudevents"]).unwrap().key(&["cloudevents"]).unwrap();
        for prefix in ["ce-", "ce_", "cloudEvents:", "cloudEvents_", ""] {
            let mut headers = Headers::new();
            for (name, value) in [
                ("specversion", "1.0"),
                ("id", "1"),
                ("source", "/shop"),
                ("type", "t"),
                ("partitionkey", "k"),
            ] {
                headers.push(format!("{prefix}{name}"), value);
            }
            let mapped = mapping.read(Delivered { headers, ..delivered("x") });
            assert_eq!(mapped.fault, None, "{prefix}");
            assert_eq!(mapped.message.id, "/shop 1");
            assert_eq!((mapped.message.kind.as_str(), mapped.message.key.as_deref()), ("t", Some("k")));
        }
        let structured = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"t","data":{}}"#;
        let mapped = mapping.read(delivered(structured));
        assert_eq!(mapped.fault, None);
        assert_eq!((mapped.message.id.as_str(), mapped.message.key), ("/shop 1", None));
        assert_eq!(mapped.message.payload, structured.as_bytes(), "the bytes stay as they came");
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_remedy() {
        for (text, word) in [
            ("heaader:x", "header:NAME"),
            ("json:id", "begins with `/`"),
            ("header:", "names nothing"),
            ("text:always", "one text"),
        ] {
            let error = Mapping::new(&[text], &["k"]).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(Mapping::new(&[], &["k"]).is_err());
        assert!(Mapping::new(&["hash"], &[]).is_err());
        for text in [
            "property:a",
            "header:B",
            "json:/a/b",
            "cloudevents",
            "routing-key",
            "position",
            "hash",
            "text:x",
        ] {
            assert_eq!(text.parse::<Pick>().unwrap().to_string(), text);
        }
    }
}
