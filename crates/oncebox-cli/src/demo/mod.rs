//! `oncebox demo`: shows by running that nothing is lost and nothing is done twice.

mod child;
mod feeder;
mod report;
pub(crate) mod runner;
mod storm;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use oncebox::Store;
use oncebox::clock::Seed;

use self::feeder::{Feeder, Number, number_of};
use self::report::Report;
use self::storm::Storm;
use crate::shell;
use crate::stop::{Cut, Stop};
use crate::target::{MariaTarget, PgTarget, Place, SqliteTarget, Target};

/// The most deliveries that may be asked for. What is planned is held in memory, 20 bytes for each delivery.
const MOST_DELIVERIES: u64 = 50_000_000;

/// How often a process is killed unless told.
const CRASHES: u64 = 10;

/// How many deliveries there are for each of them at least: it is to have some in its hands.
const PER_CRASH: u64 = 200;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many different messages.
    #[arg(long, default_value_t = 10_000, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: Number,
    /// How often a process is killed with `kill -9`; 10 unless set, fewer when there are less than 2,000 deliveries.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    crashes: Option<u64>,
    /// How often a process is frozen (SIGSTOP) for up to 6.5 seconds and goes on when others have its work.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=100_000))]
    pauses: u64,
    /// Half of the messages are delivered 1 to this many times, the others once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    copies: u64,
    /// How many processes receive and handle.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Makes the same traffic again; when the blows fall is up to the machine. Random unless set.
    #[arg(long)]
    seed: Option<u64>,
    /// Another store than a temporary SQLite file: `sqlite:FILE` (one that is not there yet), `postgres://…` or
    /// `mysql://…` (MariaDB). Own tables, removed at the end.
    #[arg(long)]
    store: Option<String>,
    /// Give up after so many seconds in which nothing went on.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// True when nothing was lost and nothing doubled.
pub(crate) async fn demo(options: Options) -> Result<bool, String> {
    options.check()?;
    let seed = options.seed.unwrap_or_else(|| Seed::from_system().next() % 1_000_000);
    // What it leaves behind is gone when the process is ended for a signal.
    let result = demo_somewhere(&options, seed).await;
    let (report, store) = result.map_err(Cut::into_error)?;
    let text = match options.json {
        true => serde_json::to_string(&report).map_err(|error| error.to_string())? + "\n",
        false => report.text(store, &options),
    };
    shell::print(text.as_bytes())?;
    Ok(report.is_clean())
}

async fn demo_somewhere(options: &Options, seed: u64) -> Result<(Report, &'static str), Cut> {
    let mut stop = Stop::listen()?;
    let (place, _folder) = Place::new(options.store.as_deref(), "demo")?;
    let report = if place.is_postgres() {
        demo_on::<PgTarget>(options, &place, seed, &mut stop).await?
    } else if place.is_mariadb() {
        demo_on::<MariaTarget>(options, &place, seed, &mut stop).await?
    } else {
        demo_on::<SqliteTarget>(options, &place, seed, &mut stop).await?
    };
    Ok((report, place.store_name()))
}

async fn demo_on<T: Target>(
    options: &Options,
    place: &Place,
    seed_number: u64,
    stop: &mut Stop,
) -> Result<Report, Cut> {
    let seed = Seed::fixed(seed_number);
    let feeder = Feeder::new(options.messages, options.copies, &seed);
    let planned = feeder.planned();
    let crashes = options.crashes.unwrap_or_else(|| CRASHES.min(planned / PER_CRASH));
    let strikes = crashes + options.pauses;
    if strikes > planned {
        return Err(Cut::Failed(format!(
            "{strikes} kills and freezes are too many for {planned} deliveries; raise `--messages` or `--copies`"
        )));
    }
    let target = T::open(place, 4).await?;
    let mut storm = Storm::new(feeder, place, Duration::from_secs(options.patience));
    // To its end even when a signal comes: what was half made could not be removed for certain.
    let result = match target.create().await {
        Ok(()) => stop.unless_told(run_storm(&target, options, crashes, &mut storm, &seed)).await,
        Err(error) => Err(Cut::Failed(error)),
    };
    storm.end().await;
    let removed = target.remove().await;
    let mut report = result.map_err(|cut| with_seed(cut, seed_number))?;
    removed?;
    report.seed = seed_number;
    Ok(report)
}

