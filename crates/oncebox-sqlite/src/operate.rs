//! The [`AdminStore`] methods, which live in the other files.

use jiff::Timestamp;
use oncebox_core::Error;
use oncebox_core::admin::{
    AdminStore, Audit, AuditEntry, ConflictAsk, ConflictPage, DeliveryFilter, Finding, MessageInfo,
    MessagePage, MessageSearch, OutgoingFilter, OutgoingInfo, Replay, ReplayId, ReplayInfo, TokenInfo,
};
use oncebox_core::store::{Purged, Retention};

use crate::store::SqliteStore;

impl AdminStore for SqliteStore {
    async fn clock(&self) -> Result<Timestamp, Error> {
        self.read_clock().await
    }

    async fn messages(&self, search: &MessageSearch) -> Result<MessagePage, Error> {
        self.search_log(search).await
    }

    async fn message(&self, scope: &str, id: &str) -> Result<Option<MessageInfo>, Error> {
        self.find_message(scope, id).await
    }

    async fn conflict_page(&self, ask: &ConflictAsk) -> Result<ConflictPage, Error> {
        self.page_of_conflicts(ask).await
    }

    async fn outgoing(&self, filter: &OutgoingFilter) -> Result<Vec<OutgoingInfo>, Error> {
        self.list_outgoing(filter).await
    }

    async fn count_deliveries(&self, filter: &DeliveryFilter, most: u64) -> Result<u64, Error> {
        self.count_matching(filter, most).await
    }

    async fn purgeable(&self, retention: &Retention) -> Result<Purged, Error> {
        self.count_purgeable(retention).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, Error> {
        self.find_faults().await
    }

    async fn set_source_paused(&self, source: &str, paused: bool) -> Result<(), Error> {
        self.pause_source(source, paused).await
    }

    async fn paused_sources(&self) -> Result<Vec<String>, Error> {
        self.list_paused_sources().await
    }

    async fn start_replay(&self, replay: &Replay) -> Result<ReplayInfo, Error> {
        self.begin_replay(replay).await
    }

    async fn step_replay(&self, id: ReplayId, most: u64) -> Result<Option<ReplayInfo>, Error> {
        self.continue_replay(id, most).await
    }

    async fn cancel_replay(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        self.stop_replay(id).await
    }

    async fn replay_info(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        self.read_replay(id).await
    }

    async fn replays(&self, running: bool, limit: usize) -> Result<Vec<ReplayInfo>, Error> {
        self.list_replays(running, limit).await
    }

    async fn add_audit(&self, change: &Audit) -> Result<AuditEntry, Error> {
        self.write_audit(change).await
    }

    async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>, Error> {
        self.list_audit(before, limit).await
    }

    async fn add_token(&self, token: &TokenInfo) -> Result<bool, Error> {
        self.write_token(token).await
    }

    async fn tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        self.list_tokens().await
    }

    async fn remove_token(&self, name: &str) -> Result<bool, Error> {
        self.delete_token(name).await
    }
}
