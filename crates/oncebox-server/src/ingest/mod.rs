//! `POST /in/{source}`: one message, or many as lines of JSON. Answered only after the commit.

mod answer;
mod batch;
mod body;
pub(crate) mod signature;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use oncebox::admin::Role;
use oncebox::{Error, ErrorKind, Headers, Message, Received};
use oncebox_core::mapping::{Delivered, Mapped};

use crate::access::Refused;
use crate::api::answer::ErrorBody;
use crate::api::guard::is_from_a_page;
use crate::config::{HttpSourceConfig, TokenRule};
use crate::guesses::Peer;
use crate::handlers::hold::Bucket;
use crate::service::App;
use crate::stores::ServiceStore;
pub(crate) use answer::Refusal;
pub(crate) use answer::json_response;
pub(crate) use body::InFlight;

/// A source that others post to, and its rate limit.
#[derive(Debug)]
pub(crate) struct HttpSource {
    pub(crate) config: HttpSourceConfig,
    pub(crate) rate: Option<Bucket>,
}

impl HttpSource {
    pub(crate) fn new(config: HttpSourceConfig) -> Self {
        let rate = config.rate.map(Bucket::new);
        Self { config, rate }
    }
}

/// Never stored, whatever the configuration asks for: what proves who somebody is, and what belongs to the connection.
const NEVER_KEPT: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "x-auth-token",
    "x-access-token",
    "x-csrf-token",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "host",
    "content-length",
];

/// Stores a message, or many of them; answered only after the commit.
///
/// With `application/x-ndjson` each line is a message: `{"id","kind","key","headers","payload"}`.
#[utoipa::path(
    post, path = "/in/{source}", tag = "ingest",
    params(("source" = String, Path, description = "The name of an http source.")),
    request_body(
        description = "The payload, byte by byte; id, kind and key are read where the source says.",
        content((serde_json::Value = "application/json"), (String = "application/x-ndjson"), (String = "text/plain")),
    ),
    responses(
        (status = 200, body = answer::Taken, description = "This id came before with the same bytes."),
        (status = 202, body = answer::Taken, description = "Stored, durably."),
        (status = 207, body = String, content_type = "application/x-ndjson", description = "A line per line of the batch."),
        (status = 400, body = ErrorBody, description = "No id, no kind, or a limit broken."),
        (status = 401, body = ErrorBody, description = "The signature or the token is missing or wrong."),
        (status = 403, body = ErrorBody, description = "The token is for something else, or a web page posts to a source without proof."),
        (status = 404, body = ErrorBody, description = "There is no such source."),
        (status = 408, body = ErrorBody, description = "The body came too slowly."),
        (status = 413, body = ErrorBody, description = "Too large."),
        (status = 422, body = answer::Taken, description = "This id came before with other bytes; both are kept."),
        (status = 429, body = ErrorBody, description = "The source's rate limit is reached, or too many wrong tokens came from this address; see `retry-after`."),
        (status = 503, body = ErrorBody, description = "Not stored now, or the source is paused; see `retry-after`."),
    ),
    security((), ("token" = ["ingest"])),
)]
pub(crate) async fn post<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let timing = app.metrics.request_time.start();
    let answered = match name {
        Ok(Path(name)) => take(&app, &name, request).await,
        Err(_) => Err(Refusal::Bad("the name of the source is not UTF-8; write it with %XX".to_owned())),
    };
    drop(timing);
    let response = answered.unwrap_or_else(|refusal| refusal.into_response(app.http.retry_after));
    app.metrics.count_request(response.status());
    response
}

async fn take<St: ServiceStore>(app: &App<St>, name: &str, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().copied();
    let headers = parts.headers;
    // The same for every name, so it tells nothing about any.
    body::check_length(&app.http, &headers)?;
    // Who may not post is not told which sources there are.
    let source = app.sources.get(name);
    check_token(app, source, &headers, peer)?;
    let source = source
        .ok_or_else(|| Refusal::NotFound(format!("there is no http source `{}`", name.escape_debug())))?;
    let not_paused = || if app.inbox.is_source_paused(name) { Err(Refusal::Paused) } else { Ok(()) };
    match &source.config.verify {
        // Nothing of the body is read from who has not even tried to sign it.
        Some(verify) if !signature::is_there(verify, &headers) => return Err(Refusal::Unauthorized),
        // Whether the source is paused is said only to those whose signature holds.
        Some(_) => {}
        None => not_paused()?,
    }
    let (body, in_flight) = body::read(&app.http, &app.in_flight, &headers, body).await?;
    if let Some(verify) = &source.config.verify {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        signature::verify(verify, &headers, &body, now).map_err(|_| Refusal::Unauthorized)?;
        not_paused()?;
    }
    let is_batch = headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.to_str().unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/x-ndjson")
    });
    if is_batch {
        return batch::take(app, source, &body, in_flight).await;
    }
    take_rate(source, 1)?;
    // Before it is read as JSON, which takes many times as much memory.
    if body.len() > app.max_payload {
        return Err(Refusal::TooLarge(app.max_payload));
    }
    let message = read_message(app, source, &headers, body)?;
    store_one(app, message).await
}

