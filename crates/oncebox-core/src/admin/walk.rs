//! The walk of a search: through windows of the log, from the newest message down.
//!
//! No index helps to find a message by its kind or a header, and none is worth its price at every receive. But `seq`
//! numbers the whole log, so a window of it is a short range in each lane, and a search that looks at a bounded number
//! of windows and then says where it stopped costs the same however long the log is.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;

use super::{HeaderMatch, MessageHit, MessagePage, MessageSearch, PayloadMatch};
use crate::clock::micros;
use crate::message::Message;

/// How many places of the log one search looks at.
const MOST_PLACES: i64 = 50_000;
/// How long one search goes on before it says where it stopped.
const MOST_TIME: Duration = Duration::from_secs(1);
/// The first window; each is twice as wide as the one before it.
const FIRST_WINDOW: i64 = 256;
const WIDEST_WINDOW: i64 = 4096;
/// How many messages are read at once to look into them.
const AT_ONCE: usize = 64;
/// After how many bytes of payload fewer are read at once.
const AT_ONCE_BYTES: usize = 4 << 20;
/// Received times grow with `seq`, but for a clock that was set; a step of this size finds its messages still.
const CLOCK_STEP: Duration = Duration::from_secs(10);
const PAGE: usize = 100;

/// A part of the log: the places after `low` up to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The place before the first.
    pub low: i64,
    /// The last place.
    pub high: i64,
}

/// What a walk asks of a store.
pub trait LogReader: Send {
    /// What can go wrong.
    type Error: Send;
    /// Where a message is.
    type Place: Copy + Send;

    /// The last message up to this place, and when it came in microseconds since 1970.
    fn last(&mut self, upto: i64) -> impl Future<Output = Result<Option<(i64, i64)>, Self::Error>> + Send;

    /// Where the messages in this window are that may match, from the highest place down, at most so many.
    fn places(
        &mut self,
        window: Window,
        search: &MessageSearch,
        most: usize,
    ) -> impl Future<Output = Result<Vec<(i64, Self::Place)>, Self::Error>> + Send;

    /// The messages at these places, in any order; what was purged meanwhile is left out. And so is every place before
    /// which, in the order given, there are `bytes` bytes of payload or more.
    fn read(
        &mut self,
        places: &[Self::Place],
        bytes: usize,
    ) -> impl Future<Output = Result<Vec<MessageHit>, Self::Error>> + Send;

    /// How long the search has taken so far.
    fn elapsed(&self) -> Duration;
}

impl MessageSearch {
    /// Whether all of it is true of this message.
    pub fn matches(&self, hit: &MessageHit) -> bool {
        let message = &hit.message;
        let same =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        same(&self.scope, &message.scope)
            && same(&self.id, &message.id)
            && self.kind.as_deref().is_none_or(|kind| is_kind(kind, &message.kind))
            && self.key.as_deref().is_none_or(|key| message.key.as_deref() == Some(key))
            && self.since.is_none_or(|since| hit.received_at >= since)
            && self.until.is_none_or(|until| hit.received_at < until)
            && self.before.is_none_or(|before| hit.seq < before)
            && self.header.as_ref().is_none_or(|header| has_header(header, message))
            && self.payload.as_ref().is_none_or(|value| has_value(value, message))
    }

    /// The kind, when it is wanted by its whole name.
    pub fn exact_kind(&self) -> Option<&str> {
        self.kind.as_deref().filter(|kind| !kind.ends_with('*'))
    }

    /// How the kind begins, when that is all that matters.
    pub fn kind_prefix(&self) -> Option<&str> {
        self.kind.as_deref().and_then(|kind| kind.strip_suffix('*'))
    }

