//! Waiting for something to become true, with a deadline instead of hope.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// The deadline of [`until`]: generous, because the machine may be busy; only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Asks again and again until the answer is yes.
///
/// # Panics
/// When it is still no after [`DEADLINE`], naming what was waited for.
#[track_caller]
pub fn until<F, Fut>(what: &str, ask: F) -> impl Future<Output = ()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let (what, caller) = (what.to_owned(), std::panic::Location::caller());
    let mut ask = ask;
    async move {
        let deadline = Instant::now() + DEADLINE;
        while !ask().await {
            assert!(Instant::now() < deadline, "waited {DEADLINE:?} in vain for: {what} ({caller})");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs a whole test case, which must end within two minutes: a hang is a failure with a name, not a stuck build.
///
/// # Panics
/// When it does not end.
pub async fn within_deadline(case: impl Future<Output = ()>) {
    let limit = DEADLINE * 2;
    assert!(tokio::time::timeout(limit, case).await.is_ok(), "the case did not end within {limit:?}");
}
