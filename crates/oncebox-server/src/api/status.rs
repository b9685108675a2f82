//! `/api/v1/status`, `/outbox` and `/sinks`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use oncebox::admin::{OutgoingFilter, OutgoingState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Answered, ErrorBody, Problem, asked};
use super::ask::{Limit, Named, Place, Query, Text, to_the_end};
use super::audit::write_down;
use crate::access::Actor;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::view;

/// Which outgoing messages; every parameter that is there must match.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutboxQuery {
    /// For this sink; empty for the relay without a name.
    sink: Option<Text>,
    /// In this state.
    state: Option<OutgoingWord>,
    /// Only messages after this one: what `next` of the page before said.
    after: Option<Place>,
    /// The most messages; 100 unless set.
    limit: Option<Limit>,
}

/// Where an outgoing message stands.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OutgoingState)]
pub(crate) enum OutgoingWord {
    Waiting,
    Retrying,
    Dead,
}

/// What waits to be sent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Outboxes {
    /// Per sink what waits, retries and is dead; whatever the parameters say.
    outbox: Vec<view::Outbox>,
    /// The messages that match, oldest first: why they were not sent, and when they are tried next.
    messages: Vec<view::Outgoing>,
    /// Where to go on; null when this is the end.
    next: Option<i64>,
}

/// All sinks of this process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sinks {
    sinks: Vec<SinkView>,
}

/// A sink.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sink)]
pub(crate) struct SinkView {
    sink: String,
    /// `http`, or the word for its broker.
    #[serde(rename = "type")]
    sort: &'static str,
}

/// How many outgoing messages are sent again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplayedOutbox {
    sink: String,
    /// How many.
    replayed: u64,
}

/// Everything on one screen: handlers, the outbox, counters.
#[utoipa::path(get, path = "/api/v1/status", tag = "status", responses((status = 200, body = view::Status)))]
pub(crate) async fn status<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<view::Status> {
    read(&app).await.map(Answer::ok)
}

pub(crate) async fn read<St: ServiceStore>(app: &App<St>) -> Result<view::Status, Problem> {
    let store = app.inbox.store();
    asked(async {
        Ok(view::status(&store.handlers().await?, &store.outbox().await?, &store.counts().await?))
    })
    .await
}

/// What waits to be sent, per sink and message by message, with the reason why it was not.
#[utoipa::path(
    get, path = "/api/v1/outbox", tag = "outbox", params(OutboxQuery),
    responses((status = 200, body = Outboxes)),
)]
pub(crate) async fn outbox<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Query(query): Query<OutboxQuery>,
) -> Answered<Outboxes> {
    let limit = Limit::of(query.limit);
    let mut filter = OutgoingFilter::default();
    filter.sink = query.sink.map(|text| text.0);
    filter.state = query.state.map(|word| match word {
        OutgoingWord::Waiting => OutgoingState::Waiting,
        OutgoingWord::Retrying => OutgoingState::Retrying,
        OutgoingWord::Dead => OutgoingState::Dead,
    });
    filter.after = query.after.map(|place| place.0);
    filter.limit = Some(limit);
    let store = app.inbox.store();
    let (outbox, found) =
        asked(async { Ok((store.outbox().await?, store.outgoing(&filter).await?)) }).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.seq);
    Ok(Answer::ok(Outboxes {
        outbox: outbox.iter().map(view::outbox).collect(),
        messages: found.iter().map(view::outgoing).collect(),
        next,
    }))
}

/// Sinks of this process.
#[utoipa::path(get, path = "/api/v1/sinks", tag = "outbox", responses((status = 200, body = Sinks)))]
pub(crate) async fn sinks<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Sinks> {
    let sinks = app.sinks.iter().map(|(name, word)| SinkView { sink: name.clone(), sort: word });
    Ok(Answer::ok(Sinks { sinks: sinks.collect() }))
}

/// Sends the outgoing messages that a sink refused for good once more.
#[utoipa::path(
    post, path = "/api/v1/outbox/{sink}/replay", tag = "outbox",
    params(("sink" = String, Path, description = "The sink's name.")),
    responses((status = 200, body = ReplayedOutbox), (status = 404, body = ErrorBody, description = "There is no such sink.")),
)]
pub(crate) async fn replay_outbox<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(sink): Named,
) -> Answered<ReplayedOutbox> {
    let configured = app.sinks.iter().any(|(name, _)| *name == sink);
    if !configured && !asked(app.inbox.store().outbox()).await?.iter().any(|one| one.sink == sink) {
        return Err(Problem::NotFound(format!("there is no sink `{}`", sink.escape_debug())));
    }
    to_the_end(async move {
        write_down(&app, &actor, "replay", &sink, serde_json::json!({ "sink": sink })).await?;
        let replayed = asked(app.inbox.store().replay_outgoing(&sink)).await?;
        app.events.nudge();
        Ok(Answer::ok(ReplayedOutbox { sink, replayed }))
    })
    .await
}
