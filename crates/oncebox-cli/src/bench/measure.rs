//! The measurements: each round measures everything once, on fresh tables, what is compared next to each other.

use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use oncebox::clock::Seed;
use oncebox::{Batch, Failure, Inbox, Message, Received, Store, Tx, handler};

use crate::bench::report::Report;
use crate::bench::round::{self, Round};
use crate::bench::yard::{Row, Yard};
use crate::bench::{cost, latency};
use crate::target::Place;

/// Messages per statement when ingesting, and per transaction when processing.
pub(crate) const BATCH: usize = 1000;
/// The payload, in bytes.
const PAYLOAD: usize = 210;

pub(crate) struct Plan {
    pub(crate) messages: usize,
    pub(crate) rounds: u64,
    pub(crate) quiet: bool,
}

pub(crate) type Tables<T> = <<T as crate::target::Target>::Store as Store>::Connection;

/// Measures everything and removes its tables again.
pub(crate) async fn all<T: Yard>(place: &Place, plan: &Plan) -> Result<Report, String> {
    let bar = progress_bar(plan, plan.rounds * round::STEPS + 2);
    let mut rounds: Vec<Round> = Vec::new();
    for number in 0..plan.rounds {
        // What is measured first in one round is measured last in the next.
        let turned = number % 2 == 1;
        let round = on_fresh_tables::<T, _, _>(place, async |yard| {
            round::measure(place, &yard, plan.messages, turned, &bar).await
        });
        rounds.push(round.await?);
    }
    bar.set_message("latency");
    let latency_ms =
        on_fresh_tables::<T, _, _>(place, async |yard| latency::measure(place, &yard).await).await?;
    bar.inc(1);
    bar.set_message("cost");
    let cost =
        on_fresh_tables::<T, _, _>(place, async |yard| cost::measure(place, &yard, plan.messages).await)
            .await?;
    bar.finish_and_clear();
    Ok(Report::new(place, plan.messages, &rounds, T::RECIPE_CALLERS, latency_ms, cost))
}

pub(crate) fn progress_bar(plan: &Plan, steps: u64) -> ProgressBar {
    let bar = if plan.quiet { ProgressBar::hidden() } else { ProgressBar::new(steps) };
    if let Ok(style) = ProgressStyle::with_template("{bar:40.green} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// The middle one of at least one value, or of an even number of them what lies between the middle two.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
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
    let made = async {
        yard.create().await?;
        yard.lay_out().await.map_err(text)
    };
    if let Err(error) = made.await {
        yard.remove().await?;
        return Err(error);
    }
    Ok(yard)
}

pub(crate) fn single_inbox<T: Yard>(yard: &T, kind: &str) -> Inbox<T::Store> {
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

/// Stores messages that are all new.
pub(crate) async fn receive<St: Store>(inbox: &Inbox<St>, messages: &[Message]) -> Result<(), String> {
    receive_as(inbox, messages, Received::New).await
}

/// Stores messages, batch by batch, of which each is to be answered so.
pub(crate) async fn receive_as<St: Store>(
    inbox: &Inbox<St>,
    messages: &[Message],
    expected: Received,
) -> Result<(), String> {
    for chunk in messages.chunks(BATCH) {
        let received = inbox.receive(chunk).await.map_err(text)?;
        if let Some(other) = received.iter().find(|received| **received != expected) {
            return Err(format!("a message was answered as {other:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

/// An id as most producers make them: without order, so that no index has it easy.
///
/// The names differ per measurement, so that none is another's duplicate.
pub(crate) fn id(name: &str, number: usize) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median([3.0].into_iter()), 3.0);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
    }
}
