//! What holds a handler back: its rate limit and its circuit breaker.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox::Gate;

use crate::config::{BreakerConfig, Rate};

/// A rate limit: a bucket that fills steadily.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    capacity: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let per_second = f64::from(rate.messages) / rate.per.as_secs_f64();
        // A second's worth at once, and one message at least.
        let capacity = per_second.max(1.0);
        Self { per_second, capacity, state: Mutex::new((capacity, Instant::now())) }
    }

    /// How many there is room for, or how long until there is room for one.
    pub(crate) fn room(&self, wanted: usize) -> Result<usize, Duration> {
        let filled = self.filled(&mut lock(&self.state));
        if filled >= 1.0 {
            return Ok((filled as usize).min(wanted));
        }
        Err(Duration::from_secs_f64((1.0 - filled) / self.per_second))
    }

    /// Takes this many; more than there are is made up for later.
    pub(crate) fn take(&self, messages: usize) {
        let mut state = lock(&self.state);
        let filled = self.filled(&mut state);
        state.0 = filled - messages as f64;
    }

    /// Takes this many when there is room for one at least; else how long to wait.
    pub(crate) fn try_take(&self, messages: usize) -> Result<(), Duration> {
        let mut state = lock(&self.state);
        let filled = self.filled(&mut state);
        if filled < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - filled) / self.per_second));
        }
        state.0 = filled - messages as f64;
        Ok(())
    }

    fn filled(&self, state: &mut (f64, Instant)) -> f64 {
        let now = Instant::now();
        let gained = now.duration_since(state.1).as_secs_f64() * self.per_second;
        *state = ((state.0 + gained).min(self.capacity), now);
        state.0
    }
}

/// A circuit breaker: after so many failures in a row nothing is tried for a while, then one message alone.
#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    failures: u32,
    open_until: Option<Instant>,
    /// When a trial began; it counts as lost when it never ends.
    trial: Option<Instant>,
}

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Option<Self> {
        (config.failures > 0).then(|| Self { config, state: Mutex::default() })
    }

    pub(crate) fn succeeded(&self) {
        *lock(&self.state) = BreakerState::default();
    }

    pub(crate) fn failed(&self) {
        let mut state = lock(&self.state);
        state.failures = state.failures.saturating_add(1);
        state.trial = None;
        if state.failures >= self.config.failures {
            state.open_until = Some(Instant::now() + self.config.open);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.state).open_until.is_some()
    }

    fn room(&self, wanted: usize) -> Result<usize, Duration> {
        let state = lock(&self.state);
        let Some(until) = state.open_until else { return Ok(wanted) };
        let now = Instant::now();
        if now < until {
            return Err(until - now);
        }
        match state.trial {
            Some(began) if began.elapsed() < self.config.open => Err(self.config.open - began.elapsed()),
            _ => Ok(1),
        }
    }

    fn started(&self) {
        let mut state = lock(&self.state);
        if state.open_until.is_some() {
            state.trial = Some(Instant::now());
        }
    }
}

/// Everything that holds one handler back.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) rate: Option<Bucket>,
    pub(crate) breaker: Option<Breaker>,
}

impl Gate for Hold {
    fn room(&self, wanted: usize) -> Result<usize, Duration> {
        let wanted = self.breaker.as_ref().map_or(Ok(wanted), |breaker| breaker.room(wanted))?;
        self.rate.as_ref().map_or(Ok(wanted), |rate| rate.room(wanted))
    }

    fn started(&self, messages: usize) {
        if let Some(breaker) = &self.breaker {
            breaker.started();
        }
        if let Some(rate) = &self.rate {
            rate.take(messages);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_a_second_at_once_and_then_makes_wait() {
        let bucket = Bucket::new(Rate { messages: 3600, per: Duration::from_secs(3600) });
        assert_eq!(bucket.room(50), Ok(1));
        bucket.take(3);
        let wait = bucket.room(50).unwrap_err();
        assert!(wait > Duration::from_secs(2) && wait <= Duration::from_secs(3), "{wait:?}");
        let bucket = Bucket::new(Rate { messages: 100, per: Duration::from_secs(1) });
        assert_eq!(bucket.room(1000), Ok(100));
        assert_eq!(bucket.room(7), Ok(7));
    }

    #[test]
    fn a_breaker_opens_after_failures_in_a_row_and_tries_one_alone() {
        let config = BreakerConfig { failures: 2, open: Duration::from_millis(50) };
        let breaker = Breaker::new(config).unwrap();
        breaker.failed();
        breaker.succeeded();
        breaker.failed();
        assert_eq!(breaker.room(9), Ok(9), "one failure after a success is none in a row");
        breaker.failed();
        assert!(breaker.room(9).is_err() && breaker.is_open());
        while breaker.room(9).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(breaker.room(9), Ok(1), "one alone");
        breaker.started();
        assert!(breaker.room(9).is_err(), "nothing beside the trial");
        breaker.succeeded();
        assert_eq!(breaker.room(9), Ok(9));
        assert!(Breaker::new(BreakerConfig { failures: 0, ..config }).is_none());
    }
}
