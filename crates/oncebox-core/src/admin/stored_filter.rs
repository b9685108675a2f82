//! A filter as text, in which a replay remembers what it was asked for.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{DeliveryFilter, DeliveryState};
use crate::error::{Error, ErrorKind};
use crate::store::DeliveryId;

const STATES: [DeliveryState; 6] = [
    DeliveryState::Waiting,
    DeliveryState::Retrying,
    DeliveryState::Held,
    DeliveryState::Scheduled,
    DeliveryState::Dead,
    DeliveryState::Discarded,
];

impl DeliveryState {
    /// The state of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        STATES.into_iter().find(|state| state.as_str() == word)
    }
}

impl DeliveryFilter {
    /// The filter as a JSON object with the fields that are set; times are microseconds since 1970.
    ///
    /// ```
    /// use oncebox_core::admin::DeliveryFilter;
    ///
    /// let text = DeliveryFilter::dead("charge-card").to_stored();
    /// assert_eq!(text, r#"{"handler":"charge-card","state":"dead"}"#);
    /// assert_eq!(DeliveryFilter::from_stored(&text).unwrap().handler.as_deref(), Some("charge-card"));
    /// ```
    pub fn to_stored(&self) -> String {
        let mut fields = Map::new();
        if !self.deliveries.is_empty() {
            let ids: Vec<i64> = self.deliveries.iter().map(|id| id.0).collect();
            fields.insert("deliveries".to_owned(), ids.into());
        }
        if let Some(state) = self.state {
            fields.insert("state".to_owned(), state.as_str().into());
        }
        let texts = [
            ("handler", &self.handler),
            ("scope", &self.scope),
            ("message_id", &self.message_id),
            ("kind", &self.kind),
            ("key", &self.key),
            ("error", &self.error),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                fields.insert(name.to_owned(), text.as_str().into());
            }
        }
        let numbers = [
            ("since", self.since.map(Timestamp::as_microsecond)),
            ("until", self.until.map(Timestamp::as_microsecond)),
            ("after", self.after.map(|id| id.0)),
            ("limit", self.limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX))),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                fields.insert(name.to_owned(), number.into());
            }
        }
        Value::Object(fields).to_string()
    }

    /// The filter of a text that [`to_stored`](Self::to_stored) made.
    ///
    /// Fails with [`ErrorKind::Store`] when it is no such text, or has a field that this version does not know: a
    /// filter that forgets a field would match too much.
    pub fn from_stored(text: &str) -> Result<Self, Error> {
        let fields: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| Error::caused(ErrorKind::Store, "a stored filter cannot be read", error))?;
        let mut filter = Self::default();
        for (name, value) in fields {
            let known = filter.set(&name, &value);
            if known.is_none() {
                let text = format!("a stored filter has the field `{name}`, which this version cannot read");
                return Err(Error::new(ErrorKind::Store, text));
            }
        }
        Ok(filter)
    }

    /// `None` when there is no such field, or this is no value for it.
    fn set(&mut self, name: &str, value: &Value) -> Option<()> {
        let text = || value.as_str().map(str::to_owned);
        let time = || Timestamp::from_microsecond(value.as_i64()?).ok();
        match name {
            "deliveries" => {
                self.deliveries =
                    value.as_array()?.iter().map(|id| id.as_i64().map(DeliveryId)).collect::<Option<_>>()?;
            }
            "state" => self.state = Some(DeliveryState::from_word(value.as_str()?)?),
            "handler" => self.handler = Some(text()?),
            "scope" => self.scope = Some(text()?),
            "message_id" => self.message_id = Some(text()?),
            "kind" => self.kind = Some(text()?),
            "key" => self.key = Some(text()?),
            "error" => self.error = Some(text()?),
            "since" => self.since = Some(time()?),
            "until" => self.until = Some(time()?),
            "after" => self.after = Some(DeliveryId(value.as_i64()?)),
            "limit" => self.limit = Some(usize::try_from(value.as_u64()?).ok()?),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_out_as_it_went_in() {
        let time = |micros| Timestamp::from_microsecond(micros).unwrap();
        let filter = DeliveryFilter {
            deliveries: vec![DeliveryId(3), DeliveryId(i64::MAX)],
            handler: Some("h\0\"".to_owned()),
            state: Some(DeliveryState::Dead),
            scope: Some("s".to_owned()),
            message_id: Some("m".to_owned()),
            kind: Some("k".to_owned()),
            key: Some(String::new()),
            error: Some("e".to_owned()),
            since: Some(time(-1)),
            until: Some(time(1_700_000_000_000_001)),
            after: Some(DeliveryId(7)),
            limit: Some(9),
            bytes: None,
        };
        let read = DeliveryFilter::from_stored(&filter.to_stored()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{filter:?}"));
        let empty = DeliveryFilter::from_stored(&DeliveryFilter::all().to_stored()).unwrap();
        assert_eq!(format!("{empty:?}"), format!("{:?}", DeliveryFilter::all()));
    }

    #[test]
    fn a_field_that_is_not_known_is_an_error() {
        for wrong in
            ["", "[]", r#"{"colour":"red"}"#, r#"{"state":"asleep"}"#, r#"{"limit":-1}"#, r#"{"kind":1}"#]
        {
            assert!(DeliveryFilter::from_stored(wrong).is_err(), "{wrong}");
        }
    }
}
