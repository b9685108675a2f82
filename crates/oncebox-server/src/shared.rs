//! An answer that many ask for at the same time, and that is found out once.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// The last answer, good for a while.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    good_for: Duration,
    last: Mutex<Option<(Instant, T)>>,
}

impl<T: Clone> Shared<T> {
    pub(crate) fn new(good_for: Duration) -> Self {
        Self { good_for, last: Mutex::new(None) }
    }

    /// The last answer when it is fresh; else asks. Whoever comes meanwhile waits for that answer.
    pub(crate) async fn get(&self, ask: impl Future<Output = T>) -> T {
        // Held while asking, on purpose: it is what makes the others wait. Dropped anywhere, the next one asks.
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < self.good_for
        {
            return answer.clone();
        }
        let answer = ask.await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_the_same_time_share_one_answer() {
        let (shared, asked, go) =
            (Shared::new(Duration::from_secs(3600)), AtomicUsize::new(0), Notify::new());
        let ask = || async {
            go.notified().await;
            asked.fetch_add(1, Ordering::SeqCst)
        };
        let all = join_all((0..50).map(|_| shared.get(ask())));
        let both = async { tokio::join!(all, async { go.notify_one() }) };
        let both = tokio::time::timeout(Duration::from_secs(60), both).await;
        let (answers, ()) = both.expect("nobody waits for a second answer");
        assert_eq!((answers, asked.load(Ordering::SeqCst)), (vec![0; 50], 1));
    }

    #[tokio::test]
    async fn an_answer_that_is_old_is_asked_for_again_and_so_is_one_that_never_came() {
        let old = Shared::new(Duration::ZERO);
        assert_eq!(old.get(async { 1 }).await, 1);
        assert_eq!(old.get(async { 2 }).await, 2);
        let shared = Shared::new(Duration::from_secs(3600));
        let given_up = tokio::time::timeout(Duration::from_millis(1), shared.get(std::future::pending()));
        assert!(given_up.await.is_err());
        assert_eq!(shared.get(async { 3 }).await, 3);
    }
}
