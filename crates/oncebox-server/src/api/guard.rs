//! Who may ask for what: a token with a role; without any token, programs of this machine, but no web page in its
//! browser.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use oncebox::admin::Role;

use super::answer::Problem;
use crate::access::{Actor, Refused};
use crate::guesses::Peer;
use crate::service::App;
use crate::stores::ServiceStore;

/// Finds out who asks, before anything is said about what there is.
pub(crate) async fn authenticate<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let actor = match app.access.actor(request.headers(), peer) {
        Ok(actor) => actor,
        Err(Refused::Unknown) => return Problem::Unauthorized.into_response(),
        Err(Refused::Guessing(wait)) => return Problem::Guessing(wait).into_response(),
    };
    if actor.is_unproven() && is_from_a_page(request.headers()) {
        return Problem::FromPage.into_response();
    }
    request.extensions_mut().insert(actor);
    next.run(request).await
}

/// Lets those pass whose role allows it.
pub(crate) async fn allow(State(needed): State<Role>, request: Request, next: Next) -> Response {
    match request.extensions().get::<Actor>() {
        Some(actor) if actor.role.allows(needed) => next.run(request).await,
        Some(_) => Problem::NotAllowed.into_response(),
        None => Problem::Unauthorized.into_response(),
    }
}

/// A page of another origin must not use a service that trusts this machine, neither directly nor by
/// a name of its own that stands for 127.0.0.1.
pub(crate) fn is_from_a_page(headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    let other_site = !matches!(site, None | Some(b"none" | b"same-origin"));
    let host = text(header::HOST).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name).trim_start_matches('[').trim_end_matches(']');
    let is_local =
        name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok();
    let other_origin = text(header::ORIGIN).is_some_and(|origin| !origin.ends_with(&format!("//{host}")));
    // A browser says nothing of sites to an address without TLS, so the name alone decides: it must be one that no page
    // can have made its own.
    other_site || other_origin || !is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_web_pages_are_told_apart() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            HeaderMap::from_iter(pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
            }))
        };
        for program in [
            &[("host", "127.0.0.1:8420")][..],
            &[("host", "localhost")],
            &[("host", "[::1]:8420"), ("sec-fetch-site", "none")],
            &[
                ("host", "127.0.0.1:8420"),
                ("origin", "http://127.0.0.1:8420"),
                ("sec-fetch-site", "same-origin"),
            ],
        ] {
            assert!(!is_from_a_page(&headers(program)), "{program:?}");
        }
        for page in [
            &[("host", "127.0.0.1:8420"), ("origin", "https://evil.example")][..],
            &[("host", "127.0.0.1:8420"), ("origin", "null")],
            &[("host", "127.0.0.1:8420"), ("sec-fetch-site", "cross-site")],
            &[("host", "127.0.0.1:8420"), ("sec-fetch-site", "same-site")],
            // A name of the page's own that was changed to stand for this machine.
            &[("host", "evil.example:8420")],
            &[("host", "evil.example:8420"), ("origin", "http://evil.example:8420")],
            &[("host", "evil.example:8420"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_from_a_page(&headers(page)), "{page:?}");
        }
    }
}
