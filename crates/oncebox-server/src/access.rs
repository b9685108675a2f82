//! Who a request comes from: the tokens of the store and the one of the configuration, as this process knows them.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use oncebox::Error;
use oncebox::admin::{AdminStore, Role, TokenInfo};
use subtle::ConstantTimeEq;
use tokio::sync::{Mutex, watch};

use crate::config::{HttpConfig, Secret};
use crate::guesses::{Guesses, Peer};
use crate::token::{self, CONFIGURED, LOOPBACK};

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// The token's name, for the audit log.
    pub(crate) name: String,
    /// What it allows.
    pub(crate) role: Role,
    /// Which token it was; `None` when none is needed.
    hash: Option<[u8; 32]>,
}

impl Actor {
    /// True for a program of this machine, while there is no token at all.
    pub(crate) fn is_unproven(&self) -> bool {
        self.hash.is_none()
    }
}

/// Why nobody is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No token, an unknown one, one that has expired: nobody is told which.
    Unknown,
    /// This address has tried too many; its tokens are not looked at for so long.
    Guessing(Duration),
}

/// What this process knows of the tokens; read again every second, and at once after a change made here.
#[derive(Debug)]
pub(crate) struct Access {
    known: watch::Sender<Arc<Vec<Known>>>,
    configured: Option<[u8; 32]>,
    renewing: Mutex<()>,
    guesses: Guesses,
    clock: RwLock<Option<Clock>>,
}

/// What the database's clock said, and when it was asked.
#[derive(Debug, Clone, Copy)]
struct Clock {
    said: Timestamp,
    asked_at: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    hash: [u8; 32],
    role: Role,
    expires_at: Option<Timestamp>,
}

impl Access {
    /// With the token of the configuration only, until the store was read.
    pub(crate) fn new(http: &HttpConfig) -> Self {
        Self::with(http.token.as_ref(), http.max_wrong_tokens)
    }

    fn with(configured: Option<&Secret>, max_wrong_tokens: usize) -> Self {
        let access = Self {
            known: watch::Sender::default(),
            configured: configured.map(|token| token::digest(token.expose().as_bytes())),
            renewing: Mutex::default(),
            guesses: Guesses::new(max_wrong_tokens),
            clock: RwLock::default(),
        };
        access.replace(Vec::new());
        access
    }

    /// The database's clock, as far as it is known: what it said last and the time since then.
    fn now(&self) -> Timestamp {
        let clock = *self.clock.read().unwrap_or_else(PoisonError::into_inner);
        // Before the first answer no token is known that could expire.
        let Some(clock) = clock else { return Timestamp::now() };
        clock.said.checked_add(clock.asked_at.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// Reads the store's tokens.
    pub(crate) async fn renew(&self, store: &impl AdminStore) -> Result<(), Error> {
        // One reader after the other: an answer from before a change must not replace one from after it.
        let _turn = self.renewing.lock().await;
        let asked_at = Instant::now();
        let said = store.clock().await?;
        let tokens = store.tokens().await?;
        *self.clock.write().unwrap_or_else(PoisonError::into_inner) = Some(Clock { said, asked_at });
        self.replace(tokens);
        Ok(())
    }

    fn replace(&self, tokens: Vec<TokenInfo>) {
        let configured = self.configured.map(|hash| Known {
            name: CONFIGURED.to_owned(),
            hash,
            role: Role::Admin,
            expires_at: None,
        });
        let stored = tokens.into_iter().map(|info| match token::read_hash(&info.hash) {
            Some(hash) => Known { name: info.name, hash, role: info.role, expires_at: info.expires_at },
            None => {
                tracing::error!(token = info.name, "the hash of a token cannot be read; revoke it");
                Known::spoilt(info)
            }
        });
        let known: Vec<Known> = configured.into_iter().chain(stored).collect();
        self.known.send_if_modified(|old| {
            let changed = **old != known;
            *old = Arc::new(known);
            changed
        });
    }

    /// True when there is no token at all, not even one that has expired: then programs of this machine may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.known.borrow().is_empty()
    }

    /// True when somebody could make tokens through the API.
    pub(crate) fn has_admin(&self) -> bool {
        let now = self.now();
        self.known.borrow().iter().any(|known| known.role == Role::Admin && !known.is_over(now))
    }

    /// Who sent these headers from there.
    pub(crate) fn actor(&self, headers: &HeaderMap, peer: Option<Peer>) -> Result<Actor, Refused> {
        let known = self.known.borrow().clone();
        if known.is_empty() {
            return Ok(Actor { name: LOOPBACK.to_owned(), role: Role::Admin, hash: None });
        }
        // Who shows no token guesses none.
        let guess = bearer(headers).ok_or(Refused::Unknown)?;
        let now = Instant::now();
        if let Some(wait) = self.guesses.wait(peer, now) {
            return Err(Refused::Guessing(wait));
        }
        let hash = token::digest(guess);
        let found = find(&known, &hash, self.now());
        if found.is_none() {
            self.guesses.wrong(peer, &hash, now);
        }
        found.map(Known::actor).ok_or(Refused::Unknown)
    }

    /// Whether this actor may still do what it could when it came.
    pub(crate) fn still_allows(&self, actor: &Actor) -> bool {
        let known = self.known.borrow().clone();
        match &actor.hash {
            None => known.is_empty(),
            Some(hash) => find(&known, hash, self.now()).is_some_and(|known| known.role == actor.role),
        }
    }

    /// Tells when tokens come or go.
    pub(crate) fn changes(&self) -> Changes {
        Changes(self.known.subscribe())
    }
}

/// See [`Access::changes`].
#[derive(Debug)]
pub(crate) struct Changes(watch::Receiver<Arc<Vec<Known>>>);

impl Changes {
    /// Ready after the next change.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Known {
    /// A token that nobody can have, so that a spoilt row does not open the service.
    fn spoilt(info: TokenInfo) -> Self {
        Self { name: info.name, hash: [0; 32], role: Role::Ingest, expires_at: Some(Timestamp::MIN) }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    fn actor(&self) -> Actor {
        Actor { name: self.name.clone(), role: self.role, hash: Some(self.hash) }
    }
}

/// Looks at every token, so that the time it takes tells nothing.
fn find<'a>(all: &'a [Known], hash: &[u8; 32], now: Timestamp) -> Option<&'a Known> {
    let mut found = None;
    for known in all {
        if bool::from(known.hash.ct_eq(hash)) && !known.is_over(now) {
            found = Some(known);
        }
    }
    found
}

