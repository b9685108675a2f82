//! The tasks of a source while it is connected: one reads, on a connection of its own because it blocks there; one
//! keeps what is held from being taken over, and takes over what others have left.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Error, ErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::RedisSourceConfig;
use crate::envelope::{self, Entry};
use crate::held::Held;
use crate::link::{ask, connect, failed, list, text};
use crate::watch::{Reported, Standing, standing};

/// How long a read waits for the first entry; the time a stop may take.
const BLOCK: Duration = Duration::from_secs(1);
/// How long any command may take before the connection is taken as dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often it is checked whether entries were removed unread.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most entries named in one command.
const LOT: usize = 500;

/// A session with its tasks; they end when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) control: MultiplexedConnection,
    phase: watch::Sender<Phase>,
}

/// What the tasks are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: only questions were asked so far.
    Idle,
    Reading,
    /// Something was returned: look for entries to take over soon.
    Returned,
    /// The session is replaced by another one.
    Ended,
    /// The source is gone: what was not handed over is given back.
    Gone,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.phase.send_if_modified(|phase| {
            let lives = *phase != Phase::Gone;
            if lives {
                *phase = Phase::Ended;
            }
            lives
        });
    }
}

impl Session {
    /// Connects, and checks that the stream and the group are there.
    pub(crate) async fn open(config: Arc<RedisSourceConfig>, held: Arc<Held>) -> Result<Self, Error> {
        let mut control = connect(&config.url, &config.tls, ANSWER_WITHIN).await?;
        prepare(&mut control, &config).await?;
        warn_of_losses(&mut control, &config.stream).await;
        let reading = connect(&config.url, &config.tls, ANSWER_WITHIN + BLOCK).await?;
        let session = held.begin();
        let (phase, of_tasks) = watch::channel(Phase::Idle);
        let task = |connection| Task {
            config: Arc::clone(&config),
            held: Arc::clone(&held),
            connection,
            phase: of_tasks.clone(),
        };
        for (task, is_reader) in [(task(reading), true), (task(control.clone()), false)] {
            let held = Arc::clone(&held);
            tokio::spawn(async move {
                let ended = if is_reader { task.read().await } else { task.keep().await };
                if let Err(error) = ended {
                    let error = failed("the connection to Redis failed", &error);
                    held.end(session, error.to_string());
                }
            });
        }
        Ok(Self { control, phase })
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Begins to read, if it has not.
    pub(crate) fn read(&self) {
        self.phase.send_if_modified(|phase| {
            let idle = *phase == Phase::Idle;
            if idle {
                *phase = Phase::Reading;
            }
            idle
        });
    }
}

async fn prepare(control: &mut MultiplexedConnection, config: &RedisSourceConfig) -> Result<(), Error> {
    let RedisSourceConfig { stream, group, .. } = config;
    if config.create {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
        match ask(control, &create).await {
            Err(error) if error.code() != Some("BUSYGROUP") => {
                return Err(failed(
                    &format!("group `{group}` of stream `{stream}` cannot be created"),
                    &error,
                ));
            }
            _ => {}
        }
    }
    find(control, config).await.map(drop)
}

/// Looks for the stream and the group and creates nothing; fails where [`Session::open`] would.
pub(crate) async fn look(config: &RedisSourceConfig) -> Result<String, Error> {
    let mut control = connect(&config.url, &config.tls, ANSWER_WITHIN).await?;
    let RedisSourceConfig { stream, group, .. } = config;
    match find(&mut control, config).await {
        Ok(standing) => {
            let waiting = standing
                .lag
                .map_or("an unknown number of".to_owned(), |lag| (lag + standing.pending).to_string());
            Ok(format!("group `{group}` of stream `{stream}`, {waiting} waiting"))
        }
        Err(_) if config.create && is_absent(&mut control, config).await => {
            Ok(format!("group `{group}` of stream `{stream}` is not there yet and would be created"))
        }
        Err(error) => Err(error),
    }
}

/// Whether the stream or its group could be created: nothing else has its name.
async fn is_absent(control: &mut MultiplexedConnection, config: &RedisSourceConfig) -> bool {
    let kind = ask(control, redis::cmd("TYPE").arg(&config.stream)).await;
    kind.is_ok_and(|kind| matches!(text(kind).as_str(), "none" | "stream"))
}

async fn find(control: &mut MultiplexedConnection, config: &RedisSourceConfig) -> Result<Standing, Error> {
    let RedisSourceConfig { stream, group, .. } = config;
    match standing(control, config).await {
        Ok(Some(standing)) => Ok(standing),
        Ok(None) => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "stream `{stream}` has no group `{group}`; create it with XGROUP CREATE, or set `create`"
            ),
        )),
        Err(error) if error.detail().is_some_and(|detail| detail.contains("no such key")) => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "Redis has no stream `{stream}`; create it with its group (XGROUP CREATE … MKSTREAM), or set `create`"
            ),
        )),
        Err(error) => Err(failed(&format!("stream `{stream}` cannot be looked at"), &error)),
    }
}

