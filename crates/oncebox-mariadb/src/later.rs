//! For the commits to come.
use oncebox_core::admin::*;
use oncebox_core::{Error, ErrorKind};
fn later<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Store, "this store does not do that yet"))
}
#[allow(clippy::unused_async)]
impl crate::store::Inner {
    pub(crate) async fn messages(&self, _: &MessageSearch) -> Result<MessagePage, Error> {
        later()
    }
    pub(crate) async fn message(&self, _: &str, _: &str) -> Result<Option<MessageInfo>, Error> {
        later()
    }
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>, Error> {
        later()
    }
    pub(crate) async fn start_replay(&self, _: &Replay) -> Result<ReplayInfo, Error> {
        later()
    }
    pub(crate) async fn step_replay(&self, _: ReplayId, _: u64) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn cancel_replay(&self, _: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn replay_info(&self, _: ReplayId) -> Result<Option<ReplayInfo>, Error> {
        later()
    }
    pub(crate) async fn replays(&self, _: bool, _: usize) -> Result<Vec<ReplayInfo>, Error> {
        later()
    }
}
