//! Messages from a subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox_core::{Error, Incoming, Settle, Source};
use rumqttc::{AsyncClient, Publish, QoS};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::MqttSourceConfig;
use crate::delivery;
use crate::server::Server;
use crate::subscription::{Arrived, Ended, Subscription};

/// How long to stay away after somebody else took our client id, so that two processes do not chase each other.
const AFTER_TAKE_OVER: Duration = Duration::from_secs(5);
/// How long the server may take to accept acknowledgements before settling has failed.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);
/// Room for messages published with QoS 0, which the server sends without asking.
const ROOM: usize = 1000;

/// A subscription with a session that outlives the process, in which messages are acknowledged once they are committed.
///
/// It connects when it is first asked for messages, and again after a failure. Messages that were not acknowledged come
/// again on the next connection. With QoS 2 the first of the two acknowledgements waits for the commit: after it the
/// server forgets the message.
#[derive(Debug)]
pub struct MqttSource {
    name: String,
    config: Arc<MqttSourceConfig>,
    server: Server,
    link: Option<Link>,
    /// How many connections there were.
    connections: u64,
    /// Whether the server has told of a session in this process.
    had_session: bool,
    returned: Vec<Returned>,
    pause: Duration,
}

/// What is needed to acknowledge a message.
#[derive(Debug)]
pub struct MqttReceipt {
    /// Packet ids mean something on their own connection only.
    connection: u64,
    publish: Publish,
}

/// A message that could not be taken in. MQTT has no way to give it back, so it waits here, unacknowledged.
#[derive(Debug)]
struct Returned {
    due_at: Instant,
    receipt: MqttReceipt,
}

/// A connection and the task that serves it.
#[derive(Debug)]
struct Link {
    number: u64,
    client: AsyncClient,
    arrived: mpsc::Receiver<Arrived>,
    /// What was taken out of the channel while something else was waited for.
    aside: Vec<Arrived>,
    /// How many acknowledgements the task has written.
    written: watch::Receiver<u64>,
    asked: u64,
    subscribed: Arc<AtomicBool>,
    task: JoinHandle<Ended>,
}

impl MqttSource {
    /// A source of this name, which is also the scope of its message ids.
    ///
    /// Fails on settings that cannot work, naming the setting and the remedy. Connects later.
    pub fn new(name: impl Into<String>, config: MqttSourceConfig) -> Result<Self, Error> {
        let server = config.check()?;
        Ok(Self {
            name: name.into(),
            config: Arc::new(config),
            server,
            link: None,
            connections: 0,
            had_session: false,
            returned: Vec::new(),
            pause: Duration::ZERO,
        })
    }

    /// The connection there is, or a new one that is being made in the background.
    fn link(&mut self) -> Result<&mut Link, Error> {
        if self.link.is_none() {
            self.connections += 1;
            let room = usize::from(self.config.prefetch) + ROOM;
            let (arrivals, arrived) = mpsc::channel(room);
            let (count, written) = watch::channel(0);
            let subscribed = Arc::new(AtomicBool::new(false));
            let (subscription, client) = Subscription::new(
                self.config.clone(),
                self.server.clone(),
                arrivals,
                count,
                subscribed.clone(),
            )?;
            let task = tokio::spawn(subscription.serve(self.pause));
            self.link = Some(Link {
                number: self.connections,
                client,
                arrived,
                aside: Vec::new(),
                written,
                asked: 0,
                subscribed,
                task,
            });
        }
        Ok(self.link.as_mut().expect("it was just made"))
    }

    /// Takes note of what the server says about our session.
    fn session(&mut self, resumed: bool) {
        let (source, client_id) = (&self.name, &self.config.client_id);
        if resumed {
            // The server has what was not acknowledged, and sends it again.
            self.returned.retain(|returned| returned.receipt.publish.qos == QoS::AtMostOnce);
            tracing::info!(source, client_id, "the session at the MQTT server goes on");
        } else if self.had_session {
            tracing::error!(
                source,
                client_id,
                "the MQTT server has lost our session: what it had not delivered, and what was published until now, is \
                 gone; let it keep sessions on disk, and longer"
            );
        } else {
            tracing::warn!(
                source,
                client_id,
                "the MQTT server has no session for us: what was published before now does not come; expected on the \
                 first start"
            );
        }
        self.had_session = true;
    }

    fn take_due(&mut self, most: usize) -> Vec<MqttReceipt> {
        let now = Instant::now();
        let due = |returned: &mut Returned| returned.due_at <= now;
        self.returned.extract_if(.., due).take(most).map(|returned| returned.receipt).collect()
    }

