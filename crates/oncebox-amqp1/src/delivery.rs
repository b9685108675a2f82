//! What a message looks like on AMQP 1.0, in both directions.

use bytes::{Bytes, BytesMut};
use fe2o3_amqp_types::messaging::annotations::OwnedKey;
use fe2o3_amqp_types::messaging::{
    ApplicationProperties, Body, Data, Header, Message as AmqpMessage, MessageId, Properties,
};
use fe2o3_amqp_types::primitives::{Binary, SimpleValue, Symbol, Value};
use oncebox_core::mapping::Delivered;
use oncebox_core::{Headers, Message};

use crate::values;

const CONTENT_TYPE: &str = "content-type";
const CONTENT_ENCODING: &str = "content-encoding";
const CORRELATION_ID: &str = "correlation-id";
const REPLY_TO: &str = "reply-to";
/// Properties that are headers, too.
const AS_HEADERS: [&str; 4] = [CONTENT_TYPE, CONTENT_ENCODING, CORRELATION_ID, REPLY_TO];
/// Names of annotations that applications may read begin with this.
const OPTIONAL: &str = "x-opt-";
/// Service Bus and Event Hubs number messages; never twice in one queue.
const SEQUENCE: &str = "x-opt-sequence-number";

/// Reads a message; whatever it holds, something comes out, with what is wrong with it.
pub(crate) fn read(message: AmqpMessage<Body<Value>>, address: &str) -> (Delivered, Option<String>) {
    let (payload, fault) = payload(message.body);
    let mut headers = Headers::new();
    for (name, value) in message.application_properties.map(|properties| properties.0).unwrap_or_default() {
        let value = values::bytes(&Value::from(value)).unwrap_or_default();
        headers.push(name, value);
    }
    let given = message.properties.unwrap_or_default();
    let route = [&given.subject, &given.to].into_iter().flatten().find(|word| !word.is_empty());
    let route = route.map_or(address, String::as_str).to_owned();
    let properties = properties(given);
    for (name, value) in properties.iter().filter(|(name, _)| AS_HEADERS.contains(name)) {
        // Our sink writes it at both places, so that the headers come out as they went in.
        if headers.get(name).is_none() {
            headers.push(*name, value.clone());
        }
    }
    let mut position = None;
    for (name, value) in message.message_annotations.map(|annotations| annotations.0).unwrap_or_default() {
        let OwnedKey::Symbol(name) = name else { continue };
        let Some(value) = values::bytes(&value).filter(|_| name.as_str().starts_with(OPTIONAL)) else {
            continue;
        };
        if name.as_str() == SEQUENCE {
            position = String::from_utf8(value.to_vec()).ok();
        }
        headers.push(name.as_str(), value);
    }
    (Delivered { properties, headers, payload, route, position }, fault)
}

/// The body as bytes: data sections joined, a value as text or JSON, sequences as a JSON list.
fn payload(body: Body<Value>) -> (Bytes, Option<String>) {
    let value = match body {
        Body::Empty => return (Bytes::new(), None),
        Body::Data(sections) => {
            let mut sections = sections.into_iter();
            let first = sections.next().map(|Data(bytes)| Bytes::from(bytes.into_vec())).unwrap_or_default();
            let mut rest = sections.peekable();
            if rest.peek().is_none() {
                return (first, None);
            }
            let mut joined = BytesMut::from(&first[..]);
            rest.for_each(|Data(bytes)| joined.extend_from_slice(&bytes));
            return (joined.freeze(), None);
        }
        Body::Value(value) => value.0,
        Body::Sequence(sections) => Value::List(sections.into_iter().flat_map(|section| section.0).collect()),
    };
    match values::bytes(&value) {
        Some(bytes) => (bytes, None),
        None => {
            let encoded = serde_amqp::to_vec(&value).unwrap_or_default();
            (
                encoded.into(),
                Some(
                    "its body is an AMQP value with no form in text or JSON; kept as AMQP wrote it"
                        .to_owned(),
                ),
            )
        }
    }
}

