//! `/api/v1`: what the service knows, for programs. Reading only.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use oncebox::Error;
use oncebox::admin::{DeliveryFilter, DeliveryState};
use oncebox::store::DeliveryId;
use serde_json::{Value, json};
use url::form_urlencoded;

use crate::config::suggestion;
use crate::ingest::json_response;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// The most deliveries in one answer.
const MOST: usize = 1000;

/// How long the store may take: an answer that is late is of no use to a person.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn router<St: ServiceStore>() -> Router<Arc<App<St>>> {
    Router::new()
        .route("/api/v1/status", get(status::<St>))
        .route("/api/v1/handlers", get(handlers::<St>))
        .route("/api/v1/deliveries", get(deliveries::<St>))
        .route("/api/v1/outbox", get(outbox::<St>))
        .route("/api/v1/conflicts", get(conflicts::<St>))
        .route("/api/v1/sources", get(sources::<St>))
        .route("/api/v1/sinks", get(sinks::<St>))
}

/// Lets those pass who have the token; without one, programs of this machine, but no web page in its browser.
pub(crate) async fn guard<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    request: Request,
    next: Next,
) -> Response {
    if !app.is_authorized(request.headers()) {
        let mut response =
            json_response(StatusCode::UNAUTHORIZED, &json!({ "error": "a bearer token is needed" }));
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        return response;
    }
    if app.http.token.is_none() && is_from_a_page(request.headers()) {
        return json_response(
            StatusCode::FORBIDDEN,
            &json!({ "error": "requests of web pages need a token" }),
        );
    }
    next.run(request).await
}

/// Security rule 16: a page of another origin must not use a service that trusts this machine, neither directly nor by
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
    other_site || other_origin || (!is_local && site.is_some())
}

async fn status<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    let store = app.inbox.store();
    answer(async {
        Ok(view::status(&store.handlers().await?, &store.outbox().await?, &store.counts().await?))
    })
    .await
}

async fn handlers<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    answer(async { Ok(list("handlers", app.inbox.store().handlers().await?.iter().map(view::handler))) })
        .await
}

async fn outbox<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    answer(async { Ok(list("outbox", app.inbox.store().outbox().await?.iter().map(view::outbox))) }).await
}

async fn conflicts<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    answer(async {
        Ok(list("conflicts", app.inbox.store().conflicts(MOST).await?.iter().map(view::conflict)))
    })
    .await
}

async fn sources<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    let sources = app.sources.iter().map(|(name, source)| {
        json!({ "source": name, "type": "http", "scope": source.config.scope, "signed": source.config.verify.is_some() })
    });
    let doing = app.inbox.sources();
    let brokers = app.brokers.iter().map(|(name, word)| {
        let status = doing.iter().find(|status| status.name == *name);
        json!({
            "source": name,
            "type": word,
            "connected": status.is_some_and(|status| status.connected),
            "error": status.and_then(|status| status.error.clone()),
            "lag": status.and_then(|status| status.lag),
            "delivered": status.map_or(0, |status| status.delivered),
        })
    });
    json_response(StatusCode::OK, &list("sources", sources.chain(brokers)))
}

async fn sinks<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    let sinks = app.sinks.iter().map(|(name, word)| json!({ "sink": name, "type": word }));
    json_response(StatusCode::OK, &list("sinks", sinks))
}

async fn deliveries<St: ServiceStore>(State(app): State<Arc<App<St>>>, uri: Uri) -> Response {
    let filter = match filter(uri.query().unwrap_or_default()) {
        Ok(filter) => filter,
        Err(wrong) => return json_response(StatusCode::BAD_REQUEST, &json!({ "error": wrong })),
    };
    let limit = filter.limit.unwrap_or(MOST);
    answer(async {
        let found = app.inbox.store().deliveries(&filter).await?;
        let next = found.last().filter(|_| found.len() == limit).map(|last| last.id.0);
        let mut page = list("deliveries", found.iter().map(view::delivery));
        page["next"] = json!(next);
        Ok(page)
    })
    .await
}

