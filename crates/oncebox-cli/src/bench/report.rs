//! The figures, as JSON and as a table.

use std::collections::BTreeMap;

use indicatif::HumanCount;
use serde::{Serialize, Serializer};

use crate::bench::line;
use crate::bench::measure::{BATCH, median};
use crate::bench::round::{CALLERS, Round};
use crate::target::Place;

/// Everything `oncebox bench` measures; rates are messages per second, each the median of the rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    store: String,
    messages: usize,
    rounds: usize,
    /// Who insert the recipe's messages one by one.
    #[serde(skip)]
    recipe_callers: usize,
    floor: Floor,
    recipe: Recipe,
    oncebox: Oncebox,
    ratios: BTreeMap<&'static str, Spread>,
    latency_ms: Latency,
    cost: Cost,
}

/// The database alone.
#[derive(Debug, Clone, Serialize)]
struct Floor {
    insert: f64,
    /// Into a table that has grown, beside the copies among new messages.
    insert_later: f64,
    handler_loop: f64,
    handler_batch: f64,
}

/// A table with a status column.
#[derive(Debug, Clone, Serialize)]
struct Recipe {
    ingest: f64,
    ingest_batch: f64,
    process: f64,
    process_batch: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Oncebox {
    ingest_batch: f64,
    ingest_single: f64,
    /// One message of a hundred is a copy.
    ingest_some_duplicates: f64,
    ingest_duplicates: f64,
    process: f64,
    process_batch: f64,
    /// What another process has received; the two above were received here.
    process_others: f64,
    process_batch_others: f64,
    inline: f64,
}

/// The ratios: the name in JSON, and what is divided by what within a round.
#[allow(clippy::type_complexity, reason = "a table")]
const RATIOS: [(&str, fn(&Round) -> f64); 13] = [
    ("ingest_batch_to_floor", |round| round.ingest_batch / round.floor_insert),
    ("ingest_batch_to_recipe", |round| round.ingest_batch / round.recipe_ingest_batch),
    ("ingest_batch_to_recipe_single", |round| round.ingest_batch / round.recipe_ingest),
    ("ingest_single_to_recipe", |round| round.ingest_single / round.recipe_ingest),
    ("ingest_some_duplicates_to_floor", |round| round.ingest_some_duplicates / round.floor_insert_later),
    ("process_to_floor", |round| round.process / round.floor_loop),
    ("process_to_recipe", |round| round.process / round.recipe_process),
    ("process_others_to_floor", |round| round.process_others / round.floor_loop),
    ("process_others_to_recipe", |round| round.process_others / round.recipe_process),
    ("process_batch_to_floor", |round| round.process_batch / round.floor_batch),
    ("process_batch_to_recipe", |round| round.process_batch / round.recipe_process_batch),
    ("process_batch_others_to_floor", |round| round.process_batch_others / round.floor_batch),
    ("process_batch_others_to_recipe", |round| round.process_batch_others / round.recipe_process_batch),
];

/// A ratio, taken within each round. In JSON it is the median.
#[derive(Debug, Clone, Copy)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(rounds: &[Round], pick: fn(&Round) -> f64) -> Self {
        let values = || rounds.iter().map(pick);
        Self {
            median: median(values()),
            least: values().fold(f64::INFINITY, f64::min),
            most: values().fold(0.0, f64::max),
        }
    }
}

impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.median * 1000.0).round() / 1000.0)
    }
}

/// From the call of `receive` to the visible effect, on an idle runner.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Per message. Statements and inline commits beyond the handler's own; commits, WAL and dead tuples of stored messages
/// with those of the handler, which has no dead tuples.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ServerCost {
    pub(crate) wal_bytes: f64,
    pub(crate) commits: f64,
    /// Postgres only.
    pub(crate) dead_tuples: Option<f64>,
}

