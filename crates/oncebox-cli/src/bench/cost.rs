//! Counts the statements that the driver sends, by listening to its own log events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

static COUNTING: AtomicBool = AtomicBool::new(false);
static STATEMENTS: AtomicU64 = AtomicU64::new(0);

struct StatementCounter;

impl<S: Subscriber> Layer<S> for StatementCounter {
    fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
        STATEMENTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The layer to be installed at start.
///
/// It takes no interest in anything until [`counting`] is used, so that nothing is logged while time is taken.
pub(crate) fn statement_counter<S>() -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    StatementCounter.with_filter(filter_fn(|metadata| {
        metadata.target() == "sqlx::query" && COUNTING.load(Ordering::SeqCst)
    }))
}

/// How many statements are sent while this future runs.
pub(crate) async fn counting<T>(work: impl Future<Output = T>) -> (T, u64) {
    STATEMENTS.store(0, Ordering::SeqCst);
    take_interest(true);
    let answer = work.await;
    take_interest(false);
    (answer, STATEMENTS.load(Ordering::SeqCst))
}

fn take_interest(counting: bool) {
    COUNTING.store(counting, Ordering::SeqCst);
    // Each place that logs remembers whether anybody listens.
    tracing::callsite::rebuild_interest_cache();
}