const PARAMETERS: &[&str] =
    &["handler", "state", "scope", "id", "kind", "key", "error", "since", "after", "limit"];

/// Reads the question's parameters; one that is unknown is an error, so that a typing mistake finds not everything.
fn filter(query: &str) -> Result<DeliveryFilter, String> {
    let mut filter = DeliveryFilter::all().limit(100);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let text = value.into_owned();
        match name.as_ref() {
            "handler" => filter.handler = Some(text),
            "state" => filter.state = Some(state(&text)?),
            "scope" => filter.scope = Some(text),
            "id" => filter.message_id = Some(text),
            "kind" => filter.kind = Some(text),
            "key" => filter.key = Some(text),
            "error" => filter.error = Some(text),
            "since" => {
                filter.since = Some(
                    text.parse().map_err(|_| format!("`since` is `{text}`; write 2026-05-01T00:00:00Z"))?,
                );
            }
            "after" => {
                let number =
                    text.parse().map_err(|_| format!("`after` is `{text}`; give what `next` said"))?;
                filter.after = Some(DeliveryId(number));
            }
            "limit" => {
                let limit = text.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                filter.limit =
                    Some(limit.ok_or_else(|| format!("`limit` is `{text}`; it goes from 1 to {MOST}"))?);
            }
            other => {
                return Err(format!(
                    "unknown parameter `{other}`{}",
                    suggestion(other, PARAMETERS.iter().copied())
                ));
            }
        }
    }
    Ok(filter)
}

fn state(text: &str) -> Result<DeliveryState, String> {
    use DeliveryState::{Dead, Discarded, Held, Retrying, Scheduled, Waiting};
    let all = [Waiting, Retrying, Held, Scheduled, Dead, Discarded];
    let words = all.iter().map(|state| state.as_str());
    let found = all.iter().find(|state| state.as_str() == text).copied();
    found.ok_or_else(|| format!("unknown state `{text}`{}", suggestion(text, words.clone())))
}

fn list(name: &str, items: impl Iterator<Item = Value>) -> Value {
    json!({ name: items.collect::<Vec<_>>() })
}

async fn answer(reading: impl Future<Output = Result<Value, Error>>) -> Response {
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(Ok(value)) => json_response(StatusCode::OK, &value),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the store could not be read");
            json_response(
                StatusCode::SERVICE_UNAVAILABLE,
                &json!({ "error": "the store cannot be read now" }),
            )
        }
        Err(_) => {
            json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "the store takes too long" }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read_and_mistakes_are_named() {
        let query = "handler=h&state=dead&scope=s&id=a%2Fb&kind=k&key=x&error=no+such&since=2026-05-01T00:00:00Z&after=7&limit=5";
        let filter = filter(query).unwrap();
        assert_eq!((filter.message_id.as_deref(), filter.error.as_deref()), (Some("a/b"), Some("no such")));
        assert_eq!(
            (filter.after, filter.limit, filter.state),
            (Some(DeliveryId(7)), Some(5), Some(DeliveryState::Dead))
        );
        assert!(
            filter.handler.is_some()
                && filter.scope.is_some()
                && filter.kind.is_some()
                && filter.key.is_some()
                && filter.since.is_some()
        );
        for (query, word) in [
            ("stat=dead", "did you mean `state`?"),
            ("state=ded", "did you mean `dead`?"),
            ("limit=0", "from 1 to 1000"),
            ("limit=1001", "from 1 to 1000"),
            ("since=yesterday", "2026-05-01T00:00:00Z"),
            ("after=x", "what `next` said"),
        ] {
            let wrong = super::filter(query).unwrap_err();
            assert!(wrong.contains(word), "{query}: {wrong}");
        }
    }

    /// Security rule 16.
    #[test]
    fn rule_16_requests_of_web_pages_are_told_apart() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            HeaderMap::from_iter(pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
            }))
        };
        for program in [
            &[("host", "127.0.0.1:8420")][..],
            &[("host", "localhost")],
            &[("host", "oncebox.internal:8420")],
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
            &[("host", "evil.example:8420"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_from_a_page(&headers(page)), "{page:?}");
        }
    }
}
