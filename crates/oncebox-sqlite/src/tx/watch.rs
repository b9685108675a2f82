//! Watches a write connection from inside SQLite: stops statements that must not go on and refuses commits that are
//! not ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::SqliteConnection;

/// How many instructions of SQLite's virtual machine run between two looks at the watch: well under a millisecond.
const INSTRUCTIONS: i32 = 10_000;

/// What the hooks of one connection look at. One transaction at a time; each has its number.
#[derive(Debug)]
pub(crate) struct Watch {
    born: Instant,
    current: AtomicU64,
    cancelled: AtomicU64,
    /// The last transaction that was rolled back, by whomever.
    ended: AtomicU64,
    /// Microseconds after `born`; zero for no deadline.
    deadline: AtomicU64,
    may_commit: AtomicBool,
}

impl Watch {
    /// Puts a watch on a connection, in place of hooks it may have had.
    pub(crate) async fn install(connection: &mut SqliteConnection) -> Result<Arc<Self>, sqlx::Error> {
        let watch = Arc::new(Self {
            born: Instant::now(),
            current: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            may_commit: AtomicBool::new(false),
        });
        let mut handle = connection.lock_handle().await?;
        let own = watch.clone();
        handle.set_progress_handler(INSTRUCTIONS, move || !own.must_stop());
        let own = watch.clone();
        handle.set_commit_hook(move || own.may_commit.load(Ordering::SeqCst));
        let own = watch.clone();
        handle
            .set_rollback_hook(move || own.ended.store(own.current.load(Ordering::SeqCst), Ordering::SeqCst));
        drop(handle);
        Ok(watch)
    }

    /// Begins to watch the next transaction and answers its number.
    pub(crate) fn next(&self) -> u64 {
        self.deadline.store(0, Ordering::SeqCst);
        self.may_commit.store(false, Ordering::SeqCst);
        self.current.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Statements of the current transaction stop after this long from now.
    pub(crate) fn allow(&self, time: Duration) {
        let at = u64::try_from((self.born.elapsed() + time).as_micros()).unwrap_or(u64::MAX);
        self.deadline.store(at, Ordering::Relaxed);
    }

    /// Statements of the current transaction may take as long as they need.
    pub(crate) fn allow_any_time(&self) {
        self.deadline.store(0, Ordering::SeqCst);
    }

    /// Lets commits through, or turns them into rollbacks.
    pub(crate) fn let_commit(&self, may: bool) {
        self.may_commit.store(may, Ordering::SeqCst);
    }

    /// Stops whatever this transaction is running or will run; does nothing to later ones.
    pub(crate) fn cancel(&self, number: u64) {
        self.cancelled.store(number, Ordering::SeqCst);
    }

    /// True when this transaction was cancelled or rolled back.
    pub(crate) fn is_over(&self, number: u64) -> bool {
        self.cancelled.load(Ordering::SeqCst) == number || self.ended.load(Ordering::SeqCst) == number
    }

    fn must_stop(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) == self.current.load(Ordering::Relaxed) {
            return true;
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        deadline != 0 && self.born.elapsed().as_micros() > u128::from(deadline)
    }
}
