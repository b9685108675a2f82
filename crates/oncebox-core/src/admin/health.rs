//! What is wrong with messages and handlers, whatever the store.

use std::time::Duration;

use jiff::Timestamp;

use super::{Finding, HandlerStatus, OutboxStatus, Severity};

/// How far the database's clock and ours may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(5);
/// How long a message may wait before something is wrong.
const WAITS_LONG: Duration = Duration::from_secs(10 * 60);
/// How long a handler may be paused while messages wait.
const PAUSED_LONG: Duration = Duration::from_secs(3600);

/// How long before now a delivery must have been due to count as [`Overdue`], in microseconds.
pub const OVERDUE_AFTER: i64 = 10 * 60 * 1_000_000;

/// What every store can say of its messages; [`Health::findings`] says what is wrong with it, for all stores alike.
#[derive(Debug)]
pub struct Health {
    /// The database's clock.
    pub database_clock: Timestamp,
    /// This process's clock, at the same moment.
    pub own_clock: Timestamp,
    /// Every handler.
    pub handlers: Vec<HandlerStatus>,
    /// Handlers with deliveries that have long been due.
    pub overdue: Vec<Overdue>,
    /// Every sink.
    pub outbox: Vec<OutboxStatus>,
    /// Known ids that came with other bytes, counted up to 1,000.
    pub conflicts: u64,
}

/// Deliveries of a handler that were due, or leased, until long ago: nobody takes them.
#[derive(Debug)]
pub struct Overdue {
    /// The handler.
    pub handler: String,
    /// How many, counted up to 1,000.
    pub count: u64,
    /// For how long the first of them.
    pub longest: Duration,
}

impl Health {
    /// What is wrong, in the order of handlers and sinks.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        all.extend(self.clocks());
        for handler in &self.handlers {
            all.extend(lagging(handler));
            if handler.dead > 0 {
                let what = format!("handler `{}` has {}", handler.name, counted(handler.dead, "dead letter"));
                let remedy = "look at their errors with `oncebox list --state dead`, mend the cause, then `oncebox replay` \
                              or `oncebox discard` them";
                all.push(Finding::new("dead-letters", Severity::Warning, what, remedy));
            }
        }
        all.extend(self.overdue.iter().filter_map(|overdue| self.untaken(overdue)));
        for sink in &self.outbox {
            all.extend(unsent(sink));
        }
        if self.conflicts > 0 {
            let what = format!("{} came with other bytes than before", counted(self.conflicts, "known id"));
            let remedy = "find out which sender uses an id twice; the messages are kept and shown as conflicts until \
                          their time is over";
            all.push(Finding::new("conflicts", Severity::Warning, what, remedy));
        }
        all
    }

    fn clocks(&self) -> Option<Finding> {
        let apart = self.database_clock.duration_since(self.own_clock).unsigned_abs();
        (apart > CLOCKS_APART).then(|| {
            let what = format!(
                "the database's clock says {} and this machine's says {}",
                self.database_clock, self.own_clock
            );
            let remedy = "let both be set by NTP; the database's clock decides, so times in logs and sources differ from it";
            Finding::new("clock-skew", Severity::Warning, what, remedy)
        })
    }

    fn untaken(&self, overdue: &Overdue) -> Option<Finding> {
        let paused = |status: &HandlerStatus| status.name == overdue.handler && status.paused;
        if self.handlers.iter().any(paused) {
            return None;
        }
        let what = format!(
            "{} of handler `{}` {} due or leased until {} ago, and nobody takes them",
            counted(overdue.count, "delivery"),
            overdue.handler,
            if overdue.count == 1 { "was" } else { "were" },
            rough(overdue.longest)
        );
        let remedy = "start a process that runs this handler, or look why the one that should does not; `oncebox list \
                      --handler` shows them";
        Some(Finding::new("deliveries-overdue", Severity::Fault, what, remedy))
    }
}

fn lagging(handler: &HandlerStatus) -> Option<Finding> {
    let lag = handler.lag.filter(|_| handler.waiting > 0)?;
    let about = if handler.waiting_is_exact { "" } else { "about " };
    let what = |how: &str| {
        format!(
            "handler `{}` {how} {about}{}, the oldest for {}",
            handler.name,
            counted(handler.waiting, "message"),
            rough(lag)
        )
    };
    if handler.paused {
        let remedy = format!("resume it with `oncebox resume {}` when its reason is gone", handler.name);
        return (lag > PAUSED_LONG)
            .then(|| Finding::new("handler-paused", Severity::Warning, what("is paused before"), remedy));
    }
    let remedy = "start a process that runs it, or look why it is slow; a handler that is no longer in the code can be \
                  forgotten (`Store::forget`)";
    (lag > WAITS_LONG)
        .then(|| Finding::new("handler-behind", Severity::Fault, what("has not reached"), remedy))
}

fn unsent(sink: &OutboxStatus) -> Vec<Finding> {
    let name = if sink.sink.is_empty() {
        "the sink without a name".to_owned()
    } else {
        format!("sink `{}`", sink.sink)
    };
    let mut all = Vec::new();
    if let Some(lag) = sink.lag.filter(|lag| *lag > WAITS_LONG && sink.waiting > 0) {
        let waiting = counted(sink.waiting, "outgoing message");
        let what = format!("{waiting} for {name} wait, the oldest for {}", rough(lag));
        let remedy = "run a relay for it, or look at the errors of the one that should send them";
        all.push(Finding::new("outbox-waiting", Severity::Fault, what, remedy));
    }
    if sink.dead > 0 {
        let what = format!("{name} has refused {} for good", counted(sink.dead, "outgoing message"));
        let remedy = "see why with `oncebox outbox --state dead`, mend it, then send them again with `POST /api/v1/outbox/SINK/replay` \
                      or `replay_outgoing`";
        all.push(Finding::new("outbox-dead", Severity::Warning, what, remedy));
    }
    all
}

fn counted(count: u64, thing: &str) -> String {
    match (count, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {thing}s"),
    }
}

/// A length of time in its largest unit.
pub fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
