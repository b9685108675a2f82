//! `/metrics`: this process's counters and the store's state, in the Prometheus text format.

mod histogram;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::http::StatusCode;
use oncebox::admin::{HandlerStatus, OutboxStatus};
use oncebox::{Counter, Counters, SourceStatus};

pub(crate) use histogram::Histogram;

/// What the service counts by itself.
#[derive(Debug)]
pub(crate) struct Metrics {
    started_at: SystemTime,
    requests: Mutex<BTreeMap<u16, u64>>,
    pub(crate) request_time: Arc<Histogram>,
    handler_times: Mutex<BTreeMap<String, Arc<Histogram>>>,
}

/// What is read for one answer.
pub(crate) struct Sample<'a> {
    pub(crate) counters: &'a Counters,
    pub(crate) handlers: &'a [HandlerStatus],
    pub(crate) outbox: &'a [OutboxStatus],
    pub(crate) sources: &'a [SourceStatus],
    /// The names of the sinks that are configured.
    pub(crate) sinks: Vec<&'a str>,
    pub(crate) in_flight: usize,
    pub(crate) connections: usize,
    pub(crate) store_up: bool,
}

/// Counters of the inbox as a whole, of each handler, and of each sink.
const OF_INBOX: [Counter; 5] =
    [Counter::Received, Counter::Duplicate, Counter::Conflict, Counter::Unrouted, Counter::Refused];
const OF_HANDLER: [Counter; 5] =
    [Counter::Done, Counter::Failed, Counter::Retried, Counter::Dead, Counter::Held];
const OF_SINK: [Counter; 3] = [Counter::Sent, Counter::SendFailed, Counter::SendDead];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started_at: SystemTime::now(),
            requests: Mutex::default(),
            request_time: Arc::default(),
            handler_times: Mutex::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn count_request(&self, status: StatusCode) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry(status.as_u16()).or_default() += 1;
    }

    /// How long the calls of a handler take.
    pub(crate) fn handler_time(&self, handler: &str) -> Arc<Histogram> {
        let mut times = self.handler_times.lock().unwrap_or_else(PoisonError::into_inner);
        times.entry(handler.to_owned()).or_default().clone()
    }

    pub(crate) fn render(&self, sample: &Sample<'_>) -> String {
        let mut text = Text::default();
        text.family("oncebox_build_info", "gauge", "The version that runs; always 1.");
        text.sample("oncebox_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        text.family(
            "oncebox_start_time_seconds",
            "gauge",
            "When this process started, in seconds since 1970.",
        );
        let started = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        text.sample("oncebox_start_time_seconds", &[], started.as_secs() as f64);
        text.family("oncebox_up", "gauge", "Whether the store answered.");
        text.sample("oncebox_up", &[], f64::from(u8::from(sample.store_up)));
        counters(&mut text, sample);
        self.http(&mut text, sample);
        text.family("oncebox_handler_seconds", "histogram", "How long calls of a handler took.");
        for (handler, times) in self.handler_times.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            times.write(&mut text, "oncebox_handler_seconds", &[("handler", handler)]);
        }
        handlers(&mut text, sample.handlers);
        outbox(&mut text, &with_empty(sample));
        sources(&mut text, sample.sources);
        text.0
    }

    fn http(&self, text: &mut Text, sample: &Sample<'_>) {
        let requests = "oncebox_http_requests_total";
        text.family(requests, "counter", "Requests to /in by the status of their answer.");
        for (status, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.sample(requests, &[("status", &status.to_string())], *count as f64);
        }
        text.family("oncebox_http_request_seconds", "histogram", "How long requests to /in took.");
        self.request_time.write(text, "oncebox_http_request_seconds", &[]);
        text.family(
            "oncebox_http_in_flight_bytes",
            "gauge",
            "Bytes of bodies being read and stored, and of answers to batches.",
        );
        text.sample("oncebox_http_in_flight_bytes", &[], sample.in_flight as f64);
        text.family("oncebox_http_connections", "gauge", "Open connections.");
        text.sample("oncebox_http_connections", &[], sample.connections as f64);
    }
}

/// Every counter of everything that is configured, also while it is zero: what appears only with its first count
/// cannot be told from what has just begun.
fn counters(text: &mut Text, sample: &Sample<'_>) {
    let counts: BTreeMap<(&str, String), i64> = sample
        .counters
        .all()
        .into_iter()
        .map(|(name, counter, value)| ((counter.as_str(), name), value))
        .collect();
    let mut family = |counter: Counter, label: &str, names: &[&str], help: &str| {
        let own = counts.keys().filter(|(word, name)| *word == counter.as_str() && !name.is_empty());
        let mut names: Vec<&str> = names.iter().copied().chain(own.map(|(_, name)| name.as_str())).collect();
        names.sort_unstable();
        names.dedup();
        let name = format!("oncebox_{}_total", counter.as_str());
        text.family(&name, "counter", help);
        for of in names {
            let value = counts.get(&(counter.as_str(), of.to_owned())).copied().unwrap_or(0) as f64;
            if label.is_empty() {
                text.sample(&name, &[], value)
            } else {
                text.sample(&name, &[(label, of)], value)
            }
        }
    };
    for counter in OF_INBOX {
        family(counter, "", &[""], help(counter));
    }
    let handlers: Vec<&str> = sample.handlers.iter().map(|handler| handler.name.as_str()).collect();
    for counter in OF_HANDLER {
        family(counter, "handler", &handlers, help(counter));
    }
    for counter in OF_SINK {
        family(counter, "sink", &sample.sinks, help(counter));
    }
}

