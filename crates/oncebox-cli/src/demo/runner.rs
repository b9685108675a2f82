//! One process of the demo, a runner: messages come in on stdin, acknowledgements go out on stdout.
//!
//! It may be killed at any instant; whoever feeds it then delivers what it has not acknowledged to another one.

use std::time::Duration;

use clap::Args;
use oncebox::{Error, ErrorKind, Failure, Inbox, Incoming, Message, Settle, Source, Store, Tx, handler, run};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};

use crate::target::{MariaTarget, PgTarget, Place, SqliteTarget, Target};

/// How often the store is tried.
const TRIES: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long)]
    store: String,
    #[arg(long, default_value = "oncebox")]
    schema: String,
    /// The handler's, after which the server ends a silent transaction.
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

/// Works until stdin ends, then finishes what it has begun.
pub(crate) async fn work(options: Options) -> Result<(), String> {
    let timeout = Duration::from_secs(options.timeout);
    let place = Place { url: options.store, schema: options.schema };
    if place.is_postgres() {
        work_on::<PgTarget>(place, timeout).await
    } else if place.is_mariadb() {
        work_on::<MariaTarget>(place, timeout).await
    } else {
        work_on::<SqliteTarget>(place, timeout).await
    }
}

async fn work_on<T: Target>(place: Place, timeout: Duration) -> Result<(), String> {
    let target = open::<T>(&place).await?;
    let record = move |mut tx: Tx<<T::Store as Store>::Connection>, message: Message| {
        let place = place.clone();
        async move {
            T::insert_effect(&mut tx, &place, &message.id).await?;
            Ok::<(), Failure>(())
        }
    };
    // Small transactions, so that a kill finds one under way as often as not.
    let record = handler("record", record).batch(50).timeout(timeout);
    let inbox = Inbox::new(target.store()).on("order.placed", record);
    let (ended, stdin_ended) = oneshot::channel();
    run(inbox)
        .consume(PipeSource::start(ended))
        .concurrency(2)
        .with_graceful_shutdown(async move {
            let _ = stdin_ended.await;
        })
        .await
        .map_err(|error| error.to_string())
}

/// Tries again when the server does not answer in time: others have opened the store, so it is there, but busy.
async fn open<T: Target>(place: &Place) -> Result<T, String> {
    for _ in 1..TRIES {
        if let Ok(target) = T::open(place, 6).await {
            return Ok(target);
        }
    }
    T::open(place, 6).await
}

/// Reads `RECEIPT ID` lines and writes `ack RECEIPT…` or `return RECEIPT…` lines.
struct PipeSource {
    lines: mpsc::Receiver<Incoming<u64>>,
}

impl PipeSource {
    fn start(ended: oneshot::Sender<()>) -> Self {
        let (sender, lines) = mpsc::channel(1000);
        tokio::spawn(async move {
            let mut stdin = BufReader::new(tokio::io::stdin()).lines();
            while let Ok(Some(line)) = stdin.next_line().await {
                let Some((receipt, id)) = line.split_once(' ') else { continue };
                let Ok(receipt) = receipt.parse() else { continue };
                let message = Message::new("order.placed", format!("{{\"order\":\"{id}\"}}")).id(id);
                if sender.send(Incoming::new(message, receipt)).await.is_err() {
                    break;
                }
            }
            let _ = ended.send(());
        });
        Self { lines }
    }
}

impl Source for PipeSource {
    type Receipt = u64;

    fn name(&self) -> &str {
        "demo"
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<u64>>, Error> {
        let mut incoming = Vec::new();
        self.lines.recv_many(&mut incoming, most).await;
        Ok(incoming)
    }

    async fn settle(&mut self, settled: Vec<(u64, Settle)>) -> Result<(), Error> {
        let mut text = String::new();
        for (receipt, settle) in settled {
            let word = if settle == Settle::Accept { "ack" } else { "return" };
            text.push_str(&format!("{word} {receipt}\n"));
        }
        let mut stdout = tokio::io::stdout();
        let written = async {
            stdout.write_all(text.as_bytes()).await?;
            stdout.flush().await
        };
        written.await.map_err(|error| Error::caused(ErrorKind::Unavailable, "the feeder is gone", error))
    }
}
