//! `/api/v1/sources`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Answer, Answered, ErrorBody, Problem, asked};
use super::ask::{Named, to_the_end};
use super::audit::write_down;
use crate::access::Actor;
use crate::service::App;
use crate::stores::ServiceStore;

/// All sources of this process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sources {
    sources: Vec<Source>,
}

/// A source and how it is doing in this process.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Source {
    pub(crate) source: String,
    /// `http`, or the word for its broker.
    #[serde(rename = "type")]
    sort: &'static str,
    /// Whether nothing is taken from it now.
    pub(crate) paused: bool,
    /// The name space of its ids, for `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    scope: Option<String>,
    /// Whether requests must be signed, for `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    signed: Option<bool>,
    /// False from a failure on until the broker has answered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) connected: Option<bool>,
    /// The last failure, until the broker has answered again.
    pub(crate) error: Option<String>,
    /// How many messages wait at the broker, where it can tell.
    lag: Option<u64>,
    /// How many messages the broker has delivered to this process, duplicates counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delivered: Option<u64>,
}

/// A source that was paused or resumed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PausedSource {
    source: String,
    paused: bool,
}

/// Sources of this process, and how they are doing.
#[utoipa::path(get, path = "/api/v1/sources", tag = "sources", responses((status = 200, body = Sources)))]
pub(crate) async fn sources<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Sources> {
    Ok(Answer::ok(Sources { sources: all(&app) }))
}

/// Takes nothing more from a source, in every process. Posts to an http source get 503; a broker keeps its messages.
#[utoipa::path(
    post, path = "/api/v1/sources/{name}/pause", tag = "sources",
    params(("name" = String, Path, description = "The source's name.")),
    responses((status = 200, body = PausedSource), (status = 404, body = ErrorBody, description = "There is no such source.")),
)]
pub(crate) async fn pause_source<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Answered<PausedSource> {
    set_paused(app, actor, name, true).await
}

/// Lets a paused source go on.
#[utoipa::path(
    post, path = "/api/v1/sources/{name}/resume", tag = "sources",
    params(("name" = String, Path, description = "The source's name.")),
    responses((status = 200, body = PausedSource), (status = 404, body = ErrorBody, description = "There is no such source.")),
)]
pub(crate) async fn resume_source<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Answered<PausedSource> {
    set_paused(app, actor, name, false).await
}

async fn set_paused<St: ServiceStore>(
    app: Arc<App<St>>,
    actor: Actor,
    name: String,
    paused: bool,
) -> Answered<PausedSource> {
    let known = app.sources.contains_key(&name) || app.brokers.iter().any(|(broker, _)| *broker == name);
    if !known {
        return Err(Problem::NotFound(format!("there is no source `{}`", name.escape_debug())));
    }
    to_the_end(async move {
        let action = if paused { "pause" } else { "resume" };
        write_down(&app, &actor, action, &name, serde_json::json!({ "source": name })).await?;
        asked(app.inbox.store().set_source_paused(&name, paused)).await?;
        asked(app.pauses.renew(&app.inbox)).await?;
        app.events.nudge();
        Ok(Answer::ok(PausedSource { source: name, paused }))
    })
    .await
}

/// Http sources first, then those on brokers.
pub(crate) fn all<St: ServiceStore>(app: &App<St>) -> Vec<Source> {
    let http = app.sources.iter().map(|(name, source)| Source {
        source: name.clone(),
        sort: "http",
        paused: app.inbox.is_source_paused(name),
        scope: Some(source.config.scope.clone()),
        signed: Some(source.config.verify.is_some()),
        connected: None,
        error: None,
        lag: None,
        delivered: None,
    });
    let doing = app.inbox.sources();
    let brokers = app.brokers.iter().map(|(name, word)| {
        let status = doing.iter().find(|status| status.name == *name);
        Source {
            source: name.clone(),
            sort: word,
            paused: app.inbox.is_source_paused(name),
            scope: None,
            signed: None,
            connected: Some(status.is_some_and(|status| status.connected)),
            error: status.and_then(|status| status.error.clone()),
            lag: status.and_then(|status| status.lag),
            delivered: Some(status.map_or(0, |status| status.delivered)),
        }
    });
    http.chain(brokers).collect()
}
