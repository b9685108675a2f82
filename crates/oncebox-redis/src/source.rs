//! Entries of a consumer group.

use std::sync::Arc;

use oncebox_core::{Error, ErrorKind, Incoming, Settle, Source};
use redis::aio::ConnectionLike;
use tokio::task::JoinHandle;

use crate::config::RedisSourceConfig;
use crate::held::{Held, Taken};
use crate::link::failed;
use crate::session::{self, Phase, Session, claim_command};
use crate::watch::standing;

/// The most entries named in one command.
const LOT: usize = 1000;

/// Entries of a stream, as one consumer of a group.
///
/// It connects when the first message is asked for, and again after every failure. Then it goes on with the entries
/// that were delivered to its name and never acknowledged. Entries of consumers that have not been heard of for
/// `claim_after` are taken over; a source that lives says so about what it holds, however long the store is away.
///
/// Entries that were trimmed away before they were read or acknowledged are lost. That is reported as a failure of the
/// source, in its status and in the log, and then the source goes on.
#[derive(Debug)]
pub struct RedisSource {
    name: String,
    config: Arc<RedisSourceConfig>,
    held: Arc<Held>,
    session: Option<Session>,
    /// Connects in a task, so that nothing is begun anew when [`Source::next`] is dropped.
    opening: Option<JoinHandle<Result<Session, Error>>>,
}

/// What a [`RedisSource`] needs to settle a message: the id of its entry.
#[derive(Debug)]
pub struct RedisReceipt {
    entry: String,
}

impl RedisSource {
    /// A source of this name; fails on settings that can never work.
    pub fn new(name: impl Into<String>, config: RedisSourceConfig) -> Result<Self, Error> {
        let name = name.into();
        config.check().map_err(|error| Error::invalid(format!("source `{name}`: {error}")))?;
        Ok(Self { name, config: Arc::new(config), held: Arc::default(), session: None, opening: None })
    }

    async fn session(&mut self) -> Result<&Session, Error> {
        if self.session.is_none() {
            let opening = self.opening.get_or_insert_with(|| {
                tokio::spawn(Session::open(Arc::clone(&self.config), Arc::clone(&self.held)))
            });
            let opened = opening.await;
            self.opening = None;
            let opened = opened.map_err(|error| {
                Error::caused(ErrorKind::Unavailable, "connecting to Redis ended unexpectedly", error)
            })?;
            self.session = Some(opened?);
        }
        Ok(self.session.as_ref().expect("it was opened above"))
    }
}

impl Drop for RedisSource {
    fn drop(&mut self) {
        if let Some(opening) = self.opening.take() {
            opening.abort();
        }
        if let Some(session) = &self.session {
            session.set(Phase::Gone);
        }
    }
}

impl Source for RedisSource {
    type Receipt = RedisReceipt;

    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self, most: usize) -> Result<Vec<Incoming<RedisReceipt>>, Error> {
        let held = Arc::clone(&self.held);
        self.session().await?.read();
        loop {
            match held.take(most) {
                Taken::Some(taken) => {
                    let incoming = |(entry, mapped)| Incoming::mapped(mapped, RedisReceipt { entry });
                    return Ok(taken.into_iter().map(incoming).collect());
                }
                Taken::Nothing => held.arrived.notified().await,
                Taken::Trouble(trouble) => return Err(Error::new(ErrorKind::Unavailable, trouble)),
                Taken::Ended(why) => {
                    self.session = None;
                    return Err(Error::new(ErrorKind::Unavailable, why));
                }
            }
        }
    }

    async fn settle(&mut self, settled: Vec<(RedisReceipt, Settle)>) -> Result<(), Error> {
        let (mut accepted, mut returned) = (Vec::new(), Vec::new());
        for (RedisReceipt { entry }, settle) in settled {
            match settle {
                Settle::Accept => accepted.push(entry),
                Settle::Return => returned.push(entry),
                Settle::Reject => {
                    let stream = &self.config.stream;
                    tracing::error!(
                        stream,
                        entry,
                        "Redis has no place for dead letters; the entry stays in the stream"
                    );
                    accepted.push(entry);
                }
            }
        }
        // No longer held first: else it could be refreshed right after it was given back.
        self.held.forget(&returned);
        let told = self.tell(&accepted, &returned).await;
        // What could not be acknowledged comes again when the connection is made again.
        self.held.forget(&accepted);
        told
    }

    async fn lag(&mut self) -> Result<Option<u64>, Error> {
        let config = Arc::clone(&self.config);
        let mut control = self.session().await?.control.clone();
        let standing = standing(&mut control, &config).await;
        let standing = standing.map_err(|error| failed("the lag cannot be asked for", &error))?;
        Ok(standing.and_then(|standing| Some(standing.lag? + standing.pending)))
    }

    async fn check(&mut self) -> Result<Option<String>, Error> {
        session::look(&self.config).await.map(Some)
    }
}

impl RedisSource {
    async fn tell(&mut self, accepted: &[String], returned: &[String]) -> Result<(), Error> {
        let Some(session) = &self.session else {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "Redis is away; messages were not acknowledged and come again",
            ));
        };
        let mut pipeline = redis::pipe();
        let mut count = 0;
        for lot in accepted.chunks(LOT) {
            pipeline.cmd("XACK").arg(&self.config.stream).arg(&self.config.group).arg(lot);
            count += 1;
        }
        for lot in returned.chunks(LOT) {
            // Others may take it at once, and so may we.
            pipeline.add_command(claim_command(&self.config, lot, Some(self.config.claim_after)));
            count += 1;
        }
        let told = session.control.clone().req_packed_commands(&pipeline, 0, count).await;
        if !returned.is_empty() {
            session.set(Phase::Returned);
        }
        let answers =
            told.map_err(|error| failed("messages were not acknowledged and come again", &error))?;
        let refused = answers.into_iter().find_map(|answer| match answer {
            redis::Value::ServerError(error) => Some(redis::RedisError::from(error)),
            _ => None,
        });
        match refused {
            None => Ok(()),
            Some(error) => Err(failed("Redis refused acknowledgements; the messages come again", &error)),
        }
    }
}
