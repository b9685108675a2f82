//! The [`AdminStore`] methods, which live in the other files.

use jiff::Timestamp;
use oncebox_core::Error;
use oncebox_core::admin::{
    AdminStore, Audit, AuditEntry, ConflictAsk, ConflictPage, DeliveryFilter, Finding, MessageInfo,
    MessagePage, MessageSearch, OutgoingFilter, OutgoingInfo, Replay, ReplayId, ReplayInfo, TokenInfo,
};
use oncebox_core::store::{Purged, Retention};

use crate::store::MariaStore;

impl AdminStore for MariaStore {
    async fn clock(&self) -> Result<Timestamp, Error> {
        Box::pin(self.inner.read_clock()).await
    }

    async fn messages(&self, search: &MessageSearch) -> Result<MessagePage, Error> {
        Box::pin(self.inner.messages(search)).await
    }

    async fn message(&self, scope: &str, id: &str) -> Result<Option<MessageInfo>, Error> {
        Box::pin(self.inner.message(scope, id)).await
    }

    async fn conflict_page(&self, ask: &ConflictAsk) -> Result<ConflictPage, Error> {
        Box::pin(self.inner.conflict_page(ask)).await
    }

    async fn outgoing(&self, filter: &OutgoingFilter) -> Result<Vec<OutgoingInfo>, Error> {
        Box::pin(self.inner.outgoing(filter)).await
    }

    async fn count_deliveries(&self, filter: &DeliveryFilter, most: u64) -> Result<u64, Error> {
        Box::pin(self.inner.count_deliveries(filter, most)).await
    }

    async fn purgeable(&self, retention: &Retention) -> Result<Purged, Error> {
        Box::pin(self.inner.purgeable(retention)).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, Error> {
        Box::pin(self.inner.findings()).await
    }

    async fn set_source_paused(&self, source: &str, paused: bool) -> Result<(), Error> {
        Box::pin(self.inner.set_source_paused(source, paused)).await
    }

    async fn paused_sources(&self) -> Result<Vec<String>, Error> {
        Box::pin(self.inner.paused_sources()).await
    }

    async fn start_replay(&self, replay: &Replay) -> Result<ReplayInfo, Error> {
        Box::pin(self.inner.start_replay(replay)).await
    }

    async fn step_replay(&self, id: ReplayId, most: u64) -> Result<Option<ReplayInfo>, Error> {
        Box::pin(self.inner.step_replay(id, most)).await
    }

    async fn cancel_replay(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        Box::pin(self.inner.cancel_replay(id)).await
    }

    async fn replay_info(&self, id: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        Box::pin(self.inner.replay_info(id)).await
    }

    async fn replays(&self, running: bool, limit: usize) -> Result<Vec<ReplayInfo>, Error> {
        Box::pin(self.inner.replays(running, limit)).await
    }

    async fn add_audit(&self, change: &Audit) -> Result<AuditEntry, Error> {
        Box::pin(self.inner.add_audit(change)).await
    }

    async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>, Error> {
        Box::pin(self.inner.audit(before, limit)).await
    }

    async fn add_token(&self, token: &TokenInfo) -> Result<bool, Error> {
        Box::pin(self.inner.add_token(token)).await
    }

    async fn tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        Box::pin(self.inner.tokens()).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool, Error> {
        Box::pin(self.inner.remove_token(name)).await
    }
}
