//! How a message looks on RabbitMQ: its properties and headers, in both directions.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
use oncebox_core::mapping::{Delivered, ID_HEADER, KEY_HEADER, Mapped, Mapping};
use oncebox_core::{Headers, Message};
use serde_json::{Value, json};

use crate::mend;

const PERSISTENT: u8 = 2;
/// The longest text of a property or a routing key, and of a header's name.
pub(crate) const LONGEST_TEXT: usize = 255;
/// How often a quorum queue has delivered the message: it changes from copy to copy.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// RabbitMQ closes the channel of a publisher whose header of this name is not a list.
const LISTS: [&str; 2] = ["CC", "BCC"];

/// The fault of a message that was mended on its way.
const NOT_TEXT: &str = "a property, the routing key or the name of a header is not UTF-8; all properties are kept as \
                        bytes in the header `unreadable-properties`, such a routing key in `unreadable-routing-key`";

/// Makes a message of what RabbitMQ delivered.
pub(crate) fn read(mapping: &Mapping, delivery: Delivery) -> Mapped {
    let Delivery { routing_key, exchange, properties, data, .. } = delivery;
    let (id, kind) = (text(properties.message_id()), text(properties.kind()));
    let carried = carried(&properties);
    let mut headers = Headers::new();
    if let Some(table) = properties.headers() {
        // First, so that a header that differs only in case is not taken for it.
        for own in [ID_HEADER, KEY_HEADER] {
            if let Some(value) = table.inner().get(own) {
                push(&mut headers, own, value);
            }
        }
    }
    for (name, value) in &carried {
        headers.push(*name, value.clone());
    }
    for (name, value) in properties.headers().iter().flatten() {
        if ![ID_HEADER, KEY_HEADER, DELIVERY_COUNT].contains(&name.as_str()) {
            push(&mut headers, name.as_str(), value);
        }
    }
    let mut own = carried;
    own.extend(id.clone().map(|id| ("message-id", id)));
    own.extend(kind.clone().map(|kind| ("type", kind)));
    own.push(("exchange", Bytes::from(String::from(exchange))));
    let route = String::from(routing_key);
    let mut mapped =
        mapping.read(Delivered { properties: own, headers, payload: data.into(), route, position: None });
    if mapped.message.headers.get(mend::PROPERTIES).is_some() {
        mapped.fault = Some(NOT_TEXT.to_owned());
    }
    let has_id_property = id.as_ref().is_some_and(|id| !id.is_empty());
    tidy(&mut mapped.message, id, kind, has_id_property);
    mapped
}

/// Headers that only say what id, kind and key say do not stay; properties that became nothing do.
fn tidy(message: &mut Message, id: Option<Bytes>, kind: Option<Bytes>, has_id_property: bool) {
    if !has_id_property {
        let id = message.id.clone();
        remove_first(&mut message.headers, ID_HEADER, Some(&id));
    }
    let key = message.key.clone();
    remove_first(&mut message.headers, KEY_HEADER, key.as_deref());
    if let Some(id) = id.filter(|id| *id != message.id) {
        message.headers.push(ID_HEADER, id);
    }
    if let Some(kind) = kind.filter(|kind| *kind != message.kind) {
        message.headers.push("type", kind);
    }
}

/// Removes the first header of this very name when it has this value; an empty one only keeps others from its place.
fn remove_first(headers: &mut Headers, own: &str, value: Option<&str>) {
    let mut is_first = true;
    headers.retain(|name, found| {
        if name != own || !is_first {
            return true;
        }
        is_first = false;
        !found.is_empty() && Some(&found[..]) != value.map(str::as_bytes)
    });
}

