//! The loops behind an inbox. Each file is one of them, or one step they share.
//!
//! `transaction` is the one place that begins, checks and commits a handler's transaction; `lanes`, `leased` and
//! `inline` say what goes into it.

pub(crate) mod call;
pub(crate) mod consume;
pub(crate) mod housekeeping;
pub(crate) mod inline;
pub(crate) mod lanes;
pub(crate) mod leased;
pub(crate) mod outside;
pub(crate) mod receive;
pub(crate) mod relay;
pub(crate) mod transaction;
pub(crate) mod unreadable;

use std::time::Duration;

use crate::clock::Seed;
use crate::failure::{Failure, Next};
use crate::handler::Registered;
use crate::store::{Outcome, Store, Token};

/// How long a lease holds; renewed every third of it. A crashed process's deliveries are taken over after it.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// How long one transaction may go on taking messages; what is left starts the next one.
pub(crate) const TRANSACTION_BUDGET: Duration = Duration::from_millis(250);

pub(crate) fn new_token(seed: &Seed) -> Token {
    // Positive, so that it reads well in a table.
    Token(i64::try_from(seed.next() >> 1).unwrap_or(i64::MAX))
}

/// What follows from a failed attempt.
pub(crate) fn outcome_of<St: Store, S>(
    handler: &Registered<St, S>,
    attempt: u32,
    failure: &Failure,
    seed: &Seed,
) -> Outcome {
    let text = failure.text();
    if failure.is_permanent() || attempt >= handler.settings.max_attempts {
        return Outcome::Dead(text);
    }
    let delay = match failure.next() {
        Next::In(delay) => delay,
        _ => handler.settings.backoff.delay(attempt, seed.next()),
    };
    Outcome::Retry(delay, text)
}
