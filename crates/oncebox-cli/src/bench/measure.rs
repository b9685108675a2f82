//! The measurements: each round measures everything once, on fresh tables, the members of a pair next to each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use oncebox::clock::Seed;
use oncebox::{Batch, Failure, Inbox, Message, Store, Tx, handler, run};
use tokio::sync::oneshot;

use crate::bench::cost::counting;
use crate::bench::report::{Cost, Floor, Latency, Oncebox, Recipe, Report, ServerCost};
use crate::bench::yard::{Row, Yard};
use crate::target::Place;

/// Messages per statement when ingesting, and per transaction when processing; the same everywhere.
pub(crate) const BATCH: usize = 1000;
/// How many callers ingest one by one.
const CALLERS: usize = 8;
/// The payload, in bytes.
const PAYLOAD: usize = 210;
/// How many idle latencies are measured.
const LATENCIES: usize = 200;

pub(crate) struct Plan {
    pub(crate) messages: usize,
    pub(crate) rounds: u64,
    pub(crate) quiet: bool,
}

type Tables<T> = <<T as crate::target::Target>::Store as Store>::Connection;

/// Measures everything and removes its tables again.
pub(crate) async fn all<T: Yard>(place: &Place, plan: &Plan) -> Result<Report, String> {
    let bar = progress_bar(plan, plan.rounds * 14 + 2);
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        rounds.push(
            on_fresh_tables::<T, _, _>(place, async |yard| round(place, &yard, plan, &bar).await).await?,
        );
    }
    bar.set_message("latency");
    let latency_ms = on_fresh_tables::<T, _, _>(place, async |yard| latency(place, &yard).await).await?;
    bar.inc(1);
    bar.set_message("cost");
    let cost = on_fresh_tables::<T, _, _>(place, async |yard| cost(place, &yard, plan).await).await?;
    bar.finish_and_clear();
    let median = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick)).round();
    Ok(Report {
        store: place.store_name().to_ascii_lowercase(),
        messages: plan.messages,
        floor: Floor {
            insert: median(|round| round.floor_insert),
            handler_loop: median(|round| round.floor_loop),
            handler_batch: median(|round| round.floor_batch),
        },
        recipe: Recipe {
            ingest: median(|round| round.recipe_ingest),
            process: median(|round| round.recipe_process),
            process_batch: median(|round| round.recipe_process_batch),
        },
        oncebox: Oncebox {
            ingest_batch: median(|round| round.ingest_batch),
            ingest_single: median(|round| round.ingest_single),
            ingest_duplicates: median(|round| round.ingest_duplicates),
            process: median(|round| round.process),
            process_batch: median(|round| round.process_batch),
            process_others: median(|round| round.process_others),
            process_batch_others: median(|round| round.process_batch_others),
            inline: median(|round| round.inline),
        },
        latency_ms,
        cost,
    })
}

