//! How much waits in a stream, and whether something was removed before it was read.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use crate::config::RedisSourceConfig;
use crate::held::Held;
use crate::link::{ask, list, number, text};

/// What the server says about the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Entries not delivered yet; unknown to the server after some kinds of deletion.
    pub(crate) lag: Option<u64>,
    /// Entries delivered and not acknowledged.
    pub(crate) pending: u64,
    /// The last entry that was removed before the group had read it, and how many were, where that can be told.
    gone: Option<(String, Option<u64>)>,
}

/// What was reported already.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    gone: Option<String>,
    unknown_lag: bool,
}

impl Reported {
    /// Reports what is new.
    pub(crate) fn look(&mut self, held: &Held, config: &RedisSourceConfig, standing: &Standing) {
        let RedisSourceConfig { stream, group, .. } = config;
        if let Some((last, count)) = &standing.gone
            && self.gone.as_ref() != Some(last)
        {
            self.gone = Some(last.clone());
            let count = count.map_or("an unknown number of".to_owned(), |count| count.to_string());
            tracing::error!(
                stream,
                group,
                count,
                last,
                "entries were removed before they were read; they are lost"
            );
            held.report(format!(
                "stream `{stream}`: {count} entries up to {last} were removed before group `{group}` read them; they \
                 are lost (trim by the oldest entry that is needed, not by length)"
            ));
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
    let lag = group.number("lag");
    let delivered = group.text("last-delivered-id");
    let deleted = stream.text("max-deleted-entry-id");
    let is_gone = is_after(&deleted, &delivered);
    let count = || {
        let unread = stream.number("entries-added")?.checked_sub(group.number("entries-read")?)?;
        unread.checked_sub(lag.or_else(|| remaining(stream, &delivered))?)
    };
    let gone = is_gone.then(|| (deleted.clone(), count().filter(|count| *count > 0)));
    Standing { lag, pending: group.number("pending").unwrap_or_default(), gone }
}

/// All entries of the stream wait when the first one was not delivered yet.
fn remaining(stream: &Fields, delivered: &str) -> Option<u64> {
    let length = stream.number("length")?;
    let first = text(list(stream.value("first-entry")?.clone()).into_iter().next()?);
    (length == 0 || is_after(&first, delivered)).then_some(length)
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

    #[test]
    fn entries_are_compared_by_number() {
        assert!(is_after("10-0", "9-5") && is_after("9-10", "9-9") && !is_after("9-9", "9-9"));
        assert!(!is_after("0-0", "0-0") && !is_after("", "1-0"));
    }
}
