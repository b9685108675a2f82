//! `oncebox bench --http`: what the service can do, beside the library and the database alone.
//!
//! The service is this same binary as a process of its own, so that its memory can be read. Client, service and
//! database share the machine, as they do in the other measurements.

mod connection;
mod report;
mod service;

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use oncebox::{Inbox, Message};
use sqlx::Connection as _;

use crate::bench::measure::{BATCH, Plan, fresh_tables, median, messages, progress_bar, receive, rows};
use crate::bench::yard::{Driver, Row, Yard};
use crate::target::Place;
use connection::Connection;
use report::{Figures, Library, Mebibytes, Milliseconds, Ratios};
use service::Service;

pub(crate) use report::HttpReport;

/// How many connections post single messages.
const SINGLES: usize = 64;
/// How many connections post batches: while one is stored, the next is read.
const BATCHES: usize = 4;
/// How often each is measured in a round.
const TURNS: usize = 5;
const KIND: &str = "bench.posted";
/// How long the memory is watched until it is called at rest.
const REST: Duration = Duration::from_secs(1);

/// Measures everything and removes its tables again.
pub(crate) async fn all<T: Yard>(place: &Place, plan: &Plan, waiting: usize) -> Result<HttpReport, String> {
    let bar = progress_bar(plan, plan.rounds * (TURNS as u64 + 1) + waiting.div_ceil(BATCH) as u64);
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        rounds.push(
            on_a_service::<T, _>(place, async |service| round::<T>(place, &service, plan, &bar).await)
                .await?,
        );
    }
    let full = on_a_service::<T, _>(place, async |service| fill(place, service, waiting, &bar).await).await?;
    bar.finish_and_clear();
    let binary =
        std::env::current_exe().and_then(|path| path.metadata()).map_err(|error| error.to_string())?;
    let of = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick));
    let rest: Option<Vec<f64>> = rounds.iter().map(|round| round.rest).collect();
    Ok(HttpReport {
        store: place.store_name().to_ascii_lowercase(),
        messages: plan.messages,
        waiting,
        commit: of(|round| round.commit).round(),
        library: Library { ingest_batch: of(|round| round.library).round() },
        http: Figures { single: of(|round| round.single).round(), ndjson: of(|round| round.ndjson).round() },
        ratios: Ratios {
            ndjson_to_library: hundredth(of(|round| round.ndjson / round.library)),
            single_to_commit: hundredth(of(|round| round.single / round.commit)),
        },
        memory_mib: Mebibytes {
            rest: rest.map(|rest| median(rest.into_iter())),
            waiting: full.waiting,
            waiting_restarted: full.restarted,
        },
        start_ms: Milliseconds { empty: of(|round| round.start).round(), waiting: full.start.round() },
        binary_mib: hundredth(binary.len() as f64 / 1024.0 / 1024.0),
    })
}

fn hundredth(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// One service on tables of its own, which are removed when it has ended.
async fn on_a_service<T: Yard, R>(
    place: &Place,
    work: impl AsyncFnOnce(Service) -> Result<R, String>,
) -> Result<R, String> {
    let own = own_place(place);
    let result = match Service::start(&own).await {
        Ok(service) => work(service).await,
        Err(error) => Err(error),
    };
    let removed = match T::open(&own, 1).await {
        Ok(target) => target.remove().await,
        Err(error) => Err(error),
    };
    let result = result?;
    removed?;
    Ok(result)
}

/// Where the service stores, beside the tables of the library.
pub(crate) fn own_place(place: &Place) -> Place {
    let url = match place.url.strip_prefix("sqlite:") {
        Some(file) => format!("sqlite:{file}-http"),
        None => place.url.clone(),
    };
    Place { url, schema: format!("{}_http", place.schema) }
}

struct Round {
    start: f64,
    rest: Option<f64>,
    commit: f64,
    single: f64,
    library: f64,
    ndjson: f64,
}

async fn round<T: Yard>(
    place: &Place,
    service: &Service,
    plan: &Plan,
    bar: &ProgressBar,
) -> Result<Round, String> {
    let step = |name: &'static str| {
        bar.set_message(name);
        bar.inc(1);
    };
    step("at rest");
    let rest = service.memory_at_rest(REST).await;
    let yard: T = fresh_tables(place).await?;
    let measured: Result<Round, String> = async {
        let inbox = Inbox::new(yard.store());
        receive(&inbox, &messages(KIND, "warm", 1)).await?;

        let mut sums = Sums::default();
        let mut connection = yard.connect().await.map_err(|error| error.to_string())?;
        // In turns, so that a machine that is busy for a moment is so for all of them.
        for turn in 0..TURNS {
            step("bare commits, single posts, library, batches");
            let count = plan.messages.div_ceil(TURNS);
            // Each commit waits for the disk, so a part of the messages is enough.
            let few = rows(&format!("commit{turn}"), (count / 10).clamp(50, 1000));
            sums.commit.add(few.len(), commits(&yard, &mut connection, &few)).await?;
            let own = messages(KIND, &format!("single{turn}"), count);
            let ready = singles(service, &own).await?;
            sums.single.add(count, post_all(ready, 202)).await?;
            let own = messages(KIND, &format!("library{turn}"), count);
            sums.library.add(count, receive(&inbox, &own)).await?;
            let own = messages(KIND, &format!("batch{turn}"), count);
            let ready = batches(service, &own).await?;
            sums.ndjson.add(count, post_all(ready, 207)).await?;
        }
        connection.close().await.map_err(|error| error.to_string())?;
        let Sums { commit, single, library, ndjson } = sums;
        let (commit, single) = (commit.rate(), single.rate());
        let (library, ndjson) = (library.rate(), ndjson.rate());
        Ok(Round { start: service.start_ms, rest, commit, single, library, ndjson })
    }
    .await;
    let removed = yard.remove().await;
    let measured = measured?;
    removed?;
    Ok(measured)
}

