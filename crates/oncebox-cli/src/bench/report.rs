//! The figures, as JSON and as a table.

use serde::Serialize;

/// Everything `oncebox bench` measures; rates are messages per second.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) store: String,
    pub(crate) messages: usize,
    pub(crate) floor: Floor,
    pub(crate) recipe: Recipe,
    pub(crate) oncebox: Oncebox,
    pub(crate) latency_ms: Latency,
    pub(crate) cost: Cost,
}

/// The database alone.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Floor {
    pub(crate) insert: f64,
    pub(crate) handler_loop: f64,
    pub(crate) handler_batch: f64,
}

/// A table with a status column.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Recipe {
    pub(crate) ingest: f64,
    pub(crate) process: f64,
    pub(crate) process_batch: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Oncebox {
    pub(crate) ingest_batch: f64,
    pub(crate) ingest_single: f64,
    pub(crate) ingest_duplicates: f64,
    pub(crate) process: f64,
    pub(crate) process_batch: f64,
    /// What another process has received; the two above were received here.
    pub(crate) process_others: f64,
    pub(crate) process_batch_others: f64,
    pub(crate) inline: f64,
}

/// From the call of `receive` to the visible effect, on an idle runner.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Per message, beyond the handler's own statement (and, inline, its own begin and commit).
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cost {
    pub(crate) inline_statements: Option<f64>,
    pub(crate) inline_commits: Option<f64>,
    pub(crate) stored_statements: Option<f64>,
    pub(crate) stored_commits: Option<f64>,
    pub(crate) wal_bytes: Option<f64>,
    pub(crate) dead_tuples: Option<f64>,
}

/// What a server has counted since it started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerCost {
    pub(crate) wal_bytes: f64,
    pub(crate) commits: f64,
    /// Postgres only.
    pub(crate) dead_tuples: Option<f64>,
}

impl Report {
    pub(crate) fn print(&self) {
        println!("\noncebox bench on {}, {} messages (messages per second)\n", self.store, self.messages);
        println!("  {:<34}{:>12}  {:>12}  {:>12}", "", "floor", "recipe", "oncebox");
        let (floor, recipe, own) = (&self.floor, &self.recipe, &self.oncebox);
        row("ingest, batches of 1,000", Some(floor.insert), None, own.ingest_batch);
        row("ingest, one by one, 8 at once", None, Some(recipe.ingest), own.ingest_single);
        row("ingest, all duplicates", None, None, own.ingest_duplicates);
        row("process, one statement each", Some(floor.handler_loop), Some(recipe.process), own.process);
        row("  … received by another process", None, None, own.process_others);
        row("process, set-based", Some(floor.handler_batch), Some(recipe.process_batch), own.process_batch);
        row("  … received by another process", None, None, own.process_batch_others);
        row("inline", None, None, own.inline);
        println!("\n  ratios");
        ratio("batch ingest / bare insert", own.ingest_batch / floor.insert);
        ratio("batch ingest / recipe's ingest", own.ingest_batch / recipe.ingest);
        ratio("processing / bare handler loop", own.process / floor.handler_loop);
        ratio("set-based / recipe's set-based", own.process_batch / recipe.process_batch);
        ratio("set-based / bare set-based", own.process_batch / floor.handler_batch);
        println!(
            "\n  idle latency       p50 {:.1} ms, p99 {:.1} ms",
            self.latency_ms.p50, self.latency_ms.p99
        );
        let cost = &self.cost;
        println!("\n  per message, beyond the handler's own work");
        price("statements, inline", cost.inline_statements);
        price("commits, inline", cost.inline_commits);
        price("statements, stored", cost.stored_statements);
        price("commits, stored", cost.stored_commits);
        price("WAL bytes, stored", cost.wal_bytes);
        price("dead tuples, stored", cost.dead_tuples);
        println!();
    }
}

fn row(name: &str, floor: Option<f64>, recipe: Option<f64>, own: f64) {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    println!("  {name:<34}{:>12}  {:>12}  {:>12}", rate(floor), rate(recipe), rate(Some(own)));
}

fn ratio(name: &str, value: f64) {
    println!("    {name:<32}{value:>8.2}");
}

fn price(name: &str, value: Option<f64>) {
    match value {
        Some(value) => println!("    {name:<32}{value:>10.3}"),
        None => println!("    {name:<32}{:>10}", "-"),
    }
}
