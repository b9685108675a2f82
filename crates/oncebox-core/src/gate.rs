//! Decides when a handler may be called.

use std::time::Duration;

/// Holds a handler back: a rate limit, a circuit breaker, the hours of a shop.
///
/// The runner asks before it takes deliveries of the handler, so what is held back waits in the store and no attempt is
/// counted. Messages handled inline are not held back.
pub trait Gate: Send + Sync + 'static {
    /// How many messages may be taken now, at least 1 and at most `wanted`; `Err` with how long to wait when none may.
    fn room(&self, wanted: usize) -> Result<usize, Duration>;

    /// The handler is about to be called for this many messages.
    ///
    /// Loops that ask at the same time may together start more than there was room for.
    fn started(&self, messages: usize);
}
