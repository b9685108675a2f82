//! Messages of a durable consumer.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subject;
use async_nats::connection::State;
use bytes::Bytes;
use futures_util::future::join_all;
use oncebox_core::{Error, ErrorKind, Incoming, Settle, Source};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::config::NatsSourceConfig;
use crate::held::{Taken, Waiting};
use crate::session::{self, Session};

/// How long acknowledgements may take to leave, or to be confirmed.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

const ACCEPT: Bytes = Bytes::from_static(b"+ACK");
const REJECT: Bytes = Bytes::from_static(b"+TERM");

/// Messages of a durable pull consumer of a JetStream stream.
///
/// It connects when the first message is asked for, and again after every failure. While messages are held, a task of
/// its own tells the server that they are in progress, so they do not come again while the store is away.
///
/// An acknowledgement that is lost, or comes too late, only makes a duplicate. One that comes so late that the server
/// has delivered the message again, to somebody else, is no danger either: it names the message's place in the
/// stream, and it is sent only after this very message was stored. Acknowledgements for a stream or consumer that was
/// deleted and created again are not sent, because there the same place is another message.
#[derive(Debug)]
pub struct NatsSource {
    name: String,
    config: NatsSourceConfig,
    session: Option<Session>,
    /// Connects in a task, so that nothing is begun anew when [`Source::next`] is dropped.
    opening: Option<JoinHandle<Result<Session, Error>>>,
    after_loss: bool,
}

/// What a [`NatsSource`] needs to settle a message.
#[derive(Debug)]
pub struct NatsReceipt {
    number: u64,
    reply: Subject,
    lineage: Arc<str>,
}

impl NatsSource {
    /// A source of this name; fails on settings that can never work.
    pub fn new(name: impl Into<String>, config: NatsSourceConfig) -> Result<Self, Error> {
        let name = name.into();
        config.check().map_err(|error| Error::invalid(format!("source `{name}`: {error}")))?;
        Ok(Self { name, config, session: None, opening: None, after_loss: false })
    }

    async fn session(&mut self) -> Result<&Session, Error> {
        if self.session.is_none() {
            let opening = self
                .opening
                .get_or_insert_with(|| tokio::spawn(Session::open(self.config.clone(), self.after_loss)));
            let opened = opening.await;
            self.opening = None;
            let opened = opened.map_err(|error| {
                Error::caused(ErrorKind::Unavailable, "connecting to NATS ended unexpectedly", error)
            })?;
            self.session = Some(opened?);
            self.after_loss = false;
        }
        Ok(self.session.as_ref().expect("it was opened above"))
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        if let Some(opening) = self.opening.take() {
            opening.abort();
        }
    }
}

impl Source for NatsSource {
    type Receipt = NatsReceipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<NatsReceipt>>, Error> {
        let session = self.session().await?;
        session.read();
        loop {
            match session.held.take(most) {
                Taken::Some(waiting) => {
                    let incoming = |Waiting { number, reply, mapped }| {
                        let lineage = Arc::clone(&session.lineage);
                        Incoming::mapped(mapped, NatsReceipt { number, reply, lineage })
                    };
                    return Ok(waiting.into_iter().map(incoming).collect());
                }
                Taken::Nothing => session.held.arrived.notified().await,
                Taken::Ended(why) => {
                    self.session = None;
                    self.after_loss = true;
                    return Err(Error::new(ErrorKind::Unavailable, why));
                }
            }
        }
    }

    async fn settle(&mut self, settled: Vec<(NatsReceipt, Settle)>) -> Result<(), Error> {
        let away = |count| {
            let text = format!("NATS is away; {count} messages were not acknowledged and come again");
            Error::new(ErrorKind::Unavailable, text)
        };
        let Some(session) = &self.session else { return Err(away(settled.len())) };
        let numbers: Vec<u64> = settled.iter().map(|(receipt, _)| receipt.number).collect();
        let told = async {
            if session.client.connection_state() != State::Connected {
                return Err(away(settled.len()));
            }
            let ours = settled.iter().filter(|(receipt, _)| receipt.lineage == session.lineage);
            let words = ours.map(|(receipt, settle)| (receipt.reply.clone(), self.config.word(*settle)));
            match self.config.confirm_acks {
                true => confirm(session, words).await,
                false => tell(session, words).await,
            }
        };
        let told = tokio::time::timeout(SETTLE_WITHIN, told).await;
        session.held.forget(numbers.into_iter());
        told.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "NATS did not take acknowledgements in time"))
        })
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        let question = format!("CONSUMER.INFO.{}.{}", self.config.stream, self.config.consumer);
        let info = self.session().await?.api.ask(&question, &Value::Null).await?;
        Ok(info["num_pending"].as_u64())
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        session::look(&self.config).await.map(Some)
    }
}

impl NatsSourceConfig {
    /// What JetStream calls it.
    fn word(&self, settle: Settle) -> Bytes {
        match settle {
            Settle::Accept => ACCEPT,
            Settle::Return => format!("-NAK {{\"delay\":{}}}", self.return_delay.as_nanos()).into(),
            Settle::Reject => REJECT,
        }
    }
}

/// Sends the words, and waits until they have left this process.
async fn tell(session: &Session, words: impl Iterator<Item = (Subject, Bytes)>) -> Result<(), Error> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::caused(ErrorKind::Unavailable, "messages were not acknowledged and come again", error)
    };
    for (reply, word) in words {
        session.client.publish(reply, word).await.map_err(|error| failed(error.into()))?;
    }
    session.client.flush().await.map_err(|error| failed(error.into()))
}

/// Sends the words, and waits until the server has answered each.
async fn confirm(session: &Session, words: impl Iterator<Item = (Subject, Bytes)>) -> Result<(), Error> {
    let answers = join_all(words.map(|(reply, word)| session.client.request(reply, word))).await;
    let unconfirmed = answers.iter().filter(|answer| answer.is_err()).count();
    match answers.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(error) => {
            let text = format!(
                "the server did not confirm {unconfirmed} acknowledgements; the messages may come again"
            );
            Err(Error::caused(ErrorKind::Unavailable, text, error))
        }
    }
}