/// The properties that are headers of a message, as text.
fn carried(properties: &BasicProperties) -> Vec<(&'static str, Bytes)> {
    let texts = [
        ("content-type", text(properties.content_type())),
        ("content-encoding", text(properties.content_encoding())),
        ("correlation-id", text(properties.correlation_id())),
        ("reply-to", text(properties.reply_to())),
        ("expiration", text(properties.expiration())),
        ("user-id", text(properties.user_id())),
        ("app-id", text(properties.app_id())),
        ("cluster-id", text(properties.cluster_id())),
        ("priority", properties.priority().map(|priority| Bytes::from(priority.to_string()))),
        ("timestamp", properties.timestamp().map(|seconds| Bytes::from(seconds.to_string()))),
    ];
    texts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn text(property: &Option<ShortString>) -> Option<Bytes> {
    property.as_ref().map(|text| Bytes::copy_from_slice(text.as_str().as_bytes()))
}

/// Adds a header; a list of texts becomes one header for each.
fn push(headers: &mut Headers, name: &str, value: &AMQPValue) {
    if let Some(bytes) = bytes(value) {
        headers.push(name, bytes);
        return;
    }
    if let AMQPValue::FieldArray(list) = value {
        let texts: Option<Vec<Bytes>> = list.as_slice().iter().map(bytes).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            texts.into_iter().for_each(|text| headers.push(name, text));
            return;
        }
    }
    headers.push(name, readable(value));
}

fn bytes(value: &AMQPValue) -> Option<Bytes> {
    match value {
        AMQPValue::LongString(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        AMQPValue::ShortString(text) => Some(Bytes::copy_from_slice(text.as_str().as_bytes())),
        AMQPValue::ByteArray(bytes) => Some(Bytes::copy_from_slice(bytes.as_slice())),
        _ => None,
    }
}

/// What is neither text nor bytes, as text.
fn readable(value: &AMQPValue) -> String {
    match json(value) {
        Value::Null => String::new(),
        Value::String(text) => text,
        value => value.to_string(),
    }
}

fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Timestamp(value) => json!(value),
        // JSON has no word for what is not finite.
        AMQPValue::Float(value) if !value.is_finite() => json!(value.to_string()),
        AMQPValue::Double(value) if !value.is_finite() => json!(value.to_string()),
        // As it is written, and not as it is in twice the bits: 0.1, not 0.10000000149011612.
        AMQPValue::Float(value) => value.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value)),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(decimal) => json!(decimal_text(decimal.value, decimal.scale)),
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => json!(String::from_utf8_lossy(text.as_bytes())),
        AMQPValue::ByteArray(bytes) => json!(String::from_utf8_lossy(bytes.as_slice())),
        AMQPValue::FieldArray(list) => list.as_slice().iter().map(json).collect(),
        AMQPValue::FieldTable(table) => {
            table.into_iter().map(|(name, value)| (name.as_str().to_owned(), json(value))).collect()
        }
        AMQPValue::Void => Value::Null,
    }
}

/// 12345 with scale 2 is 123.45.
fn decimal_text(value: u32, scale: u8) -> String {
    let digits = format!("{value:0>width$}", width = usize::from(scale) + 1);
    match digits.split_at(digits.len() - usize::from(scale)) {
        (whole, "") => whole.to_owned(),
        (whole, fraction) => format!("{whole}.{fraction}"),
    }
}

/// The properties, headers among them, under which a message is sent. Fails when RabbitMQ has no place for a part.
pub(crate) fn write(message: &Message) -> Result<BasicProperties, String> {
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let mut table: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
    properties = properties.with_type(short("kind", &message.kind)?);
    let is_short_id = message.id.len() <= LONGEST_TEXT;
    match is_short_id {
        true => properties = properties.with_message_id(short("id", &message.id)?),
        false => drop(table.insert(ID_HEADER, vec![message.id.as_bytes()])),
    }
    match &message.key {
        Some(key) => drop(table.insert(KEY_HEADER, vec![key.as_bytes()])),
        // Somebody's own header of this name is not the key.
        None if message.headers.get(KEY_HEADER).is_some() => drop(table.insert(KEY_HEADER, vec![b""])),
        None => {}
    }
    for (name, value) in message.headers.iter() {
        let is_first = !table.contains_key(name);
        match is_first.then(|| with_property(&properties, name, value)).flatten() {
            Some(changed) => properties = changed,
            None => table.entry(name).or_default().push(value),
        }
    }
    let mut headers = FieldTable::default();
    for (name, values) in table {
        headers.insert(short("name of a header", name)?, field(name, &values));
    }
    match headers.inner().is_empty() {
        true => Ok(properties),
        false => Ok(properties.with_headers(headers)),
    }
}

