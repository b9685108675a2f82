//! What the library writes into the log, as whoever runs it reads it.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Remembers warnings and errors of this thread, on which all tasks of a test run unless it asks for more.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Remembers until the guard is dropped.
    pub fn begin() -> (Self, DefaultGuard) {
        // One for the whole process too. If this thread's were the only one, `tracing` would ask whichever thread comes
        // first to a line whether it is wanted, and remember its no for all.
        static EVERYWHERE: Once = Once::new();
        EVERYWHERE.call_once(|| tracing::subscriber::set_global_default(Self::default()).unwrap());
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// Lines that begin with their level and contain all of these words.
    pub fn lines(&self, level: Level, words: &[&str]) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let fits =
            |line: &&String| line.starts_with(level.as_str()) && words.iter().all(|word| line.contains(word));
        lines.iter().filter(fits).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