pub(crate) fn progress_bar(plan: &Plan, steps: u64) -> ProgressBar {
    let bar = if plan.quiet { ProgressBar::hidden() } else { ProgressBar::new(steps) };
    if let Ok(style) = ProgressStyle::with_template("{bar:40.green} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// The middle one of at least one value.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn on_fresh_tables<T: Yard, R, F>(place: &Place, work: F) -> Result<R, String>
where
    F: AsyncFnOnce(T) -> Result<R, String>,
{
    let yard: T = fresh_tables(place).await?;
    let result = work(yard.clone()).await;
    let removed = yard.remove().await;
    let result = result?;
    removed?;
    Ok(result)
}

pub(crate) async fn fresh_tables<T: Yard>(place: &Place) -> Result<T, String> {
    let yard = T::open(place, 12).await?;
    yard.create().await?;
    yard.lay_out().await.map_err(text)?;
    Ok(yard)
}

#[derive(Debug, Default)]
struct Round {
    floor_insert: f64,
    floor_loop: f64,
    floor_batch: f64,
    recipe_ingest: f64,
    recipe_process: f64,
    recipe_process_batch: f64,
    ingest_batch: f64,
    ingest_single: f64,
    ingest_duplicates: f64,
    process: f64,
    process_batch: f64,
    process_others: f64,
    process_batch_others: f64,
    inline: f64,
}

async fn round<T: Yard>(place: &Place, yard: &T, plan: &Plan, bar: &ProgressBar) -> Result<Round, String> {
    let mut figures = Round::default();
    let fast = plan.messages;
    // What commits one by one is many times slower.
    let slow = (plan.messages / 10).max(500);
    let step = |name: &'static str| {
        bar.set_message(name);
        bar.inc(1);
    };

    let single = single_inbox(yard, "single");
    run(single.clone()).drain().await.map_err(text)?;
    step("bare insert");
    let rows = rows("floor", fast);
    figures.floor_insert = rate(fast, async {
        for chunk in rows.chunks(BATCH) {
            yard.floor_insert(chunk).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    step("ingest");
    let stored = messages("single", "single", fast);
    figures.ingest_batch = rate(fast, receive(&single, &stored)).await?;
    step("duplicates");
    figures.ingest_duplicates = rate(fast, receive(&single, &stored)).await?;

    step("bare handler loop");
    let ids: Vec<String> = (0..fast).map(|number| id("loop", number)).collect();
    figures.floor_loop = rate(fast, async {
        for chunk in ids.chunks(BATCH) {
            yard.floor_loop(chunk).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    step("process");
    figures.process = rate(fast, async { run(single.clone()).drain().await.map_err(text) }).await?;

    // A handle of its own, as another process has it.
    let elsewhere = T::open(place, 4).await?;
    let other = Inbox::new(elsewhere.store());
    receive(&other, &messages("single", "other", fast)).await?;
    step("process, received elsewhere");
    figures.process_others = rate(fast, async { run(single.clone()).drain().await.map_err(text) }).await?;

    step("recipe");
    for chunk in self::rows("recipe", fast).chunks(BATCH) {
        yard.recipe_fill(chunk).await.map_err(text)?;
    }
    figures.recipe_process = rate(fast, recipe(yard, false)).await?;
    step("bare set-based");
    let ids: Vec<String> = (0..fast).map(|number| id("set", number)).collect();
    figures.floor_batch = rate(fast, async {
        for chunk in ids.chunks(BATCH) {
            yard.floor_batch(chunk).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    let batch = batch_inbox(yard, "set");
    run(batch.clone()).drain().await.map_err(text)?;
    receive(&batch, &messages("set", "set", fast)).await?;
    step("process, set-based");
    figures.process_batch = rate(fast, async { run(batch.clone()).drain().await.map_err(text) }).await?;
    receive(&other, &messages("set", "other-set", fast)).await?;
    elsewhere.close().await;
    step("process, set-based, received elsewhere");
    figures.process_batch_others =
        rate(fast, async { run(batch.clone()).drain().await.map_err(text) }).await?;
    step("recipe, set-based");
    for chunk in self::rows("recipe-set", fast).chunks(BATCH) {
        yard.recipe_fill(chunk).await.map_err(text)?;
    }
    figures.recipe_process_batch = rate(fast, recipe(yard, true)).await?;

    step("recipe, one by one");
    let singles = self::rows("recipe-single", slow);
    figures.recipe_ingest = rate(slow, async {
        let callers = singles.chunks(slow.div_ceil(CALLERS)).map(|own| async move {
            for row in own {
                yard.recipe_ingest(row).await.map_err(text)?;
            }
            Ok::<(), String>(())
        });
        try_join_all(callers).await.map(|_| ())
    })
    .await?;
    step("one by one");
    let singles = messages("single", "one", slow);
    let one = &single;
    figures.ingest_single = rate(slow, async {
        let callers = singles.chunks(slow.div_ceil(CALLERS)).map(|own| async move {
            for message in own {
                one.receive(std::slice::from_ref(message)).await.map_err(text)?;
            }
            Ok::<(), String>(())
        });
        try_join_all(callers).await.map(|_| ())
    })
    .await?;
    step("inline");
    let inline = messages("single", "inline", fast);
    figures.inline = rate(fast, async {
        for chunk in inline.chunks(BATCH) {
            single.process_all(chunk.to_vec()).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    Ok(figures)
}

async fn recipe<T: Yard>(yard: &T, set_based: bool) -> Result<(), String> {
    while yard.recipe_process(set_based).await.map_err(text)? > 0 {}
    Ok(())
}

/// One message at a time into an idle runner of another process's making: its own pool, woken by hints only.
async fn latency<T: Yard>(place: &Place, yard: &T) -> Result<Latency, String> {
    let other = T::open(place, 4).await?;
    let inbox = single_inbox(&other, "single");
    // A new handler starts with the next message, so it must be known before the first one is sent.
    run(inbox.clone()).drain().await.map_err(text)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let runner = tokio::spawn(
        run(inbox)
            .concurrency(1)
            .poll_every(Duration::from_secs(30))
            .with_graceful_shutdown(async move {
                let _ = stopped.await;
            })
            .into_future(),
    );
    let sender = Inbox::new(yard.store());
    let mut times = Vec::with_capacity(LATENCIES);
    for message in messages("single", "latency", LATENCIES + 20) {
        let id = message.id.clone();
        let started = Instant::now();
        sender.receive(&[message]).await.map_err(text)?;
        while !yard.has_effect(&id).await.map_err(text)? {
            if started.elapsed() > Duration::from_secs(60) {
                return Err(format!("message `{id}` had no effect within a minute"));
            }
        }
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        // Idle means idle: the runner has gone to sleep again, and no hint is being held back.
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let _ = stop.send(());
    runner.await.map_err(text)?.map_err(text)?;
    // The first ones warm up connections and prepared statements.
    let mut times = times.split_off(20);
    times.sort_by(f64::total_cmp);
    let round = |value: f64| (value * 100.0).round() / 100.0;
    Ok(Latency { p50: round(times[times.len() / 2]), p99: round(times[times.len() * 99 / 100]) })
}

/// Statements, commits, WAL and dead tuples per message.
async fn cost<T: Yard>(place: &Place, yard: &T, plan: &Plan) -> Result<Cost, String> {
    let few = 500;
    let count = plan.messages;
    let per = |value: f64, count: usize| (value / count as f64 * 1000.0).round() / 1000.0;

    // The handler's statement in a transaction of its own: what it costs without Oncebox.
    let ids: Vec<String> = (0..few).map(|number| id("bare", number)).collect();
    let (bare, _) = spent(place, yard, async |_inbox, yard: &T| {
        for id in &ids {
            yard.floor_loop(std::slice::from_ref(id)).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    // A store that logs no statements cannot be counted by its log.
    let logged = bare > 0.0;
    let inline = messages("single", "inline", few);
    let (inline_statements, inline_spent) = spent(place, yard, async |inbox, _| {
        for message in inline {
            inbox.process(message).await.map_err(text)?;
        }
        Ok(())
    })
    .await?;
    let stored = messages("single", "stored", count);
    let (stored_statements, stored_spent) = spent(place, yard, async |inbox, _| {
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
    work: impl AsyncFnOnce(Inbox<T::Store>, &T) -> Result<(), String>,
) -> Result<(f64, Option<ServerCost>), String> {
    let own = T::open(place, 4).await?;
    let inbox = single_inbox(&own, "single");
    // Registering and the first, unprepared statements are not what is measured.
    run(inbox.clone()).drain().await.map_err(text)?;
    inbox.process(Message::new("single", "warm")).await.map_err(text)?;
    let before = yard.server_cost().await.map_err(text)?;
    let (done, statements) = counting(work(inbox, &own)).await;
    done?;
    own.close().await;
    let after = yard.server_cost().await.map_err(text)?;
    let difference = before.zip(after).map(|(before, after)| ServerCost {
        wal_bytes: after.wal_bytes - before.wal_bytes,
        commits: after.commits - before.commits,
        dead_tuples: before.dead_tuples.zip(after.dead_tuples).map(|(before, after)| after - before),
    });
    Ok((statements as f64, difference))
}

fn single_inbox<T: Yard>(yard: &T, kind: &str) -> Inbox<T::Store> {
    let schema: Arc<str> = yard.schema().into();
    let insert = move |mut tx: Tx<Tables<T>>, message: Message| {
        let schema = schema.clone();
        async move {
            T::effect(&mut tx, &schema, &message.id).await?;
            Ok::<(), Failure>(())
        }
    };
    Inbox::new(yard.store()).on(kind, handler("bench-single", insert).batch(BATCH))
}

pub(crate) fn batch_inbox<T: Yard>(yard: &T, kind: &str) -> Inbox<T::Store> {
    let schema: Arc<str> = yard.schema().into();
    let insert = move |mut tx: Tx<Tables<T>>, Batch(messages): Batch<Message>| {
        let schema = schema.clone();
        async move {
            let ids = messages.into_iter().map(|message| message.id).collect();
            T::effects_of(&mut tx, &schema, ids).await?;
            Ok::<(), Failure>(())
        }
    };
    Inbox::new(yard.store()).on(kind, handler("bench-batch", insert).batch(BATCH))
}

pub(crate) async fn receive<St: Store>(inbox: &Inbox<St>, messages: &[Message]) -> Result<(), String> {
    for chunk in messages.chunks(BATCH) {
        inbox.receive(chunk).await.map_err(text)?;
    }
    Ok(())
}

/// An id as most producers make them: without order, so that no index has it easy.
///
/// The names differ per measurement, so that none is another's duplicate.
fn id(name: &str, number: usize) -> String {
    let first = Seed::fixed(number as u64 + 1).next();
    format!("{name}-{first:016x}{number:08x}")
}

pub(crate) fn messages(kind: &str, name: &str, count: usize) -> Vec<Message> {
    (0..count).map(|number| Message::new(kind, vec![b'x'; PAYLOAD]).id(id(name, number))).collect()
}

pub(crate) fn rows(name: &str, count: usize) -> Vec<Row> {
    (0..count).map(|number| Row { id: id(name, number), payload: vec![b'x'; PAYLOAD] }).collect()
}

pub(crate) async fn rate(
    count: usize,
    work: impl Future<Output = Result<(), String>>,
) -> Result<f64, String> {
    let started = Instant::now();
    work.await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
