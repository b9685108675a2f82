//! The headers of a message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use crate::error::Error;

/// Names and values in the order they came; a name may appear more than once, a value may hold any bytes.
///
/// Names are compared without regard to ASCII case when looked up, and kept as they came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Vec<(String, Bytes)>);

/// What each header takes besides its name and value, stored and in memory, at the least.
///
/// Without it any number of empty ones would count as nothing.
pub(crate) const AROUND_A_HEADER: usize = 8;

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one at the end.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// The first value under this name.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The first value under this name, when it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Removes every value under this name and adds this one.
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        self.0.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self.push(name, value);
    }

    /// Keeps only those for which this is true, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Bytes) -> bool) {
        self.0.retain(|(name, value)| keep(name, value));
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes their names and values have, and a few more for each of them.
    pub(crate) fn size(&self) -> usize {
        self.iter().map(|(name, value)| size_of_header(name, value)).sum()
    }

    /// The form in which stores keep headers: a JSON list of `[name, value]`, where a value that is not UTF-8
    /// is `{"base64": "…"}`. Empty text for no headers.
    pub fn to_stored(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        stored_headers(self.iter().map(|(name, value)| (name, &value[..])))
    }

    /// Reads what [`Headers::to_stored`] wrote, and a plain JSON object of texts for rows written by other languages.
    pub fn from_stored(stored: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid(format!("stored headers cannot be read: {stored:.80}"));
        if stored.is_empty() {
            return Ok(Self::new());
        }
        let mut headers = Self::new();
        match serde_json::from_str(stored).map_err(|_| wrong())? {
            Value::Array(pairs) => {
                for pair in pairs {
                    let [Value::String(name), value] =
                        pair.as_array().map(Vec::as_slice).ok_or_else(wrong)?
                    else {
                        return Err(wrong());
                    };
                    headers.push(name.clone(), stored_value(value).ok_or_else(wrong)?);
                }
            }
            Value::Object(pairs) => {
                for (name, value) in pairs {
                    headers.push(name, stored_value(&value).ok_or_else(wrong)?);
                }
            }
            _ => return Err(wrong()),
        }
        Ok(headers)
    }
}

pub(crate) fn size_of_header(name: &str, value: &[u8]) -> usize {
    name.len() + value.len() + AROUND_A_HEADER
}

/// The stored form of at least one header.
pub(crate) fn stored_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let pairs = headers.map(|(name, value)| {
        let value = match std::str::from_utf8(value) {
            Ok(text) => Value::from(text),
            Err(_) => serde_json::json!({ "base64": STANDARD.encode(value) }),
        };
        Value::from(vec![Value::from(name), value])
    });
    Value::from_iter(pairs).to_string()
}

fn stored_value(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => Some(Bytes::from(text.clone())),
        Value::Object(object) => STANDARD.decode(object.get("base64")?.as_str()?).ok().map(Bytes::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_out_as_they_went_in(
            pairs in proptest::collection::vec((".*", proptest::collection::vec(any::<u8>(), 0..40)), 0..6)
        ) {
            let mut headers = Headers::new();
            for (name, value) in pairs {
                headers.push(name, value);
            }
            let stored = headers.to_stored();
            prop_assert!(!stored.contains('\0'), "NUL must be escaped for Postgres text");
            prop_assert_eq!(Headers::from_stored(&stored).unwrap(), headers);
        }
    }

    #[test]
    fn a_plain_object_is_read_too() {
        let headers = Headers::from_stored(r#"{"tenant":"acme"}"#).unwrap();
        assert_eq!(headers.text("Tenant"), Some("acme"));
        assert!(Headers::from_stored("[1]").is_err());
    }
}
