//! Lengths of time as people write them in a configuration file: `500ms`, `30s`, `5m`, `1h30m`, `14d`.
//!
//! ```
//! #[derive(serde::Deserialize)]
//! struct Settings {
//!     #[serde(with = "oncebox_core::duration")]
//!     timeout: std::time::Duration,
//! }
//!
//! let settings: Settings = serde_json::from_str(r#"{"timeout": "1m30s"}"#).unwrap();
//! assert_eq!(settings.timeout.as_secs(), 90);
//! ```

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

use crate::error::Error;

const UNITS: &[(&str, u64)] = &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads whole numbers with units: d, h, m, s, ms.
///
/// Fails on a number without a unit, so that nobody has to guess which one was meant.
pub fn parse(text: &str) -> Result<Duration, Error> {
    let wrong =
        || Error::invalid(format!("`{text}` is no length of time; write `500ms`, `30s`, `5m` or `1h30m`"));
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(digits);
        let word = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(word);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total = number.checked_mul(*millis).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(Duration::from_millis(total))
}

/// For `#[serde(with = "oncebox_core::duration")]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// For `#[serde(with = "oncebox_core::duration")]`.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(*duration))
}

fn text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in UNITS {
        if rest >= *millis {
            text += &format!("{}{unit}", rest / millis);
            rest %= millis;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_written_back() {
        for (written, millis) in
            [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("14d", 1_209_600_000)]
        {
            let duration = parse(written).unwrap();
            assert_eq!(duration, Duration::from_millis(millis));
            assert_eq!(text(duration), written);
        }
        assert_eq!(parse(" 1m 30s ").unwrap(), Duration::from_secs(90));
        assert_eq!(text(Duration::ZERO), "0s");
    }

    #[test]
    fn what_is_no_length_of_time_is_refused_with_the_remedy() {
        for wrong in ["", "30", "s", "1.5s", "-1s", "5 minutes", "99999999999999999999d", "30s!"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("`30s`"), "{error}");
        }
    }
}
