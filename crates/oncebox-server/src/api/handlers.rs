//! `/api/v1/handlers`

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
use crate::view;

/// All handlers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Handlers {
    handlers: Vec<view::Handler>,
}

/// A handler that was paused or resumed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PausedHandler {
    handler: String,
    paused: bool,
}

/// Handlers as the store knows them, and what waits for each.
#[utoipa::path(get, path = "/api/v1/handlers", tag = "handlers", responses((status = 200, body = Handlers)))]
pub(crate) async fn handlers<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Handlers> {
    let handlers = asked(app.inbox.store().handlers()).await?;
    Ok(Answer::ok(Handlers { handlers: handlers.iter().map(view::handler).collect() }))
}

/// Lets a handler take nothing more, in every process.
#[utoipa::path(
    post, path = "/api/v1/handlers/{name}/pause", tag = "handlers",
    params(("name" = String, Path, description = "The handler's name.")),
    responses((status = 200, body = PausedHandler), (status = 404, body = ErrorBody, description = "There is no such handler.")),
)]
pub(crate) async fn pause_handler<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Answered<PausedHandler> {
    set_paused(app, actor, name, true).await
}

/// Lets a paused handler go on.
#[utoipa::path(
    post, path = "/api/v1/handlers/{name}/resume", tag = "handlers",
    params(("name" = String, Path, description = "The handler's name.")),
    responses((status = 200, body = PausedHandler), (status = 404, body = ErrorBody, description = "There is no such handler.")),
)]
pub(crate) async fn resume_handler<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Answered<PausedHandler> {
    set_paused(app, actor, name, false).await
}

async fn set_paused<St: ServiceStore>(
    app: Arc<App<St>>,
    actor: Actor,
    name: String,
    paused: bool,
) -> Answered<PausedHandler> {
    let known = asked(app.inbox.store().handlers()).await?;
    if !known.iter().any(|handler| handler.name == name) {
        return Err(unknown(&name));
    }
    to_the_end(async move {
        let action = if paused { "pause" } else { "resume" };
        write_down(&app, &actor, action, &name, serde_json::json!({ "handler": name })).await?;
        if !asked(app.inbox.store().set_paused(&name, paused)).await? {
            return Err(unknown(&name));
        }
        app.events.nudge();
        Ok(Answer::ok(PausedHandler { handler: name, paused }))
    })
    .await
}

fn unknown(name: &str) -> Problem {
    Problem::NotFound(format!("the store knows no handler `{}`", name.escape_debug()))
}
