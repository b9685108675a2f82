//! The figures, as JSON and as a table.

use serde::Serialize;

use crate::bench::line;

/// What source to stored must reach of the slower of client and batch ingest.
const STORED_GOAL: f64 = 0.6;
/// What outbox to confirmed must reach of the client's publishing.
const CONFIRMED_GOAL: f64 = 0.5;

/// Everything `oncebox bench --source` measures; rates are messages per second.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BrokerReport {
    pub(crate) broker: String,
    pub(crate) store: String,
    pub(crate) messages: usize,
    pub(crate) client: Client,
    pub(crate) oncebox: WithBroker,
    pub(crate) ratios: Ratios,
}

/// The broker's own client alone.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Client {
    pub(crate) consume: f64,
    pub(crate) publish: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct WithBroker {
    pub(crate) ingest_batch: f64,
    pub(crate) source_to_stored: f64,
    pub(crate) source_to_effect: f64,
    pub(crate) outbox_to_confirmed: f64,
}

/// The median of what each round had.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratios {
    pub(crate) source_to_stored: f64,
    pub(crate) outbox_to_confirmed: f64,
}

impl BrokerReport {
    pub(crate) fn text(&self) -> String {
        let out = &mut String::new();
        let Self { broker, store, messages, client, oncebox, ratios } = self;
        line(
            out,
            format_args!(
                "\noncebox bench of {broker} on {store}, {messages} messages (messages per second)\n"
            ),
        );
        row(out, "client, consume and acknowledge", client.consume);
        row(out, "batch ingest", oncebox.ingest_batch);
        row(out, "source to stored", oncebox.source_to_stored);
        row(out, "source to committed effect", oncebox.source_to_effect);
        row(out, "client, publish and confirm, batches of 500", client.publish);
        row(out, "outbox to confirmed", oncebox.outbox_to_confirmed);
        line(out, format_args!("\n  ratios"));
        ratio(out, "source to stored / slower of client and ingest", ratios.source_to_stored, STORED_GOAL);
        ratio(out, "outbox to confirmed / client's publish", ratios.outbox_to_confirmed, CONFIRMED_GOAL);
        line(out, format_args!(""));
        std::mem::take(out)
    }
}

fn row(out: &mut String, name: &str, value: f64) {
    line(out, format_args!("  {name:<50}{value:>10.0}"));
}

fn ratio(out: &mut String, name: &str, value: f64, goal: f64) {
    line(out, format_args!("    {name:<48}{value:>10.2}  (goal {goal})"));
}
