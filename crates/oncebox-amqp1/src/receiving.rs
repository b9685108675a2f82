//! One connection of a source: it attaches, hands over what comes and settles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fe2o3_amqp::Receiver;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::link::{DispositionError, RecvError};
use fe2o3_amqp_types::definitions::{AmqpError, Error as AmqpErrorInfo, ReceiverSettleMode};
use fe2o3_amqp_types::messaging::{Body, Message as AmqpMessage};
use fe2o3_amqp_types::primitives::Value;
use oncebox_core::{Error, Settle};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::config::Amqp1SourceConfig;
use crate::guard::Raw;
use crate::server::{Opened, Server};

/// How long saying goodbye may take.
pub(crate) const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What the connection hands to the source.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) info: DeliveryInfo,
    pub(crate) message: Result<Box<AmqpMessage<Body<Value>>>, Undecoded>,
}

/// A message that could not be read.
#[derive(Debug)]
pub(crate) struct Undecoded {
    /// What is wrong with it.
    pub(crate) wrong: String,
    /// All of it, as it came, unless the server wrote it in a way in which we do not find it.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// What the source tells the connection.
pub(crate) struct Settled {
    pub(crate) settled: Vec<(DeliveryInfo, Settle)>,
    /// Answered when the server is told.
    pub(crate) told: oneshot::Sender<()>,
}

pub(crate) struct Receiving {
    pub(crate) config: Arc<Amqp1SourceConfig>,
    pub(crate) server: Server,
    pub(crate) arrivals: mpsc::Sender<Arrived>,
    pub(crate) settled: mpsc::Receiver<Settled>,
    /// Set once the server lets us receive.
    pub(crate) attached: Arc<AtomicBool>,
}

impl Receiving {
    /// Serves a connection until it breaks or the source is gone.
    pub(crate) async fn serve(mut self) -> Error {
        let arrivals = self.arrivals.clone();
        let mut opened = tokio::select! {
            opened = self.server.open() => match opened {
                Ok(opened) => opened,
                Err(error) => return error,
            },
            () = arrivals.closed() => return self.server.error("the source is gone"),
        };
        let error = match attach(&self.server, self.config.connect_timeout, &mut opened).await {
            Ok(receiver) => {
                let mut link = Link { receiver, raw: opened.raw.clone(), unsettled: 0, returned: Vec::new() };
                self.attached.store(true, Ordering::Relaxed);
                let error = tokio::select! {
                    error = self.work(&mut link) => error,
                    () = arrivals.closed() => self.server.error("the source is gone"),
                };
                let _ = tokio::time::timeout(LEAVE_WITHIN, link.receiver.close()).await;
                error
            }
            Err(error) => error,
        };
        let _ = tokio::time::timeout(LEAVE_WITHIN, opened.close()).await;
        error
    }

    async fn work(&mut self, link: &mut Link) -> Error {
        loop {
            if let Err(error) = self.step(link).await {
                return error;
            }
        }
    }

