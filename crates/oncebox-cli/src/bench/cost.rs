//! What a message costs: statements, commits, WAL and dead tuples. Statements are counted by listening to the log events of
//! the driver, which has none for `begin` and `commit` and what travels with them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oncebox::{Inbox, Message, run};
use sqlx::Connection;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::bench::measure::{id, messages, receive, single_inbox, text};
use crate::bench::report::{Cost, ServerCost};
use crate::bench::yard::Yard;
use crate::target::Place;

/// Statements, commits, WAL and dead tuples per message.
pub(crate) async fn measure<T: Yard>(place: &Place, yard: &T, count: usize) -> Result<Cost, String> {
    let few = 500;
    let per = |value: f64, count: usize| (value / count as f64 * 1000.0).round() / 1000.0;

    // The handler's statement in a transaction of its own: what it costs without Oncebox.
    let ids: Vec<String> = (0..few).map(|number| id("bare", number)).collect();
    let mut connection = yard.connect().await.map_err(text)?;
    let (bare, _) = spent(place, yard, async |_inbox| {
        for id in &ids {
            yard.floor_loop(&mut connection, std::slice::from_ref(id)).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    connection.close().await.map_err(text)?;
    // A store that logs no statements cannot be counted by its log.
    let logged = bare > 0.0;
    let inline = messages("single", "inline", few);
    let (inline_statements, inline_spent) = spent(place, yard, async |inbox| {
        for message in inline {
            inbox.process(message).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    let stored = messages("single", "stored", count);
    let (stored_statements, stored_spent) = spent(place, yard, async |inbox| {
        receive(&inbox, &stored).await?;
        run(inbox).drain().await.map_err(text)
    })
    .await?;
    Ok(Cost {
        inline_statements: logged.then(|| per(inline_statements - bare, few)),
        inline_commits: inline_spent.map(|spent| per(spent.commits - few as f64, few)),
        stored_statements: logged.then(|| per(stored_statements - count as f64, count)),
        stored_commits: stored_spent.map(|spent| per(spent.commits, count)),
        wal_bytes: stored_spent.map(|spent| per(spent.wal_bytes, count)),
        dead_tuples: stored_spent.and_then(|spent| Some(per(spent.dead_tuples?, count))),
    })
}

/// What some work costs, in statements and on the server, on connections of its own that are closed afterwards.
async fn spent<T: Yard>(
    place: &Place,
    yard: &T,
    work: impl AsyncFnOnce(Inbox<T::Store>) -> Result<(), String>,
) -> Result<(f64, Option<ServerCost>), String> {
    let own = T::open(place, 4).await?;
    let inbox = single_inbox(&own, "single");
    // Registering and the first, unprepared statements are not what is measured.
    run(inbox.clone()).drain().await.map_err(text)?;
    inbox.process(Message::new("single", "warm")).await.map_err(text)?;
    let before = at_rest(yard).await?;
    let (done, statements) = counting(work(inbox)).await;
    done?;
    own.close().await;
    let after = at_rest(yard).await?;
    let difference = before.zip(after).map(|(before, after)| ServerCost {
        wal_bytes: after.wal_bytes - before.wal_bytes,
        commits: after.commits - before.commits,
        dead_tuples: before.dead_tuples.zip(after.dead_tuples).map(|(before, after)| after - before),
    });
    Ok((statements as f64, difference))
}

/// What the server has counted, when it has finished counting: a session of Postgres hands in what it counted when it
/// ends, and that may be after the client has gone.
async fn at_rest<T: Yard>(yard: &T) -> Result<Option<ServerCost>, String> {
    let patience = Instant::now() + Duration::from_secs(10);
    let mut last = yard.server_cost().await.map_err(text)?;
    loop {
        // Postgres 14 shows what may be half a second old.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let now = yard.server_cost().await.map_err(text)?;
        if now == last || Instant::now() > patience {
            return Ok(now);
        }
        last = now;
    }
}

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
async fn counting<T>(work: impl Future<Output = T>) -> (T, u64) {
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
