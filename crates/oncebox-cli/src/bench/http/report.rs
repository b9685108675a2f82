//! The figures, as JSON and as a table.

use indicatif::HumanCount;
use serde::Serialize;

use crate::bench::line;

/// What batches over HTTP must reach of the library's batch ingest.
const NDJSON_GOAL: f64 = 0.5;
/// What single posts must reach of the commits that one connection can make.
const SINGLE_GOAL: f64 = 5.0;
/// The most memory at rest, and with many messages waiting.
const REST_GOAL: f64 = 60.0;
const WAITING_GOAL: f64 = 150.0;

/// Everything `oncebox bench --http` measures; rates are messages per second.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HttpReport {
    pub(super) store: String,
    pub(super) messages: usize,
    pub(super) waiting: usize,
    /// One connection that inserts a row and commits, again and again.
    pub(super) commit: f64,
    pub(super) library: Library,
    pub(super) http: Figures,
    pub(super) ratios: Ratios,
    pub(super) memory_mib: Mebibytes,
    pub(super) start_ms: Milliseconds,
    pub(super) binary_mib: f64,
}

/// The library on the same kind of store, without any HTTP.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Library {
    pub(super) ingest_batch: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pub(super) single: f64,
    pub(super) ndjson: f64,
}

/// The median of what each round had.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ratios {
    pub(super) ndjson_to_library: f64,
    pub(super) single_to_commit: f64,
}

/// Resident memory of the service; nothing where the system does not tell.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Mebibytes {
    pub(super) rest: Option<f64>,
    /// After it has taken in all the waiting messages.
    pub(super) waiting: Option<f64>,
    /// Started anew on them.
    pub(super) waiting_restarted: Option<f64>,
}

/// From starting the process to its being ready.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Milliseconds {
    /// With tables to be made first.
    pub(super) empty: f64,
    pub(super) waiting: f64,
}

impl HttpReport {
    pub(crate) fn text(&self) -> String {
        let out = &mut String::new();
        let Self { store, messages, waiting, ratios, memory_mib, start_ms, .. } = self;
        line(
            out,
            format_args!(
                "\noncebox bench of HTTP on {store}, {} messages (messages per second)\n",
                count(*messages)
            ),
        );
        row(out, "bare commits, one connection", self.commit);
        row(out, "single posts, 64 connections", self.http.single);
        row(out, "library, batches of 1,000", self.library.ingest_batch);
        row(out, "NDJSON, batches of 1,000, 4 connections", self.http.ndjson);
        line(out, format_args!("\n  ratios"));
        goal(out, "single posts / bare commits", ratios.single_to_commit, &format!("at least {SINGLE_GOAL}"));
        goal(out, "NDJSON / library", ratios.ndjson_to_library, &format!("at least {NDJSON_GOAL}"));
        line(out, format_args!("\n  resident memory, MiB"));
        memory(out, "at rest", memory_mib.rest, REST_GOAL);
        memory(
            out,
            &format!("after {} messages that wait", count(*waiting)),
            memory_mib.waiting,
            WAITING_GOAL,
        );
        memory(out, "started anew on them", memory_mib.waiting_restarted, WAITING_GOAL);
        line(
            out,
            format_args!(
                "\n  start to ready     {:.0} ms with new tables, {:.0} ms on the waiting messages",
                start_ms.empty, start_ms.waiting
            ),
        );
        line(out, format_args!("  binary             {:.1} MiB\n", self.binary_mib));
        std::mem::take(out)
    }
}

fn row(out: &mut String, name: &str, value: f64) {
    line(out, format_args!("  {name:<50}{:>10}", count(value as usize).to_string()));
}

fn count(value: usize) -> HumanCount {
    HumanCount(value as u64)
}

fn goal(out: &mut String, name: &str, value: f64, goal: &str) {
    line(out, format_args!("    {name:<48}{value:>10.2}  (goal: {goal})"));
}

fn memory(out: &mut String, name: &str, value: Option<f64>, most: f64) {
    match value {
        Some(value) => line(out, format_args!("    {name:<48}{value:>10.1}  (goal: under {most})")),
        None => line(out, format_args!("    {name:<48}{:>10}", "-")),
    }
}