fn properties(given: Properties) -> Vec<(&'static str, Bytes)> {
    let id = |id: Option<MessageId>| id.map(|id| values::id_bytes(&id));
    let symbol = |symbol: Option<Symbol>| symbol.map(|symbol| Bytes::from(symbol.0));
    let all = [
        ("message-id", id(given.message_id)),
        ("subject", given.subject.map(Bytes::from)),
        ("group-id", given.group_id.map(Bytes::from)),
        (CORRELATION_ID, id(given.correlation_id)),
        (CONTENT_TYPE, symbol(given.content_type)),
        (CONTENT_ENCODING, symbol(given.content_encoding)),
        (REPLY_TO, given.reply_to.map(Bytes::from)),
        ("to", given.to.map(Bytes::from)),
        ("user-id", given.user_id.map(|user| Bytes::from(user.into_vec()))),
        ("reply-to-group-id", given.reply_to_group_id.map(Bytes::from)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Writes a message: durable, the id, kind and key in its properties, the headers as application properties.
pub(crate) fn write(message: &Message) -> AmqpMessage<Data> {
    let text = |name: &str| message.headers.text(name).map(str::to_owned);
    // Symbols are ASCII.
    let symbol = |name: &str| text(name).filter(|text| text.is_ascii()).map(Symbol::from);
    let properties = Properties {
        message_id: Some(MessageId::String(message.id.clone())),
        subject: Some(message.kind.clone()),
        group_id: message.key.clone(),
        correlation_id: text(CORRELATION_ID).map(MessageId::String),
        content_type: symbol(CONTENT_TYPE),
        content_encoding: symbol(CONTENT_ENCODING),
        reply_to: text(REPLY_TO),
        ..Properties::default()
    };
    AmqpMessage {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: application_properties(&message.headers),
        body: Data(Binary::from(message.payload.to_vec())),
        footer: None,
    }
}

/// A map has each name once: the second value of a name goes under `NAME;2`, and so on.
fn application_properties(headers: &Headers) -> Option<ApplicationProperties> {
    let mut map = ApplicationProperties::default();
    for (name, value) in headers.iter() {
        let mut free = name.to_owned();
        let mut number = 1;
        while map.0.contains_key(&free) {
            number += 1;
            free = format!("{name};{number}");
        }
        let value = match std::str::from_utf8(value) {
            Ok(text) => SimpleValue::String(text.to_owned()),
            Err(_) => SimpleValue::Binary(Binary::from(value.to_vec())),
        };
        map.0.insert(free, value);
    }
    (!headers.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::messaging::{AmqpValue, MessageAnnotations};

    fn received(body: Body<Value>) -> AmqpMessage<Body<Value>> {
        AmqpMessage {
            header: None,
            delivery_annotations: None,
            message_annotations: None,
            properties: None,
            application_properties: None,
            body,
            footer: None,
        }
    }

    #[test]
    fn data_sections_are_joined_in_order() {
        let section = |bytes: &[u8]| Data(Binary::from(bytes.to_vec()));
        let sections = vec![section(b"one "), section(b"two "), section(b"three")];
        let (delivered, fault) = read(received(Body::Data(sections.into())), "orders");
        assert_eq!((&delivered.payload[..], fault), (&b"one two three"[..], None));
        assert_eq!(delivered.route, "orders", "the address, where nothing else is said");
        assert!(read(received(Body::Empty), "orders").0.payload.is_empty());
    }

    #[test]
    fn what_the_sink_writes_the_source_reads() {
        let message = Message::with_id("1", "order.placed", &b"\xff\x00"[..])
            .key("k")
            .header("Content-Type", "text/plain")
            .header("binary", &b"\xff"[..])
            .header("correlation-id", "c");
        let written = write(&message);
        assert!(written.header.as_ref().unwrap().durable);
        let body = Body::Data(vec![written.body].into());
        let (properties, own) = (written.properties, written.application_properties);
        let read = read(AmqpMessage { properties, application_properties: own, ..received(body) }, "orders");
        let mapped = crate::Amqp1SourceConfig::default().mapping.read(read.0);
        assert_eq!((mapped.message, mapped.fault), (message, None));
    }

    #[test]
    fn a_name_that_comes_twice_is_numbered() {
        let written = write(&Message::new("k", "").header("a", "1").header("a", "2").header("a", "3"));
        let names: Vec<String> =
            written.application_properties.unwrap().0.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "a;2", "a;3"]);
    }

    #[test]
    fn optional_annotations_are_headers_and_the_sequence_number_is_the_position() {
        let mut annotations = MessageAnnotations::default();
        annotations.0.insert(OwnedKey::from("x-opt-sequence-number"), Value::Long(42));
        annotations.0.insert(OwnedKey::from("x-other"), Value::Long(1));
        let message = AmqpMessage {
            message_annotations: Some(annotations),
            ..received(Body::Value(AmqpValue(Value::String("x".to_owned()))))
        };
        let (delivered, _) = read(message, "orders");
        assert_eq!(delivered.position.as_deref(), Some("42"));
        assert_eq!(delivered.headers.text("x-opt-sequence-number"), Some("42"));
        assert_eq!(delivered.headers.len(), 1);
    }
}
