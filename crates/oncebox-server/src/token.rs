//! Tokens: long, random, shown once. A store keeps only their hash.

use std::time::Duration;

use jiff::Timestamp;
use oncebox::admin::{Role, TokenInfo};
use sha2::{Digest, Sha256};

use crate::config::Secret;

/// What every token begins with, so that it is known when it turns up somewhere.
pub const PREFIX: &str = "oncebox_";

/// How many random bytes a token has.
const BYTES: usize = 32;

/// The longest name of a token.
const LONGEST_NAME: usize = 100;

/// Makes a token: the text for its owner, who sees it this once, and what a store keeps of it. `now` is the time by the
/// database's clock (`AdminStore::clock`), from which `expires_in` counts.
///
/// Fails when the name cannot be one, when it would expire at once, or when the system has no randomness.
///
/// ```
/// use oncebox_server::token;
/// use oncebox::admin::Role;
///
/// let (secret, info) = token::create("dashboard", Role::Read, None, jiff::Timestamp::now())?;
/// assert!(secret.expose().starts_with("oncebox_"));
/// assert_eq!(info.hash, token::hash(secret.expose().as_bytes()));
/// # Ok::<(), String>(())
/// ```
pub fn create(
    name: &str,
    role: Role,
    expires_in: Option<Duration>,
    now: Timestamp,
) -> Result<(Secret, TokenInfo), String> {
    check_name(name)?;
    if expires_in.is_some_and(|length| length.is_zero()) {
        return Err("the token would expire at once; give it at least a second".to_owned());
    }
    let mut random = [0; BYTES];
    let source = rustls::crypto::ring::default_provider().secure_random;
    source.fill(&mut random).map_err(|_| "the system has no randomness for a token".to_owned())?;
    let token = format!("{PREFIX}{}", hexadecimal(&random));
    let expires_at = expires_in
        .map(|length| now.checked_add(length).map_err(|_| "the token would expire after the end of time"))
        .transpose()?;
    let info =
        TokenInfo { name: name.to_owned(), hash: hash(token.as_bytes()), role, created_at: now, expires_at };
    Ok((Secret::new(token), info))
}

/// The SHA-256 of a token, in hexadecimal. Tokens are long and random, so no salt is needed.
pub fn hash(token: &[u8]) -> String {
    hexadecimal(&digest(token))
}

/// The same as bytes.
pub(crate) fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Reads what [`hash`] wrote.
pub(crate) fn read_hash(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Names stand in the audit log, so none may look like somebody else's.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(allowed) {
        return Err(format!("a token's name has 1 to {LONGEST_NAME} letters, digits, `-`, `_` and `.`"));
    }
    if [LOOPBACK, CONFIGURED].contains(&name) {
        return Err(format!("`{name}` stands for something else in the audit log; take another name"));
    }
    Ok(())
}

/// Whom the audit log names when no token is needed.
pub(crate) const LOOPBACK: &str = "loopback";
/// Whom it names for the token of the configuration.
pub(crate) const CONFIGURED: &str = "config";

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_random_and_kept_as_a_hash_only() {
        let (one, info) = create("a", Role::Read, Some(Duration::from_secs(60)), Timestamp::now()).unwrap();
        let (other, _) = create("a", Role::Read, None, Timestamp::now()).unwrap();
        assert_ne!(one.expose(), other.expose());
        let random = one.expose().strip_prefix(PREFIX).unwrap();
        assert!(random.len() * 4 >= 192 && random.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!format!("{info:?}").contains(random));
        assert_eq!(read_hash(&info.hash), Some(digest(one.expose().as_bytes())));
        assert!(info.expires_at.unwrap() > Timestamp::now());
        for name in ["", "a b", "a/b", "loopback", "config", "é"] {
            assert!(create(name, Role::Read, None, Timestamp::now()).is_err(), "{name}");
        }
        for text in ["", "zz", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(read_hash(text), None, "{text}");
        }
    }
}
