//! Which address does what.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use oncebox::admin::HandlerStatus;
use serde_json::{Value, json};

use crate::api;
use crate::ingest::{self, json_response};
use crate::metrics::Sample;
use crate::service::App;
use crate::stores::ServiceStore;

pub(crate) fn router<St: ServiceStore>(app: Arc<App<St>>) -> Router {
    Router::new()
        .route("/in/{source}", post(ingest::post::<St>))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready::<St>))
        .route("/metrics", get(metrics::<St>))
        .merge(api::router::<St>().layer(from_fn_with_state(app.clone(), api::guard::<St>)))
        .fallback(nothing)
        .layer(from_fn(with_safe_headers))
        .with_state(app)
}

/// The process runs and answers.
async fn live() -> Response {
    json_response(StatusCode::OK, &json!({ "live": true }))
}

/// The store answers and nothing has waited too long.
async fn ready<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
    let problem = match tokio::time::timeout(app.health.timeout, app.inbox.store().handlers()).await {
        Err(_) => Some("the store takes too long to answer".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready: the store cannot be used");
            Some("the store cannot be used".to_owned())
        }
        Ok(Ok(handlers)) => late(&app, &handlers),
    };
    match problem {
        None => json_response(StatusCode::OK, &json!({ "ready": true })),
        Some(problem) => {
            json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "ready": false, "problem": problem }))
        }
    }
}

fn late<St: ServiceStore>(app: &App<St>, handlers: &[HandlerStatus]) -> Option<String> {
    let most = app.health.max_lag;
    if most.is_zero() {
        return None;
    }
    // A paused handler is behind on purpose.
    let late = handlers
        .iter()
        .filter(|handler| !handler.paused)
        .find(|handler| handler.lag.is_some_and(|lag| lag > most))?;
    Some(format!("the oldest message of handler `{}` has waited longer than {most:?}", late.name))
}

async fn metrics<St: ServiceStore>(State(app): State<Arc<App<St>>>, headers: HeaderMap) -> Response {
    if !app.is_authorized(&headers) {
        return json_response(StatusCode::UNAUTHORIZED, &json!({ "error": "a bearer token is needed" }));
    }
    let store = app.inbox.store();
    let read = async { (store.handlers().await, store.outbox().await) };
    let (handlers, outbox) = match tokio::time::timeout(app.health.timeout, read).await {
        Ok((Ok(handlers), Ok(outbox))) => (Some(handlers), outbox),
        _ => (None, Vec::new()),
    };
    let text = app.metrics.render(&Sample {
        counters: app.inbox.counters(),
        handlers: handlers.as_deref().unwrap_or_default(),
        outbox: &outbox,
        sources: &app.inbox.sources(),
        sinks: app.sinks.iter().map(|(name, _)| name.as_str()).collect(),
        in_flight: app.in_flight.used(),
        connections: app.connections.load(Ordering::Relaxed),
        store_up: handlers.is_some(),
    });
    let mut response = Response::new(Body::from(text));
    let sort = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, sort);
    response
}

async fn nothing() -> Response {
    let places: Value = json!([
        "POST /in/{source}",
        "GET /health/live",
        "GET /health/ready",
        "GET /metrics",
        "GET /api/v1/status"
    ]);
    json_response(StatusCode::NOT_FOUND, &json!({ "error": "there is nothing here", "places": places }))
}

/// Security rules 17 and 18: nothing here is ever a page, and no other page may read it.
async fn with_safe_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("cache-control", "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
