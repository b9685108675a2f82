//! Why the brokers cannot be reached.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// The last thing that librdkafka complained about: the errors of its calls only say that time is up.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<Option<String>>);

impl Trouble {
    /// Keeps what its callback for errors is told.
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        // That all brokers are down it says after it has said why.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.lock() = Some(reason.to_owned());
        }
    }

    /// The brokers have answered.
    pub(crate) fn is_over(&self) {
        *self.lock() = None;
    }

    /// The text, and why, where that is known.
    pub(crate) fn explain(&self, text: &str) -> String {
        match &*self.lock() {
            Some(why) if !text.contains(why.as_str()) => format!("{text}: {why}"),
            _ => text.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
