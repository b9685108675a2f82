//! `oncebox bench`: what the given store can do, beside the floor on the same server and the plain recipe.
//!
//! Timings are noisy, so only ratios measured side by side mean anything: every pair is measured in alternation,
//! several rounds, and the median is taken.

mod awake;
mod brokers;
mod cost;
#[cfg(feature = "serve")]
mod http;
mod latency;
mod mariadb;
mod measure;
mod postgres;
mod report;
mod round;
mod sqlite;
mod yard;

use clap::Args;
use serde::Serialize;

use crate::bench::awake::Awake;
use crate::bench::brokers::BrokerReport;
use crate::bench::report::Report;
use crate::shell;
use crate::stop::{Cut, Stop};
use crate::target::{MariaTarget, PgTarget, Place, SqliteTarget, Target};

pub(crate) use cost::statement_counter;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The store: `sqlite:FILE` (one that is not there yet; a temporary one unless set), `postgres://…` or `mysql://…`
    /// (MariaDB). Own tables, removed at the end.
    #[arg(long)]
    store: Option<String>,
    /// A broker to measure with the store instead: `amqp://…` (RabbitMQ), `amqp1://…` (RabbitMQ with AMQP 1.0), `nats://…`,
    /// `redis://…`, `mqtt://…` or `kafka://host:port`. Own queues, removed at the end.
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// Measure the service instead: HTTP ingest beside the library and bare commits, memory, and how fast it starts.
    #[cfg(feature = "serve")]
    #[arg(long, conflicts_with = "source")]
    http: bool,
    /// With `--http`: how many messages wait while the memory is read.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "http")]
    waiting: u64,
    /// How many messages each fast measurement handles; slow ones handle a part of them.
    #[arg(long, default_value_t = 20_000, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    messages: u64,
    /// How many rounds; the median of them counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn bench(options: Options) -> Result<bool, String> {
    // What it leaves behind is gone when the process is ended for a signal.
    let text = measured(&options).await.map_err(Cut::into_error)?;
    shell::print(text.as_bytes())
}

/// What is to be printed. Its tables are gone by then, whatever the outcome.
async fn measured(options: &Options) -> Result<String, Cut> {
    let mut stop = Stop::listen()?;
    let (place, _folder) = Place::new(options.store.as_deref(), "bench")?;
    #[cfg(feature = "serve")]
    if options.http {
        http::own_place(&place).check_new()?;
    }
    let result = stop.unless_told(measure(options, &place)).await;
    if matches!(result, Err(Cut::Stopped(_))) {
        let removed = remove(&place).await;
        #[cfg(feature = "serve")]
        if options.http {
            remove(&http::own_place(&place)).await?;
        }
        removed?;
    }
    result
}

async fn measure(options: &Options, place: &Place) -> Result<String, String> {
    let messages = usize::try_from(options.messages).map_err(|error| error.to_string())?;
    let plan = measure::Plan { messages, rounds: options.rounds, quiet: options.json };
    #[cfg(feature = "serve")]
    if options.http {
        let waiting = usize::try_from(options.waiting).map_err(|error| error.to_string())?;
        let report = if place.is_postgres() {
            http::all::<PgTarget>(place, &plan, waiting).await?
        } else if place.is_mariadb() {
            http::all::<MariaTarget>(place, &plan, waiting).await?
        } else {
            http::all::<SqliteTarget>(place, &plan, waiting).await?
        };
        return shown(options, None, &report, http::HttpReport::text);
    }
    let awake = Awake::ask();
    if let Some(source) = &options.source {
        let report = brokers::all(source, place, &plan).await?;
        return shown(options, Some(&awake), &report, BrokerReport::text);
    }
    let report: Report = if place.is_postgres() {
        measure::all::<PgTarget>(place, &plan).await?
    } else if place.is_mariadb() {
        measure::all::<MariaTarget>(place, &plan).await?
    } else {
        measure::all::<SqliteTarget>(place, &plan).await?
    };
    shown(options, Some(&awake), &report, Report::text)
}

/// Removes what a measurement that was interrupted has left.
async fn remove(place: &Place) -> Result<(), String> {
    if place.is_postgres() {
        PgTarget::open(place, 1).await?.remove().await
    } else if place.is_mariadb() {
        MariaTarget::open(place, 1).await?.remove().await
    } else {
        SqliteTarget::open(place, 1).await?.remove().await
    }
}

/// A report, and whether the processors were kept awake for it, where that was asked for.
#[derive(Serialize)]
struct Shown<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    #[serde(skip_serializing_if = "Option::is_none")]
    awake: Option<bool>,
}

fn shown<R: Serialize>(
    options: &Options,
    awake: Option<&Awake>,
    report: &R,
    text: fn(&R) -> String,
) -> Result<String, String> {
    let awake = awake.map(Awake::is_granted);
    if options.json {
        let json = serde_json::to_string(&Shown { report, awake }).map_err(|error| error.to_string())?;
        return Ok(json + "\n");
    }
    let mut text = text(report);
    if awake == Some(false) {
        text.push_str(
            "  The processors could go to sleep between statements, which makes short ones look slow and uneven.\n  \
             As root on Linux they are kept awake.\n\n",
        );
    }
    Ok(text)
}

/// Adds a line to a report.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.push_str(&text.to_string());
    out.push('\n');
}
