//! Messages from a queue or a subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryInfo;
use oncebox_core::{Error, Incoming, Message, Settle, Source};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::config::Amqp1SourceConfig;
use crate::delivery;
use crate::receiving::{self, Arrived, Receiving, Settled, Undecoded};
use crate::server::Server;

/// How long telling the server may take before settling has failed.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// A link to a queue or a subscription, on which messages are settled once they are committed.
///
/// It connects when it is first asked for messages, and again after a failure. Messages that were not settled come again.
#[derive(Debug)]
pub struct Amqp1Source {
    name: String,
    config: Arc<Amqp1SourceConfig>,
    server: Server,
    link: Option<Link>,
    /// How many connections there were.
    connections: u64,
}

/// What is needed to settle a message.
#[derive(Debug)]
pub struct Amqp1Receipt {
    /// Deliveries mean something on their own connection only.
    connection: u64,
    info: DeliveryInfo,
    /// It could not be decoded, so the server is to put it aside.
    undecoded: bool,
}

/// A connection and the task that serves it; the task says goodbye by itself when the channels close.
#[derive(Debug)]
struct Link {
    number: u64,
    arrived: mpsc::Receiver<Arrived>,
    settled: mpsc::Sender<Settled>,
    attached: Arc<AtomicBool>,
    task: JoinHandle<Error>,
}

impl Amqp1Source {
    /// A source of this name, which is also the scope of its message ids.
    ///
    /// Fails on settings that cannot work, naming the setting and the remedy. Connects later.
    pub fn new(name: impl Into<String>, config: Amqp1SourceConfig) -> Result<Self, Error> {
        let server = config.check()?;
        Ok(Self { name: name.into(), config: Arc::new(config), server, link: None, connections: 0 })
    }

    /// The connection there is, or a new one that is being made in the background.
    fn link(&mut self) -> &mut Link {
        let Self { config, server, connections, .. } = self;
        self.link.get_or_insert_with(|| {
            *connections += 1;
            let room = usize::try_from(config.prefetch).unwrap_or(usize::MAX).min(100_000);
            let (arrivals, arrived) = mpsc::channel(room);
            let (settled, to_settle) = mpsc::channel(1);
            let attached = Arc::new(AtomicBool::new(false));
            let receiving = Receiving {
                config: config.clone(),
                server: server.clone(),
                arrivals,
                settled: to_settle,
                attached: attached.clone(),
            };
            let task = tokio::spawn(receiving.serve());
            Link { number: *connections, arrived, settled, attached, task }
        })
    }

    fn read(&self, connection: u64, arrived: Arrived) -> Incoming<Amqp1Receipt> {
        let Arrived { info, message } = arrived;
        match message {
            Ok(message) => {
                let (delivered, wrong) = delivery::read(*message, &self.server.address);
                let mut incoming = Incoming::mapped(
                    self.config.mapping.read(delivered),
                    Amqp1Receipt { connection, info, undecoded: false },
                );
                incoming.fault =
                    [wrong, incoming.fault].into_iter().flatten().reduce(|a, b| format!("{a}; {b}"));
                incoming
            }
            Err(Undecoded { wrong, bytes }) => {
                let kept =
                    if bytes.is_some() { "all of it is kept as it came" } else { "its bytes are not known" };
                let mut message = Message::with_id(String::new(), String::new(), bytes.unwrap_or_default());
                if message.payload.is_empty() {
                    // So that another one without bytes is not the same one.
                    message.headers.push("delivery-tag", info.delivery_tag().to_vec());
                }
                let mut incoming = Incoming::new(message, Amqp1Receipt { connection, info, undecoded: true });
                incoming.fault = Some(format!(
                    "it is no AMQP message that can be read ({wrong}); {kept}, and the server was told that it is rejected"
                ));
                incoming
            }
        }
    }
}

impl Source for Amqp1Source {
    type Receipt = Amqp1Receipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<Amqp1Receipt>>, Error> {
        let link = self.link();
        let connection = link.number;
        let mut arrived = Vec::new();
        if link.arrived.recv_many(&mut arrived, most).await == 0 {
            let ended = (&mut link.task).await;
            self.link = None;
            let panicked = |panic| self.server.caused("the connection's task failed", panic);
            return Err(ended.unwrap_or_else(panicked));
        }
        Ok(arrived.into_iter().map(|one| self.read(connection, one)).collect())
    }

    async fn settle(&mut self, settled: Vec<(Amqp1Receipt, Settle)>) -> Result<(), Error> {
        let Some(link) = &self.link else { return Ok(()) };
        // What came on another connection comes again.
        let ours = settled.into_iter().filter(|(receipt, _)| receipt.connection == link.number);
        let settled: Vec<_> = ours
            .map(|(receipt, settle)| match settle {
                Settle::Accept if receipt.undecoded => (receipt.info, Settle::Reject),
                settle => (receipt.info, settle),
            })
            .collect();
        if settled.is_empty() {
            return Ok(());
        }
        let (told, was_told) = oneshot::channel();
        let telling = async {
            link.settled.send(Settled { settled, told }).await.ok()?;
            was_told.await.ok()
        };
        match tokio::time::timeout(SETTLED_WITHIN, telling).await {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(self.server.error("the connection ended before messages were settled")),
            Err(_) => Err(self.server.error("messages could not be settled in time")),
        }
    }

    fn connected(&self) -> Option<bool> {
        Some(
            self.link
                .as_ref()
                .is_some_and(|link| link.attached.load(Ordering::Relaxed) && !link.task.is_finished()),
        )
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        receiving::look(&self.server, self.config.connect_timeout).await?;
        Ok(Some(format!("address `{}`, which lets us receive", self.server.address)))
    }
}
