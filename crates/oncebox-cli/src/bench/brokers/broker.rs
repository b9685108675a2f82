//! What a broker's own client must be able to do, to be compared with the source and the sink.

use std::future::Future;
use std::time::Duration;

use oncebox::{Message, Sink, Source};

/// A connection of a broker's own client, and the source and the sink for the same server.
pub(crate) trait Broker: Sized + Send + Sync + 'static {
    /// As it stands in the report.
    const NAME: &'static str;

    type Source: Source;
    type Sink: Sink;

    /// Connects; fails when the broker cannot be reached.
    fn open(url: &str) -> impl Future<Output = Result<Self, String>> + Send;

    /// Makes a queue (a stream, a topic) that keeps what it gets on disk.
    fn create(&self, queue: &str) -> impl Future<Output = Result<(), String>> + Send;

    /// Removes it with all that is in it.
    fn remove(&self, queue: &str) -> impl Future<Output = Result<(), String>> + Send;

    /// Publishes one batch as the sink writes messages, and returns when the broker has confirmed all of it.
    fn publish(&self, queue: &str, batch: &[Message]) -> impl Future<Output = Result<(), String>> + Send;

    /// Takes so many messages and acknowledges them as the source does; answers the time since the first one came.
    fn consume(&self, queue: &str, count: usize) -> impl Future<Output = Result<Duration, String>> + Send;

    fn source(&self, queue: &str) -> Result<Self::Source, String>;

    fn sink(&self, queue: &str) -> Result<Self::Sink, String>;
}

/// A URL without what lets one in.
pub(crate) fn place_in(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit_once('@').map_or(rest, |(_, place)| place)
}
