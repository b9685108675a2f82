//! AMQP's typed values as bytes and text.

use bytes::Bytes;
use fe2o3_amqp_types::messaging::MessageId;
use fe2o3_amqp_types::primitives::Value;
use serde_json::{Map, Number, Value as Json};
use uuid::Uuid;

/// A value as the bytes that people expect: text and bytes as they are, numbers and the like as text, lists and maps as
/// JSON. `None` for what has no one form (decimals, described types, bytes inside a list).
pub(crate) fn bytes(value: &Value) -> Option<Bytes> {
    Some(match value {
        Value::Binary(binary) => Bytes::copy_from_slice(binary),
        Value::String(text) => Bytes::copy_from_slice(text.as_bytes()),
        Value::Symbol(symbol) => Bytes::copy_from_slice(symbol.as_str().as_bytes()),
        Value::Null => Bytes::new(),
        other => match json(other)? {
            Json::String(text) => Bytes::from(text),
            json => Bytes::from(json.to_string()),
        },
    })
}

fn json(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Ubyte(number) => Json::from(*number),
        Value::Ushort(number) => Json::from(*number),
        Value::Uint(number) => Json::from(*number),
        Value::Ulong(number) => Json::from(*number),
        Value::Byte(number) => Json::from(*number),
        Value::Short(number) => Json::from(*number),
        Value::Int(number) => Json::from(*number),
        Value::Long(number) => Json::from(*number),
        Value::Float(number) => Json::Number(Number::from_f64(f64::from(number.0))?),
        Value::Double(number) => Json::Number(Number::from_f64(number.0)?),
        Value::Char(character) => Json::from(character.to_string()),
        // Milliseconds since 1970.
        Value::Timestamp(time) => Json::from(time.milliseconds()),
        Value::Uuid(uuid) => Json::from(Uuid::from_bytes(*uuid.as_ref()).to_string()),
        Value::String(text) => Json::from(text.as_str()),
        Value::Symbol(symbol) => Json::from(symbol.as_str()),
        Value::List(list) => Json::Array(list.iter().map(json).collect::<Option<_>>()?),
        Value::Array(array) => Json::Array(array.0.iter().map(json).collect::<Option<_>>()?),
        Value::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map.iter() {
                let key = match key {
                    Value::String(text) => text.clone(),
                    Value::Symbol(symbol) => symbol.as_str().to_owned(),
                    _ => return None,
                };
                object.insert(key, json(value)?);
            }
            Json::Object(object)
        }
        _ => return None,
    })
}

/// A message id as bytes: text and bytes as they are, a number as decimal digits, a UUID in its usual form.
pub(crate) fn id_bytes(id: &MessageId) -> Bytes {
    match id {
        MessageId::String(text) => Bytes::copy_from_slice(text.as_bytes()),
        MessageId::Binary(binary) => Bytes::copy_from_slice(binary),
        MessageId::Ulong(number) => Bytes::from(number.to_string()),
        MessageId::Uuid(uuid) => Bytes::from(Uuid::from_bytes(*uuid.as_ref()).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::primitives::{Array, Binary, OrderedMap, Symbol, Timestamp, Uuid as AmqpUuid};

    #[test]
    fn values_become_what_people_expect() {
        let mut map = OrderedMap::new();
        map.insert(Value::Symbol(Symbol::from("b")), Value::Bool(true));
        map.insert(Value::String("a".to_owned()), Value::List(vec![Value::Null, Value::Ulong(u64::MAX)]));
        for (value, expected) in [
            (Value::String("ü".to_owned()), "ü"),
            (Value::Binary(Binary::from(b"raw".to_vec())), "raw"),
            (Value::Symbol(Symbol::from("s")), "s"),
            (Value::Null, ""),
            (Value::Bool(false), "false"),
            (Value::Long(-7), "-7"),
            (Value::Double(1.5.into()), "1.5"),
            (Value::Char('x'), "x"),
            (Value::Timestamp(Timestamp::from_milliseconds(1000)), "1000"),
            (Value::Uuid(AmqpUuid::from([0; 16])), "00000000-0000-0000-0000-000000000000"),
            (Value::Array(Array(vec![Value::Int(1), Value::Int(2)])), "[1,2]"),
            (Value::Map(map), r#"{"a":[null,18446744073709551615],"b":true}"#),
        ] {
            assert_eq!(bytes(&value).unwrap(), expected, "{value:?}");
        }
        for value in [
            Value::Double(f64::NAN.into()),
            Value::List(vec![Value::Binary(Binary::from(vec![1]))]),
            Value::Map([(Value::Int(1), Value::Null)].into_iter().collect()),
        ] {
            assert_eq!(bytes(&value), None, "{value:?}");
        }
        assert_eq!(id_bytes(&MessageId::Ulong(7)), "7");
        assert_eq!(id_bytes(&MessageId::Binary(Binary::from(vec![255]))), &b"\xff"[..]);
    }
}