    /// Finds a page of messages.
    pub async fn walk<R: LogReader>(&self, reader: &mut R) -> Result<MessagePage, R::Error> {
        let mut page = MessagePage { messages: Vec::new(), next: None };
        let limit = self.limit.unwrap_or(PAGE).max(1);
        let top = self.before.map_or(i64::MAX, |before| before.saturating_sub(1));
        let Some(newest) = reader.last(top).await? else { return Ok(page) };
        let step = micros(CLOCK_STEP);
        let bound = |at: Option<Timestamp>, step| at.map(|at| at.as_microsecond().saturating_add(step));
        let mut high = match bound(self.until, step) {
            Some(until) => last_before(reader, newest, until).await?,
            None => newest.0,
        };
        let low = match bound(self.since, -step) {
            Some(since) => last_before(reader, newest, since).await?,
            None => 0,
        };
        let looks_inside = self.header.is_some() || self.payload.is_some();
        let (mut width, mut looked_at, mut bytes) = (FIRST_WINDOW, 0, 0);
        while high > low {
            if looked_at >= MOST_PLACES || (looked_at > 0 && reader.elapsed() >= MOST_TIME) {
                page.next = Some(high + 1);
                return Ok(page);
            }
            let window = Window { low: high.saturating_sub(width).max(low), high };
            let wide = usize::try_from(width).unwrap_or(usize::MAX);
            let most = if looks_inside { wide } else { wide.min(limit - page.messages.len()) };
            let places = reader.places(window, self, most).await?;
            // What did not fit is looked for from there on.
            high = match places.last() {
                Some((last, _)) if places.len() >= most => last - 1,
                _ => window.low,
            };
            looked_at += window.high - high;
            let mut rest = &places[..];
            while !rest.is_empty() {
                let some: Vec<R::Place> = rest.iter().take(AT_ONCE).map(|(_, place)| *place).collect();
                let mut hits = reader.read(&some, AT_ONCE_BYTES).await?;
                hits.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.seq));
                rest = &rest[looked_through(&rest[..some.len()], &hits)..];
                for hit in hits.into_iter().filter(|hit| self.matches(hit)) {
                    bytes += hit.message.payload.len();
                    let seq = hit.seq;
                    page.messages.push(hit);
                    if page.messages.len() >= limit || self.bytes.is_some_and(|most| bytes >= most) {
                        page.next = Some(seq);
                        return Ok(page);
                    }
                }
            }
            if places.is_empty() {
                // What was purged leaves gaps, which may be long.
                high = reader.last(high).await?.map_or(low, |(seq, _)| seq.min(high));
            }
            width = (width * 2).min(WIDEST_WINDOW);
        }
        Ok(page)
    }
}

/// How many of these places were read: those after the last hit were left out when the hits fill what may be read.
fn looked_through<P>(places: &[(i64, P)], hits: &[MessageHit]) -> usize {
    let bytes: usize = hits.iter().map(|hit| hit.message.payload.len()).sum();
    let last = hits.last().and_then(|last| places.iter().position(|(seq, _)| *seq == last.seq));
    match last {
        Some(place) if bytes >= AT_ONCE_BYTES => place + 1,
        _ => places.len(),
    }
}

/// The last place with a message that came before this time, or one without a message right after it.
async fn last_before<R: LogReader>(reader: &mut R, newest: (i64, i64), time: i64) -> Result<i64, R::Error> {
    if newest.1 < time {
        return Ok(newest.0);
    }
    let (mut low, mut high) = (0, newest.0 - 1);
    while low < high {
        let middle = low + (high - low + 1) / 2;
        match reader.last(middle).await? {
            Some((seq, at)) if at >= time => high = seq - 1,
            _ => low = middle,
        }
    }
    Ok(low.min(high).max(0))
}

fn is_kind(pattern: &str, kind: &str) -> bool {
    pattern.strip_suffix('*').map_or(kind == pattern, |prefix| kind.starts_with(prefix))
}

fn has_header(wanted: &HeaderMatch, message: &Message) -> bool {
    message.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case(&wanted.name)
            && wanted.value.as_ref().is_none_or(|wanted| wanted.as_bytes() == value.as_ref())
    })
}