/// The properties with this header among them; none when there is no such property, or the value is not one for it.
fn with_property(properties: &BasicProperties, name: &str, value: &[u8]) -> Option<BasicProperties> {
    let is_free = match name {
        "content-type" => properties.content_type().is_none(),
        "content-encoding" => properties.content_encoding().is_none(),
        "correlation-id" => properties.correlation_id().is_none(),
        "reply-to" => properties.reply_to().is_none(),
        "app-id" => properties.app_id().is_none(),
        "cluster-id" => properties.cluster_id().is_none(),
        "priority" => properties.priority().is_none(),
        "timestamp" => properties.timestamp().is_none(),
        _ => false,
    };
    if !is_free {
        return None;
    }
    let text = std::str::from_utf8(value).ok()?;
    let properties = properties.clone();
    // A number only when it is written as we would write it, or it would come back as another text.
    let number = |number: u64| (number.to_string() == text).then_some(number);
    Some(match name {
        "priority" => properties.with_priority(u8::try_from(number(text.parse().ok()?)?).ok()?),
        "timestamp" => properties.with_timestamp(number(text.parse().ok()?)?),
        _ => {
            let text = ShortString::try_new(text).ok()?;
            match name {
                "content-type" => properties.with_content_type(text),
                "content-encoding" => properties.with_content_encoding(text),
                "correlation-id" => properties.with_correlation_id(text),
                "reply-to" => properties.with_reply_to(text),
                "app-id" => properties.with_app_id(text),
                _ => properties.with_cluster_id(text),
            }
        }
    })
}

fn field(name: &str, values: &[&[u8]]) -> AMQPValue {
    let mut texts = values.iter().map(|value| AMQPValue::LongString(LongString::from(*value)));
    match texts.next() {
        Some(only) if values.len() == 1 && !LISTS.contains(&name) => only,
        first => AMQPValue::FieldArray(FieldArray::from(first.into_iter().chain(texts).collect::<Vec<_>>())),
    }
}

