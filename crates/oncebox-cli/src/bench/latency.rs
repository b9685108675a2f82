//! How long a message takes from `receive` to its visible effect, when there is nothing else to do.

use std::time::{Duration, Instant};

use oncebox::clock::Seed;
use oncebox::{Inbox, run};
use tokio::sync::oneshot;

use crate::bench::measure::{messages, single_inbox, text};
use crate::bench::report::Latency;
use crate::bench::yard::Yard;
use crate::target::Place;

/// How many times it is measured.
const LATENCIES: usize = 200;

/// One message at a time into an idle runner of another process's making: its own pool, woken by hints only.
pub(crate) async fn measure<T: Yard>(place: &Place, yard: &T) -> Result<Latency, String> {
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
    let seed = Seed::fixed(1);
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
        // Idle means idle: the runner has gone to sleep again, and no hint is being held back. Not always as long: where
        // runners look at even distances, the next message would always come just after they did.
        tokio::time::sleep(Duration::from_micros(15_000 + seed.next() % 20_000)).await;
    }
    let _ = stop.send(());
    runner.await.map_err(text)?.map_err(text)?;
    // The first ones warm up connections and prepared statements.
    let mut times = times.split_off(20);
    times.sort_by(f64::total_cmp);
    let round = |value: f64| (value * 100.0).round() / 100.0;
    Ok(Latency { p50: round(times[times.len() / 2]), p99: round(times[times.len() * 99 / 100]) })
}
