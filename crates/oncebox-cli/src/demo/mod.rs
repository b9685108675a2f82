//! `oncebox demo`: shows by running that nothing is lost and nothing is done twice.

mod feeder;
pub(crate) mod runner;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use oncebox::Store;
use oncebox::clock::Seed;
use serde::Serialize;

use crate::demo::feeder::{Feeder, Runner};
use crate::target::{MariaTarget, PgTarget, Place, SqliteTarget, Target};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many different messages.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    messages: u64,
    /// How often a process is killed with `kill -9`.
    #[arg(long, default_value_t = 10)]
    crashes: u64,
    /// How often a process is frozen for some seconds (SIGSTOP) and goes on, a zombie by then.
    #[arg(long, default_value_t = 0)]
    pauses: u64,
    /// Each message is delivered 1 to this many times.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    copies: u64,
    /// How many processes receive and handle.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Makes the same traffic and the same choice of victims again; random unless set.
    #[arg(long)]
    seed: Option<u64>,
    /// Another store than a temporary SQLite file: `sqlite:FILE`, `postgres://…` or `mysql://…` (MariaDB).
    #[arg(long)]
    store: Option<String>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    messages: u64,
    deliveries: u64,
    duplicates: u64,
    crashes: u64,
    effects: u64,
    lost: u64,
    doubled: u64,
    seconds: f64,
}

/// True when nothing was lost and nothing doubled.
pub(crate) async fn demo(options: Options) -> Result<bool, String> {
    let seed = options.seed.unwrap_or_else(|| Seed::from_system().next() % 1_000_000);
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder can be made: {error}"))?;
    let url = match &options.store {
        Some(url) => url.clone(),
        None => format!("sqlite:{}", folder.path().join("demo.db").display()),
    };
    let place = Place { url, schema: format!("oncebox_demo_{:x}", Seed::from_system().next() >> 20) };
    place.check()?;
    let report = if place.is_postgres() {
        demo_on::<PgTarget>(&options, &place, seed).await?
    } else if place.is_mariadb() {
        demo_on::<MariaTarget>(&options, &place, seed).await?
    } else {
        demo_on::<SqliteTarget>(&options, &place, seed).await?
    };
    let clean = report.lost == 0 && report.doubled == 0 && report.effects == report.messages;
    if options.json {
        println!("{}", serde_json::to_string(&report).map_err(|error| error.to_string())?);
    } else {
        print_report(&report, &options, &place, seed, clean);
    }
    Ok(clean)
}

async fn demo_on<T: Target>(options: &Options, place: &Place, seed: u64) -> Result<Report, String> {
    let target = T::open(place, 4).await?;
    target.create().await?;
    let result = storm(&target, options, place, seed).await;
    let removed = target.remove().await;
    let report = result?;
    removed?;
    Ok(report)
}

async fn storm<T: Target>(
    target: &T,
    options: &Options,
    place: &Place,
    seed_number: u64,
) -> Result<Report, String> {
    let seed = Seed::fixed(seed_number);
    let ids: Vec<String> = (1..=options.messages).map(|number| format!("order-{number}")).collect();
    let feeder = Feeder::new(&ids, options.copies, &seed);
    let started = Instant::now();
    let bar = progress_bar(options);
    let watcher = tokio::spawn(watch(target.clone(), bar.clone()));

    let mut storm = Storm { feeder: feeder.clone(), place, runners: Vec::new(), started: 0 };
    for _ in 0..options.processes {
        storm.start_runner()?;
    }
    let crashes = storm.strike(options, &seed, &bar).await?;
    settle(target, &mut storm).await?;
    storm.stop().await?;
    watcher.abort();
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    judge(target, &ids, feeder.deliveries(), crashes, seconds).await
}

/// The processes under way.
struct Storm<'a> {
    feeder: Arc<Feeder>,
    place: &'a Place,
    runners: Vec<Runner>,
    started: usize,
}

