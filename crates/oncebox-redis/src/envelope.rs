//! What a message looks like in a stream: the fields of an entry, in order, byte by byte.

use bytes::Bytes;
use oncebox_core::mapping::{Delivered, Mapped};
use oncebox_core::{Headers, Message};
use redis::{Cmd, Value};

use crate::config::{RedisSinkConfig, RedisSourceConfig};
use crate::link::{bytes, list, text};

const ID: &str = "id";
const KIND: &str = "kind";
const KEY: &str = "key";
const PAYLOAD: &str = "payload";
/// Stands before the names of headers.
const HEADER: &[u8] = b"header:";

/// An entry of a stream: its id, and its fields unless it was deleted.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// The entries of an answer: pairs of an id and a list of fields.
pub(crate) fn entries(value: Value) -> Vec<Entry> {
    let entry = |value: Value| {
        let mut pair = list(value).into_iter();
        let id = text(pair.next()?);
        let fields = match pair.next() {
            None | Some(Value::Nil) => None,
            Some(fields) => {
                let mut words = list(fields).into_iter().map(|word| bytes(word).unwrap_or_default());
                let mut fields = Vec::new();
                while let (Some(name), Some(value)) = (words.next(), words.next()) {
                    fields.push((name, value));
                }
                Some(fields)
            }
        };
        (!id.is_empty()).then_some(Entry { id, fields })
    };
    list(value).into_iter().filter_map(entry).collect()
}

/// Makes a message of an entry. Fields that mean nothing to us are headers, so that nothing is dropped.
///
/// A header's name is text. One that is not makes the entry unreadable and is written with escapes, so that a person
/// still sees its bytes.
pub(crate) fn read(config: &RedisSourceConfig, id: &str, fields: Vec<(Vec<u8>, Vec<u8>)>) -> Mapped {
    let mut delivered =
        Delivered { route: config.stream.clone(), position: Some(id.to_owned()), ..Delivered::default() };
    let mut has_payload = false;
    let mut headers = Headers::new();
    let mut strange = Vec::new();
    for (name, value) in fields {
        let value = Bytes::from(value);
        let own = [ID, KIND, KEY].into_iter().find(|own| own.as_bytes() == name);
        match own {
            Some(own) if delivered.properties.iter().all(|(known, _)| *known != own) => {
                delivered.properties.push((own, value));
            }
            _ if name == config.payload_field.as_bytes() && !has_payload => {
                has_payload = true;
                delivered.payload = value;
            }
            _ => {
                let name = name.strip_prefix(HEADER).unwrap_or(&name);
                match str::from_utf8(name) {
                    Ok(name) => headers.push(name, value),
                    Err(_) => {
                        let name = name.escape_ascii().to_string();
                        strange.push(format!("the name of field `{name}` is not UTF-8 text"));
                        headers.push(name, value);
                    }
                }
            }
        }
    }
    delivered.headers = headers;
    let mut mapped = config.mapping.read(delivered);
    if !strange.is_empty() {
        mapped.fault = Some(mapped.fault.into_iter().chain(strange).collect::<Vec<_>>().join("; "));
    }
    mapped
}

/// The command that adds a message to the stream.
pub(crate) fn write(config: &RedisSinkConfig, message: &Message) -> Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(&config.stream);
    if !config.create {
        command.arg("NOMKSTREAM");
    }
    if let Some(entries) = config.max_length {
        command.arg("MAXLEN").arg("~").arg(entries);
    }
    command.arg("*").arg(ID).arg(&message.id).arg(KIND).arg(&message.kind);
    if let Some(key) = &message.key {
        command.arg(KEY).arg(key);
    }
    command.arg(PAYLOAD).arg(&message.payload[..]);
    for (name, value) in message.headers.iter() {
        command.arg([HEADER, name.as_bytes()].concat()).arg(&value[..]);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_nothing_to_us_is_a_header() {
        let field = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
        let config = RedisSourceConfig::new("redis://a", "orders", "g");
        let fields = vec![
            field("id", b"1"),
            field("order", b"7"),
            field("header:a", b"\xff"),
            field("payload", b"body"),
            field("id", b"2"),
        ];
        let mapped = read(&config, "5-0", fields);
        assert_eq!(mapped.fault, None);
        let message = mapped.message;
        assert_eq!(
            (message.id.as_str(), message.kind.as_str(), &message.payload[..]),
            ("1", "orders", &b"body"[..])
        );
        let headers: Vec<_> = message.headers.iter().map(|(name, value)| (name, &value[..])).collect();
        assert_eq!(headers, [("order", &b"7"[..]), ("a", b"\xff"), ("id", b"2")]);
    }

    #[test]
    fn a_field_whose_name_is_no_text_makes_an_entry_unreadable() {
        let config = RedisSourceConfig::new("redis://a", "orders", "g");
        let field = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let fields = vec![field(b"header:\xff", b"1"), field(b"a\xfe", b"2"), field(b"payload", b"body")];
        let mapped = read(&config, "5-0", fields);
        let fault = mapped.fault.unwrap();
        for part in ["it has no id", "field `\\xff` is not UTF-8", "field `a\\xfe` is not UTF-8"] {
            assert!(fault.contains(part), "{fault}");
        }
        let headers: Vec<_> = mapped.message.headers.iter().map(|(name, value)| (name, &value[..])).collect();
        assert_eq!(headers, [("\\xff", &b"1"[..]), ("a\\xfe", b"2")]);
        assert_eq!(mapped.message.payload, "body");
    }

    #[test]
    fn an_entry_that_was_deleted_has_no_fields() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let answer = Value::Array(vec![
            Value::Array(vec![bulk("1-0"), Value::Nil]),
            Value::Array(vec![bulk("2-0"), Value::Array(vec![bulk("a"), bulk("b")])]),
            Value::Nil,
        ]);
        let entries = entries(answer);
        assert_eq!(entries.len(), 2);
        assert!(entries[0].fields.is_none() && entries[1].fields.is_some());
    }
}