pub(crate) fn short(part: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text)
        .map_err(|_| format!("the {part} has {} bytes; RabbitMQ has room for {LONGEST_TEXT}", text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RabbitmqSourceConfig;

    fn delivery(properties: BasicProperties, payload: &[u8]) -> Delivery {
        let mut delivery = Delivery::mock(1, "".into(), "the.route".into(), false, payload.to_vec());
        delivery.properties = properties;
        delivery
    }

    fn read_default(properties: BasicProperties) -> Mapped {
        read(&RabbitmqSourceConfig::default_mapping(), delivery(properties, b"body"))
    }

    fn comes_back(message: &Message) -> Message {
        let mapped = read_default(write(message).unwrap());
        assert_eq!(mapped.fault, None);
        mapped.message
    }

    fn named(headers: &Headers, name: &str) -> Vec<Bytes> {
        headers.iter().filter(|(own, _)| *own == name).map(|(_, value)| value.clone()).collect()
    }

    #[test]
    fn a_message_comes_back_byte_by_byte() {
        let plain = || Message::new("order.placed", "body").id("1");
        let every = plain()
            .key("k")
            .header("content-type", "application/json")
            .header("priority", "9")
            .header("timestamp", "1700000000")
            .header("traceparent", "00-1-2-03")
            .header("zero", vec![0, 255, 254]);
        let own_names = plain()
            .header("message-id", "not the id")
            .header("message-kind", "not the kind")
            .header("type", "not the kind either");
        for message in [
            plain(),
            every,
            own_names,
            plain().id("x".repeat(512)),
            plain().id("x".repeat(512)).header("message-id", "mine"),
            plain().header("message-key", "not a key"),
            plain().key("k").header("message-key", "not the key"),
            plain().header("empty", ""),
            plain().header("CC", "elsewhere"),
            plain().header("user-id", "me"),
            plain().header("expiration", "1"),
        ] {
            assert_eq!(comes_back(&message), message);
        }
    }

    #[test]
    fn headers_of_one_name_keep_their_order_and_bytes() {
        for name in ["a", "content-type", "priority", "message-key", "Message-Key", "BCC"] {
            for values in
                [vec!["2", "1"], vec!["", "x"], vec!["\u{e9}", "", "\0"], vec!["x", "x"], vec!["007"]]
            {
                for key in [None, Some("k")] {
                    let mut message = Message::new("k", "body").id("1");
                    message.key = key.map(str::to_owned);
                    for value in &values {
                        message = message.header(name, *value);
                    }
                    let back = comes_back(&message);
                    assert_eq!(named(&back.headers, name), values, "{name}");
                    assert_eq!(back.headers.len(), values.len(), "{name}");
                    assert_eq!(back.key, message.key, "{name} {values:?}");
                }
            }
        }
    }

    #[test]
    fn what_other_senders_write_is_readable() {
        let mut table = FieldTable::default();
        let death = FieldTable::from(BTreeMap::from([
            ("count".into(), AMQPValue::LongLongInt(3)),
            ("queue".into(), AMQPValue::LongString("orders".into())),
        ]));
        let words = ["a", "b"].map(|word| AMQPValue::LongString(word.into()));
        for (name, value) in [
            ("bool", AMQPValue::Boolean(true)),
            ("int", AMQPValue::LongInt(-7)),
            ("float", AMQPValue::Float(0.1)),
            ("nan", AMQPValue::Double(f64::NAN)),
            ("decimal", AMQPValue::DecimalValue(lapin::types::DecimalValue { scale: 2, value: 5 })),
            ("time", AMQPValue::Timestamp(1_700_000_000)),
            ("bytes", AMQPValue::ByteArray(vec![255, 0].into())),
            ("void", AMQPValue::Void),
            ("words", AMQPValue::FieldArray(words.to_vec().into())),
            ("none", AMQPValue::FieldArray(FieldArray::default())),
            ("x-death", AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into())),
            ("x-delivery-count", AMQPValue::LongLongInt(3)),
        ] {
            table.insert(name.into(), value);
        }
        let mapped = read_default(BasicProperties::default().with_message_id("1".into()).with_headers(table));
        assert_eq!(mapped.fault, None);
        let headers = mapped.message.headers;
        for (name, text) in [
            ("bool", "true"),
            ("int", "-7"),
            ("float", "0.1"),
            ("nan", "NaN"),
            ("decimal", "0.05"),
            ("time", "1700000000"),
            ("void", ""),
            ("none", "[]"),
            ("x-death", r#"[{"count":3,"queue":"orders"}]"#),
        ] {
            assert_eq!(headers.text(name), Some(text), "{name}");
        }
        assert_eq!(headers.get("bytes").unwrap(), &[255, 0][..]);
        assert_eq!(named(&headers, "words"), ["a", "b"]);
        assert_eq!(headers.get("x-delivery-count"), None, "it differs from copy to copy");
        assert_eq!(mapped.message.kind, "the.route");
    }

    #[test]
    fn a_property_that_is_not_picked_stays_as_a_header() {
        let mapping = Mapping::new(&["hash"], &["fixed"]).unwrap();
        let properties = BasicProperties::default()
            .with_message_id("m".into())
            .with_type("t".into())
            .with_user_id("u".into())
            .with_expiration("9".into())
            .with_delivery_mode(1);
        let mapped = read(&mapping, delivery(properties, b"body"));
        let headers = mapped.message.headers;
        for (name, text) in [("message-id", "m"), ("type", "t"), ("user-id", "u"), ("expiration", "9")] {
            assert_eq!(headers.text(name), Some(text));
        }
        assert_eq!(headers.len(), 4);
    }

    #[test]
    fn what_rabbitmq_has_no_room_for_is_named() {
        let message = Message::new("k", "body").header("n".repeat(256), "x");
        assert!(write(&message).unwrap_err().contains("name of a header has 256 bytes"));
    }
}
