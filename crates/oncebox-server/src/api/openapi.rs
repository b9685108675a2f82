//! The description of everything that the service answers, as OpenAPI 3.1. `openapi.json` is a copy of it; a test compares.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use oncebox::SqliteStore;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi as _};

use super::answer::ErrorBody;
use super::ask::{Limit, Place, Text, Time};
use super::{
    BASE, Endpoint, audit, deliveries, endpoints, events, findings, handlers, messages, replays, sources,
    status, tokens,
};
use crate::{ingest, routes};

/// The name of the one way to prove who one is.
const SCHEME: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Oncebox",
        description = "Hands messages in, tells what became of them, and lets an operator pause, replay and discard. \
            While there is no token at all, programs of the same machine need none; from the first one on, everything \
            but /health needs one. What a token allows is its role: the word under `security`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    paths(
        ingest::post, routes::live, routes::ready, routes::metrics,
        openapi, status::status, findings::findings, handlers::handlers, handlers::pause_handler, handlers::resume_handler,
        sources::sources, sources::pause_source, sources::resume_source,
        status::sinks, status::outbox, status::replay_outbox,
        messages::messages, messages::message, messages::conflicts, messages::duplicates,
        deliveries::deliveries, deliveries::discard,
        replays::replays, replays::start_replay, replays::replay, replays::cancel_replay,
        audit::audit, events::events, tokens::tokens, tokens::create_token, tokens::revoke_token,
    ),
    components(schemas(ErrorBody, Text, Time, Limit, Place, deliveries::StateWord, status::OutgoingWord)),
    modifiers(&Scheme),
)]
struct Described;

struct Scheme;

impl Modify for Scheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Made with `oncebox token create`, `POST /api/v1/tokens`, or `[http] token`."))
            .build();
        document.components.get_or_insert_default().add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    }
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let text = document().to_pretty_json();
    text.unwrap_or_else(|error| panic!("the description is JSON: {error}")) + "\n"
});

/// This description.
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "status",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)),
)]
pub(crate) async fn openapi() -> Response {
    let sort = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (sort, DOCUMENT.as_str()).into_response()
}

/// What is written beside each function, and what all of them share: roles, and the answers that any of them can give.
fn document() -> OpenApi {
    let mut document = Described::openapi();
    for Endpoint { method, path, role, .. } in endpoints::<SqliteStore>() {
        let operation = find(&mut document, &format!("{BASE}{path}"), method.as_str())
            .unwrap_or_else(|| panic!("{method} {path} is not described"));
        operation.security = Some(vec![SecurityRequirement::new(SCHEME, [role.as_str()])]);
        share_answers(operation);
    }
    let metrics = find(&mut document, "/metrics", "GET").expect("it is described");
    metrics.security = Some(vec![SecurityRequirement::new(SCHEME, ["read"])]);
    for (status, text) in GUARDED {
        add(metrics, status, text);
    }
    document
}

const GUARDED: [(&str, &str); 3] = [
    ("401", "A token is needed, and there is none, or one that is unknown, revoked or has expired."),
    ("403", "The token is for something else, or a web page asks while there is no token at all."),
    ("429", "Too many wrong tokens came from this address; see `retry-after`."),
];

fn share_answers(operation: &mut Operation) {
    for (status, text) in GUARDED {
        add(operation, status, text);
    }
    add(operation, "503", "The store does not answer; ask again.");
    if operation.parameters.is_some() || operation.request_body.is_some() {
        add(operation, "400", "The question cannot be understood; nothing was changed.");
    }
    if operation.request_body.is_some() {
        add(operation, "408", "The body came too slowly.");
        add(operation, "413", "The body is too large.");
        add(operation, "415", "The body is not JSON.");
    }
}

fn add(operation: &mut Operation, status: &str, text: &str) {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    let response = ResponseBuilder::new().description(text).content("application/json", content).build();
    operation.responses.responses.entry(status.to_owned()).or_insert_with(|| response.into());
}

fn find<'a>(document: &'a mut OpenApi, path: &str, method: &str) -> Option<&'a mut Operation> {
    let item = document.paths.paths.get_mut(path)?;
    match method {
        "GET" => item.get.as_mut(),
        "POST" => item.post.as_mut(),
        "DELETE" => item.delete.as_mut(),
        _ => None,
    }
}

/// Every operation of the description: its method and its path.
#[cfg(test)]
fn operations(document: &OpenApi) -> std::collections::BTreeSet<(String, String)> {
    let mut all = std::collections::BTreeSet::new();
    for (path, item) in &document.paths.paths {
        for (operation, method) in [(&item.get, "GET"), (&item.post, "POST"), (&item.delete, "DELETE")] {
            all.extend(operation.as_ref().map(|_| (method.to_owned(), path.clone())));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_served_is_described_and_nothing_else() {
        let mut served: std::collections::BTreeSet<(String, String)> = endpoints::<SqliteStore>()
            .iter()
            .map(|endpoint| (endpoint.method.to_string(), format!("{BASE}{}", endpoint.path)))
            .collect();
        for (method, path) in
            [("POST", "/in/{source}"), ("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/metrics")]
        {
            served.insert((method.to_owned(), path.to_owned()));
        }
        assert_eq!(operations(&document()), served);
    }

    #[test]
    fn the_copy_in_the_repository_is_up_to_date() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        if std::env::var_os("ONCEBOX_RENEW").is_some() {
            std::fs::write(&file, &*DOCUMENT).unwrap();
        }
        let copy = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            copy == *DOCUMENT,
            "crates/oncebox-server/openapi.json is not what the code says; renew it with \
             `ONCEBOX_RENEW=1 cargo test -p oncebox-server the_copy_in_the_repository`"
        );
    }

    #[test]
    fn every_operation_says_what_it_does_and_who_may() {
        let document = document();
        for (path, item) in &document.paths.paths {
            for operation in [&item.get, &item.post, &item.delete].into_iter().flatten() {
                assert!(operation.summary.is_some(), "{path} has no words");
                let open = path.starts_with("/health/");
                assert_eq!(operation.security.is_none(), open, "{path}");
            }
        }
    }
}
