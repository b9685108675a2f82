//! Reads one place of a JSON text without keeping the rest, which as a tree would take many times its size.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What is at this JSON pointer (RFC 6901), as it is written there. Fails on a text that is no JSON.
pub(crate) fn read<'t>(text: &'t str, pointer: &str) -> Result<Option<&'t RawValue>, serde_json::Error> {
    let steps: Vec<String> =
        pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
    let mut json = serde_json::Deserializer::from_str(text);
    let found = At(&steps).deserialize(&mut json)?;
    json.end()?;
    Ok(found)
}

/// The value that these steps lead to.
struct At<'s>(&'s [String]);

impl<'t> DeserializeSeed<'t> for At<'_> {
    type Value = Option<&'t RawValue>;

    fn deserialize<D: Deserializer<'t>>(self, json: D) -> Result<Self::Value, D::Error> {
        match self.0.split_first() {
            Some((step, rest)) => json.deserialize_any(Step { step, rest }),
            None => <&RawValue>::deserialize(json).map(Some),
        }
    }
}

/// One step into an object or a list; nothing else has an inside.
struct Step<'s> {
    step: &'s str,
    rest: &'s [String],
}

impl<'t> Visitor<'t> for Step<'_> {
    type Value = Option<&'t RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Is(self.step))? {
            // Of a name that is there twice the last one counts.
            if is_it {
                found = map.next_value_seed(At(self.rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let place = place(self.step);
        let mut found = None;
        for number in 0.. {
            let more = if Some(number) == place {
                let value = list.next_element_seed(At(self.rest))?;
                let more = value.is_some();
                found = value.flatten();
                more
            } else {
                list.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Whether a name is this one.
struct Is<'s>(&'s str);

impl<'t> DeserializeSeed<'t> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'t>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// A place in a list: digits, without a zero in front.
fn place(step: &str) -> Option<usize> {
    let is_number = step.bytes().all(|byte| byte.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    if is_number { step.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn found(text: &str, pointer: &str) -> Option<String> {
        read(text, pointer).unwrap().map(|raw| raw.get().to_owned())
    }

    #[test]
    fn a_place_is_found_and_the_rest_is_only_looked_over() {
        let digits = "9".repeat(10_000);
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = format!(r#"{{"n":{digits},"deep":{deep},"a":[0,{{"b/c~":"x"}}],"a b":1.50,"a b":-0}}"#);
        assert_eq!(found(&text, "/a/1/b~1c~0").as_deref(), Some("\"x\""));
        assert_eq!(found(&text, "/a b").as_deref(), Some("-0"));
        for nowhere in ["/a/2", "/a/01", "/a/+1", "/a/-", "/a/1/b", "/a b/0", "/"] {
            assert_eq!(found(&text, nowhere), None, "{nowhere}");
        }
        for wrong in [r#"{"id":1} x"#, r#"{"id":1"#, r#"{"id":1,}"#, "", "nothing"] {
            assert!(read(wrong, "/id").is_err(), "{wrong}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[ab~/0]{0,2}", inner, 0..4).prop_map(Value::from_iter),
            ]
        })
    }

    proptest! {
        /// The same as a tree answers, which is much simpler and much larger.
        #[test]
        fn it_finds_what_a_tree_has(value in json(), pointer in "(/([ab/0-3]|~0|~1){0,2}){0,4}") {
            let text = value.to_string();
            // Not the value itself: reading a fraction may change its last digit.
            let value: Value = serde_json::from_str(&text).unwrap();
            let ours = read(&text, &pointer).unwrap().map(|raw| serde_json::from_str(raw.get()).unwrap());
            prop_assert_eq!(ours.as_ref(), value.pointer(&pointer));
        }
    }
}
