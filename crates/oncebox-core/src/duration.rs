//! Lengths of time as people write them in a configuration file: `30s`, `14d`.
//!
//! For a field: `#[serde(with = "oncebox_core::duration")]`, and `oncebox_core::duration::option` for one that may be
//! left out.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

use crate::error::Error;

const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// Reads a whole number and its unit: `ms`, `s`, `m`, `h`, `d` or `w`.
///
/// ```
/// use oncebox_core::duration;
/// use std::time::Duration;
///
/// assert_eq!(duration::parse("90s")?, Duration::from_secs(90));
/// assert!(duration::parse("90").unwrap_err().to_string().contains("90s"));
/// # Ok::<(), oncebox_core::Error>(())
/// ```
pub fn parse(text: &str) -> Result<Duration, Error> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let millis = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
    let length = millis.and_then(|millis| number.parse::<u64>().ok()?.checked_mul(millis));
    length.map(Duration::from_millis).ok_or_else(|| {
        Error::invalid(format!(
            "`{text}` is no length of time; write a whole number and ms, s, m, h, d or w: `90s`"
        ))
    })
}

/// Writes what [`parse`] reads, in the largest unit that needs no fraction.
pub fn print(length: Duration) -> String {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let fits = |(_, size): &&(&str, u64)| millis != 0 && millis.is_multiple_of(*size);
    let (name, size) = UNITS.iter().rev().find(fits).copied().unwrap_or(("s", 1_000));
    format!("{}{name}", millis / size)
}

/// For serde.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// For serde.
pub fn serialize<S: Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&print(*length))
}

/// The same for a length of time that may be left out.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    /// For serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text)).transpose().map_err(serde::de::Error::custom)
    }

    /// For serde.
    pub fn serialize<S: Serializer>(length: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match length {
            Some(length) => serializer.serialize_some(&super::print(*length)),
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2 h", 7_200_000),
            ("14d", 1_209_600_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
            assert_eq!(parse(&print(Duration::from_millis(millis))).unwrap(), Duration::from_millis(millis));
        }
        assert_eq!(print(Duration::from_secs(90)), "90s");
        for text in
            ["", "s", "30", "1.5s", "-1s", "30 seconds", "99999999999999999999s", "18446744073709551615w"]
        {
            assert!(parse(text).unwrap_err().to_string().contains("90s"), "{text}");
        }
    }
}