/// The token of the one `authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(first), None) = (given.next(), given.next()) else { return None };
    let (scheme, guess) = first.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(guess)
}

#[cfg(test)]
mod tests {
    use oncebox::SqliteStore;
    use oncebox_core::clock::ClockShift;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn headers(values: &[&str]) -> HeaderMap {
        HeaderMap::from_iter(values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())))
    }

    #[test]
    fn tokens_are_told_apart_and_everything_else_is_unknown() {
        let access = Access::with(None, 0);
        assert!(access.is_open() && access.actor(&headers(&[]), None).unwrap().is_unproven());
        let (reader, info) = token::create("reader", Role::Read, None, Timestamp::now()).unwrap();
        let (late, mut over) = token::create("late", Role::Admin, Some(MINUTE), Timestamp::now()).unwrap();
        over.expires_at = Some(Timestamp::now());
        access.replace(vec![over.clone()]);
        assert!(!access.is_open(), "a token that has expired opens nothing");
        access.replace(vec![info.clone(), over]);
        let actor = access.actor(&headers(&[&format!("BEARER {}", reader.expose())]), None).unwrap();
        assert_eq!((actor.name.as_str(), actor.role), ("reader", Role::Read));
        for wrong in [
            &[][..],
            &[reader.expose()],
            &[&format!("basic {}", reader.expose())],
            &[&format!("bearer {}", late.expose())],
            &[&format!("bearer {}x", reader.expose())],
            &[&format!("bearer {}", info.hash)],
            &[&format!("bearer {}", reader.expose()), "bearer x"],
            &["bearer "],
            &["b"],
        ] {
            assert_eq!(access.actor(&headers(wrong), None).err(), Some(Refused::Unknown), "{wrong:?}");
        }
        assert!(access.still_allows(&actor) && !access.has_admin());
        access.replace(Vec::new());
        assert!(!access.still_allows(&actor), "revoked");
    }

    #[test]
    fn a_row_that_cannot_be_read_lets_nobody_in_and_opens_nothing() {
        let access = Access::with(None, 0);
        let (_, mut info) = token::create("spoilt", Role::Admin, None, Timestamp::now()).unwrap();
        info.hash = "no hash".to_owned();
        access.replace(vec![info]);
        assert!(!access.is_open() && !access.has_admin());
    }

    #[test]
    fn the_token_of_the_configuration_may_do_everything() {
        let access = Access::with(Some(&Secret::new("0123456789-0123456789-0123")), 0);
        let actor = access.actor(&headers(&["bearer 0123456789-0123456789-0123"]), None).unwrap();
        assert_eq!((actor.name.as_str(), actor.role), ("config", Role::Admin));
        assert!(access.actor(&headers(&["bearer 0123456789-0123456789-012"]), None).is_err());
    }
    #[test]
    fn an_address_that_guesses_is_not_compared_any_more() {
        let access = Access::with(Some(&Secret::new("0123456789-0123456789-0123")), 3);
        let good = headers(&["bearer 0123456789-0123456789-0123"]);
        let peer = |last: u8| Some(Peer([192, 0, 2, last].into()));
        for number in 0..3 {
            let wrong = headers(&[&format!("bearer wrong-{number}")]);
            assert_eq!(access.actor(&wrong, peer(1)).err(), Some(Refused::Unknown));
        }
        assert!(matches!(access.actor(&good, peer(1)), Err(Refused::Guessing(_))), "not even a good one");
        assert_eq!(access.actor(&headers(&[]), peer(1)).err(), Some(Refused::Unknown), "no token, no guess");
        assert!(access.actor(&good, peer(2)).is_ok(), "another address is let in");
    }

    /// All decisions are those of the database's clock: a service whose own clock is wrong neither ends a token early
    /// nor lets it live on.
    #[tokio::test]
    async fn a_token_expires_by_the_clock_of_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let clock = ClockShift::default();
        let store = SqliteStore::open(folder.path().join("a.db").to_str().unwrap()).await.unwrap();
        let store = store.with_clock(clock.clone());
        store.migrate().await.unwrap();
        clock.advance(60 * MINUTE);
        let now = store.clock().await.unwrap();
        let (secret, info) = token::create("short", Role::Read, Some(30 * MINUTE), now).unwrap();
        assert!(store.add_token(&info).await.unwrap());
        let access = Access::with(None, 0);
        let known = headers(&[&format!("bearer {}", secret.expose())]);
        access.renew(&store).await.unwrap();
        let actor = access.actor(&known, None).unwrap();
        clock.advance(31 * MINUTE);
        access.renew(&store).await.unwrap();
        assert_eq!(access.actor(&known, None).err(), Some(Refused::Unknown));
        assert!(!access.still_allows(&actor));
    }
}