fn has_value(wanted: &PayloadMatch, message: &Message) -> bool {
    let Ok(payload) = serde_json::from_slice::<serde_json::Value>(&message.payload) else { return false };
    let found = payload.pointer(&wanted.pointer).map(|found| match found.as_str() {
        Some(text) => text.to_owned(),
        None => found.to_string(),
    });
    found.as_ref() == Some(&wanted.value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Messages by place, with their times.
    struct Log {
        rows: BTreeMap<i64, i64>,
        asked: usize,
        looked_at: i64,
        /// How many bytes each payload has beside its number.
        payload: usize,
        /// The most bytes that were read at once.
        most_read: usize,
    }

    impl Log {
        fn of(rows: BTreeMap<i64, i64>) -> Self {
            Self { rows, asked: 0, looked_at: 0, payload: 0, most_read: 0 }
        }
    }

    impl LogReader for Log {
        type Error = std::convert::Infallible;
        type Place = i64;

        async fn last(&mut self, upto: i64) -> Result<Option<(i64, i64)>, Self::Error> {
            self.asked += 1;
            Ok(self.rows.range(..=upto).next_back().map(|(seq, at)| (*seq, *at)))
        }

        async fn places(
            &mut self,
            window: Window,
            _: &MessageSearch,
            most: usize,
        ) -> Result<Vec<(i64, i64)>, Self::Error> {
            self.looked_at += window.high - window.low;
            let rows = self.rows.range(window.low + 1..=window.high).rev();
            Ok(rows.take(most).map(|(seq, _)| (*seq, *seq)).collect())
        }

        async fn read(&mut self, places: &[i64], bytes: usize) -> Result<Vec<MessageHit>, Self::Error> {
            let mut before = 0;
            let mut hits = Vec::new();
            for seq in places {
                if before >= bytes {
                    break;
                }
                let spaces = " ".repeat(self.payload);
                let message = Message::new("k", format!("{{\"n\":{seq}}}{spaces}")).id(format!("{seq}"));
                before += message.payload.len();
                hits.push(MessageHit::new(
                    *seq,
                    Timestamp::from_microsecond(self.rows[seq]).unwrap(),
                    message,
                ));
            }
            self.most_read = self.most_read.max(before);
            // In any order.
            hits.reverse();
            Ok(hits)
        }

        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    async fn all(log: &mut Log, mut search: MessageSearch) -> Vec<i64> {
        let mut found = Vec::new();
        loop {
            let page = search.walk(log).await.unwrap();
            found.extend(page.messages.iter().map(|hit| hit.seq));
            match page.next {
                Some(next) => search.before = Some(next),
                None => return found,
            }
        }
    }

    #[tokio::test]
    async fn pages_have_every_message_once_whatever_the_gaps() {
        let minute = 60_000_000;
        let seqs = (1..=700).chain(5_000_000..5_000_300).chain([900_000_000]);
        let rows: BTreeMap<i64, i64> = seqs.map(|seq| (seq, seq * minute)).collect();
        let expected: Vec<i64> = rows.keys().rev().copied().collect();
        for limit in [1, 7, 100, 2000] {
            let mut log = Log::of(rows.clone());
            let search = MessageSearch { limit: Some(limit), ..MessageSearch::default() };
            assert_eq!(all(&mut log, search.clone()).await, expected, "{limit}");
            let header = Some(HeaderMatch { name: "x".to_owned(), value: None });
            assert_eq!(all(&mut log, MessageSearch { header, ..search }).await, [0; 0]);
            assert!(log.asked < 3000, "{} looks for the next message", log.asked);
        }
    }

    #[tokio::test]
    async fn times_are_bounds_to_the_microsecond_also_where_the_clock_was_set_back() {
        let second = 1_000_000;
        // The clock goes back by three seconds at every hundredth message.
        let at = |seq: i64| (seq - 3 * (seq / 100)) * second;
        let rows: BTreeMap<i64, i64> = (1..=20_000).map(|seq| (seq, at(seq))).collect();
        let time = |micros| Some(Timestamp::from_microsecond(micros).unwrap());
        for (since, until) in
            [(at(150), at(450)), (at(9_999), at(10_000) + 1), (0, 1), (at(19_999), i64::from(i32::MAX))]
        {
            let mut expected: Vec<i64> =
                rows.iter().filter(|(_, at)| **at >= since && **at < until).map(|row| *row.0).collect();
            expected.reverse();
            let mut log = Log::of(rows.clone());
            let search = MessageSearch { since: time(since), until: time(until), ..MessageSearch::default() };
            assert_eq!(all(&mut log, search).await, expected);
            assert!(log.looked_at < 2000, "{} places for {}", log.looked_at, expected.len());
        }
    }

    #[tokio::test]
    async fn a_search_without_a_hit_stops_and_says_where() {
        let mut log = Log::of((1..=120_000).map(|seq| (seq, seq)).collect());
        let nothing = Some(PayloadMatch { pointer: "/n".to_owned(), value: "0".to_owned() });
        let search = MessageSearch { payload: nothing, ..MessageSearch::default() };
        let page = search.walk(&mut log).await.unwrap();
        assert_eq!(page.messages.len(), 0);
        assert!(page.next.is_some_and(|next| (60_000..=71_000).contains(&next)), "{:?}", page.next);
        let one = Some(PayloadMatch { pointer: "/n".to_owned(), value: "4711".to_owned() });
        assert_eq!(all(&mut log, MessageSearch { payload: one, ..MessageSearch::default() }).await, [4711]);
    }

    #[tokio::test]
    async fn a_page_of_large_messages_ends_early_and_not_many_are_read_at_once() {
        const MIB: usize = 1 << 20;
        let mut log = Log::of((1..=100).map(|seq| (seq, seq)).collect());
        log.payload = MIB;
        let one = Some(PayloadMatch { pointer: "/n".to_owned(), value: "7".to_owned() });
        assert_eq!(all(&mut log, MessageSearch { payload: one, ..MessageSearch::default() }).await, [7]);
        assert!(log.most_read < 6 * MIB, "{}", log.most_read);

        let search = MessageSearch { bytes: Some(8 * MIB), ..MessageSearch::default() };
        let page = search.walk(&mut log).await.unwrap();
        let seqs: Vec<i64> = page.messages.iter().map(|hit| hit.seq).collect();
        assert_eq!((seqs.as_slice(), page.next), (&[100, 99, 98, 97, 96, 95, 94, 93][..], Some(93)));
        let expected: Vec<i64> = (1..=100).rev().collect();
        assert_eq!(all(&mut log, search).await, expected);
        let small = MessageSearch { bytes: Some(1), ..MessageSearch::default() };
        assert_eq!(all(&mut log, small).await, expected, "one is always there");
        assert!(log.most_read < 6 * MIB, "{}", log.most_read);
    }
}
