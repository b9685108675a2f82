//! Who a request comes from: the tokens of the store and the one of the configuration, as this process knows them.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use oncebox::Error;
use oncebox::admin::{AdminStore, Role, TokenInfo};
use subtle::ConstantTimeEq;
use tokio::sync::{Mutex, watch};

use crate::config::Secret;
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

/// No token, an unknown one, one that has expired: nobody is told which.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// What this process knows of the tokens; read again every second, and at once after a change made here.
#[derive(Debug)]
pub(crate) struct Access {
    known: watch::Sender<Arc<Vec<Known>>>,
    configured: Option<[u8; 32]>,
    renewing: Mutex<()>,
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
    pub(crate) fn new(configured: Option<&Secret>) -> Self {
        let configured = configured.map(|token| token::digest(token.expose().as_bytes()));
        let access = Self { known: watch::Sender::default(), configured, renewing: Mutex::default() };
        access.replace(Vec::new());
        access
    }

    /// Reads the store's tokens.
    pub(crate) async fn renew(&self, store: &impl AdminStore) -> Result<(), Error> {
        // One reader after the other: an answer from before a change must not replace one from after it.
        let _turn = self.renewing.lock().await;
        let tokens = store.tokens().await?;
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
        let now = Timestamp::now();
        self.known.borrow().iter().any(|known| known.role == Role::Admin && !known.is_over(now))
    }

    /// Who sent these headers.
    pub(crate) fn actor(&self, headers: &HeaderMap) -> Result<Actor, Unknown> {
        let known = self.known.borrow().clone();
        if known.is_empty() {
            return Ok(Actor { name: LOOPBACK.to_owned(), role: Role::Admin, hash: None });
        }
        let hash = token::digest(bearer(headers).ok_or(Unknown)?);
        find(&known, &hash).map(|known| known.actor()).ok_or(Unknown)
    }

    /// Whether this actor may still do what it could when it came.
    pub(crate) fn still_allows(&self, actor: &Actor) -> bool {
        let known = self.known.borrow().clone();
        match &actor.hash {
            None => known.is_empty(),
            Some(hash) => find(&known, hash).is_some_and(|known| known.role == actor.role),
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
fn find<'a>(all: &'a [Known], hash: &[u8; 32]) -> Option<&'a Known> {
    let now = Timestamp::now();
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
    use std::time::Duration;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        HeaderMap::from_iter(values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())))
    }

    #[test]
    fn tokens_are_told_apart_and_everything_else_is_unknown() {
        let access = Access::new(None);
        assert!(access.is_open() && access.actor(&headers(&[])).unwrap().is_unproven());
        let (reader, info) = token::create("reader", Role::Read, None).unwrap();
        let (late, mut over) = token::create("late", Role::Admin, Some(Duration::from_secs(1))).unwrap();
        over.expires_at = Some(Timestamp::now());
        access.replace(vec![over.clone()]);
        assert!(!access.is_open(), "a token that has expired opens nothing");
        access.replace(vec![info.clone(), over]);
        let actor = access.actor(&headers(&[&format!("BEARER {}", reader.expose())])).unwrap();
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
            assert_eq!(access.actor(&headers(wrong)).err(), Some(Unknown), "{wrong:?}");
        }
        assert!(access.still_allows(&actor) && !access.has_admin());
        access.replace(Vec::new());
        assert!(!access.still_allows(&actor), "revoked");
    }

    #[test]
    fn a_row_that_cannot_be_read_lets_nobody_in_and_opens_nothing() {
        let access = Access::new(None);
        let (_, mut info) = token::create("spoilt", Role::Admin, None).unwrap();
        info.hash = "no hash".to_owned();
        access.replace(vec![info]);
        assert!(!access.is_open() && !access.has_admin());
    }

    #[test]
    fn the_token_of_the_configuration_may_do_everything() {
        let access = Access::new(Some(&Secret::new("0123456789-0123456789-0123")));
        let actor = access.actor(&headers(&["bearer 0123456789-0123456789-0123"])).unwrap();
        assert_eq!((actor.name.as_str(), actor.role), ("config", Role::Admin));
        assert!(access.actor(&headers(&["bearer 0123456789-0123456789-012"])).is_err());
    }
}
