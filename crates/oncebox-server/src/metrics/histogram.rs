//! How long things take, in buckets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Text;

/// Upper bounds in seconds: from a statement in a local file to a call that nearly times out.
const BOUNDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// Counts durations. Cheap to share and to add to.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One for each bound, and one beyond.
    counts: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Measures until the answer is dropped, also when what it measures is given up.
    pub(crate) fn start(self: &Arc<Self>) -> Timing {
        Timing { of: self.clone(), started: Instant::now() }
    }

    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    pub(super) fn write(&self, text: &mut Text, name: &str, labels: &[(&str, &str)]) {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut sum = 0;
        for (bound, count) in bounds.zip(counts) {
            sum += count;
            let labels = [labels, &[("le", &bound)]].concat();
            text.sample(&format!("{name}_bucket"), &labels, sum as f64);
        }
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        text.sample(&format!("{name}_sum"), labels, seconds);
        text.sample(&format!("{name}_count"), labels, sum as f64);
    }
}

/// A measurement under way.
#[derive(Debug)]
pub(crate) struct Timing {
    of: Arc<Histogram>,
    started: Instant,
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.of.add(self.started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_all_that_is_at_most_their_bound() {
        let histogram = Histogram::default();
        for milliseconds in [1, 2, 700, 60_000] {
            histogram.add(Duration::from_millis(milliseconds));
        }
        let mut text = Text::default();
        histogram.write(&mut text, "t", &[("h", "x")]);
        for line in [
            "t_bucket{h=\"x\",le=\"0.001\"} 1",
            "t_bucket{h=\"x\",le=\"0.0025\"} 2",
            "t_bucket{h=\"x\",le=\"0.5\"} 2",
            "t_bucket{h=\"x\",le=\"1\"} 3",
            "t_bucket{h=\"x\",le=\"30\"} 3",
            "t_bucket{h=\"x\",le=\"+Inf\"} 4",
            "t_sum{h=\"x\"} 60.703",
            "t_count{h=\"x\"} 4",
        ] {
            assert!(text.0.lines().any(|own| own == line), "{line}: {}", text.0);
        }
    }
}