    async fn step(&mut self, link: &mut Link) -> Result<(), Error> {
        // As much credit as keeps unsettled messages and those to come within `prefetch`. It counts from the last
        // message that was received, so asking again and again does not add up.
        let credit = self.config.prefetch.saturating_sub(link.unsettled);
        if link.receiver.credit() < credit.div_ceil(2) {
            let asked = link.receiver.set_credit(credit).await;
            asked.map_err(|error| self.server.caused("the connection failed", format!("{error:?}")))?;
        }
        let due_at = link.returned.iter().map(|(due_at, _)| *due_at).min();
        let due = async {
            match due_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            delivery = link.receiver.recv::<Body<Value>>() => {
                let (info, message) = match delivery {
                    Ok(delivery) => {
                        let (info, message) = delivery.into_parts();
                        (info, Ok(Box::new(message)))
                    }
                    Err(RecvError::MessageDecode(error)) => (error.info, Err(error.source.to_string())),
                    Err(error) => return Err(self.server.caused("the connection failed", error)),
                };
                let bytes = link.raw.take(info.delivery_id());
                let undecoded = |wrong| Undecoded { wrong, bytes };
                let arrived = Arrived { info, message: message.map_err(undecoded) };
                link.unsettled += 1;
                // There is room for `prefetch`, and never more on the way.
                let sent = self.arrivals.send(arrived).await;
                sent.map_err(|_| self.server.error("the source is gone"))
            }
            settled = self.settled.recv() => match settled {
                None => Err(self.server.error("the source is gone")),
                Some(Settled { settled, told }) => {
                    let done = link.settle(settled, Instant::now() + self.config.return_after).await;
                    done.map_err(|error| self.server.caused("settling failed", format!("{error:?}")))?;
                    let _ = told.send(());
                    Ok(())
                }
            },
            () = due => {
                let released = link.release_due().await;
                released.map_err(|error| self.server.caused("settling failed", format!("{error:?}")))
            }
        }
    }
}

/// Looks whether the server lets us receive. Gives no credit, so nothing comes.
pub(crate) async fn look(server: &Server, connect_timeout: Duration) -> Result<(), Error> {
    let mut opened = server.open().await?;
    let receiver = attach(server, connect_timeout, &mut opened).await?;
    let leaving = async {
        let _ = receiver.close().await;
        opened.close().await;
    };
    let _ = tokio::time::timeout(LEAVE_WITHIN, leaving).await;
    Ok(())
}

async fn attach(server: &Server, connect_timeout: Duration, opened: &mut Opened) -> Result<Receiver, Error> {
    let attaching = Receiver::builder()
        .name(format!("oncebox-{}", uuid::Uuid::now_v7()))
        .source(server.address.as_str())
        // First: our word settles. A lost one makes a duplicate, which we drop; waiting for the server's answer would
        // gain nothing.
        .receiver_settle_mode(ReceiverSettleMode::First)
        .credit_mode(CreditMode::Manual)
        .auto_accept(false)
        .attach(&mut opened.session);
    let receiver = tokio::time::timeout(connect_timeout, attaching).await;
    let receiver = receiver.map_err(|_| server.error("it did not answer within `connect_timeout`"))?;
    receiver.map_err(|error| server.caused("it does not let us receive", error))
}

struct Link {
    receiver: Receiver,
    raw: Raw,
    /// How many were received and not settled.
    unsettled: u32,
    /// Messages to be given back, and when: at once, the server would send them at once.
    returned: Vec<(Instant, DeliveryInfo)>,
}

impl Link {
    async fn settle(
        &mut self,
        settled: Vec<(DeliveryInfo, Settle)>,
        due_at: Instant,
    ) -> Result<(), DispositionError> {
        let (mut accepted, mut rejected) = (Vec::new(), Vec::new());
        for (info, settle) in settled {
            match settle {
                Settle::Accept => accepted.push(info),
                Settle::Return => self.returned.push((due_at, info)),
                Settle::Reject => rejected.push(info),
            }
        }
        let count = accepted.len() + rejected.len();
        if !accepted.is_empty() {
            self.receiver.accept_all(accepted).await?;
        }
        if !rejected.is_empty() {
            let why = Some("Oncebox cannot store this message".to_owned());
            let error = AmqpErrorInfo::new(AmqpError::NotAllowed, why, None);
            self.receiver.reject_all(rejected, error).await?;
        }
        self.done(count);
        Ok(())
    }

    async fn release_due(&mut self) -> Result<(), DispositionError> {
        let now = Instant::now();
        let due: Vec<_> =
            self.returned.extract_if(.., |(due_at, _)| *due_at <= now).map(|(_, info)| info).collect();
        let count = due.len();
        self.receiver.release_all(due).await?;
        self.done(count);
        Ok(())
    }

    fn done(&mut self, count: usize) {
        self.unsettled = self.unsettled.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
    }
}
