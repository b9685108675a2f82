//! Slows down who tries one token after the other.
//!
//! Tokens that were tried in vain are counted per address, and only different ones: a program with an old token asks the
//! same wrong one again and again, and must not shut the door for its neighbours behind the same address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long wrong tokens count.
const WINDOW: Duration = Duration::from_secs(60);
/// The most addresses that are remembered.
const MOST_ADDRESSES: usize = 4096;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// The wrong tokens of each address.
#[derive(Debug)]
pub(crate) struct Guesses {
    /// How many different ones an address may try in a [`WINDOW`]; 0: any number.
    most: usize,
    tried: Mutex<HashMap<IpAddr, Tried>>,
}

#[derive(Debug)]
struct Tried {
    since: Instant,
    /// The beginnings of their hashes.
    tokens: Vec<u64>,
}

impl Guesses {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, tried: Mutex::default() }
    }

    /// How long this address has to wait before its next token is looked at.
    pub(crate) fn wait(&self, peer: Option<Peer>, now: Instant) -> Option<Duration> {
        let tried = self.lock();
        let tried = tried.get(&address(peer?.0))?;
        let left = WINDOW.checked_sub(now.saturating_duration_since(tried.since))?;
        (self.most > 0 && tried.tokens.len() >= self.most && !left.is_zero()).then_some(left)
    }

    /// Remembers a wrong token.
    pub(crate) fn wrong(&self, peer: Option<Peer>, hash: &[u8; 32], now: Instant) {
        let (Some(Peer(peer)), true) = (peer, self.most > 0) else { return };
        let peer = address(peer);
        let mut all = self.lock();
        let is_over = |tried: &Tried| now.saturating_duration_since(tried.since) >= WINDOW;
        if !all.contains_key(&peer) && all.len() >= MOST_ADDRESSES {
            all.retain(|_, tried| !is_over(tried));
            if all.len() >= MOST_ADDRESSES
                && let Some(oldest) = all.iter().min_by_key(|(_, tried)| tried.since).map(|(peer, _)| *peer)
            {
                all.remove(&oldest);
            }
        }
        let tried = all.entry(peer).or_insert_with(|| Tried { since: now, tokens: Vec::new() });
        if is_over(tried) {
            *tried = Tried { since: now, tokens: Vec::new() };
        }
        let token = u64::from_be_bytes(*hash.first_chunk().unwrap_or(&[0; 8]));
        if tried.tokens.len() < self.most && !tried.tokens.contains(&token) {
            tried.tokens.push(token);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever has an IPv6 address has 2^64 of them.
fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Option<Peer> {
        Some(Peer(text.parse().unwrap()))
    }

    fn hash(number: usize) -> [u8; 32] {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(number as u64).to_be_bytes());
        hash
    }

    #[test]
    fn an_address_that_guesses_has_to_wait_and_no_other() {
        let (guesses, now) = (Guesses::new(10), Instant::now());
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        for number in 0..10 {
            assert_eq!(guesses.wait(one, now), None);
            guesses.wrong(one, &hash(number), now);
            guesses.wrong(other, &hash(7), now);
        }
        let later = now + Duration::from_secs(20);
        assert_eq!(guesses.wait(one, later), Some(Duration::from_secs(40)));
        assert_eq!(guesses.wait(peer("::ffff:192.0.2.1"), later), Some(Duration::from_secs(40)));
        assert_eq!(guesses.wait(other, later), None, "the same wrong token again is no guess");
        assert_eq!(guesses.wait(one, now + WINDOW), None);
        guesses.wrong(one, &hash(0), now + WINDOW);
        assert_eq!(guesses.wait(one, now + WINDOW), None, "it begins anew");
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_guesser() {
        let (guesses, now) = (Guesses::new(10), Instant::now());
        for number in 0..10 {
            guesses.wrong(peer(&format!("2001:db8::{number}")), &hash(number), now);
        }
        assert!(guesses.wait(peer("2001:db8::abcd"), now).is_some());
        assert!(guesses.wait(peer("2001:db8:0:1::1"), now).is_none());
    }

    #[test]
    fn memory_is_bounded_and_zero_turns_it_off() {
        let (guesses, now) = (Guesses::new(2), Instant::now());
        for number in 0..2 * MOST_ADDRESSES {
            let from = IpAddr::V4(std::net::Ipv4Addr::from_bits(number as u32));
            for token in 0..5 {
                guesses.wrong(Some(Peer(from)), &hash(token), now + Duration::from_micros(number as u64));
            }
        }
        let tried = guesses.lock();
        assert!(tried.len() <= MOST_ADDRESSES && tried.values().all(|tried| tried.tokens.len() <= 2));
        let off = Guesses::new(0);
        off.wrong(peer("192.0.2.1"), &hash(1), now);
        assert!(off.wait(peer("192.0.2.1"), now).is_none() && off.lock().is_empty());
    }
}
