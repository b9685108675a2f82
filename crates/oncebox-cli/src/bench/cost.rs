//! Counts the statements that the driver sends, by listening to its own log events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

static COUNTING: AtomicBool = AtomicBool::new(false);
static STATEMENTS: AtomicU64 = AtomicU64::new(0);

/// The layer to be installed at start; does nothing until [`counting`] is used.
pub(crate) struct StatementCounter;

impl<S: Subscriber> Layer<S> for StatementCounter {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" && COUNTING.load(Ordering::Relaxed) {
            STATEMENTS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How many statements are sent while this future runs.
pub(crate) async fn counting<T>(work: impl Future<Output = T>) -> (T, u64) {
    STATEMENTS.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    let answer = work.await;
    COUNTING.store(false, Ordering::SeqCst);
    (answer, STATEMENTS.load(Ordering::SeqCst))
}
