//! The measurements: each round measures everything once, on fresh tables and queues, what is compared next to each
//! other.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use indicatif::ProgressBar;
use oncebox::store::{Commit, TxLimits};
use oncebox::{Counter, Inbox, Message, Sink, Store, run};
use tokio::sync::oneshot;

use crate::bench::brokers::broker::Broker;
use crate::bench::brokers::report::{BrokerReport, Client, Ratios, WithBroker};
use crate::bench::brokers::watched::Watched;
use crate::bench::measure::{
    BATCH, Plan, batch_inbox, fresh_tables, median, messages, progress_bar, rate, receive, text,
};
use crate::bench::yard::Yard;
use crate::target::{MariaTarget, PgTarget, Place, SqliteTarget};

/// What a relay hands to its sink at once unless told otherwise.
const RELAY_BATCH: usize = 500;
/// How long one measurement may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// How many measurements a round has.
const STEPS: u64 = 6;
/// The kind that the set-based handler wants.
const KIND: &str = "set";

/// Measures a broker with whichever store is at this place.
pub(crate) fn with_store<'a, B: Broker>(
    url: &'a str,
    place: &'a Place,
    plan: &'a Plan,
) -> BoxFuture<'a, Result<BrokerReport, String>> {
    if place.is_postgres() {
        all::<B, PgTarget>(url, place, plan).boxed()
    } else if place.is_mariadb() {
        all::<B, MariaTarget>(url, place, plan).boxed()
    } else {
        all::<B, SqliteTarget>(url, place, plan).boxed()
    }
}

async fn all<B: Broker, T: Yard>(url: &str, place: &Place, plan: &Plan) -> Result<BrokerReport, String> {
    let broker = B::open(url).await?;
    let bar = progress_bar(plan, plan.rounds * STEPS);
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let yard: T = fresh_tables(place).await?;
        let prefix = format!("{}_{number}", place.schema);
        let round = Bench { broker: &broker, yard: &yard, plan, bar: &bar, prefix }.round().await;
        let removed = yard.remove().await;
        rounds.push(round?);
        removed?;
    }
    bar.finish_and_clear();
    let median = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick));
    // A ratio is taken within its round, where both were measured next to each other.
    let ratio = |pick: fn(&Round) -> f64| (median(pick) * 1000.0).round() / 1000.0;
    Ok(BrokerReport {
        broker: B::NAME.to_owned(),
        store: place.store_name().to_ascii_lowercase(),
        messages: plan.messages,
        client: Client {
            consume: median(|round| round.consume).round(),
            publish: median(|round| round.publish).round(),
        },
        oncebox: WithBroker {
            ingest_batch: median(|round| round.ingest_batch).round(),
            source_to_stored: median(|round| round.source_to_stored).round(),
            source_to_effect: median(|round| round.source_to_effect).round(),
            outbox_to_confirmed: median(|round| round.outbox_to_confirmed).round(),
        },
        ratios: Ratios {
            source_to_stored: ratio(|round| round.source_to_stored / round.consume.min(round.ingest_batch)),
            outbox_to_confirmed: ratio(|round| round.outbox_to_confirmed / round.publish),
        },
    })
}

#[derive(Debug, Default)]
struct Round {
    consume: f64,
    publish: f64,
    ingest_batch: f64,
    source_to_stored: f64,
    source_to_effect: f64,
    outbox_to_confirmed: f64,
}

/// A measurement that has a queue of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Consume,
    Publish,
    SourceToStored,
    SourceToEffect,
    OutboxToConfirmed,
}

impl Step {
    /// The end of the queue's name.
    fn name(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Publish => "publish",
            Self::SourceToStored => "stored",
            Self::SourceToEffect => "effect",
            Self::OutboxToConfirmed => "outbox",
        }
    }
}

struct Bench<'a, B, T> {
    broker: &'a B,
    yard: &'a T,
    plan: &'a Plan,
    bar: &'a ProgressBar,
    prefix: String,
}

