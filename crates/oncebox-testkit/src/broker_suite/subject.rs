//! What the broker suite needs to know about a broker.

use std::future::Future;
use std::net::SocketAddr;

use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_core::{Message, Sink, Source};

/// The name that every source of the suite has: the scope of its messages.
pub const SOURCE: &str = "orders";

/// A broker under test: a fresh queue that the source reads, and a fresh destination that the sink writes.
///
/// Everything that a case does through [`BrokerSubject::source`] and the sinks goes to the address it is given, which
/// may be a [`Proxy`](crate::Proxy); `put`, `taken` and the counts use the plain client and the server's own address.
///
/// Sources and sinks are made with short times (heartbeat, acknowledgement wait, claiming), a few seconds at most, so
/// that cases which wait for the broker to notice something end soon.
pub trait BrokerSubject: Sized + Send + Sync + 'static {
    /// The source.
    type Source: Source;
    /// The sink.
    type Sink: Sink;

    /// Where brokers differ, declared.
    const FACTS: BrokerFacts;

    /// How often the case that stops and starts does so; fewer where a source needs seconds to begin.
    const STOPS: usize = 50;

    /// A fresh queue and destination on the server that this test process shares; `None` when there is no such server
    /// (and the reason has been printed).
    fn create() -> impl Future<Output = Option<Self>> + Send;

    /// The same on a server of its own, for cases that restart it.
    fn create_alone() -> impl Future<Output = Option<Self>> + Send;

    /// The server's address.
    fn address(&self) -> SocketAddr;

    /// A source named [`SOURCE`] on the queue, with the broker's default mapping unless given one.
    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> Self::Source;

    /// A sink to the destination.
    fn sink(&self, at: SocketAddr) -> Self::Sink;

    /// A sink to the very queue that the source reads.
    fn sink_to_queue(&self, at: SocketAddr) -> Self::Sink;

    /// A sink to a place that does not exist, where the broker can tell.
    fn sink_to_nowhere(&self, at: SocketAddr) -> Option<Self::Sink>;

    /// A message in the layout that the default mapping reads, with this id in place of its own, or with none.
    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered;

    /// Puts deliveries on the queue, in order, with their properties, headers and route (empty for the usual one).
    ///
    /// Returns when the broker has confirmed them. Tries again while the server is away, so some may be there twice.
    fn put(&self, deliveries: &[Delivered]) -> impl Future<Output = ()> + Send;

    /// The word that the broker routes by, of what is put without a route.
    fn route(&self) -> String;

    /// Everything the destination has got so far, oldest first, read back in the default layout.
    fn taken(&self) -> impl Future<Output = Vec<Message>> + Send;

    /// How many messages of the queue are not acknowledged yet, delivered or not; `None` where nobody can tell.
    fn pending(&self) -> impl Future<Output = Option<u64>> + Send;

    /// How many messages of the queue are delivered and not acknowledged; `None` where nobody can tell.
    fn unacknowledged(&self) -> impl Future<Output = Option<u64>> + Send;

    /// Stops the server of [`BrokerSubject::create_alone`] and starts it again at the same address with its data.
    fn restart(&mut self, how: Restart) -> impl Future<Output = ()> + Send;
}

/// How a server is stopped before it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// It is asked to stop.
    Graceful,
    /// It is killed.
    Crash,
}

/// What a broker does differently, declared instead of guessed.
#[derive(Debug, Clone, Copy)]
pub struct BrokerFacts {
    /// Messages of one key reach the source in the order they were put.
    pub ordered: bool,
    /// The most bytes an id can have in the broker's place for it.
    pub longest_id: usize,
    /// An id may be any bytes there.
    pub binary_ids: bool,
    /// A header's value may be any bytes.
    pub binary_headers: bool,
    /// A header's name may come twice.
    pub repeated_headers: bool,
    /// The most bytes of a payload that the suite may send.
    pub largest_payload: usize,
    /// Where the default mapping reads the id, as a mapping says it.
    pub id_place: &'static str,
    /// What comes before the names of CloudEvents attributes in headers.
    pub cloud_events_prefix: &'static str,
    /// The source can tell how many messages wait.
    pub tells_lag: bool,
    /// A check finds out that the place of [`BrokerSubject::sink_to_nowhere`] is not there.
    pub finds_places: bool,
    /// What the server confirmed is still there after it was killed.
    pub survives_crash: bool,
    /// The server can be reached through a proxy.
    pub proxied: bool,
    /// The most messages that the source of [`BrokerSubject::source`] holds unacknowledged.
    pub prefetch: u64,
}
