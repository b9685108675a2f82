//! Which address does what.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use oncebox::admin::{HandlerStatus, Role};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::answer::Answer;
use crate::api::{self, guard};
use crate::ingest::{self, json_response};
use crate::metrics::Sample;
use crate::service::App;
use crate::stores::ServiceStore;

pub(crate) fn router<St: ServiceStore>(app: Arc<App<St>>) -> Router {
    let metrics = get(metrics::<St>)
        .route_layer(from_fn_with_state(Role::Read, guard::allow))
        .route_layer(from_fn_with_state(app.clone(), guard::authenticate::<St>));
    Router::new()
        .route("/in/{source}", post(ingest::post::<St>))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready::<St>))
        .route("/metrics", metrics)
        .nest(api::BASE, api::router::<St>(&app))
        .fallback(nothing)
        .layer(from_fn(with_safe_headers))
        .with_state(app)
}

/// The process runs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Live {
    live: bool,
}

/// Whether it can do its work.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    ready: bool,
    /// What is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    problem: Option<String>,
}

/// The process runs and answers.
#[utoipa::path(get, path = "/health/live", tag = "health", responses((status = 200, body = Live)))]
pub(crate) async fn live() -> Answer<Live> {
    Answer::ok(Live { live: true })
}

/// The store answers and nothing has waited too long. Found out at most once a second.
#[utoipa::path(
    get, path = "/health/ready", tag = "health",
    responses((status = 200, body = Ready), (status = 503, body = Ready, description = "It is not ready.")),
)]
pub(crate) async fn ready<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answer<Ready> {
    // One look a second, however many ask: nobody needs a token to ask.
    let problem = app.readiness.get(not_ready(&app)).await;
    let status = if problem.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Answer(status, Ready { ready: problem.is_none(), problem })
}

async fn not_ready<St: ServiceStore>(app: &App<St>) -> Option<String> {
    match tokio::time::timeout(app.health.timeout, app.inbox.store().handlers()).await {
        Err(_) => Some("the store takes too long to answer".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready: the store cannot be used");
            Some("the store cannot be used".to_owned())
        }
        Ok(Ok(handlers)) => late(app, &handlers),
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

/// Counters and gauges for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain; version=0.0.4")),
)]
pub(crate) async fn metrics<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Response {
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
        "GET /api/v1/openapi.json"
    ]);
    json_response(StatusCode::NOT_FOUND, &json!({ "error": "there is nothing here", "places": places }))
}

/// Nothing here is ever a page, and no other page may read it.
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