impl Report {
    /// Of at least one round.
    pub(crate) fn new(
        place: &Place,
        messages: usize,
        rounds: &[Round],
        recipe_callers: usize,
        latency_ms: Latency,
        cost: Cost,
    ) -> Self {
        let median = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick)).round();
        Self {
            store: place.store_name().to_ascii_lowercase(),
            messages,
            rounds: rounds.len(),
            recipe_callers,
            floor: Floor {
                insert: median(|round| round.floor_insert),
                insert_later: median(|round| round.floor_insert_later),
                handler_loop: median(|round| round.floor_loop),
                handler_batch: median(|round| round.floor_batch),
            },
            recipe: Recipe {
                ingest: median(|round| round.recipe_ingest),
                ingest_batch: median(|round| round.recipe_ingest_batch),
                process: median(|round| round.recipe_process),
                process_batch: median(|round| round.recipe_process_batch),
            },
            oncebox: Oncebox {
                ingest_batch: median(|round| round.ingest_batch),
                ingest_single: median(|round| round.ingest_single),
                ingest_some_duplicates: median(|round| round.ingest_some_duplicates),
                ingest_duplicates: median(|round| round.ingest_duplicates),
                process: median(|round| round.process),
                process_batch: median(|round| round.process_batch),
                process_others: median(|round| round.process_others),
                process_batch_others: median(|round| round.process_batch_others),
                inline: median(|round| round.inline),
            },
            ratios: RATIOS.into_iter().map(|(name, pick)| (name, Spread::of(rounds, pick))).collect(),
            latency_ms,
            cost,
        }
    }

    pub(crate) fn text(&self) -> String {
        let out = &mut String::new();
        let (floor, recipe, own) = (&self.floor, &self.recipe, &self.oncebox);
        line(
            out,
            format_args!(
                "\noncebox bench on {}: {} messages, {}\n",
                self.store,
                HumanCount(self.messages as u64),
                match self.rounds {
                    1 => "one round".to_owned(),
                    rounds => format!("the median of {rounds} rounds"),
                }
            ),
        );
        line(out, format_args!("  messages per second{:>36}{:>12}{:>12}", "floor", "recipe", "oncebox"));
        row(
            out,
            &format!("ingest, batches of {BATCH}"),
            Some(floor.insert),
            Some(recipe.ingest_batch),
            own.ingest_batch,
        );
        row(
            out,
            "  … one message of a hundred a copy",
            Some(floor.insert_later),
            None,
            own.ingest_some_duplicates,
        );
        row(out, "  … all copies", None, None, own.ingest_duplicates);
        row(
            out,
            &format!("ingest, one by one, {CALLERS} callers"),
            None,
            Some(recipe.ingest),
            own.ingest_single,
        );
        if self.recipe_callers == 1 {
            line(out, format_args!("    (the recipe has 1: more would wait for each other's lock)"));
        }
        row(out, "process, one statement each", Some(floor.handler_loop), Some(recipe.process), own.process);
        row(out, "  … received by another process", None, None, own.process_others);
        row(
            out,
            "process, set-based",
            Some(floor.handler_batch),
            Some(recipe.process_batch),
            own.process_batch,
        );
        row(out, "  … received by another process", None, None, own.process_batch_others);
        row(out, "inline, one statement each", None, None, own.inline);
        line(
            out,
            format_args!(
                "\n  ratios, median of the rounds (least to most){:>15}{:>26}",
                "of the floor", "times the recipe"
            ),
        );
        self.ratios_of(out, "ingest, batches", "ingest_batch");
        self.ratios_of(out, "  … one of a hundred a copy", "ingest_some_duplicates");
        self.ratios_of(out, "  … beside the recipe one by one", "ingest_batch_to_recipe_single");
        self.ratios_of(out, "ingest, one by one", "ingest_single");
        self.ratios_of(out, "process, one statement each", "process");
        self.ratios_of(out, "  … received by another process", "process_others");
        self.ratios_of(out, "process, set-based", "process_batch");
        self.ratios_of(out, "  … received by another process", "process_batch_others");
        line(
            out,
            format_args!(
                "\n  from `receive` to the effect, idle: p50 {:.1} ms, p99 {:.1} ms",
                self.latency_ms.p50, self.latency_ms.p99
            ),
        );
        let cost = &self.cost;
        let known = [cost.inline_statements, cost.stored_commits, cost.wal_bytes, cost.dead_tuples];
        if known.iter().all(Option::is_none) {
            line(out, format_args!("  statements, commits and WAL per message: this store counts none\n"));
            return std::mem::take(out);
        }
        line(out, format_args!("\n  per message"));
        price(out, "statements beyond the handler's, inline", cost.inline_statements);
        price(out, "commits beyond the handler's, inline", cost.inline_commits);
        price(out, "statements beyond the handler's, stored", cost.stored_statements);
        price(out, "commits, stored", cost.stored_commits);
        price(out, "WAL bytes with the handler's row, stored", cost.wal_bytes);
        price(out, "dead tuples, stored", cost.dead_tuples);
        line(out, format_args!(""));
        std::mem::take(out)
    }

    /// A line with the ratios of one measurement to the floor and to the recipe.
    fn ratios_of(&self, out: &mut String, label: &str, name: &str) {
        let find = |end: &str| self.ratios.get(format!("{name}{end}").as_str());
        let shown = |spread: Option<&Spread>, digits: usize| match spread {
            Some(Spread { median, least, most }) => {
                format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
            }
            None => "-".to_owned(),
        };
        let to_recipe = find("_to_recipe").or_else(|| find(""));
        line(
            out,
            format_args!("  {label:<38}{:>22}{:>26}", shown(find("_to_floor"), 2), shown(to_recipe, 1)),
        );
    }
}

