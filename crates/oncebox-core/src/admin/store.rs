//! What a store does for operators, beyond [`Store`].

use std::future::Future;

use jiff::Timestamp;

use super::{
    Audit, AuditEntry, ConflictAsk, ConflictPage, DeliveryFilter, Finding, MessageInfo, MessagePage,
    MessageSearch, OutgoingFilter, OutgoingInfo, Replay, ReplayId, ReplayInfo, TokenInfo,
};
use crate::error::Error;
use crate::store::{Purged, Retention, Store};

/// A store that can be searched, audited and examined. All three stores of Oncebox can.
pub trait AdminStore: Store {
    // ---- looking

    /// The database's clock, by which everything is decided.
    fn clock(&self) -> impl Future<Output = Result<Timestamp, Error>> + Send;

    /// Received messages that match, newest first. Bounded in time: looks at a limited number of rows and then says
    /// where to go on.
    fn messages(&self, search: &MessageSearch) -> impl Future<Output = Result<MessagePage, Error>> + Send;

    /// One message and what became of it; `None` when this id was never seen, or longer ago than `keep`.
    fn message(
        &self,
        scope: &str,
        id: &str,
    ) -> impl Future<Output = Result<Option<MessageInfo>, Error>> + Send;

    /// A page of the known ids that came with other bytes, newest first.
    fn conflict_page(&self, ask: &ConflictAsk) -> impl Future<Output = Result<ConflictPage, Error>> + Send;

    /// The outgoing messages that match, oldest first, without headers and payloads.
    fn outgoing(
        &self,
        filter: &OutgoingFilter,
    ) -> impl Future<Output = Result<Vec<OutgoingInfo>, Error>> + Send;

    /// How many deliveries match, counted up to `most`.
    fn count_deliveries(
        &self,
        filter: &DeliveryFilter,
        most: u64,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// What a purge to its end would remove by now; `more` is false. Reads whole tables, so it is for a person who asks
    /// before a purge, and for nothing that is repeated.
    fn purgeable(&self, retention: &Retention) -> impl Future<Output = Result<Purged, Error>> + Send;

    /// What is wrong with the database: settings, clock, stuck deliveries, bloat, old transactions.
    ///
    /// For a person who asks, not for a program that asks every second: it compares the schema with one that it makes for
    /// that and removes again. What the user of the pool may not see is left out.
    fn findings(&self) -> impl Future<Output = Result<Vec<Finding>, Error>> + Send;

    // ---- sources

    /// Pauses or resumes a source for every process; remembered even for a name that was never seen.
    fn set_source_paused(&self, source: &str, paused: bool)
    -> impl Future<Output = Result<(), Error>> + Send;

    /// The sources that are paused, in order of names.
    fn paused_sources(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;

    // ---- replays

    /// Writes a replay down; [`step_replay`](Self::step_replay) does the work. Counts what matches.
    fn start_replay(&self, replay: &Replay) -> impl Future<Output = Result<ReplayInfo, Error>> + Send;

    /// Replays the next letters, at most `most` and no more than the replay's rate allows by the database's clock, in
    /// one transaction with its progress. Any number of processes may call it at the same time; each letter is
    /// replayed at most once per replay, also when it dies again meanwhile. `None` when there is no such replay.
    fn step_replay(
        &self,
        id: ReplayId,
        most: u64,
    ) -> impl Future<Output = Result<Option<ReplayInfo>, Error>> + Send;

    /// Stops a running replay. `None` when there is no such replay; one that has ended stays as it is.
    fn cancel_replay(&self, id: ReplayId) -> impl Future<Output = Result<Option<ReplayInfo>, Error>> + Send;

    /// One replay.
    fn replay_info(&self, id: ReplayId) -> impl Future<Output = Result<Option<ReplayInfo>, Error>> + Send;

    /// Replays, newest first; only those still running if so asked. One that another version wrote and this one cannot
    /// read is [`Unreadable`](super::ReplayState::Unreadable), and takes none of the others with it.
    fn replays(
        &self,
        running: bool,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<ReplayInfo>, Error>> + Send;

    // ---- audit

    /// Writes a change down, before it is made.
    fn add_audit(&self, change: &Audit) -> impl Future<Output = Result<AuditEntry, Error>> + Send;

    /// Changes, newest first, those before entry `before` if given.
    fn audit(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<AuditEntry>, Error>> + Send;

    // ---- tokens

    /// Adds a token; false when there is one of that name.
    fn add_token(&self, token: &TokenInfo) -> impl Future<Output = Result<bool, Error>> + Send;

    /// All tokens, in order of names.
    fn tokens(&self) -> impl Future<Output = Result<Vec<TokenInfo>, Error>> + Send;

    /// Removes a token; false when there is none of that name.
    fn remove_token(&self, name: &str) -> impl Future<Output = Result<bool, Error>> + Send;
}
