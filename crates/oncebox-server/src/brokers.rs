//! Starts sources and sinks by their type: one arm per type, and nothing else in the service knows the types.

use std::sync::Arc;

use oncebox::{Error, Relay, Run, Sink};

use crate::config::{SinkConfig, SinkType, SourceConfig, SourceType};
use crate::handlers::{GRACE, HttpSink, LONGEST_SEND, poster_of_sink};
use crate::stores::ServiceStore;

/// Adds a source to the runner. An http source is served by the listener, so there is nothing to add.
pub(crate) fn consume<St: ServiceStore>(
    runner: Run<St, ()>,
    source: &SourceConfig,
) -> Result<Run<St, ()>, Error> {
    match &source.source {
        SourceType::Http(_) => Ok(runner),
    }
}

/// Adds the relay of a sink to the runner.
pub(crate) fn relay<St: ServiceStore>(
    runner: Run<St, ()>,
    config: &SinkConfig,
) -> Result<Run<St, ()>, Error> {
    match &config.sink {
        SinkType::Http(http) => {
            let sink = HttpSink(Arc::new(poster_of_sink(http, config.timeout)?));
            Ok(runner.relay(with_settings(Relay::new(sink), config)))
        }
    }
}

fn with_settings<K: Sink>(relay: Relay<K>, config: &SinkConfig) -> Relay<K> {
    relay
        .named(&config.name)
        // A little longer than the sink's own limit, so that it is the sink that says what happened.
        .timeout((config.timeout + GRACE).min(LONGEST_SEND))
        .max_attempts(config.max_attempts)
        .backoff(config.backoff)
        .batch(config.batch)
}