    /// Tells the messages from what else arrived.
    fn sort(&mut self, connection: u64, arrived: Vec<Arrived>) -> Vec<MqttReceipt> {
        let mut receipts = Vec::with_capacity(arrived.len());
        for one in arrived {
            match one {
                Arrived::Session { resumed } => self.session(resumed),
                Arrived::Message(publish) => receipts.push(MqttReceipt { connection, publish }),
            }
        }
        receipts
    }

    fn read(&self, receipts: Vec<MqttReceipt>) -> Vec<Incoming<MqttReceipt>> {
        let topic_header = self.config.topic_header.as_deref();
        let read = |receipt: MqttReceipt| {
            let delivered = delivery::read(&receipt.publish, topic_header);
            Incoming::mapped(self.config.mapping.read(delivered), receipt)
        };
        receipts.into_iter().map(read).collect()
    }
}

impl Source for MqttSource {
    type Receipt = MqttReceipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<MqttReceipt>>, Error> {
        loop {
            let due = self.take_due(most);
            if !due.is_empty() {
                return Ok(self.read(due));
            }
            let due_at = self.returned.iter().map(|returned| returned.due_at).min();
            let wait = async {
                match due_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let link = self.link()?;
            let connection = link.number;
            let mut arrived: Vec<Arrived> = link.aside.drain(..most.min(link.aside.len())).collect();
            if arrived.is_empty() {
                tokio::select! {
                    _ = link.arrived.recv_many(&mut arrived, most) => {}
                    () = wait => continue,
                };
            }
            if arrived.is_empty() {
                let ended = (&mut link.task).await;
                self.link = None;
                let ended = ended.unwrap_or_else(|panic| {
                    Ended::from(self.server.error(&format!("the connection's task failed: {panic}")))
                });
                self.pause = if ended.taken_over { AFTER_TAKE_OVER } else { Duration::ZERO };
                return Err(ended.error);
            }
            let receipts = self.sort(connection, arrived);
            if !receipts.is_empty() {
                return Ok(self.read(receipts));
            }
        }
    }

    async fn settle(&mut self, settled: Vec<(MqttReceipt, Settle)>) -> Result<(), Error> {
        let due_at = Instant::now() + self.config.return_after;
        for (receipt, settle) in settled {
            match settle {
                Settle::Accept => {}
                Settle::Return => {
                    self.returned.push(Returned { due_at, receipt });
                    continue;
                }
                // The server has no place for dead letters: acknowledged, it would be gone.
                Settle::Reject => {
                    tracing::error!(
                        source = self.name,
                        topic = %String::from_utf8_lossy(&receipt.publish.topic),
                        "a message that cannot be stored stays unacknowledged at the MQTT server, and takes a place of \
                         `prefetch`"
                    );
                    continue;
                }
            }
            // On another connection its packet id is another message's; the server sends this one again.
            let Some(link) = self.link.as_mut().filter(|link| link.number == receipt.connection) else {
                continue;
            };
            let Some(ack) = link.client.prepare_ack(&receipt.publish) else { continue };
            // Fails when the connection is gone: then it comes again.
            if link.client.try_manual_ack(ack).is_ok() {
                link.asked += 1;
            }
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        match tokio::time::timeout(SETTLED_WITHIN, link.all_written()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.server.error("the connection ended before acknowledgements were written")),
            Err(_) => Err(self.server.error("acknowledgements could not be written in time")),
        }
    }

    fn connected(&self) -> Option<bool> {
        Some(
            self.link
                .as_ref()
                .is_some_and(|link| link.subscribed.load(Ordering::Relaxed) && !link.task.is_finished()),
        )
    }

    /// Does not subscribe: messages could come, and a session would be made.
    async fn check(&mut self) -> Result<Option<String>, Error> {
        self.server.look(&self.config.client_id).await?;
        Ok(Some(format!(
            "a server that lets us in; topic `{}` is not looked for",
            self.config.topic.join("`, `")
        )))
    }
}

impl Link {
    /// Waits until all acknowledgements are on their way; false when the connection ended before.
    ///
    /// A source that is dropped next would otherwise take with it what was never written.
    async fn all_written(&mut self) -> bool {
        let asked = self.asked;
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                written = self.written.wait_for(|written| *written >= asked) => return written.is_ok(),
                // The task may be waiting for room before it can write.
                count = self.arrived.recv_many(&mut self.aside, ROOM), if open => open = count > 0,
            }
        }
    }
}
