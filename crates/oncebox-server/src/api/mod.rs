//! `/api/v1`: what the service knows and does, for programs. One file per resource; [`endpoints`] is the list of all.

#![allow(unused_qualifications, reason = "the description's macros write them")]

pub(crate) mod answer;
mod ask;
mod audit;
pub(crate) mod deliveries;
pub(crate) mod events;
mod findings;
pub(crate) mod guard;
mod handlers;
mod messages;
pub(crate) mod openapi;
mod replays;
mod sources;
mod status;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use oncebox::admin::Role;

use crate::service::App;
use crate::stores::ServiceStore;
use answer::Problem;

/// Where the API is.
pub(crate) const BASE: &str = "/api/v1";

/// One thing that the API does.
pub(crate) struct Endpoint<St: ServiceStore> {
    pub(crate) method: Method,
    /// After [`BASE`].
    pub(crate) path: &'static str,
    /// The least role that may.
    pub(crate) role: Role,
    route: MethodRouter<Arc<App<St>>>,
}

/// Everything that the API does: the router and the description are both made from this list.
pub(crate) fn endpoints<St: ServiceStore>() -> Vec<Endpoint<St>> {
    let read = |path, route| Endpoint { method: Method::GET, path, role: Role::Read, route };
    let operate = |path, route| Endpoint { method: Method::POST, path, role: Role::Operate, route };
    let admin = |method, path, route| Endpoint { method, path, role: Role::Admin, route };
    vec![
        read("/openapi.json", get(openapi::openapi)),
        read("/status", get(status::status::<St>)),
        read("/findings", get(findings::findings::<St>)),
        read("/handlers", get(handlers::handlers::<St>)),
        operate("/handlers/{name}/pause", post(handlers::pause_handler::<St>)),
        operate("/handlers/{name}/resume", post(handlers::resume_handler::<St>)),
        read("/sources", get(sources::sources::<St>)),
        operate("/sources/{name}/pause", post(sources::pause_source::<St>)),
        operate("/sources/{name}/resume", post(sources::resume_source::<St>)),
        read("/sinks", get(status::sinks::<St>)),
        read("/outbox", get(status::outbox::<St>)),
        operate("/outbox/{sink}/replay", post(status::replay_outbox::<St>)),
        read("/messages", get(messages::messages::<St>)),
        read("/messages/{scope}/{id}", get(messages::message::<St>)),
        read("/conflicts", get(messages::conflicts::<St>)),
        read("/duplicates", get(messages::duplicates::<St>)),
        read("/deliveries", get(deliveries::deliveries::<St>)),
        operate("/discards", post(deliveries::discard::<St>)),
        read("/replays", get(replays::replays::<St>)),
        operate("/replays", post(replays::start_replay::<St>)),
        read("/replays/{id}", get(replays::replay::<St>)),
        operate("/replays/{id}/cancel", post(replays::cancel_replay::<St>)),
        read("/audit", get(audit::audit::<St>)),
        read("/events", get(events::events::<St>)),
        admin(Method::GET, "/tokens", get(tokens::tokens::<St>)),
        admin(Method::POST, "/tokens", post(tokens::create_token::<St>)),
        admin(Method::DELETE, "/tokens/{name}", delete(tokens::revoke_token::<St>)),
    ]
}

/// The API itself, to be put at [`BASE`]. Who has no token is told nothing, not even what there is.
pub(crate) fn router<St: ServiceStore>(app: &Arc<App<St>>) -> Router<Arc<App<St>>> {
    let mut router = Router::new();
    for Endpoint { path, role, route, .. } in endpoints::<St>() {
        router = router.route(path, route.route_layer(from_fn_with_state(role, guard::allow)));
    }
    router
        .fallback(async || {
            Problem::NotFound("there is nothing here; see GET /api/v1/openapi.json".to_owned())
        })
        .layer(map_response(with_words))
        .layer(from_fn_with_state(app.clone(), guard::authenticate::<St>))
}

/// The answer to a method that a place does not take has no body by itself.
async fn with_words(response: Response) -> Response {
    if response.status() != axum::http::StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let mut told = Problem::NoSuchMethod.into_response();
    told.headers_mut().extend(
        response
            .headers()
            .get(axum::http::header::ALLOW)
            .map(|allow| (axum::http::header::ALLOW, allow.clone())),
    );
    told
}