fn row(out: &mut String, name: &str, floor: Option<f64>, recipe: Option<f64>, own: f64) {
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| HumanCount(rate as u64).to_string());
    line(out, format_args!("  {name:<43}{:>12}{:>12}{:>12}", rate(floor), rate(recipe), rate(Some(own))));
}

fn price(out: &mut String, name: &str, value: Option<f64>) {
    match value {
        Some(value) => line(out, format_args!("    {name:<42}{value:>10.3}")),
        None => line(out, format_args!("    {name:<42}{:>10}", "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cost: Option<f64>) -> Report {
        let place = Place { url: "postgres://host/shop".to_owned(), schema: String::new() };
        let round = Round {
            floor_insert: 200_000.0,
            floor_insert_later: 150_000.0,
            floor_loop: 50_000.0,
            floor_batch: 1_000_000.0,
            recipe_ingest: 10_000.0,
            recipe_ingest_batch: 80_000.0,
            recipe_process: 40_000.0,
            recipe_process_batch: 60_000.0,
            ingest_batch: 100_000.0,
            ingest_single: 20_000.0,
            ingest_some_duplicates: 75_000.0,
            ingest_duplicates: 90_000.0,
            process: 45_000.0,
            process_batch: 500_000.0,
            process_others: 42_000.0,
            process_batch_others: 300_000.0,
            inline: 30_000.0,
        };
        let cost = Cost {
            inline_statements: cost,
            inline_commits: cost,
            stored_statements: cost,
            stored_commits: cost,
            wal_bytes: cost,
            dead_tuples: cost,
        };
        Report::new(&place, 20_000, &[round], CALLERS, Latency { p50: 2.5, p99: 7.5 }, cost)
    }

    #[test]
    fn the_table_shows_every_ratio_beside_what_it_is_of() {
        let text = report(Some(0.25)).text();
        let spreads = |line: &str| if line.contains('(') { line.matches(" to ").count() } else { 0 };
        let shown: usize = text.lines().map(spreads).sum();
        // And one in the heading.
        assert_eq!(shown, RATIOS.len() + 1, "{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for line in [
            "oncebox bench on postgres: 20,000 messages, one round",
            "ingest, batches of 1000 200,000 80,000 100,000",
            "… one message of a hundred a copy 150,000 - 75,000",
            "ingest, batches 0.50 (0.50 to 0.50) 1.2 (1.2 to 1.2)",
            "… one of a hundred a copy 0.50 (0.50 to 0.50) -",
            "… beside the recipe one by one - 10.0 (10.0 to 10.0)",
            "ingest, one by one - 2.0 (2.0 to 2.0)",
            "process, one statement each 0.90 (0.90 to 0.90) 1.1 (1.1 to 1.1)",
            "process, set-based 0.50 (0.50 to 0.50) 8.3 (8.3 to 8.3)",
            "from `receive` to the effect, idle: p50 2.5 ms, p99 7.5 ms",
            "dead tuples, stored 0.250",
        ] {
            assert!(lines.iter().any(|shown| shown == line), "`{line}` in {text}");
        }
    }

    #[test]
    fn a_store_that_counts_nothing_says_so() {
        let text = report(None).text();
        assert!(text.contains("this store counts none") && !text.contains("dead tuples"), "{text}");
    }
}
