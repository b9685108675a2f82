//! `/api/v1/replays`: letting many dead letters run again, at a rate.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncebox::admin::ReplayId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Answered, ErrorBody, Problem, asked};
use super::ask::{Body, Limit, Named, Query, to_the_end, whole};
use super::audit::write_down;
use super::deliveries::{COUNTED, LetterFilter, described};
use crate::access::Actor;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// The most letters in a second that can be asked for.
const FASTEST: u32 = 1_000_000;

/// A replay to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewReplay {
    /// Which dead letters.
    #[serde(default)]
    filter: LetterFilter,
    /// Every dead letter there is; then `filter` must be left out.
    #[serde(default)]
    all: bool,
    /// The most letters in a second; as fast as it goes unless set.
    #[schema(minimum = 1, maximum = 1000000)]
    rate: Option<u32>,
    /// Only count them.
    #[serde(default)]
    dry_run: bool,
}

/// What a replay would touch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Preview {
    /// Letters that match now, counted up to 100,000.
    matched: u64,
    /// False when there may be more.
    matched_is_exact: bool,
}

/// Which replays.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReplayQuery {
    /// Only those that are still running.
    running: Option<bool>,
    /// The most replays; 100 unless set.
    limit: Option<Limit>,
}

/// Replays, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Replays {
    replays: Vec<view::Replay>,
}

/// Replays, newest first.
#[utoipa::path(get, path = "/api/v1/replays", tag = "replays", params(ReplayQuery), responses((status = 200, body = Replays)))]
pub(crate) async fn replays<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<ReplayQuery>,
) -> Answered<Replays> {
    let found = app.inbox.store().replays(query.running.unwrap_or(false), Limit::of(query.limit));
    let found = asked(found).await?;
    Ok(Answer::ok(Replays { replays: found.iter().map(view::replay).collect() }))
}

/// Starts a replay of dead letters, or says how many it would touch.
#[utoipa::path(
    post, path = "/api/v1/replays", tag = "replays", request_body = NewReplay,
    responses(
        (status = 200, body = Preview, description = "It was a dry run."),
        (status = 201, body = view::Replay, description = "It has started; `GET /api/v1/replays/{id}` says how far it is."),
    ),
)]
pub(crate) async fn start_replay<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Body(wanted): Body<NewReplay>,
) -> Result<Response, Problem> {
    if wanted.rate.is_some_and(|rate| !(1..=FASTEST).contains(&rate)) {
        return Err(Problem::Bad(format!("`rate` goes from 1 to {FASTEST} letters in a second")));
    }
    let filter = wanted.filter.into_filter(wanted.all)?;
    if wanted.dry_run {
        let matched = asked(app.inbox.store().count_deliveries(&filter, COUNTED)).await?;
        return Ok(Answer::ok(Preview { matched, matched_is_exact: matched < COUNTED }).into_response());
    }
    let started = to_the_end(async move {
        let details = serde_json::json!({ "rate": wanted.rate });
        write_down(&app, &actor, "replay", &described(&filter), details).await?;
        let replay = oncebox::admin::Replay { filter, rate: wanted.rate, actor: actor.name };
        let started = asked(app.inbox.store().start_replay(&replay)).await?;
        app.replaying.notify_one();
        app.events.nudge();
        Ok(started)
    });
    Ok(Answer::created(view::replay(&started.await?)).into_response())
}

/// A replay and how far it is.
#[utoipa::path(
    get, path = "/api/v1/replays/{id}", tag = "replays",
    params(("id" = i64, Path, description = "The replay's number.", minimum = 0, maximum = 9007199254740991_i64)),
    responses((status = 200, body = view::Replay), (status = 404, body = ErrorBody, description = "There is no such replay.")),
)]
pub(crate) async fn replay<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Named(id): Named,
) -> Answered<view::Replay> {
    let found = asked(app.inbox.store().replay_info(number(&id)?)).await?;
    found.map(|found| Answer::ok(view::replay(&found))).ok_or_else(|| unknown(&id))
}

/// Stops a running replay. What was replayed stays replayed; one that has ended stays as it is.
#[utoipa::path(
    post, path = "/api/v1/replays/{id}/cancel", tag = "replays",
    params(("id" = i64, Path, description = "The replay's number.", minimum = 0, maximum = 9007199254740991_i64)),
    responses((status = 200, body = view::Replay), (status = 404, body = ErrorBody, description = "There is no such replay.")),
)]
pub(crate) async fn cancel_replay<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(id): Named,
) -> Answered<view::Replay> {
    let replay = number(&id)?;
    asked(app.inbox.store().replay_info(replay)).await?.ok_or_else(|| unknown(&id))?;
    to_the_end(async move {
        write_down(&app, &actor, "cancel-replay", &id, serde_json::json!({})).await?;
        let cancelled = asked(app.inbox.store().cancel_replay(replay)).await?;
        app.events.nudge();
        cancelled.map(|found| Answer(StatusCode::OK, view::replay(&found))).ok_or_else(|| unknown(&id))
    })
    .await
}

fn number(text: &str) -> Result<ReplayId, Problem> {
    let wrong = || Problem::Bad(format!("`{}` is no number of a replay", text.escape_debug()));
    whole(text).map(ReplayId).ok_or_else(wrong)
}

fn unknown(id: &str) -> Problem {
    Problem::NotFound(format!("there is no replay {id}"))
}