async fn run_storm<T: Target>(
    target: &T,
    options: &Options,
    crashes: u64,
    storm: &mut Storm<'_>,
    seed: &Seed,
) -> Result<Report, String> {
    let started = Instant::now();
    let bar = Bar::new(options);
    let shown = async {
        for _ in 0..options.processes {
            storm.start_runner()?;
        }
        storm.strike(target, crashes, options.pauses, seed, &bar.0).await?;
        bar.0.set_message(format!("{crashes} killed, others take over (up to 10 s)"));
        settle(target, storm).await?;
        storm.stop().await
    };
    tokio::select! {
        done = shown => done?,
        never = watch(target, &bar.0) => match never {},
    }
    drop(bar);
    judge(target, options.messages, storm, started.elapsed().as_secs_f64()).await
}

/// Waits until every message is handled: nothing behind the cursor, no delivery with a row of its own.
async fn settle<T: Target>(target: &T, storm: &mut Storm<'_>) -> Result<(), String> {
    loop {
        storm.effects = target.effects().await?;
        let handlers = target.store().handlers().await.map_err(|error| error.to_string())?;
        let open: u64 =
            handlers.iter().map(|one| one.waiting + one.retrying + one.held + one.scheduled).sum();
        if open == 0 && storm.feeder.is_finished() && !leased(target).await? {
            return Ok(());
        }
        storm.until(tokio::time::sleep(Duration::from_millis(50))).await?;
    }
}

/// Whether deliveries are running right now: they have a row, but have not failed.
async fn leased<T: Target>(target: &T) -> Result<bool, String> {
    let mut filter = oncebox::admin::DeliveryFilter::all();
    filter.state = Some(oncebox::admin::DeliveryState::Waiting);
    filter.limit = Some(1);
    let waiting = target.store().deliveries(&filter).await.map_err(|error| error.to_string())?;
    Ok(!waiting.is_empty())
}

async fn judge<T: Target>(
    target: &T,
    messages: Number,
    storm: &Storm<'_>,
    seconds: f64,
) -> Result<Report, String> {
    let mut missing = vec![true; messages as usize];
    let mut doubled = 0;
    target
        .count_effects(|id, count| {
            let place = number_of(id).and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
            if let Some(missing) = place.and_then(|place| missing.get_mut(place)) {
                *missing = false;
            }
            doubled += u64::from(count > 1);
        })
        .await?;
    let handlers = target.store().handlers().await.map_err(|error| error.to_string())?;
    let messages = u64::from(messages);
    let deliveries = storm.feeder.deliveries();
    Ok(Report {
        messages,
        deliveries,
        duplicates: deliveries.saturating_sub(messages),
        redelivered: storm.feeder.redelivered(),
        crashes: storm.crashes,
        crashes_holding: storm.crashes_holding,
        crashes_handling: storm.crashes_handling,
        pauses: storm.pauses,
        effects: target.effects().await?,
        lost: missing.iter().filter(|missing| **missing).count() as u64,
        doubled,
        seconds: (seconds * 1000.0).round() / 1000.0,
        seed: 0,
        dead_letters: handlers.iter().map(|one| one.dead).sum(),
    })
}

impl Options {
    /// Refuses what would need more memory than a machine has to spare.
    fn check(&self) -> Result<(), String> {
        let deliveries = u64::from(self.messages) * self.copies;
        if deliveries > MOST_DELIVERIES {
            return Err(format!(
                "`--messages` times `--copies` is {deliveries}, and {MOST_DELIVERIES} is the most; lower one of them"
            ));
        }
        Ok(())
    }

    #[cfg(test)]
    fn for_tests(arguments: &[&str]) -> Result<Self, clap::Error> {
        use clap::FromArgMatches;
        let command = Self::augment_args(clap::Command::new("demo"));
        Self::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }
}

/// Says with an error how to come to it again.
fn with_seed(cut: Cut, seed: u64) -> Cut {
    match cut {
        Cut::Failed(text) => Cut::Failed(format!("{text}; to run it again: `--seed {seed}`")),
        stopped @ Cut::Stopped(_) => stopped,
    }
}

/// A bar on a terminal, gone when it is dropped.
struct Bar(ProgressBar);

impl Bar {
    fn new(options: &Options) -> Self {
        if options.json || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{wide_bar:.green} {pos}/{len} effects  {msg}  {elapsed}");
        let bar = ProgressBar::new(u64::from(options.messages));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

async fn watch<T: Target>(target: &T, bar: &ProgressBar) -> std::convert::Infallible {
    loop {
        if !bar.is_hidden()
            && let Ok(effects) = target.effects().await
        {
            bar.set_position(effects);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
