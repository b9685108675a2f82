//! For the commits to come.
use oncebox_core::admin::*;
use oncebox_core::{Error, ErrorKind};
fn later<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Store, "this store does not do that yet"))
}
#[allow(clippy::unused_async)]
impl crate::store::SqliteStore {
    pub(crate) async fn search_log(&self, _: &MessageSearch) -> Result<MessagePage, Error> {
        later()
    }
    pub(crate) async fn find_message(&self, _: &str, _: &str) -> Result<Option<MessageInfo>, Error> {
        later()
    }
    pub(crate) async fn find_faults(&self) -> Result<Vec<Finding>, Error> {
        later()
    }
    pub(crate) async fn begin_replay(&self, _: &Replay) -> Result<ReplayInfo, Error> {
        later()
    }
    pub(crate) async fn continue_replay(&self, _: ReplayId, _: u64) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn stop_replay(&self, _: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn read_replay(&self, _: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn list_replays(&self, _: bool, _: usize) -> Result<Vec<ReplayInfo>, Error> {
        later()
    }
}
