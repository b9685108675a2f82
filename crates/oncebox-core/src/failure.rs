//! What a handler returns when it could not do its work.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Why a handler did not finish, and what should happen to the delivery.
///
/// Any error becomes a `Failure` with `?`: the attempt is rolled back and tried again later with backoff.
/// [`Failure::permanent`] makes a dead letter at once, [`Failure::retry_in`] chooses the delay.
///
/// ```
/// use oncebox_core::Failure;
///
/// fn parse(text: &str) -> Result<u32, Failure> {
///     if text.is_empty() {
///         return Err(Failure::permanent("the amount is empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert!(parse("").unwrap_err().is_permanent());
/// assert!(!parse("x").unwrap_err().is_permanent());
/// ```
///
/// `Failure` itself is not a `std::error::Error`: that is what lets `?` take every error type.
pub struct Failure {
    next: Next,
    error: Box<dyn StdError + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Backoff,
    In(Duration),
    Never,
}

impl Failure {
    /// A dead letter now: trying again would not help.
    pub fn permanent(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { next: Next::Never, error: error.into() }
    }

    /// Try again after `delay` instead of the handler's backoff.
    ///
    /// The attempt still counts towards `max_attempts`.
    pub fn retry_in(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { next: Next::In(delay), error: error.into() }
    }

    /// True when the delivery becomes a dead letter at once.
    pub fn is_permanent(&self) -> bool {
        self.next == Next::Never
    }

    /// The error behind it.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.error
    }

    pub(crate) fn next(&self) -> Next {
        self.next
    }

    /// The error and its causes in one line, cut to what a store keeps.
    pub(crate) fn text(&self) -> String {
        let mut text = self.error.to_string();
        let mut source = self.error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Many error types repeat their cause in their own text.
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        storable(text)
    }
}

/// Postgres text holds no NUL, and an error text must never be the reason that a failure cannot be recorded.
pub(crate) fn storable(text: String) -> String {
    const LONGEST: usize = 8 * 1024;
    let mut text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    if text.len() > LONGEST {
        let mut end = LONGEST;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(" … (cut)");
    }
    text
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { next: Next::Backoff, error: error.into() }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Failure({:?}, {})", self.next, self.error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_storable_whatever_the_handler_wrote() {
        let failure = Failure::from(format!("bad \0 byte {}", "é".repeat(10_000)));
        let text = failure.text();
        assert!(!text.contains('\0'));
        assert!(text.len() < 9_000 && text.ends_with("(cut)"), "{}", text.len());
    }

    #[test]
    fn error_text_names_the_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("could not charge")]
        struct Outer(#[source] std::io::Error);
        let failure = Failure::from(Outer(std::io::Error::other("card expired")));
        assert_eq!(failure.text(), "could not charge: card expired");
    }
}
