//! Time and randomness, so that the rest of the crate asks here and tests can decide.
//!
//! Decisions about messages (due, expired, old enough) use the *database's* clock, inside SQL. [`ClockShift`]
//! moves that clock for one store, which is how tests make a day pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A shift that a store adds to its database's clock in every statement; zero outside tests.
#[derive(Debug, Clone, Default)]
pub struct ClockShift(Arc<AtomicI64>);

impl ClockShift {
    /// Moves the clock forward; every clone sees it.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// The shift in microseconds, to be bound in SQL.
    pub fn micros(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A duration as the whole microseconds that stores keep.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// A seeded stream of random numbers for jitter and tokens.
///
/// Not for secrets. One step is one atomic add, so it can be shared.
#[derive(Debug)]
pub struct Seed(AtomicU64);

impl Seed {
    /// A stream that is the same for the same number.
    pub fn fixed(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A stream seeded by the operating system.
    pub fn from_system() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        Self::fixed(u64::from_le_bytes(bytes))
    }

    /// The next number (SplitMix64).
    pub fn next(&self) -> u64 {
        let mut mixed = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
