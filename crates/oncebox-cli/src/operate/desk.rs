//! Where a command works: on the store itself, or through a running service. Both answer in the words of the API, so each
//! command is written once.

mod server;
mod store;

pub(super) use server::Server;
pub(super) use store::{StoreDesk, change};

use std::time::Duration;

use oncebox::Message;
use oncebox::admin::{DeliveryFilter, MessageSearch, OutgoingFilter};
use oncebox_server::view::{Audited, Delivery, Outgoing, Received, Replay, Status, Whole};

/// The most rows asked for at one time.
pub(super) const PAGE: usize = 1000;

/// How many letters are counted before the answer is "at least".
pub(super) const COUNTED: u64 = 100_000;

/// What came of it, or why nothing, in words for a person.
pub(super) type Done<T> = Result<T, String>;

/// What can be paused.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    Handler(&'a str),
    Source(&'a str),
}

/// A part of what a search finds, and the cursor to go on with.
pub(super) struct Found {
    pub(super) messages: Vec<Received>,
    pub(super) next: Option<String>,
}

/// A part of the deliveries that match.
pub(super) struct Listed {
    pub(super) deliveries: Vec<Delivery>,
    /// True when there may be more after the last of them.
    pub(super) more: bool,
}

/// What a command can look at and change.
pub(super) trait Desk {
    async fn status(&self) -> Done<Status>;

    /// At most [`PAGE`] of them.
    async fn deliveries(&self, filter: &DeliveryFilter) -> Done<Listed>;

    /// Messages in the outbox, at most [`PAGE`] of them.
    async fn outgoing(&self, filter: &OutgoingFilter) -> Done<Vec<Outgoing>>;

    /// Messages in the log, at most [`PAGE`] of them; may be none although there is more to search.
    async fn messages(&self, search: &MessageSearch, cursor: Option<&str>) -> Done<Found>;

    async fn message(&self, scope: &str, id: &str) -> Done<Option<Whole>>;

    /// How many dead letters match, counted up to [`COUNTED`].
    async fn count_dead(&self, filter: &DeliveryFilter) -> Done<u64>;

    async fn start_replay(&self, filter: &DeliveryFilter, rate: Option<u32>) -> Done<Replay>;

    /// Goes on with a replay, where that is not done by somebody else, and says how far it is.
    async fn step_replay(&self, replay: i64) -> Done<Replay>;

    /// How long to wait between two steps.
    fn pace(&self, rate: Option<u32>) -> Duration;

    async fn cancel_replay(&self, replay: i64) -> Done<Replay>;

    /// How many dead letters were given up.
    async fn discard(&self, filter: &DeliveryFilter, reason: &str) -> Done<u64>;

    /// False when there is no such part.
    async fn set_paused(&self, part: Part<'_>, paused: bool) -> Done<bool>;

    /// `new`, `duplicate` or `conflict`. The scope of the message is the name of a source.
    async fn send(&self, message: Message) -> Done<String>;

    /// Changes, newest first, those before entry `before` if given.
    async fn audit(&self, before: Option<i64>, limit: usize) -> Done<Vec<Audited>>;
}