fn help(counter: Counter) -> &'static str {
    match counter {
        Counter::Received => "Messages stored for the first time.",
        Counter::Duplicate => "Messages dropped because their id was known.",
        Counter::Conflict => "Messages kept apart because their id was known with other bytes.",
        Counter::Unrouted => "Messages of a kind that no handler wants.",
        Counter::Refused => "Messages of a source that could not be read and were kept as dead letters.",
        Counter::Done => "Deliveries whose work has been committed.",
        Counter::Failed => "Attempts that failed.",
        Counter::Retried => "Failed attempts that will be made again.",
        Counter::Dead => "Deliveries that became dead letters.",
        Counter::Held => "Deliveries that had to wait behind their key.",
        Counter::Sent => "Outgoing messages confirmed by a sink.",
        Counter::SendFailed => "Tries to send an outgoing message that were not confirmed.",
        Counter::SendDead => "Outgoing messages that became dead.",
        _ => "Counted by this process since it started.",
    }
}

fn sources(text: &mut Text, sources: &[SourceStatus]) {
    text.family("oncebox_source_connected", "gauge", "Whether a source on a broker answers.");
    for source in sources {
        let connected = f64::from(u8::from(source.connected));
        text.sample("oncebox_source_connected", &[("source", &source.name)], connected);
    }
    text.family("oncebox_source_lag", "gauge", "Messages that wait at the broker, where it can tell.");
    for source in sources {
        if let Some(lag) = source.lag {
            text.sample("oncebox_source_lag", &[("source", &source.name)], lag as f64);
        }
    }
    text.family(
        "oncebox_source_delivered_total",
        "counter",
        "Messages a source has delivered, duplicates counted.",
    );
    for source in sources {
        text.sample("oncebox_source_delivered_total", &[("source", &source.name)], source.delivered as f64);
    }
}

fn handlers(text: &mut Text, handlers: &[HandlerStatus]) {
    type Read = fn(&HandlerStatus) -> f64;
    let gauges: [(&str, &str, Read); 7] = [
        ("oncebox_waiting", "Messages behind a handler's cursors, of any kind.", |one| one.waiting as f64),
        ("oncebox_lag_seconds", "How long the oldest of them has waited.", |one| {
            one.lag.unwrap_or_default().as_secs_f64()
        }),
        ("oncebox_retrying", "Deliveries that wait for another attempt.", |one| one.retrying as f64),
        ("oncebox_held", "Deliveries behind an earlier message of their key.", |one| one.held as f64),
        ("oncebox_scheduled", "Deliveries that are not due yet.", |one| one.scheduled as f64),
        ("oncebox_dead_letters", "Deliveries that wait for a person.", |one| one.dead as f64),
        ("oncebox_paused", "Whether the handler is paused.", |one| f64::from(u8::from(one.paused))),
    ];
    for (name, help, read) in gauges {
        text.family(name, "gauge", help);
        for handler in handlers {
            text.sample(name, &[("handler", &handler.name)], read(handler));
        }
    }
}

/// The store says nothing of a sink whose outbox is empty.
fn with_empty(sample: &Sample<'_>) -> Vec<OutboxStatus> {
    let mut all = sample.outbox.to_vec();
    for name in &sample.sinks {
        if !all.iter().any(|status| status.sink == *name) {
            all.push(OutboxStatus { sink: (*name).to_owned(), waiting: 0, retrying: 0, dead: 0, lag: None });
        }
    }
    all
}

fn outbox(text: &mut Text, sinks: &[OutboxStatus]) {
    type Read = fn(&OutboxStatus) -> f64;
    let gauges: [(&str, &str, Read); 4] = [
        ("oncebox_outbox_retrying", "Outgoing messages that wait for another try.", |one| {
            one.retrying as f64
        }),
        ("oncebox_outbox_waiting", "Outgoing messages not yet sent.", |one| one.waiting as f64),
        ("oncebox_outbox_dead", "Outgoing messages that were refused for good.", |one| one.dead as f64),
        ("oncebox_outbox_lag_seconds", "How long the oldest outgoing message has waited.", |one| {
            one.lag.unwrap_or_default().as_secs_f64()
        }),
    ];
    for (name, help, read) in gauges {
        text.family(name, "gauge", help);
        for sink in sinks {
            text.sample(name, &[("sink", &sink.sink)], read(sink));
        }
    }
}

#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    fn family(&mut self, name: &str, sort: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {sort}\n");
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        if !labels.is_empty() {
            let pairs: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let _ = write!(self.0, "{{{}}}", pairs.join(","));
        }
        let _ = writeln!(self.0, " {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_a_line() {
        let mut text = Text::default();
        text.sample("a", &[("l", "x\"\n\\")], 1.5);
        assert_eq!(text.0, "a{l=\"x\\\"\\n\\\\\"} 1.5\n");
    }

    #[test]
    fn every_family_is_described_once() {
        let metrics = Metrics::default();
        metrics.count_request(StatusCode::ACCEPTED);
        let sample = Sample {
            counters: &Counters::default(),
            handlers: &[],
            sources: &[],
            sinks: vec!["s"],
            outbox: &[OutboxStatus { sink: "s".to_owned(), waiting: 2, retrying: 0, dead: 1, lag: None }],
            in_flight: 7,
            connections: 1,
            store_up: true,
        };
        let text = metrics.render(&sample);
        let mut described: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let count = described.len();
        described.sort_unstable();
        described.dedup();
        assert_eq!(count, described.len());
        assert!(text.contains("oncebox_http_requests_total{status=\"202\"} 1\n"), "{text}");
        assert!(text.contains("oncebox_outbox_dead{sink=\"s\"} 1\n"), "{text}");
        assert!(text.contains("oncebox_sent_total{sink=\"s\"} 0\n"), "nothing yet is 0: {text}");
        assert!(text.contains("oncebox_received_total 0\n"), "{text}");
    }
}
