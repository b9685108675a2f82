//! How much waits in a stream, and whether something was removed before it was read.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::Instant;

use crate::config::RedisSourceConfig;
use crate::held::Held;
use crate::link::{ask, list, number, text};

/// How often losses that go on are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// What the server says about the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Entries not delivered yet; unknown after some kinds of deletion.
    pub(crate) lag: Option<u64>,
    /// Entries delivered and not acknowledged.
    pub(crate) pending: u64,
    /// How many entries are gone that the group has not read, where that can be told.
    lost: Option<u64>,
    /// The last entry that somebody deleted by its id before the group had read it.
    deleted: Option<String>,
}

/// What was reported already.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    lost: u64,
    deleted: Option<String>,
    unknown_lag: bool,
    at: Option<Instant>,
}

impl Reported {
    /// Reports what is new.
    pub(crate) fn look(&mut self, held: &Held, config: &RedisSourceConfig, standing: &Standing) {
        let RedisSourceConfig { stream, group, .. } = config;
        let lost = standing.lost.unwrap_or(self.lost);
        // Reading on, the server may count anew.
        self.lost = self.lost.min(lost);
        let is_deleted = standing.deleted.is_some() && standing.deleted != self.deleted;
        let is_due = self.at.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        if (lost > self.lost || is_deleted) && is_due {
            let count = match lost - self.lost {
                0 => "an unknown number of".to_owned(),
                count => count.to_string(),
            };
            tracing::error!(
                stream,
                group,
                count,
                "entries were removed before they were read; they are lost"
            );
            held.report(format!(
                "stream `{stream}`: {count} entries were removed before group `{group}` read them; they are lost (trim \
                 by the oldest entry that is needed, not by length)"
            ));
            (self.lost, self.deleted, self.at) = (lost, standing.deleted.clone(), Some(Instant::now()));
        }
        if standing.lag.is_none() && !self.unknown_lag {
            tracing::error!(
                stream,
                group,
                pending = standing.pending,
                "entries were deleted; the lag is unknown"
            );
            held.report(format!(
                "stream `{stream}`: entries that group `{group}` has not read were deleted, so its lag is unknown; \
                 {} are delivered and not acknowledged",
                standing.pending
            ));
        }
        self.unknown_lag = standing.lag.is_none();
    }
}

/// Asks how the group stands; `None` when there is no such group.
pub(crate) async fn standing(
    connection: &mut MultiplexedConnection,
    config: &RedisSourceConfig,
) -> Result<Option<Standing>, RedisError> {
    let stream = ask(connection, redis::cmd("XINFO").arg("STREAM").arg(&config.stream)).await?;
    let groups = ask(connection, redis::cmd("XINFO").arg("GROUPS").arg(&config.stream)).await?;
    let ours = list(groups).into_iter().map(Fields::new).find(|group| group.text("name") == config.group);
    Ok(ours.map(|group| read(&Fields::new(stream), &group)))
}

fn read(stream: &Fields, group: &Fields) -> Standing {
    let delivered = group.text("last-delivered-id");
    let remaining = remaining(stream, &delivered);
    // A group that has read nothing has no count yet.
    let read = group.number("entries-read").or_else(|| (delivered == "0-0").then_some(0));
    let lost = || stream.number("entries-added")?.checked_sub(read?)?.checked_sub(remaining?);
    let deleted = stream.text("max-deleted-entry-id");
    Standing {
        // The server's own number counts what was trimmed away as well.
        lag: remaining.or_else(|| group.number("lag")),
        pending: group.number("pending").unwrap_or_default(),
        lost: lost(),
        deleted: is_after(&deleted, &delivered).then_some(deleted),
    }
}

/// How many entries come after the last one delivered, where that is all of them or none.
fn remaining(stream: &Fields, delivered: &str) -> Option<u64> {
    let length = stream.number("length")?;
    if length == 0 || !is_after(&stream.text("last-generated-id"), delivered) {
        return Some(0);
    }
    let first = text(list(stream.value("first-entry")?.clone()).into_iter().next()?);
    is_after(&first, delivered).then_some(length)
}

/// Whether an entry comes after another one.
fn is_after(one: &str, other: &str) -> bool {
    let parts = |id: &str| -> (u64, u64) {
        let (time, number) = id.split_once('-').unwrap_or((id, "0"));
        (time.parse().unwrap_or_default(), number.parse().unwrap_or_default())
    };
    parts(one) > parts(other)
}

/// An answer made of names and values.
#[derive(Debug)]
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn new(value: Value) -> Self {
        let mut words = list(value).into_iter();
        let mut fields = Vec::new();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            fields.push((text(name), value));
        }
        Self(fields)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        number(self.value(name)?)
    }

    fn text(&self, name: &str) -> String {
        self.value(name).map(|value| text(value.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, Value)]) -> Fields {
        Fields(pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn what_was_trimmed_away_unread_is_counted() {
        let stream = |first: &str, length: i64| {
            fields(&[
                ("length", Value::Int(length)),
                ("entries-added", Value::Int(20)),
                ("last-generated-id", bulk("20-0")),
                ("max-deleted-entry-id", bulk("0-0")),
                ("first-entry", Value::Array(vec![bulk(first)])),
            ])
        };
        let group = |delivered: &str, read: i64| {
            fields(&[
                ("last-delivered-id", bulk(delivered)),
                ("entries-read", Value::Int(read)),
                ("lag", Value::Int(20 - read)),
            ])
        };
        for (first, length, delivered, count, lost, lag) in [
            ("1-0", 20, "10-0", 10, None, Some(10)),     // nothing trimmed
            ("6-0", 15, "10-0", 10, None, Some(10)),     // only what was read
            ("11-0", 10, "10-0", 10, Some(0), Some(10)), // all that was read
            ("16-0", 5, "10-0", 10, Some(5), Some(5)),   // five more
            ("1-0", 20, "20-0", 20, Some(0), Some(0)),   // nothing waits
        ] {
            let standing = read(&stream(first, length), &group(delivered, count));
            assert_eq!((standing.lost, standing.lag), (lost, lag), "{first} {delivered}");
        }
    }

    #[test]
    fn entries_are_compared_by_number() {
        assert!(is_after("10-0", "9-5") && is_after("9-10", "9-9") && !is_after("9-9", "9-9"));
        assert!(!is_after("0-0", "0-0") && !is_after("", "1-0"));
    }
}
