//! How long to wait before the next attempt.

use std::time::Duration;

/// Exponential backoff with jitter: `first`, then twice as long each time, never longer than `max`.
///
/// ```
/// use oncebox_core::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3600));
/// assert!(backoff.delay(1, 7) <= Duration::from_secs(1));
/// assert!(backoff.delay(40, 7) <= Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// From `first` after the first failed attempt up to `max`.
    ///
    /// # Panics
    /// When `first` is longer than `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        assert!(first <= max, "backoff: first ({first:?}) is longer than max ({max:?})");
        Self { first, max }
    }

    /// The wait after failed attempt number `attempt` (from 1): between three quarters and all of the nominal time.
    pub fn delay(&self, attempt: u32, seed: u64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(62);
        let nominal = self.first.as_nanos().saturating_mul(1_u128 << doublings).min(self.max.as_nanos());
        let jitter = nominal / 4 * u128::from(seed % 1024) / 1024;
        Duration::from_nanos(u64::try_from(nominal - jitter).unwrap_or(u64::MAX))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(3600) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn delay_stays_between_three_quarters_and_all_of_the_nominal_time(
            attempt in 1_u32..200, seed: u64, first_ms in 0_u64..10_000, extra_ms in 0_u64..10_000_000,
        ) {
            let first = Duration::from_millis(first_ms);
            let max = first + Duration::from_millis(extra_ms);
            let delay = Backoff::new(first, max).delay(attempt, seed);
            let nominal = first.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(max);
            prop_assert!(delay <= nominal && delay >= nominal.mul_f64(0.749), "{:?} of {:?}", delay, nominal);
        }
    }
}
