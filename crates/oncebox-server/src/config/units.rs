//! Lengths of time, sizes and rates, each written with its unit.

use std::time::Duration;

use oncebox_core::durations;

/// A number of messages in a length of time, as in `100/s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// How many.
    pub messages: u32,
    /// In how long.
    pub per: Duration,
}

const SIZES: &[(&str, u64)] = &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Reads `1500ms`, `10s`, `5m`, `2h`, `14d`, `2w`, or several of them together: `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    durations::parse(text).map_err(|_| {
        let rule = "a length of time is a whole number and a unit (ms, s, m, h, d, w)";
        match better_time(text) {
            Some(better) if durations::parse(&better).is_ok() => {
                format!("`{text}`: {rule}; did you mean `{better}`?")
            }
            Some(_) => format!("`{text}` is longer than any clock runs"),
            None => format!("`{text}`: {rule}, as in `10s`"),
        }
    })
}

/// Reads `512B`, `64KiB`, `16MiB`, `1GiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let (number, unit) = split_number(text);
    let factor = SIZES.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    if let (Some(factor), Ok(number)) = (factor, number.parse::<u64>())
        && let Some(bytes) = number.checked_mul(factor)
        && let Ok(bytes) = usize::try_from(bytes)
    {
        return Ok(bytes);
    }
    let rule = "a size is a whole number and a unit (B, KiB, MiB, GiB)";
    let likely = SIZES.iter().find(|(name, _)| name[..1].eq_ignore_ascii_case(unit.get(..1).unwrap_or("B")));
    Err(match likely {
        Some((better, _)) if !number.is_empty() => {
            format!("`{text}`: {rule}; did you mean `{number}{better}`?")
        }
        _ => format!("`{text}`: {rule}, as in `16MiB`"),
    })
}

/// Reads `100/s`, `6000/m`, `5/h`; `None` for an empty text, which is no limit.
pub(crate) fn rate(text: &str) -> Result<Option<Rate>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("`{text}`: a rate is a whole number above zero per s, m, h or d, as in `100/s`");
    let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
    let messages: u32 = number.trim().parse().map_err(|_| wrong())?;
    let per = match unit.trim() {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" => Duration::from_secs(24 * 3600),
        _ => return Err(wrong()),
    };
    if messages == 0 { Err(wrong()) } else { Ok(Some(Rate { messages, per })) }
}

/// The number at the beginning and what follows it.
fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// What was likely meant by `10 sec`, `5min`, `10`.
fn better_time(text: &str) -> Option<String> {
    let (number, unit) = split_number(text.trim());
    let unit = unit.trim().to_ascii_lowercase();
    let unit = match unit.as_str() {
        "" => "s",
        unit if unit.starts_with("mil") || unit == "msec" => "ms",
        unit => ["w", "d", "h", "m", "s"].into_iter().find(|name| unit.starts_with(name))?,
    };
    (!number.is_empty()).then(|| format!("{number}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_carry_a_unit() {
        for (text, millis) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("14d", 1_209_600_000),
            ("0s", 0),
            ("2w", 1_209_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, hint) in [
            ("10", "did you mean `10s`?"),
            ("10sec", "did you mean `10s`?"),
            ("5 min", "did you mean `5m`?"),
            ("3 hours", "did you mean `3h`?"),
            ("20msec", "did you mean `20ms`?"),
            ("1.5h", "as in `10s`"),
            ("-1s", "as in `10s`"),
            ("", "as in `10s`"),
            ("99999999999999999999d", "longer than any clock"),
            ("999999999999999999d", "longer than any clock"),
        ] {
            assert!(duration(text).is_err_and(|error| error.contains(hint)), "{text}: {:?}", duration(text));
        }
    }

    #[test]
    fn sizes_carry_a_unit() {
        assert_eq!(size("16MiB"), Ok(16 << 20));
        assert_eq!(size("512B"), Ok(512));
        for (text, hint) in [
            ("16MB", "did you mean `16MiB`?"),
            ("64k", "did you mean `64KiB`?"),
            ("16", "did you mean `16B`?"),
            ("MiB", "as in `16MiB`"),
            ("99999999999999999999GiB", "did you mean"),
        ] {
            assert!(size(text).is_err_and(|error| error.contains(hint)), "{text}: {:?}", size(text));
        }
    }

    #[test]
    fn rates_are_a_number_per_time() {
        assert_eq!(rate(""), Ok(None));
        assert_eq!(rate("5/m"), Ok(Some(Rate { messages: 5, per: Duration::from_secs(60) })));
        for wrong in ["0/s", "5", "5/x", "-1/s", "x/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