/// Says by name which settings of the server can lose what it has confirmed; says nothing when it may not ask.
async fn warn_of_losses(control: &mut MultiplexedConnection, stream: &str) {
    let Ok(answer) = ask(control, redis::cmd("CONFIG").arg("GET").arg("append*")).await else { return };
    let words: Vec<String> = list(answer).into_iter().map(text).collect();
    let value = |name: &str| words.chunks(2).find(|pair| pair[0] == name).map_or("", |pair| pair[1].as_str());
    if value("appendonly") == "no" {
        tracing::warn!(stream, "Redis has appendonly = no: a crash loses what came since the last snapshot");
    } else if value("appendfsync") != "always" {
        let appendfsync = value("appendfsync");
        tracing::warn!(
            stream,
            appendfsync,
            "Redis writes to disk later: a crash of the machine loses the last moments"
        );
    }
}

struct Task {
    config: Arc<RedisSourceConfig>,
    held: Arc<Held>,
    connection: MultiplexedConnection,
    phase: watch::Receiver<Phase>,
}

impl Task {
    fn ends(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Ended | Phase::Gone) || self.phase.has_changed().is_err()
    }

    fn room(&self) -> usize {
        self.config.prefetch.saturating_sub(self.held.count())
    }

    /// Reads until the session ends. A read is never given up half way: its entries would be delivered and not seen.
    async fn read(mut self) -> Result<(), RedisError> {
        let started = self.phase.wait_for(|phase| *phase != Phase::Idle).await.is_ok();
        let mut after = "0".to_owned();
        let mut is_new = false;
        let mut reported = Reported::default();
        let mut look_at = Instant::now();
        while started && !self.ends() {
            let room = self.room();
            if room == 0 {
                tokio::time::timeout(BLOCK, self.held.settled.notified()).await.ok();
                continue;
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_EVERY;
                if let Some(standing) = standing(&mut self.connection, &self.config).await? {
                    reported.look(&self.held, &self.config, &standing);
                }
            }
            // First what was delivered to this name before and never acknowledged, by the last connection or process.
            let command = self.read_command(room.min(LOT), (!is_new).then_some(after.as_str()));
            let entries = of_one_stream(ask(&mut self.connection, &command).await?);
            match entries.last() {
                Some(last) if !is_new => after = last.id.clone(),
                None if !is_new => is_new = true,
                _ => {}
            }
            self.take(entries).await?;
        }
        self.give_back().await
    }

    fn read_command(&self, count: usize, after: Option<&str>) -> Cmd {
        let RedisSourceConfig { stream, group, consumer, .. } = &*self.config;
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(group).arg(consumer).arg("COUNT").arg(count);
        if after.is_none() {
            command.arg("BLOCK").arg(millis(BLOCK));
        }
        command.arg("STREAMS").arg(stream).arg(after.unwrap_or(">"));
        command
    }

    /// Takes entries in; those that no longer exist are reported and acknowledged, for they can never be read.
    async fn take(&mut self, entries: Vec<Entry>) -> Result<(), RedisError> {
        let (mut taken, mut gone) = (Vec::new(), Vec::new());
        for Entry { id, fields } in entries {
            match fields {
                Some(fields) if !self.held.holds(&id) => {
                    let mapped = envelope::read(&self.config, &id, fields);
                    taken.push((id, mapped));
                }
                None if !self.held.holds(&id) => gone.push(id),
                _ => {}
            }
        }
        if !gone.is_empty() {
            ask(
                &mut self.connection,
                redis::cmd("XACK").arg(&self.config.stream).arg(&self.config.group).arg(&gone),
            )
            .await?;
            self.report_gone(&gone);
        }
        if !taken.is_empty() {
            self.held.add(taken);
        }
        Ok(())
    }

    fn report_gone(&self, gone: &[String]) {
        let RedisSourceConfig { stream, group, .. } = &*self.config;
        let (count, first) = (gone.len(), gone.first().map_or("", String::as_str));
        tracing::error!(
            stream,
            group,
            count,
            first,
            "entries were removed before they were acknowledged; they are lost"
        );
        self.held.report(format!(
            "stream `{stream}`: {count} entries (the first is {first}) were removed after they were delivered and \
             before group `{group}` acknowledged them; unless they were stored already, they are lost"
        ));
    }

    /// Keeps what is held, and takes over what was left behind, until the session ends.
    async fn keep(mut self) -> Result<(), RedisError> {
        let idle = self.config.claim_after;
        let every = (idle / 6).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let mut claim_at = Instant::now();
        let mut cursor = "0-0".to_owned();
        while !self.ends() {
            self.refresh(self.held.to_refresh(idle / 3), None).await?;
            let reads = *self.phase.borrow() != Phase::Idle;
            if reads && Instant::now() >= claim_at {
                cursor = self.claim(cursor).await?;
                claim_at = Instant::now() + idle / 4;
            }
            let changed = tokio::time::timeout(every, self.phase.changed()).await.is_ok();
            if changed && *self.phase.borrow() == Phase::Returned {
                claim_at = claim_at.min(Instant::now() + Duration::from_secs(1));
            }
        }
        self.give_back().await
    }

    /// Takes over entries of consumers that have not been heard of, as far as there is room. Answers where to go on.
    async fn claim(&mut self, mut cursor: String) -> Result<String, RedisError> {
        loop {
            let room = self.room().min(LOT);
            if room == 0 || self.ends() {
                return Ok(cursor);
            }
            let RedisSourceConfig { stream, group, consumer, claim_after, .. } = &*self.config;
            let mut command = redis::cmd("XAUTOCLAIM");
            command
                .arg(stream)
                .arg(group)
                .arg(consumer)
                .arg(millis(*claim_after))
                .arg(&cursor)
                .arg("COUNT")
                .arg(room);
            let mut answer = list(ask(&mut self.connection, &command).await?).into_iter();
            // A page may be empty and not be the last.
            cursor = text(answer.next().unwrap_or(Value::Nil));
            let entries = envelope::entries(answer.next().unwrap_or(Value::Nil));
            let deleted: Vec<String> =
                list(answer.next().unwrap_or(Value::Nil)).into_iter().map(text).collect();
            if !entries.is_empty() {
                tracing::info!(
                    stream,
                    group,
                    count = entries.len(),
                    "entries were taken over from another consumer"
                );
            }
            self.take(entries).await?;
            let unheld: Vec<String> = deleted.into_iter().filter(|id| !self.held.holds(id)).collect();
            if !unheld.is_empty() {
                self.report_gone(&unheld);
            }
            if matches!(cursor.as_str(), "" | "0-0") {
                return Ok("0-0".to_owned());
            }
        }
    }

    /// Tells the server that these entries are ours, heard of just now or (with `idle`) so long ago.
    async fn refresh(&mut self, ids: Vec<String>, idle: Option<Duration>) -> Result<(), RedisError> {
        for lot in ids.chunks(LOT) {
            ask(&mut self.connection, &claim_command(&self.config, lot, idle)).await?;
        }
        Ok(())
    }

    /// When the source is gone, others need not wait for what it never handed over.
    async fn give_back(&mut self) -> Result<(), RedisError> {
        if *self.phase.borrow() != Phase::Gone {
            return Ok(());
        }
        self.refresh(self.held.give_up_waiting(), Some(self.config.claim_after)).await
    }
}

/// Makes entries ours again, as if they had not been heard of for `idle`. Entries that are acknowledged stay so.
pub(crate) fn claim_command(config: &RedisSourceConfig, ids: &[String], idle: Option<Duration>) -> Cmd {
    let mut command = redis::cmd("XCLAIM");
    command.arg(&config.stream).arg(&config.group).arg(&config.consumer).arg(0).arg(ids);
    command.arg("IDLE").arg(idle.map_or(0, |idle| millis(idle) + 1)).arg("JUSTID");
    command
}

/// The entries of the only stream that was asked for.
fn of_one_stream(answer: Value) -> Vec<Entry> {
    let first = match answer {
        Value::Array(streams) => {
            streams.into_iter().next().map(list).and_then(|pair| pair.into_iter().nth(1))
        }
        Value::Map(streams) => streams.into_iter().next().map(|(_, entries)| entries),
        _ => None,
    };
    first.map(envelope::entries).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