impl<B: Broker, T: Yard> Bench<'_, B, T> {
    async fn round(&self) -> Result<Round, String> {
        // The handler is known to the store before the first message comes.
        run(self.handled()).drain().await.map_err(text)?;
        Ok(Round {
            ingest_batch: self.ingest_batch().await?,
            source_to_stored: self.on_fresh_queue(Step::SourceToStored).await?,
            consume: self.on_fresh_queue(Step::Consume).await?,
            source_to_effect: self.on_fresh_queue(Step::SourceToEffect).await?,
            publish: self.on_fresh_queue(Step::Publish).await?,
            outbox_to_confirmed: self.on_fresh_queue(Step::OutboxToConfirmed).await?,
        })
    }

    async fn on_fresh_queue(&self, step: Step) -> Result<f64, String> {
        let queue = format!("{}_{}", self.prefix, step.name());
        self.broker.create(&queue).await?;
        let result = match step {
            Step::Consume => self.consume(&queue).await,
            Step::Publish => self.publish(&queue).await,
            Step::SourceToStored => self.source_to_stored(&queue).await,
            Step::SourceToEffect => self.source_to_effect(&queue).await,
            Step::OutboxToConfirmed => self.outbox_to_confirmed(&queue).await,
        };
        let removed = self.broker.remove(&queue).await;
        let result = result?;
        removed?;
        Ok(result)
    }

    async fn ingest_batch(&self) -> Result<f64, String> {
        self.step("ingest");
        let (inbox, messages) = (self.storing(), self.messages("ingest"));
        rate(messages.len(), receive(&inbox, &messages)).await
    }

    async fn consume(&self, queue: &str) -> Result<f64, String> {
        self.step("client, consume");
        let count = self.fill(queue).await?;
        let took = within(self.broker.consume(queue, count), || "the client got too few messages".to_owned());
        Ok(count as f64 / took.await??.as_secs_f64())
    }

    async fn publish(&self, queue: &str) -> Result<f64, String> {
        self.step("client, publish");
        let messages = self.messages("publish");
        rate(messages.len(), async {
            for batch in messages.chunks(RELAY_BATCH) {
                self.broker.publish(queue, batch).await?;
            }
            Ok(())
        })
        .await
    }

    /// From the first message that came to the acknowledgement of the last.
    async fn source_to_stored(&self, queue: &str) -> Result<f64, String> {
        self.step("source to stored");
        let count = self.fill(queue).await?;
        let (source, progress) = Watched::new(self.broker.source(queue)?);
        let inbox = self.storing();
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = run(inbox.clone()).consume(source).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        let runner = tokio::spawn(runner.into_future());
        let missing = || format!("{} of {count} messages were stored{}", progress.accepted(), why(&inbox));
        let stored = within(progress.all_accepted(count), missing).await;
        let took = progress.since_first();
        let _ = stop.send(());
        runner.await.map_err(text)?.map_err(text)?;
        stored?;
        Ok(count as f64 / took.as_secs_f64())
    }

    /// From the first message that came to the commit of the last effect.
    async fn source_to_effect(&self, queue: &str) -> Result<f64, String> {
        self.step("source to effect");
        let count = self.fill(queue).await?;
        // What other measurements have stored is not what is counted here.
        run(self.handled()).drain().await.map_err(text)?;
        let (source, progress) = Watched::new(self.broker.source(queue)?);
        let inbox = self.handled();
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = run(inbox.clone()).consume(source).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        let runner = tokio::spawn(runner.into_future());
        let done = counted(&inbox, "bench-batch", Counter::Done, count).await;
        let took = progress.since_first();
        let _ = stop.send(());
        runner.await.map_err(text)?.map_err(text)?;
        done?;
        Ok(count as f64 / took.as_secs_f64())
    }

    /// From the start of the runner to the removal of the last row from the outbox.
    async fn outbox_to_confirmed(&self, queue: &str) -> Result<f64, String> {
        self.step("outbox to confirmed");
        let messages = self.messages("outbox");
        let store = self.yard.store();
        // Broker and store are connected and have their statements ready, as the client is before it is measured.
        self.publish_outgoing(&self::messages(KIND, "warm", 4 * RELAY_BATCH)).await?;
        run(Inbox::new(store.clone())).relay(self.broker.sink(queue)?).drain().await.map_err(text)?;
        let sink = self.broker.sink(queue)?;
        for answer in sink.send(&self::messages(KIND, "first", 1)).await.map_err(text)? {
            answer.map_err(|failure| format!("the broker did not take a message: {failure:?}"))?;
        }
        self.publish_outgoing(&messages).await?;
        let inbox = Inbox::new(store);
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = run(inbox.clone()).relay(sink).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        let started = Instant::now();
        let runner = tokio::spawn(runner.into_future());
        let sent = counted(&inbox, "", Counter::Sent, messages.len()).await;
        let took = started.elapsed();
        let _ = stop.send(());
        runner.await.map_err(text)?.map_err(text)?;
        sent?;
        Ok(messages.len() as f64 / took.as_secs_f64())
    }

    async fn publish_outgoing(&self, messages: &[Message]) -> Result<(), String> {
        let store = self.yard.store();
        for batch in messages.chunks(BATCH) {
            let limits = TxLimits { statement: Duration::from_secs(30) };
            let tx = store.begin_plain(limits).await.map_err(text)?;
            let commit = Commit { outgoing: batch.to_vec(), ..Commit::default() };
            store.commit(tx, commit).await.map_err(text)?;
        }
        Ok(())
    }

    /// An inbox of a process that only takes in.
    fn storing(&self) -> Inbox<T::Store> {
        Inbox::new(self.yard.store())
    }

    fn handled(&self) -> Inbox<T::Store> {
        batch_inbox(self.yard, KIND)
    }

    fn messages(&self, name: &str) -> Vec<Message> {
        messages(KIND, name, self.plan.messages)
    }

    /// Puts messages into a queue that no other measurement has; answers how many.
    async fn fill(&self, queue: &str) -> Result<usize, String> {
        let messages = self.messages(queue);
        for batch in messages.chunks(RELAY_BATCH) {
            self.broker.publish(queue, batch).await?;
        }
        Ok(messages.len())
    }

    fn step(&self, name: &'static str) {
        self.bar.set_message(name);
        self.bar.inc(1);
    }
}

/// Waits until this process has counted so many.
async fn counted<St: Store>(
    inbox: &Inbox<St>,
    name: &str,
    counter: Counter,
    count: usize,
) -> Result<(), String> {
    let enough = i64::try_from(count).map_err(text)?;
    let counting = async {
        while inbox.counters().get(name, counter) < enough {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let have = || inbox.counters().get(name, counter);
    within(counting, || format!("{} of {count} messages were {}{}", have(), counter.as_str(), why(inbox)))
        .await
}

/// The last error of a source, to be put behind a message.
fn why<St: Store>(inbox: &Inbox<St>) -> String {
    let error = inbox.sources().into_iter().find_map(|status| status.error);
    error.map(|error| format!(": {error}")).unwrap_or_default()
}

async fn within<R>(work: impl Future<Output = R>, late: impl Fn() -> String) -> Result<R, String> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| format!("{} within {PATIENCE:?}", late()))
}