/// What was done, and the time it took.
#[derive(Default)]
struct Sum {
    count: usize,
    time: Duration,
}

#[derive(Default)]
struct Sums {
    commit: Sum,
    single: Sum,
    library: Sum,
    ndjson: Sum,
}

impl Sum {
    async fn add(
        &mut self,
        count: usize,
        work: impl Future<Output = Result<(), String>>,
    ) -> Result<(), String> {
        let started = Instant::now();
        work.await?;
        self.time += started.elapsed();
        self.count += count;
        Ok(())
    }

    fn rate(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

async fn commits<T: Yard>(yard: &T, connection: &mut Driver<T>, rows: &[Row]) -> Result<(), String> {
    for row in rows {
        yard.recipe_ingest(connection, row).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

type Ready = Vec<(Connection, Vec<Vec<u8>>)>;

/// One message per request, on many connections that stay open.
async fn singles(service: &Service, messages: &[Message]) -> Result<Ready, String> {
    let mut ready = Vec::new();
    for own in messages.chunks(messages.len().div_ceil(SINGLES)) {
        let requests: Vec<Vec<u8>> = own.iter().map(connection::single).collect();
        ready.push((Connection::open(service.address).await?, requests));
    }
    Ok(ready)
}

/// Many messages per request.
async fn batches(service: &Service, messages: &[Message]) -> Result<Ready, String> {
    let mut ready = Vec::new();
    for _ in 0..BATCHES {
        ready.push((Connection::open(service.address).await?, Vec::new()));
    }
    for (number, own) in messages.chunks(BATCH).enumerate() {
        ready[number % BATCHES].1.push(connection::batch(own));
    }
    Ok(ready)
}

/// Posts each connection's requests one after the other, all connections at the same time.
async fn post_all(ready: Ready, expected: u16) -> Result<(), String> {
    let all = ready.into_iter().map(|(mut connection, requests)| async move {
        let posting = tokio::spawn(async move {
            for request in requests {
                connection.post(&request, expected).await?;
            }
            Ok::<(), String>(())
        });
        posting.await.map_err(|error| error.to_string())?
    });
    try_join_all(all).await.map(|_| ())
}

struct Full {
    waiting: Option<f64>,
    start: f64,
    restarted: Option<f64>,
}

/// Many messages that wait for a paused handler.
async fn fill(place: &Place, service: Service, waiting: usize, bar: &ProgressBar) -> Result<Full, String> {
    bar.set_message("waiting messages");
    let mut connection = Connection::open(service.address).await?;
    let mut stored = 0;
    while stored < waiting {
        let count = BATCH.min(waiting - stored);
        let own = messages(KIND, &format!("waiting{stored}"), count);
        connection.post(&connection::batch(&own), 207).await?;
        stored += count;
        bar.inc(1);
    }
    let memory = service.memory_at_rest(REST).await;
    service.stop().await?;
    let again = Service::start(&own_place(place)).await?;
    let (start, restarted) = (again.start_ms, again.memory_at_rest(REST).await);
    again.stop().await?;
    Ok(Full { waiting: memory, start, restarted })
}
