//! A secret: usable, never printable.

use std::fmt;

use subtle::ConstantTimeEq;

/// A token, a signing secret or an address with a password in it. It has no text form: neither `Debug` nor `Display`
/// shows anything of it.
///
/// ```
/// use oncebox_server::config::Secret;
///
/// let secret = Secret::new("hunter2");
/// assert_eq!(format!("{secret:?}"), "Secret(hidden)");
/// assert!(secret.matches(b"hunter2"));
/// assert!(!secret.matches(b"hunter3"));
/// ```
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Takes a text as a secret from now on.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether this is the secret; takes the same time wherever the two differ.
    pub fn matches(&self, guess: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(guess).into()
    }

    /// True when there is no secret at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}