impl Storm<'_> {
    fn start_runner(&mut self) -> Result<(), String> {
        self.started += 1;
        self.runners.push(Runner::start(&self.feeder, self.place, self.started)?);
        Ok(())
    }

    /// Kills and freezes runners at even distances of the traffic; answers how many were killed.
    async fn strike(&mut self, options: &Options, seed: &Seed, bar: &ProgressBar) -> Result<u64, String> {
        let planned = self.feeder.planned();
        let strikes = options.crashes + options.pauses;
        let mut crashes = 0;
        for strike in 1..=strikes {
            let at = planned * strike / (strikes + 1);
            self.feeder.allow(at.max(1));
            self.alive_until(reached(self.feeder.clone(), at)).await?;
            // Somewhere between receiving, handling and acknowledging.
            tokio::time::sleep(Duration::from_millis(seed.next() % 40)).await;
            let victim = usize::try_from(seed.next()).unwrap_or(0) % self.runners.len();
            let pauses_left = options.pauses - (strike - 1 - crashes);
            let pause =
                pauses_left > 0 && (crashes == options.crashes || seed.next() % strikes < options.pauses);
            if pause {
                self.freeze(victim, Duration::from_millis(500 + seed.next() % 4000)).await?;
            } else {
                self.runners.swap_remove(victim).kill().await?;
                crashes += 1;
                self.start_runner()?;
            }
            bar.set_message(format!("{crashes} processes killed"));
        }
        self.feeder.allow(u64::MAX);
        let feeder = self.feeder.clone();
        self.alive_until(async move { feeder.finished().await }).await?;
        Ok(crashes)
    }

    async fn freeze(&mut self, victim: usize, time: Duration) -> Result<(), String> {
        self.runners[victim].signal(Signal::SIGSTOP)?;
        tokio::time::sleep(time).await;
        self.runners[victim].signal(Signal::SIGCONT)
    }

    /// Waits, but not for runners that have ended by themselves: that is an error of theirs.
    async fn alive_until(&mut self, done: impl Future<Output = ()>) -> Result<(), String> {
        tokio::pin!(done);
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                () = &mut done => return Ok(()),
                _ = tick.tick() => {
                    for runner in &mut self.runners {
                        if let Some(status) = runner.ended() {
                            return Err(format!("a runner ended by itself: {status}"));
                        }
                    }
                }
            }
        }
    }

    async fn stop(&mut self) -> Result<(), String> {
        for runner in self.runners.drain(..) {
            runner.stop().await?;
        }
        Ok(())
    }
}

/// Waits until every message is handled: nothing behind the cursor, no delivery with a row of its own.
async fn settle<T: Target>(target: &T, storm: &mut Storm<'_>) -> Result<(), String> {
    let patience = Duration::from_secs(120);
    let mut last = (0, Instant::now());
    loop {
        let effects = target.effects().await?;
        if effects != last.0 {
            last = (effects, Instant::now());
        }
        let handlers = target.store().handlers().await.map_err(|error| error.to_string())?;
        let open: u64 =
            handlers.iter().map(|one| one.waiting + one.retrying + one.held + one.scheduled).sum();
        if open == 0 && storm.feeder.is_finished() && !leased(target).await? {
            return Ok(());
        }
        if last.1.elapsed() > patience {
            return Err(format!(
                "no effect was added for {patience:?}, and {open} deliveries are still open"
            ));
        }
        storm.alive_until(tokio::time::sleep(Duration::from_millis(50))).await?;
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
    ids: &[String],
    deliveries: u64,
    crashes: u64,
    seconds: f64,
) -> Result<Report, String> {
    let counts: std::collections::HashMap<String, i64> = target.effects_by_id().await?.into_iter().collect();
    let messages = ids.len() as u64;
    Ok(Report {
        messages,
        deliveries,
        duplicates: deliveries.saturating_sub(messages),
        crashes,
        effects: target.effects().await?,
        lost: ids.iter().filter(|id| !counts.contains_key(*id)).count() as u64,
        doubled: counts.values().filter(|count| **count > 1).count() as u64,
        seconds: (seconds * 1000.0).round() / 1000.0,
    })
}

fn progress_bar(options: &Options) -> ProgressBar {
    if options.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40.green} {pos}/{len} effects  {msg}  {elapsed}");
    let bar = ProgressBar::new(options.messages);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

async fn watch<T: Target>(target: T, bar: ProgressBar) {
    loop {
        if let Ok(effects) = target.effects().await {
            bar.set_position(effects);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn print_report(report: &Report, options: &Options, place: &Place, seed: u64, clean: bool) {
    let store = place.store_name();
    let line = |name: &str, value: u64, note: &str| println!("  {name:<20}{:>12}   {note}", grouped(value));
    println!("\noncebox demo on {store}: {} processes, seed {seed}\n", options.processes);
    line("messages", report.messages, "");
    line("deliveries", report.deliveries, "what the at-least-once source handed over");
    line("duplicates dropped", report.duplicates, "");
    line("processes killed", report.crashes, "kill -9, at random moments");
    line("effects", report.effects, "rows in a table without a unique key");
    line("lost", report.lost, "");
    line("doubled", report.doubled, "");
    let verdict = if clean { "every message counted exactly once" } else { "NOT exactly once" };
    println!("\n  {verdict}, in {:.1} s\n", report.seconds);
}

/// 1234567 as 1,234,567.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

async fn reached(feeder: Arc<Feeder>, deliveries: u64) {
    feeder.reached(deliveries).await;
}
