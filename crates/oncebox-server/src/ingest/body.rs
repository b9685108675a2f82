//! Reads a request's body within limits of size, time and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::answer::Refusal;
use crate::config::HttpConfig;

/// How many bytes of bodies are being read and stored at this moment, and how many may be.
#[derive(Debug)]
pub(crate) struct InFlight {
    used: AtomicUsize,
    most: usize,
}

impl InFlight {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Some of these bytes; given back on drop.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<InFlight>,
    bytes: usize,
}

impl Share {
    fn new(of: &Arc<InFlight>) -> Self {
        Self { of: of.clone(), bytes: 0 }
    }

    /// The most bytes there are for all together.
    pub(super) fn most(&self) -> usize {
        self.of.most
    }

    /// Grows to this many bytes, or refuses at once: who waits for memory holds memory.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), Refusal> {
        let more = bytes.saturating_sub(self.bytes);
        let grown = self.of.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(more).filter(|sum| *sum <= self.of.most)
        });
        grown.map_err(|_| Refusal::Unavailable)?;
        self.bytes += more;
        Ok(())
    }

    /// Gives back what is beyond this many bytes.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.of.used.fetch_sub(less, Ordering::AcqRel);
        self.bytes -= less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Refuses a body that says it is too large.
pub(crate) fn check_length(http: &HttpConfig, headers: &HeaderMap) -> Result<(), Refusal> {
    let too_large = declared(headers).is_some_and(|length| length > http.max_body);
    if too_large { Err(Refusal::TooLarge(http.max_body)) } else { Ok(()) }
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok()?;
    Some(usize::try_from(length).unwrap_or(usize::MAX))
}

/// The whole body, and its share of the memory, which is held until the messages are stored.
pub(crate) async fn read(
    http: &HttpConfig,
    in_flight: &Arc<InFlight>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Share), Refusal> {
    check_length(http, headers)?;
    let mut share = Share::new(in_flight);
    if let Some(length) = declared(headers) {
        // Before the first byte is read, so that a refused sender has not sent everything for nothing.
        share.grow_to(length)?;
    }
    let reading = collect(http.max_body, body, &mut share);
    let bytes = tokio::time::timeout(http.body_timeout, reading).await.map_err(|_| Refusal::Slow)??;
    Ok((bytes, share))
}

async fn collect(most: usize, mut body: Body, share: &mut Share) -> Result<Bytes, Refusal> {
    let mut collected = BytesMut::new();
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(most);
    collected.reserve(expected.min(1024 * 1024));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::Bad("the body ended too early".to_owned()))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > most {
            return Err(Refusal::TooLarge(most));
        }
        share.grow_to(collected.len() + data.len())?;
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}
