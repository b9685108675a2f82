//! `/metrics`: this process's counters and the store's state, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;
use oncebox::Counters;
use oncebox::admin::{HandlerStatus, OutboxStatus};

/// What the HTTP side counts by itself.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<u16, u64>>,
}

/// What is read for one answer.
pub(crate) struct Sample<'a> {
    pub(crate) counters: &'a Counters,
    pub(crate) handlers: &'a [HandlerStatus],
    pub(crate) outbox: &'a [OutboxStatus],
    pub(crate) in_flight: usize,
    pub(crate) connections: usize,
    pub(crate) store_up: bool,
}

impl Metrics {
    pub(crate) fn count_request(&self, status: StatusCode) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry(status.as_u16()).or_default() += 1;
    }

    pub(crate) fn render(&self, sample: &Sample<'_>) -> String {
        let mut text = Text::default();
        text.family("oncebox_up", "gauge", "Whether the store answered.");
        text.sample("oncebox_up", &[], f64::from(u8::from(sample.store_up)));
        let mut counts = sample.counters.all();
        counts.sort_by(|a, b| (a.1.as_str(), &a.0).cmp(&(b.1.as_str(), &b.0)));
        let mut last = "";
        for (handler, counter, value) in &counts {
            let name = format!("oncebox_{}_total", counter.as_str());
            if last != counter.as_str() {
                text.family(&name, "counter", "Counted by this process since it started.");
                last = counter.as_str();
            }
            text.sample(&name, &[("handler", handler)], *value as f64);
        }
        text.family(
            "oncebox_http_requests_total",
            "counter",
            "Requests to /in by the status of their answer.",
        );
        for (status, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.sample("oncebox_http_requests_total", &[("status", &status.to_string())], *count as f64);
        }
        text.family("oncebox_http_in_flight_bytes", "gauge", "Bytes of bodies being read and stored.");
        text.sample("oncebox_http_in_flight_bytes", &[], sample.in_flight as f64);
        text.family("oncebox_http_connections", "gauge", "Open connections.");
        text.sample("oncebox_http_connections", &[], sample.connections as f64);
        handlers(&mut text, sample.handlers);
        outbox(&mut text, sample.outbox);
        text.0
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

fn outbox(text: &mut Text, sinks: &[OutboxStatus]) {
    type Read = fn(&OutboxStatus) -> f64;
    let gauges: [(&str, &str, Read); 3] = [
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
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, sort: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {sort}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
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
    }
}