/// Whether these headers may post to this source, as far as tokens go.
fn check_token<St: ServiceStore>(
    app: &App<St>,
    source: Option<&HttpSource>,
    headers: &HeaderMap,
    peer: Option<Peer>,
) -> Result<(), Refusal> {
    let signed = source.is_some_and(|source| source.config.verify.is_some());
    let needed = match source.map_or(TokenRule::Auto, |source| source.config.token) {
        TokenRule::Always => true,
        TokenRule::Never => false,
        TokenRule::Auto => !signed && !app.access.is_open(),
    };
    if needed {
        let actor = app.access.actor(headers, peer).map_err(|refused| match refused {
            Refused::Unknown => Refusal::Unauthorized,
            Refused::Guessing(wait) => Refusal::Guessing(wait),
        })?;
        return match actor.role.allows(Role::Ingest) {
            _ if actor.is_unproven() => Err(Refusal::Unauthorized),
            true => Ok(()),
            false => Err(Refusal::NotAllowed),
        };
    }
    if !signed && is_from_a_page(headers) {
        return Err(Refusal::Forbidden);
    }
    Ok(())
}

async fn store_one<St: ServiceStore>(app: &App<St>, message: Message) -> Result<Response, Refusal> {
    let received = app.inbox.receive(std::slice::from_ref(&message)).await.map_err(refused)?;
    let status = received.first().copied().ok_or(Refusal::Unavailable)?;
    Ok(answer::stored(&message.id, status))
}

/// Takes from the source's rate limit.
fn take_rate(source: &HttpSource, messages: usize) -> Result<(), Refusal> {
    source.rate.as_ref().map_or(Ok(()), |rate| rate.try_take(messages)).map_err(Refusal::TooMany)
}

/// The store's error as an answer: what the sender can mend, and what will mend itself.
fn refused(error: Error) -> Refusal {
    if error.kind() == ErrorKind::Invalid {
        return Refusal::Bad(error.to_string());
    }
    tracing::warn!(error = %error.to_string().escape_debug(), "messages could not be stored");
    Refusal::Unavailable
}

fn read_message<St: ServiceStore>(
    app: &App<St>,
    source: &HttpSource,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Message, Refusal> {
    if source.config.reads_json {
        check_depth(&body, app.http.json_depth)?;
    }
    for name in ["webhook-id", "idempotency-key"] {
        if headers.get_all(name).iter().count() > 1 {
            return Err(Refusal::Bad(format!("the header `{name}` came more than once")));
        }
    }
    let delivered = Delivered { headers: all_headers(headers), payload: body, ..Delivered::default() };
    let Mapped { mut message, fault, .. } = source.config.mapping.read(delivered);
    if let Some(fault) = fault {
        return Err(Refusal::Bad(fault));
    }
    message.scope = source.config.scope.clone();
    message.headers = kept(&source.config.keep_headers, &message.headers);
    Ok(message)
}

fn all_headers(headers: &HeaderMap) -> Headers {
    let mut all = Headers::new();
    for (name, value) in headers {
        let bytes = match name.as_str() {
            // A text in quotes, by the standard; many senders leave the quotes out.
            "idempotency-key" => unquoted(value.as_bytes()),
            _ => Bytes::copy_from_slice(value.as_bytes()),
        };
        all.push(name.as_str(), bytes);
    }
    all
}

fn unquoted(value: &[u8]) -> Bytes {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let Some(inner) = inner else { return Bytes::copy_from_slice(value) };
    let mut text = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => text.extend(bytes.next()),
            byte => text.push(*byte),
        }
    }
    text.into()
}

/// The headers to store: those asked for, but never credentials and signatures.
fn kept(patterns: &[String], headers: &Headers) -> Headers {
    let mut kept = Headers::new();
    for (name, value) in headers.iter() {
        let wanted = patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        });
        let never = NEVER_KEPT.contains(&name)
            || ["signature", "secret", "token", "password"].iter().any(|word| name.contains(word));
        if wanted && !never {
            kept.push(name, value.clone());
        }
    }
    kept
}

/// Refuses JSON that is nested too deep before anything recursive reads it. What is no JSON at all passes.
pub(crate) fn check_depth(bytes: &[u8], most: usize) -> Result<(), Refusal> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            return Err(Refusal::Bad(format!("the JSON is nested deeper than {most} levels")));
        }
    }
    Ok(())
}

/// The word for it, as answers have it.
fn word(received: Received) -> (&'static str, StatusCode) {
    match received {
        Received::New => ("new", StatusCode::ACCEPTED),
        Received::Duplicate => ("duplicate", StatusCode::OK),
        Received::Conflict => ("conflict", StatusCode::UNPROCESSABLE_ENTITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_json_is_refused_and_brackets_in_texts_do_not_count() {
        assert!(check_depth(&[b'['; 65], 64).is_err());
        assert!(check_depth(&[b'['; 64], 64).is_ok());
        assert!(check_depth(br#"{"a":"[[[[[[\"[[[["}"#, 1).is_ok());
        assert!(check_depth("[{}]".repeat(1000).as_bytes(), 2).is_ok());
        assert!(check_depth(&[b'{'; 20_000], 64).is_err());
    }

    #[test]
    fn credentials_are_never_kept() {
        let mut headers = Headers::new();
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "webhook-signature",
            "x-hub-signature-256",
            "x-gitlab-token",
            "x-tenant",
            "content-type",
            "user-agent",
        ] {
            headers.push(name, "v");
        }
        let names = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            kept(&patterns, &headers).iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["*"]), ["x-tenant", "content-type", "user-agent"]);
        assert_eq!(names(&["x-*", "authorization"]), ["x-tenant"]);
    }

    #[test]
    fn a_quoted_idempotency_key_is_read_as_the_standard_says() {
        assert_eq!(unquoted(br#""a-1""#), "a-1");
        assert_eq!(unquoted(br#""a\"b\\c""#), "a\"b\\c");
        assert_eq!(unquoted(b"a-1"), "a-1");
        assert_eq!(unquoted(b"\""), "\"");
    }
}
