//! Lengths of time as people write them in configuration files: `250ms`, `30s`, `5m`, `1h30m`, `14d`, `2w`.
//!
//! For serde, name the module: `#[serde(with = "oncebox_core::durations")]`.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::error::Error;

/// The units from the largest to the smallest, with their length in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a whole number with a unit (`ms`, `s`, `m`, `h`, `d`, `w`), or several of them together.
///
/// Fails on anything else, a number without a unit above all: nobody can tell what `30` is.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(oncebox_core::durations::parse("30s").unwrap(), Duration::from_secs(30));
/// assert_eq!(oncebox_core::durations::parse("1h30m").unwrap(), Duration::from_secs(5400));
/// assert!(oncebox_core::durations::parse("30").is_err());
/// ```
pub fn parse(text: &str) -> Result<Duration, Error> {
    let wrong = |what: &str| {
        Error::invalid(format!(
            "`{}` is {what}; write a whole number with a unit: ms, s, m, h, d or w, as in `30s`",
            text.escape_debug()
        ))
    };
    let mut rest = text.trim();
    let mut total: u64 = 0;
    loop {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let unit = UNITS.iter().find(|(name, _)| *name == unit.trim());
        let (Some((_, length)), Some(_)) = (unit, number.chars().next()) else {
            return Err(wrong("no length of time"));
        };
        let sum = number.parse().ok().and_then(|number: u64| number.checked_mul(*length)?.checked_add(total));
        total = sum.ok_or_else(|| wrong("longer than any clock runs"))?;
        if after.is_empty() {
            return Ok(Duration::from_millis(total));
        }
        rest = after;
    }
}

/// Writes a length of time so that [`parse`] reads the same, in the largest unit up to days that fits; what is below a
/// millisecond is cut off.
pub fn write(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fits = |length: u64| milliseconds > 0 && milliseconds.is_multiple_of(length);
    // People say 14 days, not two weeks.
    match UNITS[1..].iter().find(|(_, length)| fits(*length)) {
        Some((unit, length)) => format!("{}{unit}", milliseconds / length),
        None => "0s".to_owned(),
    }
}

/// For `#[serde(with = "oncebox_core::durations")]`.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&write(*duration))
}

/// For `#[serde(with = "oncebox_core::durations")]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_written_back() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("36h", 129_600_000),
            ("14d", 1_209_600_000),
        ] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse(text).unwrap(), duration, "{text}");
            assert_eq!(write(duration), text);
        }
        assert_eq!(parse(" 2 h ").unwrap(), Duration::from_secs(7200));
        assert_eq!(parse("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(parse("2w").unwrap(), parse("14d").unwrap());
        assert_eq!(write(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn what_has_no_unit_or_no_number_is_refused_with_the_remedy() {
        for text in [
            "",
            "30",
            "s",
            "1.5s",
            "-1s",
            "1 week",
            "1S",
            "1h30",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("with a unit"), "{text}: {error}");
        }
    }

    #[test]
    fn serde_reads_and_writes_them() {
        #[derive(serde::Serialize, Deserialize)]
        struct Settings {
            #[serde(with = "crate::durations")]
            wait: Duration,
        }
        let settings: Settings = serde_json::from_str(r#"{"wait":"90s"}"#).unwrap();
        assert_eq!(settings.wait, Duration::from_secs(90));
        assert_eq!(serde_json::to_string(&settings).unwrap(), r#"{"wait":"90s"}"#);
        assert!(serde_json::from_str::<Settings>(r#"{"wait":"90"}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"wait":90}"#).is_err());
    }
}
